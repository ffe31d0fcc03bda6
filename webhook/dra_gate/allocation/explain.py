"""Why a Pod got what it got, or waits: for each candidate, what there is of it and what keeps it away. Pure.

Whether the Pod could have a candidate on a node is asked of the allocator, with the claims as they are but for the one
alternative; what stands against it is found by leaving parts of the question out until the answer is yes. Every device
is counted once, under the first of: it does not meet the policy, its pool, its taints, its node, who holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dra_gate.allocation.allocator import Allocator
from dra_gate.allocation.explanation import (
    Candidate,
    ClaimExplained,
    DeviceLine,
    Explanation,
    PodState,
    Reason,
    RequestExplained,
)
from dra_gate.allocation.fit import Obstacle, Room
from dra_gate.allocation.fleet import Fleet, Holder, Published, Selectors
from dra_gate.allocation.outcome import Outcome
from dra_gate.allocation.state import State
from dra_gate.allocation.wanted import Wanted, policy_of, wanted
from dra_gate.kube.claim import Alternative, Request, UnknownAllocationMode, requests
from dra_gate.kube.pod import claim_entries, containers, is_finished
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.kube.taint import tolerated
from dra_gate.policy.compile import NAME_PREFIX, TemplateIndex, templates_of
from dra_gate.policy.model import DevicePolicy, PolicySet, Tenant

GRANT_GATE = "dra-gate.io/grant"
POD_CLAIM = "resource.kubernetes.io/pod-claim-name"  # on a claim made from a template: the entry that it is for
_PREFERRED = "default-scheduler"
_ASKED_NODES = 3  # of the nodes with most free devices, so many are asked why they do not do
_NAMED_NODES = 4


class NoSuchPodError(LookupError):
    """There is nothing to explain; the message says what is known all the same."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """One claim of the Pod. `obj` is None where there is none and nothing tells what it would say.

    `made` is False for one that stands for a claim still to be made from its template.
    """

    entry: str
    name: str
    template: str
    obj: Object | None
    made: bool
    problem: Reason | None

    @property
    def uid(self) -> str:
        return text(at(self.obj, "metadata", "uid"))

    @property
    def allocated(self) -> bool:
        return at(self.obj, "status", "allocation") is not None


@dataclass(frozen=True, slots=True)
class _View:
    """The state as one Pod meets it: what is not there for it (`ignore`), and what each node has against it."""

    allocator: Allocator
    ignore: frozenset[str]
    obstacles: Mapping[str, tuple[Obstacle, ...]]

    def fits(self, node: str) -> bool:
        return not self.obstacles.get(node, _GONE)


_GONE = (Obstacle("node-gone", "the node is gone"),)


class Explainer:
    """Explains Pods of one state. `used` is what each tenant holds in all, if anybody has counted it."""

    def __init__(self, state: State, *, as_tenant: str = "", used: Mapping[str, int] | None = None) -> None:
        self._state = state
        self._as_tenant = as_tenant
        self._used = used or {}
        self.sets = state.policy_sets()
        self._active = self.sets.get(state.active) or next(iter(self.sets.values()), None)
        snapshot = state.snapshot
        self._nodes = {text(at(node, "metadata", "name")): node for node in snapshot.nodes}
        self._classes = {text(at(one, "metadata", "name")): one for one in snapshot.classes}
        self._claims = {_key(claim): claim for claim in snapshot.claims}
        self._templates = {_key(template): template for template in state.templates}
        self._fleet = Fleet(snapshot)
        self._selectors = Selectors()
        self._index: dict[str, TemplateIndex] = {}
        self._owned: dict[tuple[str, str], Object] = {}
        for claim in snapshot.claims:
            entry = text(at(claim, "metadata", "annotations", POD_CLAIM))
            for owner in map(mapping, sequence(at(claim, "metadata", "ownerReferences"))):
                self._owned[text(owner.get("uid")), entry] = claim

    def pod(self, namespace: str, name: str, *, devices: bool = False) -> Explanation:
        """The explanation of a Pod; with every device of its candidates if `devices`. Raises NoSuchPodError."""
        pod = next((one for one in self._state.snapshot.pods if _key(one) == (namespace, name)), None)
        if self._as_tenant and self._tenant_name(namespace) != self._as_tenant:
            raise NoSuchPodError(f"tenant {self._as_tenant} has no Pod {namespace}/{name}")
        if pod is None:
            raise NoSuchPodError(self._missing(namespace, name))
        return self.of(pod, devices=devices)

    def waiting(self) -> list[Object]:
        """The Pods with claims that are on no node yet, in the order in which the scheduler takes them."""
        found = [
            pod
            for pod in self._state.snapshot.pods
            if claim_entries(pod) and not is_finished(pod) and not at(pod, "spec", "nodeName")
        ]
        return sorted(found, key=_turn)

    def of(self, pod: Object, *, devices: bool = False) -> Explanation:
        """The explanation of `pod`, whether or not the state has it."""
        namespace = text(at(pod, "metadata", "namespace"))
        tenant = self._active.tenant_of(namespace) if self._active else None
        claims = [*self._claims_of(pod)]
        view = self._view(pod, claims)
        placed = text(at(pod, "spec", "nodeName"))
        causes = [*self._causes(pod, claims, tenant)]
        asked = [claim.obj for claim in claims if claim.obj is not None]
        outcomes: dict[str, Outcome] = {}
        if asked and not any(claim.allocated for claim in claims):
            outcomes = {name: view.allocator.allocate(name, asked) for name in self._asked_nodes(view)}
        causes += _fatal(outcomes)
        explained = tuple(
            self._claim(pod, index, claims, view, outcomes, causes, devices=devices) for index in range(len(claims))
        )
        policies = dict.fromkeys(claim.policy for claim in explained if claim.policy)
        return Explanation(
            namespace=namespace,
            pod=text(at(pod, "metadata", "name")),
            state=_state(pod, placed),
            node=placed,
            tenant=self._tenant_name(namespace),
            policy=", ".join(policies),
            policy_set=text(at(pod, "metadata", "annotations", "dra-gate.io/policy-set")) or self._state.active,
            claims=explained,
            causes=tuple(causes),
            notes=tuple(self._notes(pod, placed, claims, outcomes, explained, view)),
        )

    def placements(self, pod: Object) -> dict[str, Outcome]:
        """What the allocator answers for a waiting Pod, by each node that has nothing else against it."""
        claims = [*self._claims_of(pod)]
        asked = [claim.obj for claim in claims if claim.obj is not None]
        if len(asked) != len(claims) or any(self._blockers(pod, claims)):
            return {}
        view = self._view(pod, claims)
        return {name: view.allocator.allocate(name, asked) for name in self._asked_nodes(view)}

    def claims_of(self, pod: Object) -> list[Object]:
        """The Pod's claims as far as they are known, also those that are still to be made."""
        return [claim.obj for claim in self._claims_of(pod) if claim.obj is not None]

    # Which claims the Pod has

    def _claims_of(self, pod: Object) -> Iterator[_Claim]:
        namespace, uid = text(at(pod, "metadata", "namespace")), text(at(pod, "metadata", "uid"))
        made = {
            text(one.get("name")): text(one.get("resourceClaimName"))
            for one in map(mapping, sequence(at(pod, "status", "resourceClaimStatuses")))
        }
        for entry in claim_entries(pod):
            name, template = text(entry.get("name")), text(entry.get("resourceClaimTemplateName"))
            if template:
                claim = self._claims.get((namespace, made.get(name, ""))) or self._owned.get((uid, name))
                yield self._from_template(pod, name, template, claim)
                continue
            named = text(entry.get("resourceClaimName"))
            claim = self._claims.get((namespace, named))
            problem = None
            if claim is None:
                problem = Reason("claim-missing", f"there is no claim {named}: the scheduler waits for it in silence")
            yield _Claim(name, named, "", claim, True, problem or _deleting(claim))
        extra = text(at(pod, "status", "extendedResourceClaimStatus", "resourceClaimName"))
        if extra:
            yield _Claim("(extended resources)", extra, "", self._claims.get((namespace, extra)), True, None)

    def _from_template(self, pod: Object, entry: str, template: str, claim: Object | None) -> _Claim:
        if claim is not None:
            return _Claim(entry, _key(claim)[1], template, claim, True, _deleting(claim))
        namespace = text(at(pod, "metadata", "namespace"))
        spec = at(self._templates.get((namespace, template)), "spec")
        problem = self._not_made(pod, spec, template)
        if spec is None:
            compiled = next((found for index in self._indexes() if (found := index.named(template))), None)
            spec = None if compiled is None else compiled.spec
        stand_in = None
        if isinstance(spec, Mapping):
            metadata = {"namespace": namespace, "name": f"(to be made for {entry})", **mapping(spec.get("metadata"))}
            stand_in = {"metadata": metadata, "spec": spec.get("spec")}
        return _Claim(entry, "", template, stand_in, False, problem)

    def _indexes(self) -> Iterator[TemplateIndex]:
        for digest, policy_set in self.sets.items():
            if digest not in self._index:
                self._index[digest] = templates_of(policy_set)
            yield self._index[digest]

    def _not_made(self, pod: Object, spec: object, template: str) -> Reason:
        """Why a claim that a template should give is not there."""
        namespace = text(at(pod, "metadata", "namespace"))
        if spec is None:
            return Reason(*self._no_template(namespace, template))
        over = next(self._over_quota(namespace, spec), None)
        if over is not None:
            return over
        said = self._event(pod, "FailedResourceClaimCreation")
        if said:
            return Reason("claim-not-made", f"its claim is not made: {said}")
        told = f"its claim from template {template} is not there: not made yet, or deleted while the Pod waits; a change of a label of the Pod has it made"
        return Reason("claim-not-made", told)

    def _no_template(self, namespace: str, template: str) -> tuple[str, str]:
        if not template.startswith(NAME_PREFIX):
            return "template-missing", f"there is no template {template} in {namespace}"
        found = next(((digest, one) for digest, index in zip(self.sets, self._indexes(), strict=True) if (one := index.named(template))), None)
        tenant = self._active.tenant_of(namespace) if self._active else None
        now = f"new Pods get {tenant.policy_for(namespace)}" if tenant else f"{namespace} belongs to no tenant"
        if found is None:
            return "template-version", f"no policy set that is here compiles to template {template}, and it is not there; {now}"
        if found[0] != self._state.active:
            return "template-version", f"template {template} is of an older policy set ({found[0][:12]}) and not there any more; {now}"
        return "template-missing", f"template {template} of {found[1].policy} is not there: the controller makes it"

    def _over_quota(self, namespace: str, spec: object) -> Iterator[Reason]:
        """Kubernetes' own quotas that leave no room for one more claim."""
        asked = {"count/resourceclaims.resource.k8s.io": 1}
        for request in requests(mapping(at(spec, "spec"))):
            for alternative in request.alternatives:
                extended = text(at(self._classes.get(alternative.device_class), "spec", "extendedResourceName"))
                for key in _quota_keys(alternative.device_class, extended):
                    asked[key] = max(asked.get(key, 0), _count(alternative))
        for quota in self._state.quotas:
            if at(quota, "metadata", "namespace") != namespace:
                continue
            for key, limit in mapping(at(quota, "spec", "hard")).items():
                used = text(mapping(at(quota, "status", "used")).get(key)) or "0"
                if key in asked and limit.isdigit() and used.isdigit() and int(used) + asked[key] > int(limit):
                    name = text(at(quota, "metadata", "name"))
                    yield Reason("quota", f"its claim is not made: ResourceQuota {name} has {key}: {limit}, {used} are used")

    # What the Pod meets

    def _view(self, pod: Object, claims: Sequence[_Claim]) -> _View:
        """As it was before the Pod was placed, as far as that is known: what came later is not there."""
        snapshot = self._state.snapshot
        own = {claim.uid for claim in claims if claim.allocated and claim.uid and not _shared(claim.obj)}
        since = min((_since(claim.obj) for claim in claims if claim.uid in own), default="")
        later = {text(at(one, "metadata", "uid")) for one in snapshot.claims if since and _since(one) > since}
        ignore = frozenset(own | later) if at(pod, "spec", "nodeName") else frozenset[str]()
        bound = _scheduled(pod)
        pods = (one for one in snapshot.pods if one is not pod and not (bound and _scheduled(one) > bound))
        fitting = Room(pods, snapshot.classes).fitting(pod)
        return _View(
            Allocator(snapshot, ignore=ignore), ignore, {name: fitting(node) for name, node in self._nodes.items()}
        )

    def _asked_nodes(self, view: _View) -> list[str]:
        reached = {node for device in self._fleet.devices for node in device.nodes}
        return sorted(node for node in reached if view.fits(node))

    def _causes(self, pod: Object, claims: Sequence[_Claim], tenant: Tenant | None) -> Iterator[Reason]:
        if at(pod, "spec", "nodeName") or is_finished(pod):
            return
        for cause in self._blockers(pod, claims):
            yield cause
            if cause.code == "held" and tenant is not None:
                yield from self._tenant_quota(tenant, claims)

    def _blockers(self, pod: Object, claims: Sequence[_Claim]) -> Iterator[Reason]:
        gates = [text(mapping(gate).get("name")) for gate in sequence(at(pod, "spec", "schedulingGates"))]
        if GRANT_GATE in gates:
            yield Reason("held", "the gate holds it until its devices are granted")
        others = [gate for gate in gates if gate != GRANT_GATE]
        if others:
            yield Reason("scheduling-gates", f"scheduling gates of others hold it: {', '.join(others)}")
        for claim in claims:
            if claim.problem is not None:
                yield claim.problem
            if claim.made and claim.obj is not None:
                yield from _not_its_own(pod, claim)
        missing = {
            alternative.device_class: f"{request.name}/{alternative.name}".removesuffix("/")
            for claim in claims
            if claim.obj is not None and not claim.allocated
            for request in requests(mapping(claim.obj.get("spec")))
            for alternative in request.alternatives
            if alternative.device_class not in self._classes
        }
        for name, where in missing.items():
            yield Reason("class-missing", f"device class {name} of {where} does not exist: no node is looked at")
        scheduler = text(at(pod, "spec", "schedulerName"))
        if scheduler and scheduler != _PREFERRED:
            yield Reason("other-scheduler", f"it waits for scheduler {scheduler}, which may decide otherwise")

    def _tenant_quota(self, tenant: Tenant, claims: Sequence[_Claim]) -> Iterator[Reason]:
        limit = tenant.quota.devices
        held = self._used.get(tenant.name)
        if limit is None or held is None:
            return
        asked = sum(max(map(_count, first.alternatives), default=0) for claim in claims if claim.obj is not None for first in [*requests(mapping(claim.obj.get("spec")))][:1])
        # What the Pod asks for counts as held already where its claims are there.
        if held > limit or (held + asked > limit and not any(claim.made for claim in claims)):
            yield Reason("quota", f"tenant {tenant.name} holds {held} of {limit} devices, and it asks for {asked}")

    # One claim

    def _claim(
        self,
        pod: Object,
        index: int,
        claims: Sequence[_Claim],
        view: _View,
        outcomes: Mapping[str, Outcome],
        causes: Sequence[Reason],
        *,
        devices: bool,
    ) -> ClaimExplained:
        claim = claims[index]
        policy, policy_set = policy_of(claim.obj, pod, self.sets, self._state.active)
        explained = []
        for request in requests(mapping(at(claim.obj, "spec"))):
            rank, given = _given(claim.obj, request)
            found = []
            for position, alternative in enumerate(request.alternatives, 1):
                what = wanted(request, alternative, policy, policy_set)
                asked = _Asked(pod, [c for c in claims if c.obj is not None], claim, request, alternative, what, position)
                found.append(self._candidate(asked, rank, view, outcomes, causes, devices=devices))
            if policy is not None and policy_set is not None and request.name == "gpu":
                found += self._left_out(pod, policy, found)
            explained.append(RequestExplained(request.name, tuple(found), rank, given))
        users = (container.name for container in containers(pod) if claim.entry in container.claim_names())
        named = str(policy.ref) if policy else ""
        return ClaimExplained(claim.entry, claim.name if claim.made else "", claim.template, tuple(users), named, tuple(explained))

    def _left_out(self, pod: Object, policy: DevicePolicy, found: Sequence[Candidate]) -> Iterator[Candidate]:
        """Models that new Pods of the namespace may get, and this one, by an older version, may not."""
        namespace = text(at(pod, "metadata", "namespace"))
        tenant = self._active.tenant_of(namespace) if self._active else None
        if tenant is None or self._active is None or tenant.policy_for(namespace) == policy.ref:
            return
        now = self._active.policies[tenant.policy_for(namespace)]
        have = {candidate.model for candidate in found}
        for model in now.candidates:
            if model not in have:
                told = f"its claim is of {policy.ref}, which has no {model}; {now.ref}, which new Pods get, has: re-create the Pod"
                yield Candidate(model, 0, 0, 0, 0, 0, 0, "not asked for", (Reason("other-version", told),))

    def _candidate(
        self,
        asked: _Asked,
        rank: int,
        view: _View,
        outcomes: Mapping[str, Outcome],
        causes: Sequence[Reason],
        *,
        devices: bool,
    ) -> Candidate:
        tally = self._tally(asked, view)
        better = rank == 0 or asked.rank < rank
        possible: tuple[str, ...] = ()
        together: list[Reason] = []
        if better and tally.free_on and not any(cause.code in _STOPS for cause in causes):
            possible, together = self._together(asked, tally, view, outcomes)
        fate = "given" if rank == asked.rank else "possible" if possible else "no"
        if possible:
            together = [_passed_over(possible, self._nodes_text)] if rank else []
        return Candidate(
            asked.alternative.name or asked.alternative.device_class,
            asked.rank,
            _count(asked.alternative),
            tally.published,
            tally.healthy,
            tally.matching,
            tally.free,
            fate,  # type: ignore[arg-type] - one of the three
            tuple(together) + (tuple(tally.reasons(self._holders_text)) if fate == "no" else ()),
            possible,
            tuple(tally.lines) if devices else (),
        )

    def _tally(self, asked: _Asked, view: _View) -> _Tally:
        tally = _Tally(view)
        klass = self._classes.get(asked.alternative.device_class)
        of_class = [text(at(one, "cel", "expression")) for one in sequence(at(klass, "spec", "selectors"))]
        for device in self._fleet.devices:
            if klass is None:
                break
            failed, error = self._selectors.first_failing(of_class, device)
            if failed >= 0:
                if error:
                    tally.wrong(device, f"class {asked.alternative.device_class}: {error}")
                continue
            failed, error = self._selectors.first_failing(asked.alternative.selectors, device)
            if error:
                tally.wrong(device, error)
            elif failed < 0 or not asked.wanted.is_identity(failed):
                word = None if failed < 0 else asked.wanted.turned_away(failed, device.raw, device.id[0])
                tally.add(device, word, self._problem(device, asked, view), self._fleet.held(device, view.ignore))
        return tally

    def _problem(self, device: Published, asked: _Asked, view: _View) -> Iterator[tuple[str, str]]:
        """What keeps a device that meets the policy from the Pod, the first thing first; holders aside."""
        if device.problem[0]:
            yield device.problem
        if not device.nodes:
            yield "node-gone", f"node {device.node} is gone" if device.node else "no node reaches it"
        if asked.alternative.raw.get("adminAccess") is not True:
            for taint in device.taints:
                if not tolerated(taint, sequence(asked.alternative.raw.get("tolerations"))):
                    value = f"={taint['value']}" if taint.get("value") else ""
                    yield "taint", f"tainted {taint.get('key')}{value}:{taint.get('effect')}"
        for node in device.nodes[:1]:
            if _unready(self._nodes[node]) and len(device.nodes) == 1:
                yield "node-not-ready", "its node is not ready"
            if all(not view.fits(one) for one in device.nodes):
                for obstacle in view.obstacles[node]:
                    yield obstacle.code, obstacle.text

    def _together(
        self, asked: _Asked, tally: _Tally, view: _View, outcomes: Mapping[str, Outcome]
    ) -> tuple[tuple[str, ...], list[Reason]]:
        """On which nodes the whole Pod could be placed with the one candidate, or why on none though devices are free."""
        count = _count(asked.alternative)
        enough = sorted((n for n, free in tally.free_on.items() if free >= count), key=lambda n: (-tally.free_on[n], n))
        if not enough:
            most = max(tally.free_on.values())
            told = f"it wants {count} on one node, and no node has more than {most} free"
            return (), [Reason("count", told, sum(tally.free_on.values()), tuple(sorted(tally.free_on)))]
        only = asked.only()
        answers = {node: view.allocator.allocate(node, only) for node in enough}
        possible = tuple(sorted(node for node, outcome in answers.items() if outcome.kind == "allocated"))
        if possible:
            return possible, []
        reasons: dict[tuple[str, str], list[str]] = {}
        for node in enough[:_ASKED_NODES]:
            for reason in _against(asked, node, answers[node], view.allocator):
                reasons.setdefault((reason.code, reason.text), []).append(node)
        free = sum(tally.free_on[node] for node in enough)
        return (), [Reason(code, told, free, tuple(nodes)) for (code, told), nodes in reasons.items()]

    # Words

    def _tenant_name(self, namespace: str) -> str:
        return self._active.tenant_by_namespace.get(namespace, "") if self._active else ""

    def _holders_text(self, holder: Holder) -> str:
        """Who it is; for a tenant, nothing but that somebody else it is."""
        if self._as_tenant and self._tenant_name(holder.claim[0]) != self._as_tenant:
            return "Pods of others"
        first = next(iter(sorted(holder.pods)), None)
        if first is None:
            return f"claim {'/'.join(holder.claim)}"
        more = f" and {len(holder.pods) - 1} more" if len(holder.pods) > 1 else ""
        return f"{'/'.join(first)}{more}"

    def _nodes_text(self, nodes: Sequence[str]) -> str:
        rest = len(nodes) - _NAMED_NODES
        return ", ".join(nodes[:_NAMED_NODES]) + (f" and {rest} more" if rest > 0 else "")

    def _event(self, pod: Object, reason: str) -> str:
        """What the newest Event of that reason about the Pod says."""
        key = _key(pod)
        about = [
            event
            for event in self._state.events
            if event.get("reason") == reason
            and (text(at(event, "involvedObject", "namespace")), text(at(event, "involvedObject", "name"))) == key
        ]
        newest = max(about, key=lambda event: text(event.get("lastTimestamp")), default=None)
        return text(at(newest, "message"))

    def _missing(self, namespace: str, name: str) -> str:
        """What is known of a Pod that is not there: perhaps the gate refused it, which its owner's Events tell."""
        told = f"there is no Pod {namespace}/{name}"
        refused = [
            event
            for event in self._state.events
            if event.get("reason") == "FailedCreate"
            and text(at(event, "involvedObject", "namespace")) == namespace
            and name.startswith(text(at(event, "involvedObject", "name")))
        ]
        if refused:
            newest = max(refused, key=lambda event: text(event.get("lastTimestamp")))
            owner = f"{at(newest, 'involvedObject', 'kind')} {at(newest, 'involvedObject', 'name')}"
            told += f"; {owner} could not make it: {text(newest.get('message'))}"
        return told

    def _notes(
        self,
        pod: Object,
        placed: str,
        claims: Sequence[_Claim],
        outcomes: Mapping[str, Outcome],
        explained: Sequence[ClaimExplained],
        view: _View,
    ) -> Iterator[str]:
        unknown = sorted({outcome.message for outcome in outcomes.values() if outcome.kind == "cannot-evaluate"})
        for message in unknown[:2]:
            yield f"not evaluated on some nodes, because {message}"
        if placed:
            if any(request.rank > 1 for claim in explained for request in claim.requests):
                yield "told from the state as it is known now, less the claims and Pods that came later: what has ended since then is not seen"
            return
        if any(outcome.kind == "allocated" for outcome in outcomes.values()):
            yield "some nodes could take it now: it is about to be placed, or something stands against it that is not judged here (affinity to other Pods, spreading, ports, volumes)"
        said = next((one for one in map(mapping, sequence(at(pod, "status", "conditions"))) if one.get("type") == "PodScheduled" and one.get("status") == "False"), None)
        if said and text(said.get("message")):
            yield f"the scheduler says: {text(said.get('message'))}"
        elif outcomes and not said:
            yield "the scheduler has said nothing about it yet"


_STOPS = frozenset({"class-missing", "cel-error", "allocator"})  # then no node is asked about the candidate


@dataclass(frozen=True, slots=True)
class _Asked:
    """One alternative as it is asked for: `claims` are all of the Pod that are known."""

    pod: Object
    claims: Sequence[_Claim]
    claim: _Claim
    request: Request
    alternative: Alternative
    wanted: Wanted
    rank: int

    def only(self) -> list[Object]:
        """The Pod's claims with this alternative and no other for its request, as they were before allocation."""
        return [self.alone() if claim is self.claim else _unallocated(claim.obj) for claim in self.claims]

    def alone(self, *, constraints: bool = True, requests: bool = True) -> Object:
        """This claim with this alternative only; without its constraints, or without its other requests, if asked."""
        obj = _unallocated(self.claim.obj)
        devices = mapping(at(obj, "spec", "devices"))
        kept = []
        for raw in map(mapping, sequence(devices.get("requests"))):
            if text(raw.get("name")) != self.request.name:
                kept += [raw] if requests else []
            elif self.alternative.name:
                alternatives = [sub for sub in sequence(raw.get("firstAvailable")) if at(sub, "name") == self.alternative.name]
                kept.append({**raw, "firstAvailable": alternatives})
            else:
                kept.append(raw)
        names = {text(raw.get("name")) for raw in kept}
        held = [
            {**one, "requests": left} if sequence(one.get("requests")) else one
            for one in map(mapping, sequence(devices.get("constraints")))
            if constraints
            and ((left := [name for name in sequence(one.get("requests")) if name.partition("/")[0] in names and name.partition("/")[2] in ("", self.alternative.name)]) or not sequence(one.get("requests")))
        ]
        changed = {key: value for key, value in devices.items() if key != "constraints"} | {"requests": kept}
        return {**obj, "spec": {"devices": changed | ({"constraints": held} if held else {})}}


def _against(asked: _Asked, node: str, answer: Outcome, allocator: Allocator) -> Iterator[Reason]:
    """Why a node with enough free devices of a candidate cannot give them: parts are left out until it could."""
    if answer.kind in ("failed", "cannot-evaluate", "invalid-pools"):
        code = "allocator" if answer.kind == "failed" else answer.kind
        yield Reason(code, answer.message or "an invalid resource pool was met")
        return

    def could(claims: Sequence[Object]) -> bool:
        return allocator.allocate(node, claims).kind == "allocated"

    rest = [_unallocated(claim.obj) for claim in asked.claims if claim is not asked.claim]
    if not could([asked.alone(constraints=False, requests=False)]):
        yield from _examined(asked, node, allocator)
        return
    if not could([asked.alone(requests=False)]):
        yield Reason("topology", f"its devices have to agree on {_agreed(asked.claim.obj)}, and no {_count(asked.alternative)} free ones do")
        return
    if not could([asked.alone()]):
        yield from _companions(asked, could)
        return
    for claim in asked.claims:
        if claim is not asked.claim and could([one for other, one in zip(asked.claims, asked.only(), strict=True) if other is not claim]):
            if could([_unallocated(claim.obj)]):
                told = f"claim {claim.entry} of the Pod needs the device too: with {asked.wanted.name} here it gets nothing"
                yield Reason("backtracking", told)
            else:
                yield Reason("other-claim", f"claim {claim.entry} of the Pod cannot be had on the node")
            return
    yield Reason("backtracking", f"its {len(rest) + 1} claims cannot all be had on the node with {asked.wanted.name} here")


def _companions(asked: _Asked, could: Callable[[Sequence[Object]], bool]) -> Iterator[Reason]:
    """Of a claim whose request could be had alone: what stands beside it that cannot."""
    if could([asked.alone(constraints=False)]):
        yield Reason("topology", f"its devices and those beside them have to agree on {_agreed(asked.claim.obj)}, and no free ones do")
        return
    for other in requests(mapping(at(asked.claim.obj, "spec"))):
        if other.name == asked.request.name:
            continue
        single = {"devices": {"requests": [r for r in sequence(at(asked.claim.obj, "spec", "devices", "requests")) if at(r, "name") == other.name]}}
        if could([{**_unallocated(asked.claim.obj), "spec": single}]):
            yield Reason("backtracking", f"request {other.name} of the claim needs the device too: with {asked.wanted.name} here it gets nothing")
        else:
            yield Reason("companion", f"what it needs beside it, request {other.name}, cannot be had on the node")
        return


def _examined(asked: _Asked, node: str, allocator: Allocator) -> Iterator[Reason]:
    """The first failing checks of the devices on a node, by the allocator."""
    examination = allocator.examine(node, [asked.alone(constraints=False, requests=False)])
    found: dict[str, str] = {}
    for request in examination.requests:
        for check in request.devices:
            if check.check not in ("", "in-use", "class-selector", "selector"):
                found.setdefault(check.check, check.detail)
    for code, detail in found.items():
        yield Reason(code, f"{_CHECKS.get(code, code)}{': ' + detail if detail else ''}")
    if not found:
        yield Reason("impossible", "the allocator finds no way to give them")


_CHECKS = {
    "node": "the device is not for the node",
    "capacity": "too little of a shared device is left",
    "counters": "other parts of the same device take up what it needs",
    "taint": "the device is tainted",
    "constraint": "a constraint cannot be met",
}


class _Tally:
    """Counts of one candidate's devices, each under the first thing against it."""

    def __init__(self, view: _View) -> None:
        self.published = self.healthy = self.matching = self.free = 0
        self.free_on: dict[str, int] = {}  # nodes that take the Pod -> free devices
        self.lines: list[DeviceLine] = []
        self._view = view
        self._found: dict[tuple[str, str], _Group] = {}

    def add(self, device: Published, word: tuple[str, str] | None, problems: Iterator[tuple[str, str]], held: Sequence[Holder]) -> None:
        """One device of the model; `word` is what it does not meet."""
        against = list(problems)
        ill = any(code in _ILL for code, _ in against)
        self.published += 1
        self.healthy += not ill
        self.matching += word is None
        self.free += word is None and not ill and not held
        placement = [found for found in against if found[0] == "resources"]
        first = word or next((found for found in against if found[0] != "resources"), None)
        if first is None and held:
            first = ("in-use", "in use")
        if first is None and placement:
            first = placement[0]
        if first is None:
            for node in device.nodes:
                if self._view.fits(node):
                    self.free_on[node] = self.free_on.get(node, 0) + 1
        else:
            self._count(first, device, held if first[0] == "in-use" else ())
        self.lines.append(DeviceLine(str(device), device.node, *(first or ("", "could be given"))))

    def wrong(self, device: Published, error: str) -> None:
        """A device that a selector fails on: the scheduler stops at it, whatever else there is."""
        self._count(("cel-error", f"the selector fails on {device}: {error}"), device, ())

    def _count(self, first: tuple[str, str], device: Published, held: Sequence[Holder]) -> None:
        code, told = first
        key = (code, "" if code in _BY_NODE else told)
        group = self._found.setdefault(key, _Group(told))
        group.devices += 1
        group.nodes[device.node] = None
        for holder in held:
            group.holders.append(holder)

    def reasons(self, name: Callable[[Holder], str]) -> Iterator[Reason]:
        """What the devices were counted under, most devices first."""
        ordered = sorted(self._found.items(), key=lambda item: -item[1].devices)
        for (code, _), group in ordered:
            holders: dict[str, int] = {}
            for holder in group.holders:
                called = name(holder)
                holders[called] = holders.get(called, 0) + 1
            most = tuple(sorted(holders.items(), key=lambda pair: (-pair[1], pair[0])))
            yield Reason(code, group.text, group.devices, tuple(node for node in group.nodes if node), most)
        if not self.published and not self._found:
            yield Reason("none-published", "no such device is published")


@dataclass(slots=True)
class _Group:
    text: str
    devices: int = 0
    nodes: dict[str, None] = None  # type: ignore[assignment] - made below
    holders: list[Holder] = None  # type: ignore[assignment] - made below

    def __post_init__(self) -> None:
        self.nodes, self.holders = {}, []


_ILL = frozenset({"old-generation", "incomplete-pool", "invalid-pool", "node-gone", "taint", "node-not-ready", "cordoned"})
_BY_NODE = frozenset({"cordoned", "node-taint", "node-selector", "node-affinity", "resources", "node-not-ready"})


def _fatal(outcomes: Mapping[str, Outcome]) -> Iterator[Reason]:
    """What ends the scheduler's attempt on every node, though only some node's devices bring it about."""
    found: dict[str, list[str]] = {}
    for node, outcome in outcomes.items():
        if outcome.kind == "failed":
            found.setdefault(outcome.message, []).append(node)
    for message, nodes in list(found.items())[:1]:
        code = "cel-error" if "CEL" in message else "allocator"
        yield Reason(code, f"the scheduler gives up on every node, because of {nodes[0]}: {message}", 0, tuple(nodes))


def _passed_over(possible: Sequence[str], nodes: Callable[[Sequence[str]], str]) -> Reason:
    told = (
        f"it could have been had on {nodes(possible)} as far as the state is known now: the device came free since, or the "
        "scheduler scored the nodes otherwise or looked at a sample of them only"
    )
    return Reason("inversion", told, 0, tuple(possible))


def _not_its_own(pod: Object, claim: _Claim) -> Iterator[Reason]:
    owner = next((o for o in map(mapping, sequence(at(claim.obj, "metadata", "ownerReferences"))) if o.get("kind") == "Pod"), None)
    if owner is not None and owner.get("uid") != at(pod, "metadata", "uid"):
        yield Reason("claim-foreign", f"claim {claim.name} was made for another Pod: the scheduler does not use it")


def _deleting(claim: Object | None) -> Reason | None:
    if claim is None or not at(claim, "metadata", "deletionTimestamp"):
        return None
    return Reason("claim-deleting", f"claim {_key(claim)[1]} is being deleted: the scheduler waits in silence")


def _given(claim: Object | None, request: Request) -> tuple[int, tuple[str, ...]]:
    """The rank of the alternative that was given, and the devices."""
    rank, devices = 0, []
    for result in map(mapping, sequence(at(claim, "status", "allocation", "devices", "results"))):
        name, _, alternative = text(result.get("request")).partition("/")
        if name == request.name:
            names = [one.name for one in request.alternatives]
            rank = names.index(alternative) + 1 if alternative in names else 0
            devices.append(f"{text(result.get('pool'))}/{text(result.get('device'))}")
    return rank, tuple(devices)


def _unallocated(claim: Object | None) -> Object:
    return {key: value for key, value in mapping(claim).items() if key != "status"}


def _agreed(claim: Object | None) -> str:
    found = (text(mapping(one).get("matchAttribute") or mapping(one).get("distinctAttribute")) for one in sequence(at(claim, "spec", "devices", "constraints")))
    return ", ".join(dict.fromkeys(found))


def _count(alternative: Alternative) -> int:
    try:
        return alternative.devices()
    except UnknownAllocationMode:
        return 0


def _quota_keys(device_class: str, extended: str) -> Iterator[str]:
    yield f"{device_class}.deviceclass.resource.k8s.io/devices"
    yield f"requests.deviceclass.resource.kubernetes.io/{device_class}"
    if extended:
        yield f"requests.{extended}"


def _unready(node: Object) -> bool:
    ready = [at(one, "status") for one in sequence(at(node, "status", "conditions")) if at(one, "type") == "Ready"]
    return bool(ready) and ready != ["True"]


def _shared(claim: Object | None) -> bool:
    return len(sequence(at(claim, "status", "reservedFor"))) > 1


def _since(claim: Object | None) -> str:
    return text(at(claim, "status", "allocation", "allocationTimestamp"))


def _scheduled(pod: Object) -> str:
    """When the Pod was placed, as the API server wrote it; times of this form are ordered as text."""
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
    return -(priority if isinstance(priority, int) else 0), text(at(pod, "metadata", "creationTimestamp")), _key(pod)


def _key(item: Object) -> tuple[str, str]:
    return text(at(item, "metadata", "namespace")), text(at(item, "metadata", "name"))
