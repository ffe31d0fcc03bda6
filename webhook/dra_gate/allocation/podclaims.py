"""Which claims a Pod has, and why one that it names is not there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dra_gate.allocation.explanation import Reason
from dra_gate.allocation.fit import Obstacle
from dra_gate.allocation.node_selector import selects
from dra_gate.allocation.state import State
from dra_gate.kube.claim import Alternative, UnknownAllocationMode, requests
from dra_gate.kube.pod import claim_entries
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.compile import NAME_PREFIX, Template, TemplateIndex, templates_of
from dra_gate.policy.model import PolicySet

POD_CLAIM = "resource.kubernetes.io/pod-claim-name"  # on a claim made from a template: the entry that it is for


@dataclass(frozen=True, slots=True)
class PodClaim:
    """One claim of a Pod. `obj` is None where there is none and nothing tells what it would say.

    `made` is False for one that stands for a claim still to be made from its template. `problem` is what keeps the
    scheduler from looking at the Pod at all.
    """

    entry: str
    name: str
    template: str
    obj: Object | None
    made: bool
    problem: Reason | None = None

    @property
    def uid(self) -> str:
        """Its UID, empty where there is none."""
        return text(at(self.obj, "metadata", "uid"))

    @property
    def allocated(self) -> bool:
        """It has its devices."""
        return at(self.obj, "status", "allocation") is not None


class PodClaims:
    """The claims of the Pods of a state."""

    def __init__(self, state: State, sets: Mapping[str, PolicySet]) -> None:
        self._state = state
        self._sets = sets
        self._active = sets.get(state.active)
        self._classes = {name_of(one)[1]: one for one in state.snapshot.classes}
        self._claims = {name_of(claim): claim for claim in state.snapshot.claims}
        self._templates = {name_of(template): template for template in state.templates}
        self._compiled: dict[str, TemplateIndex] = {}
        self._owned: dict[tuple[str, str], Object] = {}
        for claim in state.snapshot.claims:
            entry = text(at(claim, "metadata", "annotations", POD_CLAIM))
            for owner in map(mapping, sequence(at(claim, "metadata", "ownerReferences"))):
                self._owned[text(owner.get("uid")), entry] = claim

    def of(self, pod: Object) -> Iterator[PodClaim]:
        """The claims of `pod`, by its entries; behind them the one that the scheduler made for extended resources."""
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
            problem = _unusable(pod, claim)
            if claim is None:
                problem = Reason("claim-missing", f"there is no claim {named}: the scheduler waits for it in silence")
            yield PodClaim(name, named, "", claim, True, problem)
        extra = text(at(pod, "status", "extendedResourceClaimStatus", "resourceClaimName"))
        if extra:
            yield PodClaim("(extended resources)", extra, "", self._claims.get((namespace, extra)), True)

    def compiled(self, name: str) -> tuple[str, Template] | None:
        """The first set's digest, the active one's before others, that compiles to a template of that name; and it."""
        for digest, policy_set in self._sets.items():
            if digest not in self._compiled:
                self._compiled[digest] = templates_of(policy_set)
            found = self._compiled[digest].named(name)
            if found is not None:
                return digest, found
        return None

    def _from_template(self, pod: Object, entry: str, template: str, claim: Object | None) -> PodClaim:
        if claim is not None:
            return PodClaim(entry, name_of(claim)[1], template, claim, True, _unusable(pod, claim))
        namespace = text(at(pod, "metadata", "namespace"))
        spec = at(self._templates.get((namespace, template)), "spec")
        problem = self._not_made(pod, spec, template)
        if spec is None and (found := self.compiled(template)) is not None:
            spec = found[1].spec
        stand_in = None
        if isinstance(spec, Mapping):
            metadata = {"namespace": namespace, "name": f"(to be made for {entry})", **mapping(spec.get("metadata"))}
            stand_in = {"metadata": metadata, "spec": spec.get("spec")}
        return PodClaim(entry, "", template, stand_in, False, problem)

    def _not_made(self, pod: Object, spec: object, template: str) -> Reason:
        """Why a claim that a template should give is not there."""
        namespace = text(at(pod, "metadata", "namespace"))
        if spec is None:
            return self._no_template(namespace, template)
        over = next(self._over_quota(namespace, spec), None)
        if over is not None:
            return over
        said = self._event(pod, "FailedResourceClaimCreation")
        if said:
            return Reason("claim-not-made", f"its claim is not made: {said}")
        return Reason(
            "claim-not-made",
            f"its claim from template {template} is not there: not made yet, or deleted while the Pod waits (then a "
            "changed label of the Pod has it made again)",
        )

    def _no_template(self, namespace: str, template: str) -> Reason:
        if not template.startswith(NAME_PREFIX):
            return Reason("template-missing", f"there is no template {template} in {namespace}")
        found = self.compiled(template)
        tenant = self._active.tenant_of(namespace) if self._active else None
        now = f"new Pods get {tenant.policy_for(namespace)}" if tenant else f"{namespace} belongs to no tenant"
        if found is None:
            told = f"template {template} is not there, and no policy set that counts compiles to it: {now}"
            return Reason("template-version", told)
        if found[0] != self._state.active:
            told = f"template {template} is of an older policy set ({found[0][:12]}) and not there any more: {now}"
            return Reason("template-version", told)
        told = f"template {template} is not there: the gate's controller makes it"
        return Reason("template-missing", told)

    def _over_quota(self, namespace: str, spec: object) -> Iterator[Reason]:
        """Kubernetes' own quotas that leave no room for one more claim."""
        asked = {"count/resourceclaims.resource.k8s.io": 1}
        for request in requests(mapping(at(spec, "spec"))):
            for alternative in request.alternatives:
                extended = text(at(self._classes.get(alternative.device_class), "spec", "extendedResourceName"))
                for key in _quota_keys(alternative.device_class, extended):
                    asked[key] = max(asked.get(key, 0), count_of(alternative))
        for quota in self._state.quotas:
            if at(quota, "metadata", "namespace") != namespace:
                continue
            for key, limit in mapping(at(quota, "spec", "hard")).items():
                used = text(mapping(at(quota, "status", "used")).get(key)) or "0"
                if key in asked and limit.isdigit() and used.isdigit() and int(used) + asked[key] > int(limit):
                    told = f"ResourceQuota {name_of(quota)[1]} has {key}: {limit}, {used} are used"
                    yield Reason("quota", f"its claim is not made: {told}")

    def _event(self, pod: Object, reason: str) -> str:
        """What the newest Event of that reason about the Pod says."""
        about = [
            event
            for event in self._state.events
            if event.get("reason") == reason and name_of({"metadata": event.get("involvedObject")}) == name_of(pod)
        ]
        newest = max(about, key=lambda event: text(event.get("lastTimestamp")), default=None)
        return text(at(newest, "message"))


def name_of(item: Object) -> tuple[str, str]:
    """Namespace and name."""
    return text(at(item, "metadata", "namespace")), text(at(item, "metadata", "name"))


def elsewhere(claims: Iterable[PodClaim], node: Object) -> Obstacle | None:
    """What an allocated claim of the Pod has against a node: its devices are for others."""
    for claim in claims:
        selector = at(claim.obj, "status", "allocation", "nodeSelector")
        if isinstance(selector, dict) and not selects(selector, node):
            return Obstacle("claim-elsewhere", f"claim {claim.name} has its devices on other nodes")
    return None


def count_of(alternative: Alternative) -> int:
    """The most devices that it can take; 0 where its mode is not known."""
    try:
        return alternative.devices()
    except UnknownAllocationMode:
        return 0


def _unusable(pod: Object, claim: Object | None) -> Reason | None:
    """Why the scheduler does not use a claim that is there."""
    name = text(at(claim, "metadata", "name"))
    if at(claim, "metadata", "deletionTimestamp"):
        return Reason("claim-deleting", f"claim {name} is being deleted: the scheduler waits in silence")
    for owner in map(mapping, sequence(at(claim, "metadata", "ownerReferences"))):
        if owner.get("kind") == "Pod" and owner.get("uid") != at(pod, "metadata", "uid"):
            return Reason("claim-foreign", f"claim {name} was made for another Pod: the scheduler does not use it")
    return None


def _quota_keys(device_class: str, extended: str) -> Iterator[str]:
    yield f"{device_class}.deviceclass.resource.k8s.io/devices"
    yield f"requests.deviceclass.resource.kubernetes.io/{device_class}"
    if extended:
        yield f"requests.{extended}"
