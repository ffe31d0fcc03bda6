"""What a change of the switch means for the Pods that are there, as `dra-gate rollback --dry-run` tells it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from dra_gate.kube.raw import Object, at, text
from dra_gate.migration import returning
from dra_gate.migration.returning import Fate, PodState
from dra_gate.policy.switch import DRA, PLUGIN

Key = tuple[str, str]  # namespace and name


@dataclass(frozen=True, slots=True)
class Around:
    """What the fate of Pods hangs on beside themselves.

    `lanes` gives the lane that a namespace will be in, empty for one that is not concerned; `rules` the onRollback of a
    policy (name@version); `drain_by` until when Pods of a namespace may run (Unix seconds, None: until they end).
    `refused` says why no Pod can follow another in lane device-plugin; empty where one can. `claims` are the claims by
    namespace and name, `jobs` the Jobs (batch/v1).
    """

    lanes: Callable[[str], str]
    rules: Callable[[str], str]
    drain_by: Callable[[str], int | None]
    refused: Callable[[str], str]
    claims: Mapping[str, Mapping[str, Object]] = field(default_factory=dict)
    jobs: Mapping[Key, Object] = field(default_factory=dict)


def fates(pods: Iterable[Object], around: Around, now: int) -> Iterator[Fate]:
    """What becomes of each Pod that carries the gate's stamp, in namespaces that are concerned.

    Evictions are counted against the limits of their Jobs in the order of the Pods, as the controller will.
    """
    failures: dict[Key, int] = {}
    for pod in pods:
        namespace = text(at(pod, "metadata", "namespace"))
        lane = around.lanes(namespace)
        state = returning.read(pod, around.claims.get(namespace, {})) if lane else None
        if state is None:
            continue
        if lane != PLUGIN:
            yield forward(state)
            continue
        kind, _, name = state.owner.partition("/")
        key = (namespace, name)
        job = around.jobs.get(key) if kind == "Job" else None
        if job is not None:
            known = failures.setdefault(key, returning.failures_of(job))
            state = replace(state, harm=returning.harm_of(job, pod, known))
        if state.phase != "bound" and (refused := around.refused(namespace)):
            state = replace(state, harm=refused)
        found = returning.fate(state, around.rules(state.policy), around.drain_by(namespace), now)
        if job is not None and "recreate" in (found.step, found.then):
            failures[key] += 1
        yield found


def forward(pod: PodState) -> Fate:
    """What becomes of `pod` while the lane of its namespace is dra."""
    if pod.lane != DRA:
        return Fate(pod, "nothing", None, "it has its devices from device plugins, and keeps them")
    if pod.phase == "ended":
        return Fate(pod, "nothing", None, "it has ended")
    if pod.phase == "leaving":
        return Fate(pod, "nothing", None, "it is being deleted")
    if pod.phase == "bound" or pod.allocated:
        return Fate(pod, "finish", None, "it keeps its devices until it ends")
    return Fate(pod, "release", None, "it gets devices under DRA when its turn comes")


@dataclass(frozen=True, slots=True)
class Row:
    """How many Pods of a tenant that have come so far have the same ahead of them."""

    tenant: str
    phase: str
    step: str
    then: str
    pods: int


def summed(found: Iterable[Fate]) -> list[Row]:
    """The fates by tenant and phase, in the order in which Pods go through phases."""
    counts = Counter((one.pod.tenant, one.pod.phase, one.step, one.then or "") for one in found)
    rows = [Row(*key, pods) for key, pods in counts.items()]
    return sorted(rows, key=lambda row: (row.tenant, _PHASES.index(row.phase), row.step, row.then))


_PHASES = ("held", "granted", "waiting", "bound", "leaving", "ended")
