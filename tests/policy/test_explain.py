"""`dra-gate policy explain`: what an auditor reads in the example policies, and that each form is safe to show."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from dra_gate.cli.policy import command
from dra_gate.policy.explain import explain
from dra_gate.policy.load import load, load_documents
from dra_gate.policy.report import WIDTH, Heading, Items, Paragraph, Table, as_html, as_markdown, as_text

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


def shown(form: str, folder: Path = ROOT / "policies") -> str:
    result = CliRunner().invoke(command, ["explain", str(folder), "-o", form], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def table(heading: str) -> dict[str, tuple[str, ...]]:
    """The first table below a heading, by the first cell of each row."""
    parts = explain(load(ROOT / "policies")).parts
    start = parts.index(Heading(2, heading))
    found = next(part for part in parts[start:] if isinstance(part, Table))
    return {row[0]: row[1:] for row in found.rows}


def test_who_may_get_an_h100() -> None:
    models = table("Who may get what")
    assert models["h100"][1] == "research (first choice); vision (first choice)"
    assert models["l40s"][1] == "serving (first choice)"
    assert list(models) == ["h200", "h100", "a100", "l40s"]


def test_what_can_never_happen() -> None:
    never = table("What can never happen")
    assert list(never) == ["research", "serving", "vision"]
    for sentence in (
        "Never a device with less than 50Gi (53.7 GB) of memory.",
        "Never a device whose driver is older than version 550.54.15.",
        "Never a device of an architecture other than Hopper or Ampere.",
        "Never more than 16 devices at once.",
        "Under training@8 only: Several devices for one program always sit on the same PCIe root",
    ):
        assert sentence in never["research"][0]
    assert "PCIe" not in never["vision"][0]
    parts = explain(load(ROOT / "policies")).parts
    said = " ".join(item for part in parts if isinstance(part, Items) for item in part.items)
    for promise in ("What belongs to no tenant is refused.", "It waits instead.", "the last one included"):
        assert promise in said


def test_a_tenant_in_order_with_limits_and_trial() -> None:
    text = re.sub(r"\s+", " ", shown("text"))
    assert list(table("Tenant research").values()) == [
        ("h100", "named NVIDIA H100…, 81559Mi (85.5 GB) of memory, architecture Hopper"),
        ("a100", "named NVIDIA A100…, architecture Ampere"),
        ("h200", "named NVIDIA H200…, 143771Mi (150.8 GB) of memory, architecture Hopper"),
    ]
    assert "At most 16 devices at once, all models together." in text
    assert "On trial in research-canary: policy training@8 is used there, and training@7 may still be named. " in text
    assert "may still be named. It adds: Several devices for one program always sit on the same PCIe root" in text
    assert "sameAttribute" not in text


SET = """
apiVersion: policy.dra-gate.io/v1alpha1
kind: DeviceCatalog
models:
- {name: big, deviceClassName: gpu.nvidia.com, products: ["NVIDIA <b>*"], memory: 80Gi}
- {name: small, deviceClassName: gpu.nvidia.com, products: ["NVIDIA S|`*"], memory: 16Gi}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: DevicePolicy
metadata: {name: train, version: 1}
spec:
  serves: [nvidia.com/gpu]
  candidates: [small, big]
  constraints: {memory: {min: 40Gi}, nodes: {pool: train}, cel: ["'<script>' != '\\u202e'\\n && true"]}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: DevicePolicy
metadata: {name: train, version: 2}
spec:
  serves: [nvidia.com/gpu]
  candidates: [big]
  onUnhealthy: recreate
  onRollback: keep
  companions:
  - {name: disk, deviceClassName: disk.example, driver: disk.example}
  - name: nic
    deviceClassName: fast.example
    driver: nic.example
    count: 2
    minimum: {bandwidth: 100G}
    sameAttribute: [resource.kubernetes.io/pcieRoot, gpu.nvidia.com/island]
    cel: ["'own' == 'own'"]
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: Tenant
metadata: {name: fern}
spec:
  namespaces: [fern-a, fern-b]
  policy: train@1
  keepVersions: [2]
  quota: {models: {big: 2}}
  weight: 3
  overQuota: wait
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: ClusterSettings
spec:
  visibleDevicesVoid: withoutClaim
  exemptUsers: ["system:serviceaccount:a:b"]
  deviceRuntimes: []
  workloads: [{group: kubeflow.org, resource: pytorchjobs, podTemplates: [spec.x]}]
  workloadVerdict: deny
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: PolicyException
metadata: {name: prof}
spec:
  rules: [privileged]
  namespaces: [fern-a]
  owner: {kind: DaemonSet, name: prof}
  reason: r
  ticket: t
  approver: a
  expires: "2027-01-31"
"""


def test_what_is_ruled_out_kept_or_unlimited_is_said() -> None:
    text = re.sub(r"\s+", " ", as_text(explain(load_documents({"p.yaml": SET.encode()}))))
    for sentence in (
        "fern (first choice, but going by the catalogue never given)",
        "(never given, going by the catalogue: the floor of 40Gi is above the 16Gi that small declares)",
        "There is no limit to how many devices it may hold at once.",
        "Of model big at most 2 at once.",
        "Never more than 2 of big at once.",
        "What would go above waits until there is room. What could never fit is refused at once.",
        "Kept: programs that name policy train@2 still get what it says. It adds: Every program also gets 1 device of "
        "class disk.example (disk); otherwise it waits.",
        "It does not say: Never a device with less than 40Gi",
        "Models: small → — (never given any more).",
        "Nothing else is given. When its device falls ill before the program starts, it stays, and its owner and the",
        "When its device falls ill before the program starts, it is stopped and whatever made it makes another",
        "When its namespace goes back to device plugins while it waits, it waits until the new way is open again.",
        "Never on a machine outside the pool that carries the mark pool=train.",
        "Every program also gets 2 devices of class fast.example (nic, at least 100G of bandwidth, meeting 1 condition "
        "of the policy's own, below); it and all devices of the program sit on the same PCIe root (the shortest way "
        "between them) and have the same gpu.nvidia.com/island; otherwise it waits.",
        "'own' == 'own'",
        "whatever its settings or its image say",
        "system:serviceaccount:a:b",
        "pytorchjobs (kubeflow.org)",
        "It is refused at once.",
    ):
        assert sentence in text, sentence


def turns(policy: str = "candidates: [small, big]", tenant: str = "weight: 3") -> str:
    """The page of SET with another policy train@1 and other words for the tenant, in one line."""
    text = SET.replace("candidates: [small, big]", policy).replace("quota: {models: {big: 2}}\n  weight: 3", tenant)
    return re.sub(r"\s+", " ", as_text(explain(load_documents({"p.yaml": text.encode()}))))


def test_when_a_later_choice_is_taken() -> None:
    head = "candidates: [small, big]\n  fallback: "
    assert "A later choice is taken as soon as no earlier one is to be had." in turns()
    assert "only when the program has waited 10 minutes for the first;" in turns(f"{head}after 10m")
    assert "only when the program has waited 1 hour for the first;" in turns(f"{head}after 60m")
    assert "A later choice is not taken, however long the program waits for the first;" in turns(f"{head}never")
    # Another version of the policy is told apart by it.
    kept = "Kept: programs that name policy train@2 still get what it says."
    assert "There is no second choice." in turns().partition(kept)[2]


def test_whose_turn_it_is() -> None:
    said = turns(
        tenant="weight: 3\n  lease: 90m\n  reserve: {big: 1, small: 2}\n  reserveAfter: 2h\n  maxWaiting: 40\n  "
        "kueue: exactly"
    )
    for sentence in (
        "its share of them is its weight, 3, against those of all who may have that model.",
        "Nobody gets one above their share while somebody below theirs waits.",
        "A program that got a device above its share runs for at most 90 minutes; then it is stopped.",
        "Of its share of model big, 1 device is kept for it and never lent.",
        "Of its share of model small, 2 devices are kept for it and never lent.",
        "What a program waits for that has waited 2 hours is kept for it when its turn comes",
        "At most 40 programs wait at once; more are refused.",
        "Programs that another queue (Kueue) manages get the first choice and no other.",
    ):
        assert sentence in said, sentence


def test_a_tenant_without_quota_and_weight_has_no_turns() -> None:
    assert "Whose turn it is" in turns()
    assert "Whose turn it is" not in turns(tenant="maxWaiting: 9")
    assert "its share of them is its weight, 1, against" in turns(tenant="quota: {models: {big: 2}}")
    # With devices counted in all its programs wait, but in no fair queue.
    said = turns(tenant="quota: {devices: 4}")
    assert "At most 1000 programs wait at once; more are refused." in said
    assert "when its turn comes" not in said


def test_where_kueue_decides() -> None:
    assert "Nowhere, except for programs that carry its mark." in turns()
    text = SET.replace("visibleDevicesVoid: withoutClaim", "kueueNamespaces: [fern-b]")
    page = re.sub(r"\s+", " ", as_text(explain(load_documents({"p.yaml": text.encode()}))))
    assert "Where does another queue (Kueue) say whose turn it is? fern-b" in page


def test_an_exception_says_what_does_not_hold_for_whom_until_when() -> None:
    parts = explain(load_documents({"p.yaml": SET.encode()})).parts
    (row,) = next(part for part in parts[parts.index(Heading(2, "Exceptions")) :] if isinstance(part, Table)).rows
    said = "rule privileged does not hold in fern-a for DaemonSet prof created by its controller, until 2027-01-31"
    assert row == ("prof", said, "r", "t", "a")


def test_how_many_devices_are_left_beside_companions() -> None:
    text = SET.replace("policy: train@1", "policy: train@2").replace("keepVersions: [2]", "keepVersions: [1]")
    said = re.sub(r"\s+", " ", as_text(explain(load_documents({"p.yaml": text.encode()}))))
    assert "At most 29 devices for one program; disk and nic beside them count as none." in said
    assert "beside them count" not in re.sub(r"\s+", " ", shown("text"))


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names.update(name for name, _ in attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("text", [SET, None], ids=["hostile", "example"])
def test_html_is_one_page_that_needs_nothing_else(text: str | None) -> None:
    policy_set = load(ROOT / "policies") if text is None else load_documents({"p.yaml": text.encode()})
    page = as_html(explain(policy_set))
    parsed = _Page()
    parsed.feed(page)
    assert parsed.open == []
    structure = {"html", "head", "meta", "title", "style", "body"}
    assert parsed.tags <= structure | {
        *("h1", "h2", "h3", "p", "ul", "li", "pre", "table", "thead", "tbody", "tr", "th", "td")
    }
    assert parsed.names <= {"lang", "charset", "name", "content", "data-name"}
    assert "url(" not in page
    assert "@import" not in page
    assert "\u202e" not in page


def test_markdown_escapes_names() -> None:
    said = as_markdown(explain(load_documents({"p.yaml": SET.encode()})))
    assert r"named NVIDIA \<b\>…" in said
    assert r"NVIDIA S\|\`…" in said
    assert "    '<script>' != '" in said
    for row in (line for line in said.splitlines() if line.startswith("| small")):
        assert len(re.findall(r"(?<!\\)\|", row)) == 4


def test_text_keeps_its_width() -> None:
    assert max(map(len, shown("text").splitlines())) <= WIDTH
    assert as_text(explain(load(ROOT / "policies"))) == shown("text")


def test_parts_of_the_example_are_all_in_each_form() -> None:
    parts = explain(load(ROOT / "policies")).parts
    plain = {form: re.sub(r"[\\\s]+", " ", shown(form)) for form in ("markdown", "html")}
    for part in parts:
        if isinstance(part, Paragraph):
            assert re.sub(r"\s+", " ", part.text) in plain["markdown"]
            assert part.text.replace("'", "&#x27;") in plain["html"]
