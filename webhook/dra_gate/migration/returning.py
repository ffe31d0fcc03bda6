"""What becomes of a Pod under DRA when its namespace goes back to device plugins. Pure; times are Unix seconds.

A Pod that holds devices is left to finish, or drained at a time that was said. One that waits goes by its policy's
`onRollback`. The controller does it (controller/returning.py), `dra-gate rollback --dry-run` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dra_gate.kube import pod as pods
from dra_gate.kube.group import maker_of
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.compile import DOMAIN, NAME_PREFIX
from dra_gate.policy.switch import DRA

Phase = Literal["held", "granted", "waiting", "bound", "ended", "leaving"]
Step = Literal["recreate", "withdraw", "keep", "release", "finish", "drain", "nothing"]

DISRUPTED = "DisruptionTarget"  # the condition that an eviction puts on a Pod (KEP-3329)

_LANE, _TENANT, _GRANT_GATE = f"{DOMAIN}/lane", f"{DOMAIN}/tenant", f"{DOMAIN}/grant"
_POLICY, _VERSION = f"{DOMAIN}/policy", f"{DOMAIN}/policy-version"
_LATE = f"{NAME_PREFIX}late-"
_INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"  # batch/v1, on Pods of Jobs with backoffLimitPerIndex


@dataclass(frozen=True, slots=True)
class PodState:
    """A Pod with devices.

    `policy` is name@version and `lane` the lane, both as stamped. `phase`: held by our scheduling gate, or by late
    claims that are not there any more; granted: let go, with late claims; waiting: with claims from templates, or none
    of ours; bound: on a node; ended: for good; leaving: being deleted. `owner` is the controller that would make
    another, as Kind/name, empty for none. `allocated`: a claim of it was given devices. `harm`: what its owner would
    lose if it were evicted, for people; empty for nothing.
    """

    uid: str
    namespace: str
    name: str
    tenant: str
    policy: str
    lane: str
    phase: Phase
    owner: str = ""
    allocated: bool = False
    harm: str = ""


@dataclass(frozen=True, slots=True)
class Fate:
    """What is done about a Pod now, what after that, and why, for people.

    recreate: it is evicted, and its owner makes another, under device plugins. withdraw: its late claims are taken away
    before anything is allocated, and its charge ends. keep: it stays held until the lane goes forward again. release:
    it gets devices under DRA in its turn. finish: it runs on. drain: it is evicted as its PodDisruptionBudget allows.
    """

    pod: PodState
    step: Step
    then: Step | None
    why: str


def fate(pod: PodState, held_rule: str, drain_by: int | None, now: int) -> Fate:
    """What becomes of `pod` while the lane of its namespace is `device-plugin`.

    `held_rule` is the onRollback of its policy. `drain_by`: when Pods that hold devices are drained, None for never.
    """
    if pod.lane != DRA:
        return Fate(pod, "nothing", None, "it is under device plugins already")
    if pod.phase == "ended":
        return Fate(pod, "nothing", None, "it has ended")
    if pod.phase == "leaving":
        return Fate(pod, "nothing", None, "it is being deleted")
    if pod.phase == "bound" or pod.allocated:
        return _of_running(pod, drain_by, now)
    if pod.phase == "waiting":
        return Fate(pod, *_of_waiting(pod, held_rule))
    if held_rule == "release":
        return Fate(pod, "release", None, f"onRollback: release: it {_GOES_ON}")
    step, why = _of_held(pod, held_rule)
    if pod.phase == "granted":
        return Fate(pod, "withdraw", step, f"it has no devices yet: its claims are taken away, and it is {why}")
    return Fate(pod, step, None, f"it is {why}")


_GOES_ON = "gets devices under DRA when its turn comes"


def _of_waiting(pod: PodState, held_rule: str) -> tuple[Step, None, str]:
    why_not = _why_not(pod)
    if held_rule == "recreate" and not why_not:
        return "recreate", None, _evicted(pod)
    why = why_not or "nothing holds it"
    return "release", None, f"{why}, so it is left as it is and {_GOES_ON}"


def _of_held(pod: PodState, held_rule: str) -> tuple[Step, str]:
    why_not = _why_not(pod) if held_rule == "recreate" else f"its policy says onRollback: {held_rule}"
    if not why_not:
        return "recreate", _evicted(pod)
    return "keep", f"held until the lane is dra again, since {why_not}"


def _why_not(pod: PodState) -> str:
    """Why it is not evicted, and what to do about it; empty where it is."""
    return pod.harm or ("" if pod.owner else "no controller would make it again (delete it, and create it anew)")


def _evicted(pod: PodState) -> str:
    return f"evicted, and {pod.owner} makes another under device plugins"


def _of_running(pod: PodState, drain_by: int | None, now: int) -> Fate:
    has = "it runs" if pod.phase == "bound" else "it was given devices"
    if drain_by is None:
        return Fate(pod, "finish", None, f"{has}, and keeps its devices until it ends")
    if why_not := _why_not(pod):
        return Fate(pod, "finish", None, f"{has}, and is not drained, since {why_not}")
    if now < drain_by:
        return Fate(pod, "finish", "drain", f"{has}, and keeps its devices until drainBy; then it is evicted")
    return Fate(pod, "drain", None, f"{has}, and drainBy is over: it is evicted as its PodDisruptionBudget allows")


def read(pod: Object, claims: Mapping[str, Object]) -> PodState | None:
    """The Pod, with the claims of its namespace by name; None for one without our stamp.

    Claims of others under the names that it uses count as its own: late names are drawn for one Pod.
    """
    metadata, annotations = mapping(pod.get("metadata")), mapping(at(pod, "metadata", "annotations"))
    tenant, policy = text(annotations.get(_TENANT)), text(annotations.get(_POLICY))
    if not tenant or not policy:
        return None
    names = pods.claim_names(pod)
    late = [name for name in names if name.startswith(_LATE)]
    return PodState(
        uid=text(metadata.get("uid")),
        namespace=text(metadata.get("namespace")),
        name=text(metadata.get("name")),
        tenant=tenant,
        policy=f"{policy}@{text(annotations.get(_VERSION))}",
        lane=text(annotations.get(_LANE)),
        phase=phase_of(
            ended=pods.is_finished(pod),
            leaving=bool(metadata.get("deletionTimestamp")),
            bound=bool(text(at(pod, "spec", "nodeName"))),
            gated=any(mapping(one).get("name") == _GRANT_GATE for one in sequence(at(pod, "spec", "schedulingGates"))),
            late=bool(late),
            late_there=any(name in claims for name in late),
        ),
        owner=maker_of(pod),
        allocated=any(at(claims.get(name), "status", "allocation") is not None for name in names),
    )


def phase_of(*, ended: bool, leaving: bool, bound: bool, gated: bool, late: bool, late_there: bool) -> Phase:
    """How far a Pod has come. `late`: it names late claims; `late_there`: one of them is there."""
    if ended:
        return "ended"
    if leaving:
        return "leaving"
    if bound:
        return "bound"
    if gated or (late and not late_there):
        return "held"
    return "granted" if late else "waiting"


def harm_of(job: Object, pod: Object, failures: int) -> str:
    """What a Job (batch/v1) would lose if `pod` of it were evicted; empty for nothing.

    An evicted Pod counts as failed, unless a rule of podFailurePolicy on DisruptionTarget says otherwise. `failures`
    are those known by now, evictions that the Job has not counted yet among them.
    """
    spec = mapping(job.get("spec"))
    kind = "no rule"
    for rule in map(mapping, sequence(at(spec, "podFailurePolicy", "rules"))):
        patterns = map(mapping, sequence(rule.get("onPodConditions")))
        if any(one.get("type") == DISRUPTED and one.get("status", "True") == "True" for one in patterns):
            kind = text(rule.get("action"))
            break
    advice = "give the Job a podFailurePolicy that ignores DisruptionTarget, or create it anew"
    if kind == "Ignore":
        return ""
    if kind in ("FailJob", "FailIndex"):
        return f"podFailurePolicy of its Job says {kind} for evicted Pods; create the Job anew"
    each = spec.get("backoffLimitPerIndex")
    if isinstance(each, int):
        written = text(at(pod, "metadata", "annotations", _INDEX_FAILURES))
        counted = int(written) if written.isascii() and written.isdigit() and len(written) < 10 else 0
        return "" if counted < each else f"its eviction would use up backoffLimitPerIndex {each} of its Job; {advice}"
    limit = spec.get("backoffLimit", 6)  # batch/v1: the default
    if isinstance(limit, int) and failures >= limit:
        return f"its eviction would use up backoffLimit {limit} of its Job; {advice}"
    return ""


def failures_of(job: Object) -> int:
    """How many Pods of the Job have failed, those among them that it is about to count."""
    failed = at(job, "status", "failed")
    return (failed if isinstance(failed, int) else 0) + len(
        sequence(at(job, "status", "uncountedTerminatedPods", "failed"))
    )
