"""Why a Pod got what it got, or waits: for each candidate, what there is of it and what keeps it away. Pure.

Whether the Pod could have a candidate on a node is asked of the allocator (`against`). Every device is counted once,
under the first of: it does not meet the policy, its pool, its taints, its node, who holds it (`tally`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dra_gate.allocation.against import Asked, against
from dra_gate.allocation.allocator import Allocator
from dra_gate.allocation.explanation import (
    UNGRANTED,
    Candidate,
    ClaimExplained,
    Explanation,
    Fate,
    PodState,
    Reason,
    RequestExplained,
)
from dra_gate.allocation.fit import Obstacle, Room, not_judged
from dra_gate.allocation.fleet import Fleet, Holder, Published, Selectors
from dra_gate.allocation.nodes import best_nodes
from dra_gate.allocation.outcome import Outcome
from dra_gate.allocation.plugin_pod import in_plugin_lane, known_of, stamped_policy
from dra_gate.allocation.podclaims import PodClaim, PodClaims, count_of, elsewhere, name_of
from dra_gate.allocation.state import State
from dra_gate.allocation.tally import Tally
from dra_gate.allocation.verdicts import ADVICE
from dra_gate.allocation.wanted import policy_of, wanted
from dra_gate.kube.claim import Request, requests
from dra_gate.kube.pod import claim_entries, containers, is_finished
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.kube.taint import tolerated
from dra_gate.policy.compile import DOMAIN, NAME_PREFIX, REQUEST
from dra_gate.policy.model import DevicePolicy, Tenant
from dra_gate.policy.words import listed, some

GRANT_GATE = "dra-gate.io/grant"
_LATE = f"{NAME_PREFIX}late-"
_SCHEDULER = "default-scheduler"
_AVOIDED = "PreferNoSchedule"
_ASKED_NODES = 3  # of the nodes with most free devices, so many are asked why they do not do
_STOPS = frozenset({"class-missing", "cel-error", "allocator"})  # the scheduler looks at no node then
# With one of these the scheduler does not look at the Pod again: what it said of it was said before.
_SILENT = frozenset(
    {"claim-missing", "claim-not-made", "claim-deleting", "template-missing", "template-version", "quota"}
)
_GONE = (Obstacle("node-gone", "the node is gone"),)


class NoSuchPodError(LookupError):
    """There is nothing to explain; the message says what is known all the same."""


@dataclass(frozen=True, slots=True)
class _View:
    """The state as one Pod meets it: claims that are not there for it (`ignore`), and what nodes have against it."""

    allocator: Allocator
    ignore: frozenset[str]
    obstacles: Mapping[str, tuple[Obstacle, ...]]
    outcomes: Mapping[str, Outcome]  # of a Pod that has nothing yet, by the nodes that take it
    unknown: tuple[str, ...]  # what the Pod says that is not judged
    avoided: Mapping[str, str]  # nodes that the scheduler avoids for the Pod, if it can -> for which taint

    def fits(self, node: str) -> bool:
        return not self.obstacles.get(node, _GONE)


class Explainer:
    """Explains Pods of one state. `used` is what each tenant holds in all, if anybody has counted it.

    As a tenant's, it names nothing of others: their Pods are counted. Raises SnapshotError for policies that do not
    load.
    """

    def __init__(self, state: State, *, as_tenant: str = "", used: Mapping[str, int] | None = None) -> None:
        self.sets = state.policy_sets()
        self._state = state
        self._as_tenant = as_tenant
        self._used = used or {}
        self._active = self.sets.get(state.active)
        snapshot = state.snapshot
        self._nodes = {name_of(node)[1]: node for node in snapshot.nodes}
        self._classes = {name_of(one)[1]: one for one in snapshot.classes}
        self._claims = PodClaims(state, self.sets)
        self._fleet = Fleet(snapshot)
        self.reached = sorted({node for device in self._fleet.devices for node in device.nodes})
        self._selectors = Selectors()
        self._members: dict[str, list[tuple[Published, str]]] = {}
        self._allocator = Allocator(snapshot)
        self._room = Room(snapshot.pods, snapshot.classes)

    def pod(self, namespace: str, name: str, *, devices: bool = False) -> Explanation:
        """The explanation of a Pod; with every device of its candidates if `devices`. Raises NoSuchPodError."""
        if self._as_tenant and self._tenant_name(namespace) != self._as_tenant:
            raise NoSuchPodError(f"tenant {self._as_tenant} has no Pod {namespace}/{name}")
        pod = next((one for one in self._state.snapshot.pods if name_of(one) == (namespace, name)), None)
        if pod is None:
            raise NoSuchPodError(self._missing(namespace, name))
        return self.of(pod, devices=devices)

    def waiting(self) -> list[Object]:
        """The Pods with claims that are on no node yet, in the order in which the scheduler takes them."""
        found = (
            pod
            for pod in self._state.snapshot.pods
            if claim_entries(pod) and not is_finished(pod) and not at(pod, "spec", "nodeName")
        )
        return sorted(found, key=_turn)

    def of(self, pod: Object, *, devices: bool = False) -> Explanation:
        """The explanation of `pod`, whether or not the state has it."""
        claims = [*self._claims.of(pod)]
        view = self._view(pod, claims)
        placed = text(at(pod, "spec", "nodeName"))
        causes = [] if placed or is_finished(pod) else [*self._causes(pod, claims)]
        if in_plugin_lane(pod) and not claims:
            causes.append(known_of(pod))
        if not any(cause.code in _STOPS for cause in causes):
            causes += _fatal(view.outcomes, claims)
        stopped = any(cause.code in _STOPS for cause in causes)
        explained = [self._claim(pod, claim, claims, view, stopped=stopped, devices=devices) for claim in claims]
        policies = dict.fromkeys(claim.policy for claim in explained if claim.policy)
        namespace, name = name_of(pod)
        return Explanation(
            namespace=namespace,
            pod=name,
            state=_state(pod, placed),
            node=placed,
            tenant=self._tenant_name(namespace),
            policy=", ".join(policies) or stamped_policy(pod),
            policy_set=text(at(pod, "metadata", "annotations", "dra-gate.io/policy-set")) or self._state.active,
            claims=tuple(explained),
            causes=tuple(causes),
            notes=tuple(self._notes(pod, explained, causes, view)),
        )

    def claims(self, pod: Object) -> list[PodClaim]:
        """The claims of a Pod, those still to be made among them."""
        return [*self._claims.of(pod)]

    def blockers(self, pod: Object) -> list[Reason]:
        """What keeps the scheduler from looking at a Pod that is on no node."""
        return [*self._causes(pod, self.claims(pod))]

    def _view(self, pod: Object, claims: Sequence[PodClaim]) -> _View:
        """A Pod that is placed met the state as it was before: what came later is not there, as far as it is known."""
        placed, room, ignore = at(pod, "spec", "nodeName"), self._room, frozenset[str]()
        if placed:
            own = {claim.uid: _since(claim.obj) for claim in claims if claim.allocated}
            since = min(own.values(), default="")
            later = (one for one in self._state.snapshot.claims if since and _since(one) > since)
            ignore = frozenset(own) | {text(at(one, "metadata", "uid")) for one in later}
            when = _scheduled(pod)
            others = (one for one in self._state.snapshot.pods if one is not pod)
            room = Room((one for one in others if not when or _scheduled(one) <= when), self._state.snapshot.classes)
        fitting = room.fitting(pod)
        obstacles = {name: fitting(node) for name, node in self._nodes.items()}
        allocator = Allocator(self._state.snapshot, ignore=ignore) if ignore else self._allocator
        for name, node in self._nodes.items() if not placed else ():
            elsewhere_too = elsewhere(claims, node)
            if elsewhere_too is not None:
                obstacles[name] = (elsewhere_too, *obstacles[name])
        asked = [claim.obj for claim in claims if claim.obj is not None and not claim.allocated]
        outcomes = {}
        if asked and not placed and not is_finished(pod):
            outcomes = {name: allocator.allocate(name, asked) for name in self.reached if not obstacles[name]}
        avoided = {name: taint for name, node in self._nodes.items() if (taint := _avoided_for(pod, node))}
        return _View(allocator, ignore, obstacles, outcomes, not_judged(pod), avoided)

    # What keeps the scheduler from looking

    def _causes(self, pod: Object, claims: Sequence[PodClaim]) -> Iterator[Reason]:
        gates = [text(mapping(gate).get("name")) for gate in sequence(at(pod, "spec", "schedulingGates"))]
        if GRANT_GATE in gates:
            yield Reason("held", f"the gate holds it until its devices are granted{_granted(pod)}")
            yield from self._tenant_quota(pod, claims)
        others = [gate for gate in gates if gate != GRANT_GATE]
        if others:
            yield Reason("scheduling-gates", f"scheduling gates of others hold it: {', '.join(others)}")
        unwritten = GRANT_GATE in gates  # late claims come with the grant
        yield from (
            claim.problem
            for claim in claims
            if claim.problem is not None and not (unwritten and claim.name.startswith(_LATE))
        )
        missing = {
            alternative.device_class: "/".join(filter(None, (request.name, alternative.name)))
            for claim in claims
            if not claim.allocated
            for request in requests(mapping(at(claim.obj, "spec")))
            for alternative in request.alternatives
            if alternative.device_class not in self._classes
        }
        for name, where in missing.items():
            yield Reason(
                "class-missing", f"device class {name} of request {where} does not exist: no node is looked at"
            )
        scheduler = text(at(pod, "spec", "schedulerName"))
        if scheduler and scheduler != _SCHEDULER:
            yield Reason("other-scheduler", f"it waits for scheduler {scheduler}, which may decide otherwise")

    def _tenant_quota(self, pod: Object, claims: Sequence[PodClaim]) -> Iterator[Reason]:
        tenant = self._tenant(name_of(pod)[0])
        if tenant is None or tenant.quota.devices is None or tenant.name not in self._used:
            return
        limit, held = tenant.quota.devices, self._used[tenant.name]  # with what the Pod itself asks for
        if held > limit:
            asked = sum(_most(claim.obj) for claim in claims)
            told = f"its quota is {limit} devices, and {held} are held or asked for, {asked} of them by this Pod"
            yield Reason("quota", f"tenant {tenant.name}: {told}")

    # One claim, one candidate

    def _claim(
        self, pod: Object, claim: PodClaim, claims: Sequence[PodClaim], view: _View, *, stopped: bool, devices: bool
    ) -> ClaimExplained:
        policy, policy_set = policy_of(claim.obj, pod, self.sets, self._state.active)
        # Of a Pod that is placed all claims are asked about as they were before; else those that are still to be given.
        placed = bool(at(pod, "spec", "nodeName"))
        known = [one for one in claims if one.obj is not None and (placed or not one.allocated)]
        users = {
            one.entry: tuple(container.name for container in containers(pod) if one.entry in container.claim_names())
            for one in claims
        }
        explained = []
        for request in requests(mapping(at(claim.obj, "spec"))):
            rank, given = _given(claim.obj, request)
            found = []
            for position, alternative in enumerate(request.alternatives, 1):
                what = wanted(request, alternative, policy, policy_set)
                asked = Asked(known, claim, request, alternative, what, position, users)
                settled = stopped or (claim.allocated and not placed)
                found.append(self._candidate(asked, rank, view, stopped=settled, devices=devices))
            if policy is not None and request.name == REQUEST:
                found += self._left_out(pod, claim, policy, {one.model for one in found})
            explained.append(RequestExplained(request.name, tuple(found), rank, given))
        name, ref = claim.name if claim.made else "", str(policy.ref) if policy else ""
        return ClaimExplained(claim.entry, name, claim.template, users[claim.entry], ref, tuple(explained))

    def _left_out(self, pod: Object, claim: PodClaim, policy: DevicePolicy, have: set[str]) -> Iterator[Candidate]:
        """Models of the policy that the grant left out; and those that new Pods of the namespace may get, and this one,
        by another version, may not.
        """
        late = text(at(pod, "metadata", "annotations", f"{DOMAIN}/claims")).split(",")
        if any(one.partition("=")[0] == claim.entry for one in late):
            for model in policy.candidates:
                if model not in have:
                    told = "its grant leaves it out: none was to be had for this Pod then"
                    yield Candidate(model, 0, 0, 0, 0, 0, 0, "not asked for", (Reason(UNGRANTED, told),))
        now = self._policy_now(pod)
        if now is None or now.ref == policy.ref:
            return
        for model in now.candidates:
            if model not in have:
                told = f"no candidate in {policy.ref}, of which its claim is, but in {now.ref}, which new Pods get"
                yield Candidate(model, 0, 0, 0, 0, 0, 0, "not asked for", (Reason("policy-version", told),))

    def _candidate(self, asked: Asked, rank: int, view: _View, *, stopped: bool, devices: bool) -> Candidate:
        tally = self._tally(asked, view, listed=devices)
        better = rank == 0 or asked.rank < rank
        possible: tuple[str, ...] = ()
        reasons: list[Reason] = []
        if better and tally.free_on and not stopped:
            possible, reasons = _together(asked, tally, view)
        if possible and rank:
            reasons = [_passed_over(possible, view)]
        had: Fate = "not judged" if view.unknown else "possible"
        fate: Fate = "given" if rank == asked.rank else had if possible else "no"
        return Candidate(
            model=asked.wanted.name,
            rank=asked.rank,
            count=count_of(asked.alternative),
            published=tally.published,
            healthy=tally.healthy,
            matching=tally.matching,
            free=tally.free,
            fate=fate,
            reasons=(*reasons, *tally.reasons(self._holder)) if better else (),
            possible=possible,
            devices=tuple(tally.lines),
        )

    def _tally(self, asked: Asked, view: _View, *, listed: bool) -> Tally:
        tally = Tally(view.fits, listed=listed)
        name = asked.alternative.device_class
        if name not in self._classes:
            tally.no_class(name)
            return tally
        for device, wrong in self._of_class(name):
            if wrong:
                tally.wrong(device, f"class {name}: {wrong}")
                continue
            failed, error = self._selectors.first_failing(asked.alternative.selectors, device)
            if error:
                tally.wrong(device, error)
            elif failed < 0 or not asked.wanted.is_identity(failed):
                word = None if failed < 0 else asked.wanted.turned_away(failed, device.raw, device.id[0])
                held = self._fleet.held(device, view.ignore)
                tally.add(device, word, [*self._against(device, asked, view)], held)
        return tally

    def _of_class(self, name: str) -> list[tuple[Published, str]]:
        """The devices of a class, and with the error those that its selectors fail on. Asked once for all."""
        found = self._members.get(name)
        if found is None:
            listed = sequence(at(self._classes[name], "spec", "selectors"))
            selectors = [text(at(one, "cel", "expression")) for one in listed]
            judged = ((one, *self._selectors.first_failing(selectors, one)) for one in self._fleet.devices)
            found = self._members[name] = [(one, error) for one, failed, error in judged if failed < 0 or error]
        return found

    def _against(self, device: Published, asked: Asked, view: _View) -> Iterator[tuple[str, str]]:
        """What keeps a device from the Pod, the first thing first; the policy and holders aside."""
        if device.problem[0]:
            yield device.problem
        if not device.nodes:
            yield "node-gone", f"node {device.node} is gone" if device.node else "no node reaches it"
        if asked.alternative.raw.get("adminAccess") is not True:
            for taint in device.taints:
                if not tolerated(taint, sequence(asked.alternative.raw.get("tolerations"))):
                    value = f"={taint['value']}" if taint.get("value") else ""
                    yield "taint", f"tainted {taint.get('key')}{value}:{taint.get('effect')}"
        if device.nodes and all(map(_unready, map(self._nodes.__getitem__, device.nodes))):
            yield "node-not-ready", "the node is not ready"
        if device.nodes and not any(map(view.fits, device.nodes)):
            pool = {f"{key}={value}" for key, value in asked.wanted.constraints.nodes.items()}
            for one in view.obstacles[device.nodes[0]]:
                yield ("node-pool" if one.label in pool else one.code), one.text

    # Words

    def _tenant(self, namespace: str) -> Tenant | None:
        return self._active.tenant_of(namespace) if self._active is not None else None

    def _tenant_name(self, namespace: str) -> str:
        tenant = self._tenant(namespace)
        return "" if tenant is None else tenant.name

    def _policy_now(self, pod: Object) -> DevicePolicy | None:
        """The policy that a new Pod in the same namespace would get."""
        namespace = name_of(pod)[0]
        tenant = self._tenant(namespace)
        if tenant is None or self._active is None:
            return None
        return self._active.policies[tenant.policy_for(namespace)]

    def _holder(self, holder: Holder) -> str:
        """Who it is; for a tenant, nothing but that it is somebody else."""
        if self._as_tenant and self._tenant_name(holder.claim[0]) != self._as_tenant:
            return "others"
        return some(["/".join(pod) for pod in sorted(holder.pods)], 1) or f"claim {'/'.join(holder.claim)}"

    def _missing(self, namespace: str, name: str) -> str:
        """What is known of a Pod that is not there: perhaps the gate refused it, which its owner's Events tell."""
        told = f"there is no Pod {namespace}/{name}"
        refused = [
            event
            for event in self._state.events
            if event.get("reason") == "FailedCreate"
            and at(event, "involvedObject", "namespace") == namespace
            and name.startswith(text(at(event, "involvedObject", "name")))
        ]
        newest = max(refused, key=lambda event: text(event.get("lastTimestamp")), default=None)
        if newest is None:
            return told
        owner = f"{at(newest, 'involvedObject', 'kind')} {at(newest, 'involvedObject', 'name')}"
        return f"{told}; {owner} could not make it: {text(newest.get('message'))}"

    def _notes(
        self, pod: Object, explained: Sequence[ClaimExplained], causes: Sequence[Reason], view: _View
    ) -> Iterator[str]:
        now = self._policy_now(pod)
        versions = dict.fromkeys(claim.policy for claim in explained if claim.policy)
        if now is not None and versions and str(now.ref) not in versions:
            yield f"its claims are of {', '.join(versions)}; new Pods here get {now.ref}"
        yield from _not_evaluated(view.outcomes)
        if view.unknown and any(
            one.fate == "not judged" for claim in explained for request in claim.requests for one in request.candidates
        ):
            yield f"not judged here, and perhaps the reason: the Pod's {listed(view.unknown)}"
        if at(pod, "spec", "nodeName"):
            if any(request.rank > 1 for claim in explained for request in claim.requests):
                yield (
                    "told from the state as it is known now, less the claims and Pods that came later; what has ended "
                    "since is not seen"
                )
            return
        best = best_nodes(view.outcomes)
        if best.nodes and not causes:
            if not view.unknown:
                yield (
                    f"{some(best.nodes)} could take it now: it is about to be placed, or something stands against it "
                    "that is not judged here (other Pods that keep it away by their anti-affinity)"
                )
            yield from best.chance
        if any(cause.code in _SILENT for cause in causes):
            return
        said = [
            text(one.get("message"))
            for one in map(mapping, sequence(at(pod, "status", "conditions")))
            if one.get("type") == "PodScheduled" and one.get("status") == "False"
        ]
        yield from (f"the scheduler says: {message}" for message in said if message)


def _together(asked: Asked, tally: Tally, view: _View) -> tuple[tuple[str, ...], list[Reason]]:
    """On which nodes the whole Pod could be placed with the one candidate; or why on none, though devices are free."""
    count, free = count_of(asked.alternative), tally.free_on
    enough = sorted((node for node in free if free[node] >= count), key=lambda node: (-free[node], node))
    if not enough:
        told = f"it wants {count} on one node, and no node has more than {max(free.values())} free"
        return (), [Reason("count", told, free.total(), tuple(sorted(free)))]
    only = asked.only()
    answers = {node: view.allocator.allocate(node, only) for node in enough}
    possible = tuple(sorted(node for node, answer in answers.items() if answer.kind == "allocated"))
    if possible:
        return possible, []
    found: dict[Reason, list[str]] = {}
    for node in enough[:_ASKED_NODES]:
        for reason in against(asked, node, answers[node], view.allocator):
            found.setdefault(reason, []).append(node)
    devices = sum(free[node] for node in enough)
    return (), [Reason(one.code, one.text, devices, tuple(nodes)) for one, nodes in found.items()]


def _passed_over(possible: Sequence[str], view: _View) -> Reason:
    """Why a better candidate was not given though nothing that is judged stands against it."""
    if view.unknown:
        told = (
            f"nothing that is judged here stands against {some(possible)}; the Pod's {listed(view.unknown)} may, or "
            "the device came free since"
        )
        return Reason("not-judged", told, 0, tuple(possible))
    avoided = [f"{node} has node taint {view.avoided[node]}" for node in possible if node in view.avoided]
    led = f" ({some(avoided)})" if avoided else ""
    told = (
        f"it could have been had on {some(possible)}, as far as is known now: the device came free since, or other "
        f"scores{led} or a sample of the nodes led the scheduler elsewhere"
    )
    return Reason("inversion", told, 0, tuple(possible))


def _avoided_for(pod: Object, node: Object) -> str:
    """The taint for which the scheduler avoids the node if it can, empty where there is none."""
    for taint in map(mapping, sequence(at(node, "spec", "taints"))):
        if taint.get("effect") == _AVOIDED and not tolerated(taint, sequence(at(pod, "spec", "tolerations"))):
            return f"{taint.get('key')}:{_AVOIDED}"
    return ""


def _fatal(outcomes: Mapping[str, Outcome], claims: Sequence[PodClaim]) -> Iterator[Reason]:
    """What ends the scheduler's attempt on every node, though only some node's devices bring it about."""
    failed = [(node, outcome.message) for node, outcome in outcomes.items() if outcome.kind == "failed"]
    for node, message in failed[:1]:
        bare = message.removesuffix(ADVICE)  # what Kubernetes advises is refused by the API server as too costly
        told = f"the scheduler gives up on every node, because of {node}: {bare}{_mended(bare, node, claims)}"
        yield Reason("cel-error" if "CEL" in message else "allocator", told, 0, tuple(name for name, _ in failed))


def _mended(message: str, node: str, claims: Sequence[PodClaim]) -> str:
    """Where a selector that fails can be mended; empty for other messages."""
    kind, _, rest = message.partition(" ")
    if "CEL runtime error" not in message or kind not in ("class", "claim"):
        return ""
    whose = rest.partition(": ")[0]
    where = f"DeviceClass {whose}"
    if kind == "claim":
        templates = {"/".join(name_of(claim.obj)): claim.template for claim in claims if claim.obj is not None}
        where = f"template {templates[whose]}" if templates.get(whose) else f"claim {whose}"
    told = f". The expression stands in {where}"
    if "no such key" not in message:
        return f"{told}: it has to be mended there"
    return f"{told}: write has(x) && … before what reads x there, or have the driver on {node} publish it"


def _not_evaluated(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    messages = (outcome.message for outcome in outcomes.values() if outcome.kind == "cannot-evaluate")
    for message in sorted(set(messages))[:2]:
        yield f"what some nodes would answer is not evaluated: {message}"


def _given(claim: Object | None, request: Request) -> tuple[int, tuple[str, ...]]:
    """The rank of the alternative that was given, and the devices (`pool/device`); 0 and none while there are none."""
    names, rank, devices = [one.name for one in request.alternatives], 0, []
    for result in map(mapping, sequence(at(claim, "status", "allocation", "devices", "results"))):
        name, _, alternative = text(result.get("request")).partition("/")
        if name == request.name:
            rank = names.index(alternative) + 1 if alternative in names else 0
            devices.append(f"{text(result.get('pool'))}/{text(result.get('device'))}")
    return rank, tuple(devices)


def _most(claim: Object | None) -> int:
    """The accelerators that a claim of ours asks for."""
    found = next(requests(mapping(at(claim, "spec"))), None)
    return 0 if found is None else max(map(count_of, found.alternatives), default=0)


def _unready(node: Object) -> bool:
    ready = [at(one, "status") for one in sequence(at(node, "status", "conditions")) if at(one, "type") == "Ready"]
    return bool(ready) and ready != ["True"]


def _since(claim: Object | None) -> str:
    return text(at(claim, "status", "allocation", "allocationTimestamp"))


def _scheduled(pod: Object) -> str:
    """When the Pod was placed; times as the API server writes them are ordered as text."""
    for one in map(mapping, sequence(at(pod, "status", "conditions"))):
        if one.get("type") == "PodScheduled" and one.get("status") == "True":
            return text(one.get("lastTransitionTime"))
    return ""


def _state(pod: Object, placed: str) -> PodState:
    if is_finished(pod):
        return "finished"
    if at(pod, "metadata", "deletionTimestamp"):
        return "deleted"
    if placed:
        return "bound"
    return "held" if sequence(at(pod, "spec", "schedulingGates")) else "waiting"


def _turn(pod: Object) -> tuple[int, str, tuple[str, str]]:
    priority = at(pod, "spec", "priority")
    return -(priority if isinstance(priority, int) else 0), text(at(pod, "metadata", "creationTimestamp")), name_of(pod)


def _granted(pod: Object) -> str:
    """What the arbiter says of a Pod that waits for its grant."""
    for one in map(mapping, sequence(at(pod, "status", "conditions"))):
        if one.get("type") == f"{DOMAIN}/Granted" and one.get("status") == "False":
            return f": {text(one.get('reason'))}: {text(one.get('message'))}"
    return ""
