"""`dra-gate canary status | enroll | step | pause | on-stop | rollback` on a fake API server that makes trouble."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from cluster.conftest import kubeconfig
from cluster.fake_api import Answer, FakeApi, Request, status
from dra_gate.cli import canary_world
from dra_gate.cli.canary import command
from dra_gate.cli.canary_waves import MOST_REFUSED
from dra_gate.cluster.gate import GATES_PATH
from dra_gate.cluster.policy_map import MAPS_PATH, policy_map
from dra_gate.migration.waves import stamp
from dra_gate.policy.load import load_documents
from policy_publish.sets import files, gate, made, published

LANE, MOVED = "dra-gate.io/lane", "dra-gate.io/canary"
PLAN = "/api/v1/namespaces/dra-gate/configmaps/dra-gate-canary"
NAMESPACES = tuple(f"maple-{letter}" for letter in "abcdefghij")
HOUR = 3600


class Cluster:
    """Ten namespaces of tenant maple, `orphan` that is gated and nobody's, `plain` that is neither."""

    def __init__(self, fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake, self.now = fake, 1_800_000_000
        self._config = kubeconfig(tmp_path / "config", fake.url)
        self.trouble: list[Callable[[Request], Answer | None]] = []  # each sees one PATCH of a namespace
        fake.fault = self._fault
        monkeypatch.setattr(canary_world, "_now", lambda: self.now)
        fake.put(MAPS_PATH, published(1, namespaces=NAMESPACES))
        fake.put(GATES_PATH, gate(made(1, namespaces=NAMESPACES).digest))
        for name in (*NAMESPACES, "plain", "kube-system", "dra-gate"):
            self.label(name, None)
        self.label("orphan", "device-plugin")

    def label(self, name: str, lane: str | None, by: str = "argo", at: int = 1_700_000_000) -> None:
        """As somebody does who knows nothing of the commands: the annotations stay."""
        old = self.fake.objects.get(f"/api/v1/namespaces/{name}", {"metadata": {}})["metadata"]
        metadata: dict[str, Any] = {"name": name, "annotations": old.get("annotations", {})}
        if lane is not None:
            fields = {"f:metadata": {"f:labels": {f"f:{LANE}": {}}}}
            metadata["labels"] = {LANE: lane}
            metadata["managedFields"] = [{"manager": by, "time": stamp(at), "fieldsV1": fields}]
        self.fake.put("/api/v1/namespaces", {"metadata": metadata})

    def _fault(self, request: Request) -> Answer | None:
        if request.path.endswith("/selfsubjectreviews"):
            return 201, {"status": {"userInfo": {"username": "ada"}}}, {}
        if request.method == "PATCH":
            answer = self.trouble.pop(0)(request) if self.trouble else None
            if answer is None and "dryRun" in request.params:
                return 200, self.fake.objects[request.path], {}
            return answer
        return None

    def run(self, *words: str, why: str = "because") -> Result:
        reason = ("--why", why) if why and words[0] != "status" else ()
        return CliRunner().invoke(command, [*words, *reason, "--kubeconfig", str(self._config)])

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "-o", "json").stdout)

    def lanes(self) -> dict[str, str]:
        found = {}
        for path, obj in self.fake.objects.items():
            if path.startswith("/api/v1/namespaces/") and path.count("/") == 4:
                found[obj["metadata"]["name"]] = obj["metadata"].get("labels", {}).get(LANE, "")
        return found

    def in_dra(self) -> set[str]:
        return {name for name, lane in self.lanes().items() if lane == "dra"}

    def moved(self, name: str) -> Any:
        return json.loads(self.fake.objects[f"/api/v1/namespaces/{name}"]["metadata"]["annotations"][MOVED])

    def plan(self) -> Any:
        return json.loads(self.fake.objects[PLAN]["data"]["plan.json"])

    def events(self, namespace: str) -> list[Any]:
        return [obj for path, obj in self.fake.objects.items() if f"/namespaces/{namespace}/events/" in path]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    fake = FakeApi()
    yield Cluster(fake, tmp_path, monkeypatch)
    fake.stop()


def test_enroll_writes_label_record_and_event(cluster: Cluster) -> None:
    done = cluster.run("enroll", "maple-a", "maple-b", "maple-a", why="they asked")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "moved maple-a (tenant maple): not gated → dra",
        "moved maple-b (tenant maple): not gated → dra",
    ]
    assert cluster.in_dra() == {"maple-a", "maple-b"}
    expected = {"from": "", "to": "dra", "at": stamp(cluster.now), "by": "ada", "why": "they asked"}
    assert cluster.moved("maple-a") == expected
    (event,) = cluster.events("maple-a")
    assert event["note"] == "lane dra, before not gated; by ada: they asked"
    assert (event["reason"], event["regarding"]["name"]) == ("LaneEnrolled", "maple-a")
    assert PLAN not in cluster.fake.objects
    done = cluster.run("enroll", "maple-a")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "nobody was moved")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("enroll", "maple-a", "orphan"), "orphan: of no tenant in the active policies"),
        (("enroll", "maple-a", "nobody"), "there is no namespace nobody"),
        (("enroll", "maple-a", "kube-system"), "kube-system: never gated"),
        (("rollback", "maple-a", "nobody"), "there is no namespace nobody"),
        (("step",), "the plan has no waves"),
        (("step", "--wave", "0%"), "a whole number from 1% to 100%"),
        (("step", "--wave", "tenant:oak"), "the policies have no tenant oak"),
        (("step", "--wave", "maple-z"), "there is no namespace maple-z"),
        (("step", "--wave", "10"), "there is no namespace 10 (a share is written 10%)"),
        (("step", "--wave", "50%", "--wave", "10%"), "wave 10% adds nobody"),
    ],
)
def test_what_is_wrong_moves_nobody(cluster: Cluster, words: tuple[str, ...], says: str) -> None:
    done = cluster.run(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr
    assert cluster.in_dra() == set()
    assert PLAN not in cluster.fake.objects


@pytest.mark.parametrize("words", [("enroll", "maple-a"), ("step", "--wave", "10%"), ("rollback",)])
def test_why_is_required(cluster: Cluster, words: tuple[str, ...]) -> None:
    assert "--why" in cluster.run(*words, why="").stderr
    done = cluster.run(*words, why=" ")
    assert (done.exit_code, "say why" in done.stderr) == (2, True)


def test_step_goes_through_the_waves(cluster: Cluster) -> None:
    waves = ("--wave", "20%", "--wave", "maple-j", "--wave", "100%")
    would = cluster.json("step", *waves, "--dry-run")
    assert (would["dryRun"], would["wave"], cluster.in_dra()) == (True, 1, set())
    assert PLAN not in cluster.fake.objects
    done = cluster.json("step", *waves)
    assert done == {**would, "dryRun": False}
    first = cluster.in_dra()
    assert first == {one["namespace"] for one in done["moved"]}
    assert {**cluster.plan(), "seed": ""} == {
        "seed": "",
        "waves": ["20%", "maple-j", "100%"],
        "done": 1,
        "paused": None,
    }
    cluster.run("step")
    assert cluster.in_dra() == first | {"maple-j"}
    done = cluster.run("step")
    assert (done.exit_code, cluster.in_dra()) == (1, set(NAMESPACES))
    assert "left alone orphan: it belongs to no tenant" in done.stdout
    assert done.stdout.startswith("wave 3 of 3 (100%)\n")
    assert cluster.lanes()["plain"] == ""


def test_a_pause_stops_all_but_the_way_back(cluster: Cluster) -> None:
    cluster.run("enroll", "maple-a")
    assert cluster.run("pause", why="gpu-7 fails").stdout == "the plan is paused: nobody is moved to lane dra\n"
    assert cluster.run("pause").stdout == "it is paused already, by ada 0 s ago: gpu-7 fails\n"
    for words in (("enroll", "maple-b", "--force"), ("step", "--wave", "100%", "--force")):
        done = cluster.run(*words)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "paused, by ada 0 s ago: gpu-7 fails" in done.stderr
    assert cluster.in_dra() == {"maple-a"}
    assert cluster.run("rollback", "maple-a").exit_code == 0
    assert cluster.in_dra() == set()
    assert cluster.run("pause", "--off").stdout == "the plan goes on\n"
    assert cluster.run("pause", "--off").stdout == "it is not paused\n"
    assert cluster.run("enroll", "maple-b").exit_code == 0


def test_a_pause_stops_a_step_that_is_under_way(cluster: Cluster) -> None:
    def pause(_: Request) -> None:
        assert cluster.run("pause", why="stop").exit_code == 0

    cluster.trouble = [pause]
    done = cluster.run("step", "--wave", "100%")
    assert (done.exit_code, len(cluster.in_dra())) == (1, 1)
    assert done.stdout.count("the plan was paused meanwhile") == 9


def test_rollback_of_all_pauses_and_leaves_others_alone(cluster: Cluster) -> None:
    cluster.run("step", "--wave", "20%")
    mine = cluster.in_dra()
    theirs = next(name for name in NAMESPACES if name not in mine)
    cluster.label(theirs, "dra")
    would = cluster.run("rollback", "--dry-run", why="hard stop")
    assert cluster.in_dra() == mine | {theirs}
    assert cluster.plan()["paused"] is None
    assert would.stdout.count("would move") == len(mine) == 3
    done = cluster.run("rollback", why="hard stop")
    assert (done.exit_code, cluster.in_dra()) == (1, {theirs})
    assert f"left alone {theirs}: somebody else labelled it: name it to roll it back" in done.stdout
    assert "policy becomes node affinity" in done.stdout  # decision 34
    assert cluster.plan()["paused"]["why"] == "hard stop"
    for name in mine:
        assert cluster.lanes()[name] == "device-plugin"
        assert cluster.events(name)[-1]["reason"] == "LaneRolledBack"
    assert cluster.run("rollback", theirs).exit_code == 0
    assert cluster.in_dra() == set()


def test_what_was_rolled_back_stays_back(cluster: Cluster) -> None:
    cluster.run("step", "--wave", "maple-a")
    cluster.run("rollback", "maple-a")
    cluster.now += 2 * HOUR
    done = cluster.run("step")
    assert (done.exit_code, cluster.in_dra()) == (1, set())
    assert "left alone maple-a: it was rolled back by ada" in done.stdout
    assert cluster.run("step", "--again").exit_code == 0
    assert cluster.in_dra() == {"maple-a"}


def test_the_next_wave_waits_for_those_that_are_to_go_again(cluster: Cluster) -> None:
    cluster.run("step", "--wave", "maple-a", "--wave", "maple-b")
    cluster.run("rollback", "maple-a")
    done = cluster.run("step", "--again")
    assert (done.exit_code, cluster.in_dra()) == (1, set())
    assert "left alone maple-a: its lane changed a moment ago: wait 60 min, or --force" in done.stdout
    assert cluster.run("step", "--again", "--force").exit_code == 0
    assert cluster.in_dra() == {"maple-a"}
    assert cluster.run("step", "--again").exit_code == 0
    assert cluster.in_dra() == {"maple-a", "maple-b"}


def test_nobody_flaps_unless_forced(cluster: Cluster) -> None:
    cluster.run("enroll", "maple-a")
    cluster.run("rollback", "maple-a")
    cluster.now += 600
    done = cluster.run("enroll", "maple-a")
    assert (done.exit_code, cluster.in_dra()) == (1, set())
    assert "wait 50 min, or --force" in done.stdout
    assert cluster.run("enroll", "maple-a", "--settle", "10").exit_code == 0
    cluster.run("rollback", "maple-a")
    assert cluster.run("enroll", "maple-a", "--force").exit_code == 0


def test_labels_of_others_are_honoured_and_never_fought(cluster: Cluster) -> None:
    cluster.run("step", "--wave", "maple-a,maple-b,maple-c")
    cluster.label("maple-a", "device-plugin")
    cluster.label("maple-d", "dra")
    done = cluster.run("step")
    assert "left alone maple-a: somebody else took it back" in done.stdout
    assert cluster.in_dra() == {"maple-b", "maple-c", "maple-d"}
    rows = {row["namespace"]: row for row in cluster.json("status")["namespaces"]}
    assert rows["maple-a"]["note"] == "moved to dra by ada, and elsewhere by somebody else since"
    assert (rows["maple-d"]["note"], rows["maple-d"]["by"]) == ("labelled by somebody else", "argo")
    assert cluster.run("enroll", "maple-a").exit_code == 0


def forbidden(_: Request) -> Answer:
    return 403, status(403, "Forbidden", "Lane, mode …: only guardians change this (POLICY_LABEL)"), {}


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_the_guard_refuses(cluster: Cluster, dry_run: tuple[str, ...]) -> None:
    cluster.trouble = [lambda _: None, forbidden]
    done = cluster.run("enroll", "maple-a", "maple-b", "maple-c", *dry_run)
    assert done.exit_code == 2
    assert "maple-b: the lane was not changed: Lane, mode …: only guardians change this" in done.stderr
    assert "1 namespace moved before that" in done.stderr or dry_run
    assert "left alone maple-c: not reached" in done.stdout
    assert cluster.in_dra() == (set() if dry_run else {"maple-a"})


def test_no_right_to_patch_names_the_role(cluster: Cluster) -> None:
    cluster.trouble = [lambda _: (403, status(403, "Forbidden", "cannot patch resource"), {})]
    done = cluster.run("enroll", "maple-a")
    assert (done.exit_code, "ClusterRole dra-gate-guardian" in done.stderr) == (2, True)


def test_a_version_that_is_gone_is_looked_at_again(cluster: Cluster) -> None:
    def touched(_: Request) -> None:
        cluster.label("maple-a", None)  # a new version, and the same lane

    def taken(_: Request) -> None:
        cluster.label("maple-b", "device-plugin")

    def deleted(request: Request) -> None:
        cluster.fake.remove(request.path)

    cluster.trouble = [touched, lambda _: None, taken, deleted]
    done = cluster.run("enroll", "maple-a", "maple-b", "maple-c")
    assert (done.exit_code, cluster.in_dra()) == (1, {"maple-a"})
    assert "left alone maple-b: somebody else changed it meanwhile" in done.stdout
    assert "left alone maple-c: it was deleted meanwhile" in done.stdout
    assert cluster.lanes()["maple-b"] == "device-plugin"


def test_the_way_back_stops_at_no_namespace_that_is_refused(cluster: Cluster) -> None:
    """Somebody's webhook keeps one of them: all others have to go back."""
    cluster.run("enroll", *NAMESPACES)
    moved: set[str] = set()

    def keeps(request: Request) -> Answer | None:
        moved.add(request.path)
        wrong = request.path.endswith(("/maple-a", "/maple-e"))
        return (500, status(500, "InternalError", "failed calling webhook x"), {}) if wrong else None

    cluster.trouble = [keeps] * 20
    done = cluster.run("rollback")
    assert (done.exit_code, cluster.in_dra()) == (1, {"maple-a", "maple-e"})
    assert "left alone maple-e: the lane was not changed: failed calling webhook x" in done.stdout


def test_the_way_back_ends_where_the_right_is_lacking(cluster: Cluster) -> None:
    cluster.run("enroll", *NAMESPACES)
    cluster.trouble = [lambda _: (403, status(403, "Forbidden", "cannot patch resource"), {})] * 20
    done = cluster.run("rollback")
    assert done.exit_code == 2
    assert len(cluster.trouble) == 20 - MOST_REFUSED - 1
    assert "takes the right to patch namespaces" in done.stderr


def test_an_event_that_is_refused_is_a_warning(cluster: Cluster) -> None:
    ask = cluster.fake.fault

    def no_events(request: Request) -> Answer | None:
        if request.path.endswith("/events"):
            return 403, status(403, "Forbidden"), {}
        return ask(request) if ask else None

    cluster.fake.fault = no_events
    done = cluster.run("enroll", "maple-a")
    assert (done.exit_code, cluster.in_dra()) == (0, {"maple-a"})
    assert "warning: maple-a: no Event was written" in done.stderr


def test_two_steps_at_once_take_one_wave(cluster: Cluster) -> None:
    cluster.run("pause")
    cluster.run("pause", "--off")
    ask, late = cluster.fake.fault, []

    def faster(request: Request) -> Answer | None:
        if request.method == "PUT" and request.path == PLAN and not late:
            late.append(1)
            assert cluster.run("step", "--wave", "maple-a", "--wave", "100%").exit_code == 0
        return ask(request) if ask else None

    cluster.fake.fault = faster
    done = cluster.run("step", "--wave", "maple-a", "--wave", "100%")
    assert (done.exit_code, "wave maple-a adds nobody" in done.stderr) == (2, True)
    assert (cluster.in_dra(), cluster.plan()["done"]) == ({"maple-a"}, 1)


def test_a_spoilt_plan_moves_nobody_but_back(cluster: Cluster) -> None:
    cluster.run("enroll", "maple-a")
    cluster.fake.put(MAPS_PATH, {"metadata": {"name": "dra-gate-canary"}, "data": {"plan.json": "{"}})
    for words in (("status",), ("enroll", "maple-b"), ("step",), ("pause",)):
        done = cluster.run(*words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "ConfigMap dra-gate/dra-gate-canary, plan.json: it is no JSON" in done.stderr
    done = cluster.run("rollback")
    assert (done.exit_code, cluster.in_dra()) == (0, set())
    assert "warning: the plan is not paused" in done.stderr


def test_the_way_back_needs_no_policies(cluster: Cluster) -> None:
    cluster.run("enroll", "maple-a")
    cluster.fake.remove(f"{GATES_PATH}/default")
    done = cluster.run("enroll", "maple-b")
    assert (done.exit_code, "no active policy set" in done.stderr) == (2, True)
    assert cluster.run("rollback").exit_code == 0
    assert cluster.in_dra() == set()


def test_status(cluster: Cluster) -> None:
    def pod(namespace: str, name: str, phase: str = "Running", **spec: Any) -> None:
        metadata = {"name": name, "namespace": namespace}
        body = {"metadata": metadata, "spec": spec, "status": {"phase": phase}}
        cluster.fake.put(f"/api/v1/namespaces/{namespace}/pods", body)

    claims = {"resourceClaims": [{"name": "gate-0"}]}
    old = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    cluster.run("step", "--wave", "maple-a", "--wave", "100%", why="first")
    cluster.now += 2 * HOUR
    pod("maple-a", "new", **claims)
    pod("maple-a", "old", **old)
    pod("maple-a", "ended", "Succeeded", **claims)
    pod("maple-a", "without", containers=[{"name": "c"}])
    pod("maple-b", "old", "Pending", **old)
    body = cluster.json("status")
    assert body["waves"][0] == {"wave": 1, "of": "maple-a", "begun": True, "namespaces": 1, "inLaneDra": 1}
    assert [wave["begun"] for wave in body["waves"]] == [True, False]
    first, *rest = body["namespaces"]
    assert first == {
        "wave": 1,
        "tenant": "maple",
        "namespace": "maple-a",
        "lane": "dra",
        "since": stamp(cluster.now - 2 * HOUR),
        "by": "ada",
        "why": "first",
        "pods": {"dra": 1, "device-plugin": 1},
        "note": "",
    }
    assert {row["namespace"]: row["pods"]["device-plugin"] for row in rest}["maple-b"] == 1
    assert yaml.safe_load(cluster.run("status", "-o", "yaml").stdout) == body
    cluster.run("pause", why="lunch")
    lines = cluster.run("status").stdout.splitlines()
    assert lines[:5] == [
        "1 of 11 namespaces in lane dra",
        "paused, by ada 0 s ago: lunch",
        "wave 1 (maple-a): begun; 1 of 1 in lane dra",
        "wave 2 (100%): to come; 0 of 10 in lane dra",
        "on a hard stop, such as failures above 5 %, the controller tells",
    ]
    assert lines[7].split() == ["1", "maple", "maple-a", "dra", "2", "h", "ago", "ada", "1", "1"]


def test_status_tells_of_policy_canaries(cluster: Cluster) -> None:
    sources = files(7, namespaces=NAMESPACES)
    sources["next.yaml"] = files(8)["train.yaml"]
    canary = b"  canary: {policy: train@8, namespaces: [maple-b]}\n"
    sources["tenants.yaml"] = sources["tenants.yaml"].rstrip() + b"\n" + canary
    digest = load_documents(sources).digest
    cluster.fake.put(MAPS_PATH, policy_map(digest, sources, {}))
    cluster.fake.put(GATES_PATH, gate(digest))
    claims = {"resourceClaims": [{"name": "gate-0"}]}
    for number, (space, version, phase) in enumerate(
        [("a", 7, "Running"), ("a", 6, "Running"), ("b", 8, "Pending"), ("b", 8, "Failed"), ("c", 7, "Running")]
    ):
        stamp = {"dra-gate.io/policy": "train", "dra-gate.io/policy-version": str(version)}
        metadata = {"name": f"p{number}", "namespace": f"maple-{space}", "annotations": stamp}
        body = {"metadata": metadata, "spec": claims, "status": {"phase": phase}}
        cluster.fake.put(f"/api/v1/namespaces/maple-{space}/pods", body)
    assert cluster.json("status")["policyCanaries"] == [
        {
            "tenant": "maple",
            "policy": "train@7",
            "canary": "train@8",
            "namespaces": ["maple-b"],
            "pods": {"train@8": 1, "train@7": 2, "train@6": 1},
        }
    ]
    assert (
        "policy canary of tenant maple: train@8 in maple-b, train@7 elsewhere; "
        "1 Pod of train@8, 2 Pods of train@7 and 1 Pod of train@6"
    ) in cluster.run("status").stdout.splitlines()


def test_a_step_after_the_last_wave_says_that_there_is_no_other(cluster: Cluster) -> None:
    assert cluster.run("step", "--wave", "maple-a").stdout.splitlines()[0] == "wave 1 of 1 (maple-a)"
    done = cluster.run("step")
    assert (done.exit_code, done.stdout.splitlines()) == (
        0,
        [
            "the rest of wave 1 of 1 (maple-a): all of it is in lane dra, and the plan has no other (--wave adds one)",
            "nobody was moved",
        ],
    )


def test_status_tells_of_the_switch(cluster: Cluster) -> None:
    switched = gate(made(1, namespaces=NAMESPACES).digest)
    tenants = [{"name": "maple", "lane": "device-plugin", "drainBy": "2027-01-15T10:00:00Z"}]
    said = {"by": "bo\x1bb", "at": stamp(cluster.now - 90), "reason": "they hang"}
    switched["spec"]["lane"] = {"override": "dra", "tenants": tenants, **said}
    cluster.label("maple-a", "dra")
    assert cluster.json("status")["switch"] is None
    cluster.fake.put(GATES_PATH, switched)
    lines = cluster.run("status").stdout.splitlines()
    assert lines[0] == "1 of 11 namespaces in lane dra by their labels"
    assert lines[1] == (
        "the switch goes before labels, until dra-gate rollback --off: every tenant in lane dra, but maple in lane "
        "device-plugin, by bo b 90 s ago: they hang"
    )
    rows = {row["namespace"]: row["note"] for row in cluster.json("status")["namespaces"]}
    assert rows["maple-a"] == "labelled by somebody else; in lane device-plugin by the switch"
    assert (rows["maple-b"], rows["orphan"]) == ("", "in lane dra by the switch"), "an unlabelled one is not gated"
    assert cluster.json("status")["switch"]["tenants"] == tenants


def test_who_is_moved_under_the_switch_is_told(cluster: Cluster) -> None:
    switched = gate(made(1, namespaces=NAMESPACES).digest)
    switched["spec"]["lane"] = {"tenants": [{"name": "maple", "lane": "device-plugin"}]}
    cluster.fake.put(GATES_PATH, switched)
    done = cluster.run("enroll", "maple-a")
    assert (done.exit_code, cluster.in_dra()) == (0, {"maple-a"})
    assert "maple-a stay in lane device-plugin by the switch, whatever the label says" in done.stderr
    assert cluster.run("rollback", "maple-a").stderr == ""


def test_what_others_wrote_moves_no_cursor(cluster: Cluster) -> None:
    cluster.label("maple-a", "dra", by="ar\x1b[2Jgo")
    done = cluster.run("status")
    assert (done.exit_code, "\x1b" in done.stdout) == (0, False)


def test_on_stop_is_written_into_the_plan_and_counts_from_now_on(cluster: Cluster) -> None:
    done = cluster.run("on-stop", "rollback", "--failures", "2.5", why="")
    assert done.exit_code == 0
    assert done.stdout == (
        "on a hard stop, such as failures above 2.5 %, the controller pauses the plan and rolls back\n"
    )
    assert "warning" not in done.stderr  # whoever may not ask what the controller may do is not bothered with it
    assert cluster.plan()["onStop"] == {"act": "rollback", "failures": 0.025, "since": stamp(cluster.now)}
    cluster.now += HOUR
    cluster.run("step", "--wave", "20%")
    assert cluster.plan()["onStop"]["since"] == stamp(cluster.now - HOUR)
    cluster.run("pause", why="lunch")
    cluster.run("pause", "--off", why="")
    assert cluster.plan()["onStop"]["since"] == stamp(cluster.now)
    assert "failures above 2.5 %, the controller pauses the plan and rolls back" in cluster.run("status").stdout
    assert cluster.json("status")["onStop"] == {"act": "rollback", "failures": 0.025}
    for wrong in ("0", "100", "x"):
        assert cluster.run("on-stop", "pause", "--failures", wrong, why="").exit_code == 2


def test_on_stop_warns_where_the_controller_may_not_move(cluster: Cluster) -> None:
    ask, asked = cluster.fake.fault, []

    def may_not(request: Request) -> Answer | None:
        if request.path.endswith("/subjectaccessreviews"):
            asked.append(request)
            return 201, {"status": {"allowed": False}}, {}
        return ask(request) if ask else None

    cluster.fake.fault = may_not
    done = cluster.run("on-stop", "rollback", why="")
    assert (done.exit_code, "deploy/components/canary-rollback" in done.stderr) == (0, True)
    assert (cluster.run("on-stop", "pause", why="").stderr, len(asked)) == ("", 1)


def test_pause_off_ends_what_stopped_the_plan(cluster: Cluster) -> None:
    cluster.run("on-stop", "pause", why="")
    stopped = cluster.plan() | {
        "paused": {"by": "gate", "at": stamp(cluster.now), "why": "9 of 30 Pods failed"},
        "stopped": {"act": "pause", "at": stamp(cluster.now), "why": "9 of 30 Pods failed", "done": stamp(cluster.now)},
    }
    data = {"plan.json": json.dumps(stopped)}
    cluster.fake.put(MAPS_PATH, {"metadata": {"name": "dra-gate-canary"}, "data": data})
    cluster.now += 60
    said = cluster.run("status").stdout
    assert "stopped 60 s ago: the controller paused the plan" in said or "stopped 1 min ago" in said
    assert cluster.json("status")["stopped"]["why"] == "9 of 30 Pods failed"
    assert cluster.run("step", "--wave", "20%").exit_code == 1
    assert cluster.run("pause", "--off", why="").stdout == "the plan goes on\n"
    assert "stopped" not in cluster.plan()
    assert cluster.json("status")["stopped"] is None
    assert cluster.run("step", "--wave", "20%").exit_code == 0
