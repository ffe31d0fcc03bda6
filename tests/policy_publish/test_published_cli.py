"""`dra-gate policy publish …` where a real API server would be slow to make trouble: on a small fake one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from cluster.conftest import kubeconfig
from cluster.fake_api import Answer, FakeApi, Request, status
from dra_gate.cli import gate_change
from dra_gate.cli.policy import command, published
from dra_gate.cluster.gate import (
    ACTIVATION,
    GATE_PATH,
    GATES_PATH,
    MAX_WITHDRAWALS,
    WITHDRAWALS,
    Activation,
    read_gate,
    with_active,
    with_withdrawn,
)
from dra_gate.cluster.policy_map import MAPS_PATH, name_of, read_policy_map
from policy_publish.sets import files, gate, made
from policy_publish.sets import published as config_map

A, B, C = (made(version) for version in (1, 2, 3))


class Cluster:
    """The fake API server and the command that talks to it."""

    def __init__(self, fake: FakeApi, tmp_path: Path) -> None:
        self.fake = fake
        self._config = kubeconfig(tmp_path / "config", fake.url)
        self.trouble: list[Any] = []  # called with a write before it is done; may answer it
        fake.fault = self._fault

    def _fault(self, request: Request) -> Answer | None:
        if request.path.endswith("/selfsubjectreviews"):
            return 201, {"status": {"userInfo": {"username": "ada"}}}, {}
        if request.path == GATE_PATH and request.method == "GET" and GATE_PATH not in self.fake.objects:
            return 404, {**status(404, "NotFound"), "details": {"name": "default"}}, {}
        if request.method in ("POST", "PUT") and self.trouble:
            answer: Answer | None = self.trouble.pop(0)()
            return answer
        return None

    def run(self, *words: str | Path) -> Result:
        return CliRunner().invoke(command, [*map(str, words), "--kubeconfig", str(self._config)])

    def publish(self, *versions: int) -> None:
        for version in versions:
            self.fake.put(MAPS_PATH, config_map(version))

    def gate(self, **fields: Any) -> None:
        self.fake.put(GATES_PATH, {**gate(fields.pop("active"), fields.pop("accepted", ()), generation=4), **fields})

    @property
    def active(self) -> str:
        found: str = self.fake.objects[GATE_PATH]["spec"]["active"]
        return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    fake = FakeApi()
    yield Cluster(fake, tmp_path)
    fake.stop()


def folder(path: Path, contents: dict[str, bytes]) -> Path:
    path.mkdir()
    for name, content in contents.items():
        (path / name).write_bytes(content)
    return path


# -- the Gate that is written -----------------------------------------------------------------------------------------


def stored(active: str, *accepted: dict[str, Any]) -> dict[str, Any]:
    return gate(active, accepted, generation=4, resourceVersion="9", managedFields=[{}], annotations={"mine": "x"}) | {
        "status": {"observedGeneration": 4}
    }


OLD, NEW, THIRD = "a" * 64, "b" * 64, "c" * 64
PINNED = {"digest": THIRD, "pinned": True}


@pytest.mark.parametrize(
    ("before", "pin", "accepted"),
    [
        (stored(OLD), False, [{"digest": OLD}]),
        (stored(OLD), True, [{"digest": OLD, "pinned": True}]),
        (stored(OLD, PINNED), False, [PINNED, {"digest": OLD}]),
        (stored(OLD, {"digest": NEW}), False, [{"digest": OLD}]),  # going back: it is active, no longer accepted
        (stored(OLD, {"digest": OLD, "pinned": True}), False, [{"digest": OLD, "pinned": True}]),
        (
            stored(OLD, PINNED, *({"digest": f"{n:064x}"} for n in range(7))),  # full: the oldest loose one goes
            False,
            [PINNED, *({"digest": f"{n:064x}"} for n in range(1, 7)), {"digest": OLD}],
        ),
    ],
)
def test_the_gate_that_is_written(before: dict[str, Any], pin: bool, accepted: list[dict[str, Any]]) -> None:
    before["spec"]["lane"] = {"override": "dra", "previous": "", "generation": 3}
    written = with_active(before, NEW, by="ada", note="why", pin_old=pin)
    assert written["spec"] == {"active": NEW, "accepted": accepted, "lane": before["spec"]["lane"]}
    assert written["metadata"]["resourceVersion"] == "9"
    assert "managedFields" not in written["metadata"]
    assert written["metadata"]["annotations"]["mine"] == "x"
    claimed = read_gate({**written, "status": before["status"]}).claimed
    assert claimed is not None
    assert (claimed.by, claimed.note) == ("ada", "why")
    assert json.loads(written["metadata"]["annotations"][ACTIVATION])["generation"] == 5


def test_no_place_for_the_old_set() -> None:
    full = stored(OLD, *({"digest": f"{n:064x}", "pinned": True} for n in range(8)))
    with pytest.raises(ValueError, match="8 accepted sets are pinned"):
        with_active(full, NEW)


# -- commands ---------------------------------------------------------------------------------------------------------

ODD = {
    "tabs.yaml": b"# a\tb\n",
    "spaces.yaml": b"# trailing   \n\n",
    "crlf.yaml": b"# one\r\n# two\r\n",
    "unicode.yaml": "# H200 → ä \U0001f600 \u0085\u2028\n".encode(),
    "no-newline.yaml": b"# end",
    "colon.yml": b"# : - 'x' \"y\" {{ }} |\n",
}


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_manifests_hold_the_files_byte_for_byte(tmp_path: Path, form: str) -> None:
    contents = files(1) | ODD
    done = CliRunner().invoke(command, ["publish", str(folder(tmp_path / "p", contents)), "--activate", "-o", form])
    assert done.exit_code == 0, done.output
    objects = list(yaml.safe_load_all(done.stdout)) if form == "yaml" else json.loads(done.stdout)["items"]
    assert {name: text.encode() for name, text in objects[0]["data"].items()} == contents
    assert read_policy_map(objects[0]) == A
    assert objects[1]["spec"] == {"active": A.digest}
    assert "annotations" not in objects[0]["metadata"]  # the same files make the same manifest, whoever makes it
    if form == "yaml":
        assert "  catalog.yaml: |" in done.stdout  # for who reviews it


@pytest.mark.parametrize("option", ["--wait", "--note=x"])
def test_manifests_carry_no_note(tmp_path: Path, option: str) -> None:
    done = CliRunner().invoke(command, ["publish", str(folder(tmp_path / "p", files(1))), option, "-o", "yaml"])
    assert done.exit_code == 2
    assert "the commit says why" in done.output


def test_publish_says_what_changes_and_who(cluster: Cluster, tmp_path: Path) -> None:
    cluster.publish(1)
    cluster.gate(active=A.digest)
    done = cluster.run("publish", folder(tmp_path / "p", files(2)), "--no-lint")
    assert done.exit_code == 0, done.output
    annotations = cluster.fake.objects[f"{MAPS_PATH}/{name_of(B.digest)}"]["metadata"]["annotations"]
    assert annotations["dra-gate.io/published-by"] == "ada"
    assert annotations["dra-gate.io/summary"] == "maple: train@1→train@2; policies +train@2 -train@1"
    assert cluster.active == A.digest
    assert f"it is not active: dra-gate policy activate {B.digest[:12]}" in done.stderr


def test_the_first_one(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run("publish", folder(tmp_path / "p", files(1)), "--activate", "--no-lint", "--note", "begin")
    assert done.exit_code == 0, done.output
    assert "first set: 1 tenant, 1 policy, 2 models" in done.stdout
    written = cluster.fake.objects[GATE_PATH]
    assert written["spec"] == {"active": A.digest}
    assert json.loads(written["metadata"]["annotations"][ACTIVATION])["note"] == "begin"


def test_somebody_else_is_faster(cluster: Cluster) -> None:
    cluster.publish(1, 2, 3)
    cluster.gate(active=A.digest)

    def other() -> None:
        cluster.gate(active=C.digest, accepted=[{"digest": A.digest}])

    cluster.trouble = [other]  # between our look and our write: the write is refused, and we look again
    done = cluster.run("activate", B.digest)
    assert done.exit_code == 0, done.output
    assert f"instead of {C.digest[:12]}" in done.stdout
    spec = cluster.fake.objects[GATE_PATH]["spec"]
    assert spec["active"] == B.digest
    assert [entry["digest"] for entry in spec["accepted"]] == [A.digest, C.digest]


def test_others_all_the_time(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_change, "_PATIENCE", 0.3)
    cluster.publish(1, 2)
    cluster.gate(active=A.digest)
    cluster.trouble = [lambda: (409, status(409, "Conflict"), {})] * 999
    done = cluster.run("activate", B.digest)
    assert done.exit_code == 2
    assert "try again" in done.output


def test_a_beginning_must_be_unique(cluster: Cluster) -> None:
    versions = {}
    number = 0
    while True:  # two sets whose digests begin alike, among 17 at most
        number += 1
        digest = made(number).digest
        if digest[0] in versions:
            break
        versions[digest[0]] = number
    cluster.publish(versions[digest[0]], number)
    cluster.gate(active=C.digest)
    done = cluster.run("activate", digest[0])
    assert done.exit_code == 2
    assert "is the beginning of" in done.output
    assert cluster.active == C.digest
    assert cluster.run("activate", f"policy-set-{digest[:8].upper()}").exit_code in (0, 2)
    assert cluster.run("activate", name_of(digest)).exit_code == 0
    assert cluster.active == digest


def test_rollback(cluster: Cluster) -> None:
    cluster.publish(1, 2, 3)
    assert "nothing was ever activated" in cluster.run("rollback").output
    entry = {"at": "2026-01-01T00:00:00Z"}
    cluster.gate(active=A.digest, status={"history": [{"digest": A.digest, **entry}]})
    assert "the history names one only" in cluster.run("rollback").output
    # What never took effect is not what to go back from: the newest in the history is what was there before.
    cluster.gate(active=C.digest, status={"history": [{"digest": B.digest, **entry}, {"digest": A.digest, **entry}]})
    assert cluster.run("rollback").exit_code == 0
    assert cluster.active == B.digest
    # Without a controller nobody keeps a history; the accepted set is what was replaced.
    cluster.gate(active=B.digest, accepted=[{"digest": C.digest}, {"digest": A.digest}])
    assert cluster.run("rollback").exit_code == 0
    assert cluster.active == A.digest
    cluster.fake.remove(f"{MAPS_PATH}/{name_of(B.digest)}")
    done = cluster.run("rollback")
    assert done.exit_code == 2
    assert "is not published" in done.output


def test_withdraw(cluster: Cluster) -> None:
    cluster.publish(1, 2, 3)
    assert "nothing was ever activated" in cluster.run("withdraw", A.digest).output
    accepted = [{"digest": A.digest, "pinned": True}, {"digest": "e" * 64}]
    history = [{"digest": B.digest, "at": "2026-01-03T00:00:00Z", "by": "ada"}]
    lane = {"override": "dra", "previous": "", "generation": 3}
    cluster.gate(active=B.digest, accepted=accepted)
    cluster.fake.objects[GATE_PATH]["spec"]["lane"] = lane
    cluster.fake.objects[GATE_PATH]["metadata"]["annotations"] = {"mine": "x", WITHDRAWALS: "{["}
    done = cluster.run("withdraw", A.digest[:10], "--note", "floor\x1b[31m")
    assert done.exit_code == 0, done.output
    assert f"{A.digest} is withdrawn" in done.stdout
    written = cluster.fake.objects[GATE_PATH]
    assert written["spec"] == {"active": B.digest, "accepted": [{"digest": "e" * 64}], "lane": lane}
    assert written["metadata"]["annotations"]["mine"] == "x"
    assert cluster.run("withdraw", name_of("e" * 64)).exit_code == 0, "accepted is enough: it may be published no more"
    assert cluster.fake.objects[GATE_PATH]["spec"]["accepted"] == []
    cluster.fake.objects[GATE_PATH]["status"] = {"history": history}
    rows = json.loads(cluster.run("history", "-o", "json").stdout)
    assert [(row["digest"], row["by"], row["note"]) for row in rows] == [
        ("e" * 64, "ada", ""),
        (A.digest, "ada", "floor [31m"),
        (B.digest, "ada", ""),
    ]
    assert rows[1]["change"] == "withdrawn: no longer accepted"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (B.digest, "is the active policy set, which new Pods get: activate another first"),
        (B.digest[:8], "is the active policy set, which new Pods get: activate another first"),
        (C.digest, "no accepted policy set begins with"),  # published only
        ("0123", "no accepted policy set begins with 0123: see dra-gate policy list"),
        ("", "no accepted policy set begins with"),
        ("ff", "ff is the beginning of ffff"),
    ],
)
def test_what_can_not_be_withdrawn(cluster: Cluster, wanted: str, said: str) -> None:
    cluster.publish(1, 2, 3)
    cluster.gate(active=B.digest, accepted=[{"digest": "f" * 64}, {"digest": "f" * 63 + "0"}])
    before = json.dumps(cluster.fake.objects[GATE_PATH])
    done = cluster.run("withdraw", wanted)
    assert done.exit_code == 2
    assert said in done.output
    assert json.dumps(cluster.fake.objects[GATE_PATH]) == before


def test_it_becomes_active_while_it_is_withdrawn(cluster: Cluster) -> None:
    cluster.publish(1, 2)
    cluster.gate(active=B.digest, accepted=[{"digest": A.digest}])
    cluster.trouble = [lambda: cluster.gate(active=A.digest, accepted=[{"digest": B.digest}])]
    done = cluster.run("withdraw", A.digest)
    assert done.exit_code == 2
    assert "activate another first" in done.output
    assert cluster.active == A.digest


def test_withdrawals_are_remembered_as_far_as_they_fit() -> None:
    obj: dict[str, Any] = stored(OLD)
    for number in range(MAX_WITHDRAWALS + 3):
        obj = with_withdrawn(obj, Activation(f"{number:064x}", "2026-01-01T00:00:00Z", "ada", "n"))
    found = read_gate(obj).withdrawals
    assert [entry.digest for entry in found] == [f"{number:064x}" for number in range(MAX_WITHDRAWALS + 2, 2, -1)]


def test_history_and_list(cluster: Cluster) -> None:
    cluster.publish(1, 2)
    bad = config_map(3)
    bad["data"] = {"x.yaml": "a: \x1b[2J"}
    cluster.fake.put(MAPS_PATH, bad)
    history = [
        {"digest": B.digest, "at": "2026-01-03T00:00:00Z", "by": "ada", "note": "red\x1b[31m"},
        {"digest": A.digest, "at": "2026-01-02T00:00:00Z"},
        {"digest": "f" * 64, "at": "2026-01-01T00:00:00Z", "by": "bob"},
    ]
    accepted = [{"digest": A.digest, "pinned": True}, {"digest": "e" * 64}]
    cluster.gate(active=B.digest, accepted=accepted, status={"history": history})
    done = cluster.run("history")
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["AT", "BY", "SET", "CHANGE", "NOTE"]
    assert "train@1→train@2" in lines[1]
    assert lines[2].split()[1] == "unknown"
    assert "no longer published" in lines[3]
    done = cluster.run("list")
    assert "\x1b" not in done.output
    states = {e["digest"]: e["state"] for e in json.loads(cluster.run("list", "-o", "json").stdout)}
    assert states == {
        A.digest: "accepted, pinned",
        B.digest: "active",
        C.digest: "published, refused",
        "e" * 64: "accepted, not published",
    }
    assert yaml.safe_load(cluster.run("history", "-o", "yaml").stdout)[0]["note"] == "red [31m"


def test_history_says_when_the_active_set_never_took_effect(cluster: Cluster) -> None:
    sets = [{"digest": C.digest, "state": "Unusable", "message": "Invalid: no DeviceCatalog"}]
    cluster.gate(active=C.digest, status={"history": [], "sets": sets})
    done = cluster.run("history")
    assert "no DeviceCatalog" in done.stderr
    assert "nothing was activated yet" in done.stdout


def test_without_the_custom_resource(cluster: Cluster) -> None:
    cluster.fake.fault = lambda r: (404, {"message": "404 page not found"}, {}) if r.path == GATE_PATH else None
    done = cluster.run("list")
    assert done.exit_code == 2
    assert "deploy/base/crds/gate.yaml" in done.output


def test_waiting_in_vain_says_for_what(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "WAIT_SECONDS", 0.5)
    cluster.publish(1, 2)
    cluster.gate(active=A.digest)
    done = cluster.run("activate", B.digest, "--wait")
    assert done.exit_code == 1
    assert "does dra-gate controller run?" in done.output
    sets = [{"digest": A.digest, "state": "Active", "templatesMissing": 3}]
    cluster.gate(active=A.digest, status={"observedGeneration": 4, "sets": sets})
    done = cluster.run("activate", A.digest, "--wait")
    assert done.exit_code == 1
    assert "3 templates are not in place" in done.output
    sets[0]["templatesMissing"] = 0
    cluster.gate(active=A.digest, status={"observedGeneration": 4, "sets": sets})
    assert cluster.run("activate", A.digest, "--wait").exit_code == 0
