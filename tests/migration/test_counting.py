"""What becomes of one Pod, as it is counted: each case says what is seen of it and what that adds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocation import fleet as small
from dra_gate.migration.cohort import HOUR, Cell, Key
from dra_gate.migration.counting import (
    PREPARE_FAILED,
    Around,
    Facts,
    counted,
    key_of,
    read_claim,
    read_denial,
    read_pod,
)
from dra_gate.policy.model import PolicySet
from migration.seen import UID, at, claim, ended, pod, running, waiting
from migration.simulated import START

KEY = Key("dra", "lilac", 2, "h100", "train@1")
PLUGIN = Key("device-plugin", "lilac", 2, "h100", "train@1")


def facts(*looks: dict[str, Any], after: float = 0) -> Facts:
    """What these looks tell, each of them made long after the fact."""
    known = Facts(0)
    for look in looks:
        if "allocation" in look["status"]:
            found = read_claim(look)
            assert found is not None
            known = known.merge(found.facts("h100"))
        else:
            seen = read_pod(look, START + HOUR + int(1000 * after))
            assert seen is not None
            known = known.merge(seen.facts)
    return known


def told(cell: Cell) -> dict[str, int]:
    counts = {name: getattr(cell, name) for name in cell.__struct_fields__ if name not in ("waits", "held")}
    return {name: count for name, count in ({**counts, "bound": cell.bound}).items() if count}


SCHEDULER = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError"}
CASES: dict[str, tuple[list[dict[str, Any]], dict[str, int]]] = {
    "it waits": ([pod()], {"submitted": 1}),
    "nothing is free for it, which is no failure": (
        [
            pod(
                conditions=[
                    {**SCHEDULER, "reason": "Unschedulable", "message": "0/3 nodes: cannot allocate all claims"}
                ]
            )
        ],
        {"submitted": 1},
    ),
    "its claim was taken by somebody else": (
        [pod(conditions=[{**SCHEDULER, "message": "claim ns/c got allocated elsewhere in the meantime"}])],
        {"submitted": 1, "bind_failed": 1},
    ),
    "it could not be bound, whatever the lane": (
        [
            pod(conditions=[{**SCHEDULER, "message": 'running Bind plugin "DefaultBinder": pods "p" is forbidden'}]),
            pod(bound=9, version=2),
        ],
        {"submitted": 1, "bind_failed": 1, "bound": 1},
    ),
    "an expression fails, which is no failure to bind": (
        [pod(conditions=[{**SCHEDULER, "message": "claim c: selector #0: CEL runtime error: no such key"}])],
        {"submitted": 1},
    ),
    "it was bound and is being started": ([pod(bound=3)], {"submitted": 1, "bound": 1}),
    "it got its first choice": ([pod(bound=3), claim("h100")], {"submitted": 1, "bound": 1, "first": 1}),
    "it fell back": ([pod(bound=3), claim("a100")], {"submitted": 1, "bound": 1}),
    "its policy has one candidate": ([pod(bound=3), claim("")], {"submitted": 1, "bound": 1, "first": 1}),
    "one of two claims fell back": (
        [pod(bound=3), claim("h100", name="one"), claim("a100", name="two")],
        {"submitted": 1, "bound": 1},
    ),
    "what it was given last counts": (
        [pod(bound=3), claim("h100", version=3), claim("a100", version=4)],
        {"submitted": 1, "bound": 1},
    ),
    "it runs": ([pod(bound=3, containerStatuses=running(9))], {"submitted": 1, "bound": 1, "started": 1}),
    "it ran and failed by itself": (
        [pod(bound=3, phase="Failed", containerStatuses=[{"state": ended(9, 20, 1)}])],
        {"submitted": 1, "bound": 1, "started": 1},
    ),
    "it has succeeded": (
        [pod(bound=3, phase="Succeeded", containerStatuses=[{"state": ended(9, 20)}])],
        {"submitted": 1, "bound": 1, "started": 1},
    ),
    "one of its containers does not run yet": (
        [{**(one := pod(bound=3, containerStatuses=running(9))), "spec": {**one["spec"], "containers": [{}, {}]}}],
        {"submitted": 1, "bound": 1},
    ),
    "it restarted within ten minutes": (
        [pod(bound=3, containerStatuses=running(80, restartCount=1, lastState=ended(9, 70, 1)))],
        {"submitted": 1, "bound": 1, "started": 1, "restarted": 1},
    ),
    "it restarted after hours": (
        [pod(bound=3, containerStatuses=running(9000, restartCount=1, lastState=ended(9, 8000, 1)))],
        {"submitted": 1, "bound": 1, "started": 1},
    ),
    "it restarted often, and nobody saw its start": (
        [pod(bound=3, containerStatuses=running(9000, restartCount=7, lastState=ended(7000, 8000, 1)))],
        {"submitted": 1, "bound": 1, "started": 1},
    ),
    "it took too long to start": (
        [pod(bound=3, containerStatuses=running(700))],
        {"submitted": 1, "bound": 1, "failed": 1},
    ),
    "the device plugin had no such device": (
        [pod(lane="device-plugin", bound=3, phase="Failed", reason="UnexpectedAdmissionError")],
        {"submitted": 1, "bound": 1, "failed": 1, "prepare_failed": 1},
    ),
    "it was evicted before it started": (
        [pod(bound=3, phase="Failed", reason="Evicted")],
        {"submitted": 1, "bound": 1, "failed": 1},
    ),
    "its image isn't there": (
        [pod(bound=3, containerStatuses=waiting("ImagePullBackOff"), phase="Failed")],
        {"submitted": 1, "bound": 1},
    ),
    "its ConfigMap isn't there": (
        [pod(bound=3, initContainerStatuses=waiting("CreateContainerConfigError", 'configmap "x" not found'))],
        {"submitted": 1, "bound": 1},
    ),
    "its command isn't there": (
        [pod(bound=3, containerStatuses=waiting("RunContainerError", 'exec: "x": executable file not found in $PATH'))],
        {"submitted": 1, "bound": 1},
    ),
    "its image was late": (
        [
            pod(bound=3, containerStatuses=waiting("ErrImagePull")),
            pod(bound=3, version=2, containerStatuses=running(99)),
        ],
        {"submitted": 1, "bound": 1, "started": 1},
    ),
    "the runtime does not know its devices": (
        [
            pod(
                bound=3,
                containerStatuses=waiting(
                    "CreateContainerError", "unresolvable CDI devices: no such file or directory"
                ),
                phase="Failed",
            )
        ],
        {"submitted": 1, "bound": 1, "failed": 1},
    ),
    "it was taken away before it started": (
        [pod(bound=3, metadata={"deletionTimestamp": at(40), "deletionGracePeriodSeconds": 30})],
        {"submitted": 1, "bound": 1},
    ),
    "the scheduler made its claim": (
        [pod(lane="", bound=3), claim("", annotations={"resource.kubernetes.io/extended-resource-claim": "true"})],
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_pod_is_counted_once_for_what_became_of_it(name: str) -> None:
    looks, wanted = CASES[name]
    known = facts(*looks)
    assert told(counted(known, KEY, UID, START + 60_000)) == wanted
    assert told(counted(known.merge(facts(*reversed(looks))), KEY, UID, START + 60_000)) == wanted


def test_who_stands_on_a_node_for_ten_minutes_has_failed() -> None:
    known = facts(pod(bound=3))
    assert told(counted(known, KEY, UID, START + 603_000)) == {"submitted": 1, "bound": 1}
    assert told(counted(known, KEY, UID, START + 603_001)) == {"submitted": 1, "bound": 1, "failed": 1}


def test_who_goes_with_devices_that_could_not_be_prepared_has_failed() -> None:
    known = facts(pod(bound=3)).merge(Facts(0, flags=PREPARE_FAILED))
    there = {"submitted": 1, "bound": 1, "prepare_failed": 1}
    assert told(counted(known, KEY, UID, START + 60_000)) == there
    gone = known.merge(Facts(0, ended=START + 50_000))
    assert told(counted(gone, KEY, UID, START + 60_000)) == {**there, "failed": 1}


def test_devices_are_held_from_binding_to_the_end() -> None:
    known = facts(pod(bound=10, containerStatuses=running(15)))
    assert counted(known, KEY, UID, START + 110_000).held == 2 * 100
    done = facts(pod(bound=10, phase="Succeeded", containerStatuses=[{"state": ended(15, 70)}]))
    assert counted(done, KEY, UID, START + 110_000).held == 2 * 60


@pytest.mark.parametrize("offset", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("wait", [0.2, 0.7, 1.4, 5.0])
def test_whole_seconds_make_no_wait_longer_or_shorter(offset: float, wait: float) -> None:
    """Seen as it happens a wait is known to milliseconds; else it is right on average over many Pods."""
    created, bound = START + int(1000 * offset), START + int(1000 * (offset + wait))
    seen = Facts(START, created, bound - bound % 1000, bound)
    (bucket,) = counted(seen, KEY, UID, bound).waits
    exact = Cell()
    exact.bind(bound - created)
    assert bucket in exact.waits
    waits = []
    for number in range(3000):
        shift = START + number * 7919 % 1000
        late = Facts(shift - shift % 1000, START + HOUR, (end := shift + int(1000 * wait)) - end % 1000, START + HOUR)
        cell = counted(late, KEY, f"pod-{number}", START + HOUR)
        waits.append(next(iter(cell.waits)))
    median = sorted(waits)[len(waits) // 2]
    assert abs(median - next(iter(_bucket(wait).waits))) <= (8 if wait < 1 else 3)


def _bucket(seconds: float) -> Cell:
    cell = Cell()
    cell.bind(int(1000 * seconds))
    return cell


TIMES = st.sampled_from([0, START, START + 1000, START + 5000, START + 700_000])
INIT = {"initContainers": [{"restartPolicy": "Always"}, {}, {}]}
SIDECAR = {"state": {"running": {"startedAt": at(4)}}}


def initialising(*states: dict[str, Any], **status: Any) -> dict[str, Any]:
    """A bound Pod with a sidecar and two init containers."""
    found = pod(
        bound=3, initContainerStatuses=[SIDECAR, *({"restartCount": 0, "state": one} for one in states)], **status
    )
    return {**found, "spec": {**found["spec"], **INIT}}


RUNS, WAITS = {"running": {"startedAt": at(9)}}, {"waiting": {"reason": "PodInitializing"}}
STILL, IN_TIME, LATE = {"submitted": 1, "bound": 1}, {"started": 1}, {"failed": 1}


@pytest.mark.parametrize(
    ("looks", "seconds", "more"),
    [
        ([initialising(RUNS, WAITS)], 4000, {}),  # it loads a model
        ([initialising(ended(9, 20), RUNS)], 4000, {}),
        ([initialising(ended(9, 20), ended(20, 3000))], 3600, {}),
        ([initialising(ended(9, 20), ended(20, 3000))], 3601, LATE),
        ([initialising(ended(9, 20), ended(20, 3000), containerStatuses=running(3600))], 4000, IN_TIME),
        ([initialising(ended(9, 20), ended(20, 3000), containerStatuses=running(3601))], 4000, LATE),
        ([initialising(RUNS, WAITS), pod(bound=3, version=2, phase="Failed")], 30, LATE),
        ([initialising(WAITS, WAITS)], 604, LATE),  # no container of it runs
        ([initialising(RUNS, WAITS), initialising(ended(9, 20, 1), WAITS)], 604, LATE),  # nvidia-smi finds none
    ],
)
def test_what_init_containers_take_is_no_failure_of_devices(
    looks: list[dict[str, Any]], seconds: int, more: dict[str, int]
) -> None:
    for order in (looks, looks[::-1]):
        cell = counted(facts(*order, after=seconds), KEY, UID, START + 1000 * seconds)
        assert told(cell) == {**STILL, **more}


def test_what_another_version_wrote_is_read() -> None:
    """While replicas are upgraded, or taken back."""
    written = msgspec.json.decode(msgspec.json.encode(Facts(START, initialised=START)))
    assert msgspec.json.decode(msgspec.json.encode(written[:-1]), type=Facts) == Facts(START)
    assert msgspec.json.decode(msgspec.json.encode([*written, "new"]), type=Facts) == Facts(START, initialised=START)


FACTS = st.builds(
    Facts, TIMES, TIMES, TIMES, TIMES, TIMES, TIMES, TIMES, TIMES, st.integers(0, 127), st.integers(0, 9),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=2, unique_by=lambda one: one[0])
    .map(sorted).map(tuple), TIMES,
)  # fmt: skip


@given(FACTS, FACTS, FACTS)
def test_what_is_known_only_grows_in_whatever_order(one: Facts, two: Facts, three: Facts) -> None:
    assert one.merge(two) == two.merge(one)
    assert one.merge(two).merge(three) == one.merge(two.merge(three))
    assert one.merge(one) == one
    assert one.merge(two).merge(one) == one.merge(two)


# -- whose cohort it is -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policy_set() -> PolicySet:
    spec = {"policy": "train@1", "namespaces": ["lilac", "lilac-old"]}
    api = {"apiVersion": "policy.dra-gate.io/v1alpha1"}
    return small.policy_set({**api, "kind": "Tenant", "metadata": {"name": "lilac"}, "spec": spec})


def stamped(**said: str) -> dict[str, Any]:
    found = pod()
    found["metadata"]["annotations"] |= {f"dra-gate.io/{key}": value for key, value in said.items()}
    return found


@pytest.mark.parametrize(
    ("what", "gated", "wanted"),
    [
        (pod(), "dra", KEY),
        (pod(lane="device-plugin"), "device-plugin", PLUGIN),
        (pod(lane="device-plugin"), "dra", PLUGIN),  # stamped before its namespace was moved
        (pod(lane=""), "device-plugin", Key("device-plugin", "lilac", 2, "h100")),
        (pod(lane=""), "dra", Key("device-plugin", "lilac", 2, "h100")),  # it was there before
        (pod(lane="", namespace="lilac-old"), "", Key("device-plugin", "lilac", 2, "h100")),
        (pod(lane="", namespace="elsewhere"), "dra", None),
        (pod(), "", None),  # anybody may have written that stamp
        (pod(devices=0), "dra", None),
        (stamped(policy="x" * 100_000), "dra", Key("dra", "lilac", 2, "h100")),
        (stamped(**{"policy-version": "9" * 100_000}), "dra", Key("dra", "lilac", 2, "h100")),
        (pod(metadata={"annotations": {"dra-gate.io/lane": "gpu"}}), "dra", None),
    ],
)
def test_the_cohort_of_a_pod(policy_set: PolicySet, what: dict[str, Any], gated: str, wanted: Key | None) -> None:
    seen = read_pod(what, START)
    assert seen is not None
    assert key_of(seen, Around((policy_set,), lambda _: gated)) == wanted


def test_a_pod_without_devices_is_none() -> None:
    plain = pod(lane="")
    plain["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}}
    assert read_pod(plain, START) is None


def test_a_refusal_is_the_gates_or_is_not_counted() -> None:
    about = {"kind": "ReplicaSet", "namespace": "lilac", "name": "r", "uid": "u"}
    said = 'pods "r-" is forbidden: admission webhook "validate.dra-gate.io" denied the request: POLICY_NO_TENANT'
    event = {"involvedObject": about, "reason": "FailedCreate", "message": said, "lastTimestamp": at(5)}
    found = read_denial(event)
    assert found is not None
    assert (found.owner, found.kind, found.name, found.at) == ("u", "ReplicaSet", "r", START + 5000)
    assert (
        read_denial({**event, "message": "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"}) is None
    )
