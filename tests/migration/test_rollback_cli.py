"""`dra-gate rollback` on a fake API server: what is written and said, and what stays as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cluster.conftest import kubeconfig
from cluster.fake_api import Answer, FakeApi, Request, status
from dra_gate.cli import gate_change, rollback
from dra_gate.cluster.gate import GATE_PATH, GATES_PATH, read_gate
from dra_gate.cluster.policy_map import MAPS_PATH
from dra_gate.migration.waves import stamp
from dra_gate.policy.switch import Switch
from policy_publish import sets
from policy_publish.sets import gate, made, published

PLUGIN, NOW = "device-plugin", 1_800_000_000
LEASES = "/apis/coordination.k8s.io/v1/namespaces/dra-gate/leases"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/maple-a/resourceclaims"
STAMP = {"tenant": "maple", "policy": "train", "policy-version": "1", "lane": "dra"}


class Cluster:
    """Tenant maple owns maple-a, in lane dra, and maple-b, which is not gated. A controller leads."""

    def __init__(self, fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake = fake
        self._config = kubeconfig(tmp_path / "config", fake.url)
        self.trouble: list[Callable[[], Answer | None]] = []  # each is called with a PUT of the Gate under way
        fake.fault = self._fault
        monkeypatch.setattr(rollback, "_now", lambda: NOW)
        # Else lane device-plugin could place nothing, and would refuse the next Pod.
        labels = "nodeLabels: {nvidia.com/gpu.product: [x]}"
        catalogue = sets.CATALOGUE.replace("architecture: Hopper", f"architecture: Hopper, {labels}")
        monkeypatch.setattr(sets, "CATALOGUE", catalogue)
        self.set = made(1, namespaces=("maple-a", "maple-b"))
        fake.put(MAPS_PATH, published(1, namespaces=("maple-a", "maple-b")))
        self.gate()
        for name, labels in (("maple-a", {"dra-gate.io/lane": "dra"}), ("maple-b", {}), ("other", {})):
            fake.put("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        self.leads(2)

    def gate(self, **lane: Any) -> None:
        stored = gate(self.set.digest, generation=4)
        self.fake.put(GATES_PATH, stored | {"spec": {**stored["spec"], "lane": lane}})

    def leads(self, seconds: int, holder: str = "gate-controller") -> None:
        spec = {"holderIdentity": holder, "renewTime": stamp(NOW - seconds).replace("Z", ".123456Z")}
        self.fake.put(LEASES, {"metadata": {"name": "dra-gate-controller"}, "spec": spec})

    def pod(self, name: str, spec: dict[str, Any] | None = None, owner: str = "", **stamps: str) -> None:
        marks = {f"dra-gate.io/{key}": value for key, value in {**STAMP, **stamps}.items()}
        kind, _, owned_by = owner.partition("/")
        owners = [{"kind": kind, "name": owned_by, "controller": True, "apiVersion": "batch/v1"}] if owner else []
        metadata = {"namespace": "maple-a", "name": name, "uid": f"u-{name}", "annotations": marks}
        self.fake.put(
            "/api/v1/namespaces/maple-a/pods",
            {"metadata": {**metadata, "ownerReferences": owners}, "spec": {"containers": [], **(spec or {})}},
        )

    def _fault(self, request: Request) -> Answer | None:
        if request.path.endswith("/selfsubjectreviews"):
            return 201, {"status": {"userInfo": {"username": "ada"}}}, {}
        if request.path == GATE_PATH and request.method == "GET" and GATE_PATH not in self.fake.objects:
            return 404, {**status(404, "NotFound"), "details": {"name": "default"}}, {}
        if request.method == "PUT":
            answer = self.trouble.pop(0)() if self.trouble else None
            if answer is None and "dryRun" in request.params:
                return 200, self.fake.objects[request.path], {}
            return answer
        return None

    def run(self, *words: str, why: str = "because") -> Result:
        return CliRunner().invoke(rollback.command, [*words, "--why", why, "--kubeconfig", str(self._config)])

    @property
    def stored(self) -> Any:
        return self.fake.objects[GATE_PATH]["spec"]["lane"]

    @property
    def switch(self) -> Switch:
        return read_gate(self.fake.objects[GATE_PATH]).switch

    def events(self) -> list[Any]:
        return [obj for path, obj in self.fake.objects.items() if "/events/" in path]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    fake = FakeApi()
    yield Cluster(fake, tmp_path, monkeypatch)
    fake.stop()


def test_everybody_goes_back_and_the_second_time_there_is_nothing_to_do(cluster: Cluster) -> None:
    done = cluster.run(why="they hang")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "every tenant in lane device-plugin; before: every tenant as labelled; why: they hang"
    assert "each replica follows within a second, with no controller too" in lines[1]
    assert lines[2].startswith(
        "Pods that are there: those that wait go by their policy's onRollback, by gate-controller"
    )
    assert cluster.stored == {
        "override": PLUGIN,
        "tenants": [],
        "previous": "",
        "previousTenants": [],
        "generation": 1,
        "by": "ada",
        "at": stamp(NOW),
        "reason": "they hang",
    }
    (event,) = cluster.events()
    assert event["note"] == "every tenant in lane device-plugin; before: every tenant as labelled; by ada: they hang"
    assert (event["reason"], event["metadata"]["namespace"]) == ("LaneSwitched", "default")
    assert event["regarding"]["uid"] == cluster.fake.objects[GATE_PATH]["metadata"]["uid"]
    before = cluster.fake.objects[GATE_PATH]
    for words in ((), ("maple",)):
        again = cluster.run(*words, why="once more")
        assert (again.exit_code, again.stderr) == (0, "")
        said = "nothing to do: every tenant in lane device-plugin (last changed by ada 0 s ago: they hang)"
        assert again.stdout.splitlines() == [said]
    assert cluster.fake.objects[GATE_PATH] == before
    assert len(cluster.events()) == 1


def test_a_tenant_and_forward_again(cluster: Cluster) -> None:
    cluster.run("maple", "--drain-by", "2027-02-01T10:00:00+02:00")
    assert cluster.switch == Switch("", {"maple": PLUGIN}, drains={"maple": "2027-02-01T08:00:00Z"})
    done = cluster.run("--off", "maple")
    assert "those that wait are granted in turn" in done.stdout
    assert cluster.switch == Switch()
    assert cluster.stored["previousTenants"] == [{"name": "maple", "lane": PLUGIN}]
    assert cluster.stored["generation"] == 2
    assert "nothing to do: every tenant as labelled" in cluster.run("--off").stdout


def test_a_tenant_that_the_policies_have_no_more_can_go_forward(cluster: Cluster) -> None:
    cluster.gate(tenants=[{"name": "gone", "lane": PLUGIN}])
    assert cluster.run("--off", "gone").exit_code == 0
    assert cluster.switch == Switch()


def test_a_later_time_is_a_change_and_none_takes_it_back(cluster: Cluster) -> None:
    assert cluster.run("--drain-by", "2h").stdout.endswith("those that run go on until then\n")
    assert cluster.switch.drain_by
    said = cluster.run("--drain-by", "none").stdout
    assert "nothing to do" not in said
    assert cluster.switch == Switch(PLUGIN)
    assert cluster.stored["generation"] == 1, "no lane has changed"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("mapel",), "the policies have no tenant mapel, but "),
        (("--off", "mapel", "maple"), "the policies have no tenant mapel"),
        (("--off", "--drain-by", "2h"), "it does not go with --off"),
        (("--drain-by", "tomorrow"), "no duration such as"),
        (("--drain-by", "2027-01-01T00:00:00"), "with its zone"),
        (("--drain-by", "2020-01-01T00:00:00Z"), "is over"),
    ],
)
def test_what_is_wrong_changes_nothing(cluster: Cluster, words: tuple[str, ...], says: str) -> None:
    done = cluster.run(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr
    assert cluster.stored == {}


def test_without_a_why_nothing_is_done(cluster: Cluster) -> None:
    assert "it is empty" in cluster.run(why=" ").stderr
    assert cluster.stored == {}


def test_somebody_else_was_faster_and_what_they_wrote_stays(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def other() -> Answer | None:
        cluster.gate(tenants=[{"name": "mint", "lane": "dra"}])
        return None

    cluster.trouble = [other]
    assert cluster.run("maple").exit_code == 0
    assert cluster.switch == Switch("", {"mint": "dra", "maple": PLUGIN})
    assert cluster.stored["previousTenants"] == [{"name": "mint", "lane": "dra"}]
    cluster.trouble = [lambda: cluster.gate(override=PLUGIN)]
    assert "nothing to do" in cluster.run().stdout, "somebody else did it"
    monkeypatch.setattr(gate_change, "_PATIENCE", 0.3)
    cluster.trouble = [lambda: (409, status(409, "Conflict"), {})] * 999
    done = cluster.run("--off")
    assert (done.exit_code, cluster.switch) == (2, Switch(PLUGIN))
    assert "others keep changing the Gate" in done.stderr


def test_the_answer_that_was_lost_is_found_done(cluster: Cluster) -> None:
    def written_and_lost() -> Answer | None:
        cluster.gate(override=PLUGIN, by="ada", reason="because")
        raise ConnectionAbortedError

    cluster.trouble = [written_and_lost]
    assert cluster.run().exit_code == 2
    assert "nothing to do: every tenant in lane device-plugin (last changed by ada: because)" in cluster.run().stdout


def test_who_may_not_is_told_by_the_api_server(cluster: Cluster) -> None:
    cluster.trouble = [lambda: (403, status(403, "Forbidden", "only guardians change this"), {})]
    done = cluster.run()
    assert (done.exit_code, cluster.stored) == (2, {})
    assert "the API server refuses it: 403 Forbidden: only guardians change this" in done.stderr


def test_no_event_is_a_warning(cluster: Cluster) -> None:
    usual = cluster.fake.fault

    def fault(request: Request) -> Answer | None:
        return (403, status(403, "Forbidden"), {}) if "/events" in request.path else usual and usual(request)

    cluster.fake.fault = fault
    done = cluster.run()
    assert (done.exit_code, cluster.switch) == (0, Switch(PLUGIN))
    assert "warning: the Gate is written, but no Event" in done.stderr


def test_the_way_back_needs_no_policies(cluster: Cluster) -> None:
    cluster.fake.remove(next(path for path in cluster.fake.objects if path.startswith(MAPS_PATH)))
    done = cluster.run("maple")
    assert (done.exit_code, cluster.switch) == (0, Switch("", {"maple": PLUGIN}))
    assert "nobody knows whether there is a tenant maple" in done.stderr


def test_without_a_gate_nobody_would_follow(cluster: Cluster) -> None:
    cluster.fake.remove(GATE_PATH)
    done = cluster.run()
    assert done.exit_code == 2
    assert "there is no Gate, so nobody follows a switch" in done.stderr


@pytest.mark.parametrize(
    ("lease", "says"),
    [
        ((2, "c-1"), "by c-1, which was seen 2 s ago"),
        ((600, "c-1"), "no controller leads (the last was seen 10 min ago)"),
        ((2, ""), "no controller leads"),
        (None, "no controller leads; when one does"),
    ],
)
def test_it_says_whether_somebody_deals_with_the_pods(
    cluster: Cluster, lease: tuple[int, str] | None, says: str
) -> None:
    if lease is None:
        cluster.fake.remove(f"{LEASES}/dra-gate-controller")
    else:
        cluster.leads(*lease)
    assert says in cluster.run().stdout


def test_a_dry_run_keeps_who_could_have_no_successor(cluster: Cluster) -> None:
    sets.CATALOGUE = sets.CATALOGUE.replace(", nodeLabels: {nvidia.com/gpu.product: [x]}", "")
    cluster.set = made(2, namespaces=("maple-a", "maple-b"))
    cluster.fake.put(MAPS_PATH, published(2, namespaces=("maple-a", "maple-b")))
    cluster.gate()
    cluster.pod("held", {"schedulingGates": [{"name": "dra-gate.io/grant"}]}, owner="ReplicaSet/r")
    (row,) = json.loads(cluster.run("--dry-run", "-o", "json").stdout)["pods"]
    assert row["step"] == "keep"
    assert "the next one would be refused: lane device-plugin can place on no candidate" in row["why"]


def test_a_dry_run_tells_of_each_pod_and_writes_nothing(cluster: Cluster) -> None:
    gated = {"schedulingGates": [{"name": "dra-gate.io/grant"}]}
    late = {"resourceClaims": [{"name": "g", "resourceClaimName": "dra-gate-late-1"}]}
    template = {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]}
    cluster.fake.put(CLAIMS, {"metadata": {"namespace": "maple-a", "name": "dra-gate-late-1"}})
    job = {"metadata": {"namespace": "maple-a", "name": "j"}, "spec": {"backoffLimit": 1}, "status": {"failed": 0}}
    cluster.fake.put("/apis/batch/v1/namespaces/maple-a/jobs", job)
    cluster.pod("held-1", {**late, **gated}, owner="Job/j")
    cluster.pod("held-2", {**late, **gated}, owner="Job/j")
    cluster.pod("held-bare", {**late, **gated})
    cluster.pod("granted", late, owner="ReplicaSet/r")
    cluster.pod("waiting", template, owner="ReplicaSet/r")
    cluster.pod("bound", {**template, "nodeName": "n"}, owner="ReplicaSet/r")
    cluster.pod("old", {}, lane=PLUGIN)
    cluster.pod("nobodys", {}, tenant="")
    before = cluster.fake.objects[GATE_PATH]
    done = cluster.run("--dry-run", "--drain-by", "1h")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("would be: every tenant in lane device-plugin; before: every tenant as labelled")
    table = [line.split() for line in done.stdout.splitlines() if line.startswith("  maple")]
    assert sorted(row[1:4] for row in table) == [
        ["bound", "1", "runs"],
        ["granted", "1", "claims"],
        ["held", "1", "evicted;"],
        ["held", "2", "held"],  # a bare one, and one whose Job has no more evictions to spare
        ["waiting", "1", "evicted;"],
        ["waiting", "1", "not"],
    ]
    assert "evictions take a controller that may evict" in done.stdout
    body = json.loads(cluster.run("--dry-run", "--drain-by", "1h", "-o", "json").stdout)
    steps = {pod["name"]: (pod["step"], pod["then"]) for pod in body["pods"]}
    assert steps == {
        "held-1": ("recreate", None),
        "held-2": ("keep", None),
        "held-bare": ("keep", None),
        "granted": ("withdraw", "recreate"),
        "waiting": ("recreate", None),
        "bound": ("finish", "drain"),
        "old": ("nothing", None),
    }
    why = {pod["name"]: pod["why"] for pod in body["pods"]}
    assert "backoffLimit 1 of its Job" in why["held-2"]
    assert "no controller would make it again" in why["held-bare"]
    assert (body["dryRun"], body["changed"], body["after"]["override"]) == (True, True, PLUGIN)
    assert cluster.fake.objects[GATE_PATH] == before
    assert cluster.events() == []

    cluster.run()
    forward = json.loads(cluster.run("--off", "--dry-run", "-o", "json").stdout)
    steps = {pod["name"]: (pod["step"], pod["then"]) for pod in forward["pods"]}
    waits = dict.fromkeys(("held-1", "held-2", "held-bare", "granted", "waiting"), ("release", None))
    assert steps == {**waits, "bound": ("finish", None), "old": ("nothing", None)}
    # What is still to be done about those who are back shows the same command again.
    again = cluster.run("--dry-run")
    assert again.stdout.startswith("nothing to do: every tenant in lane device-plugin")
    assert "claims taken away before devices are given, then evicted" in again.stdout
