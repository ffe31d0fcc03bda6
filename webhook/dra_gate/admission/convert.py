"""From device requests to claims: what mutate will do to a Pod, and why it cannot where it cannot.

Each container that asks for n devices gets one claim for n, so that all n come from one model. A serial init container
reuses the claim of a later container that asks for as many, or else for more: they never run at the same time, and the
device plugin would have handed the same devices on. A claim of its own beside one for a whole node would fit nowhere. A
sidecar runs beside everything after it and never shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice

from dra_gate.admission import stamp as stamps
from dra_gate.admission.facts import Facts
from dra_gate.admission.hold import hold_of, managed_by_kueue
from dra_gate.admission.late import counts_of, late_entries
from dra_gate.admission.scope import Scope
from dra_gate.admission.verdict import Finding
from dra_gate.kube import pod as pods
from dra_gate.kube.pod import IMPLICIT_PREFIX, Container, ResourceRequest
from dra_gate.kube.raw import Object, at, text
from dra_gate.policy.compile import Template
from dra_gate.policy.model import MAX_DEVICES, DevicePolicy
from dra_gate.policy.words import listed

RULE = "raw-device-request"
MAX_REQUESTS = 256  # device requests in one Pod: more is a mistake, and each costs a claim
_ENTRY = "gate-"  # new entries of spec.resourceClaims: gate-0, gate-1, …


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of a Pod's device requests.

    `entries` are the new claim entries (name, template) in the order in which they are appended; `uses` says which of
    the Pod's entries a container is to see beside those that it sees already; `converted` are the requests that go.
    `findings` are the requests that cannot be converted; when there are any, nothing is to be done to the Pod.
    """

    entries: tuple[tuple[str, Template], ...] = ()
    uses: tuple[tuple[Container, str], ...] = ()
    converted: tuple[ResourceRequest, ...] = ()
    findings: tuple[Finding, ...] = ()


def served_resources(policy: DevicePolicy, facts: Facts) -> frozenset[str]:
    """The resource names that `policy` answers: those it serves, and the implicit names of the classes behind them.

    A class is behind a served name when it carries it as extendedResourceName, or when one of the policy's candidates
    is of that class.
    """
    models = facts.policy_set.models
    classes = {models[name].device_class for name in policy.candidates}
    classes |= {facts.device_resources[name] for name in policy.serves if name in facts.device_resources}
    own_names = {name for name, device_class in facts.device_resources.items() if device_class in classes}
    return frozenset({*policy.serves, *(IMPLICIT_PREFIX + name for name in classes), *own_names})


def device_requests(pod: Object, facts: Facts) -> Iterator[ResourceRequest]:
    """Every request of the Pod for a resource that can give a gated device, zero quantities aside.

    Resources under the domain of a served one count too (`nvidia.com/mig-1g.5gb` where `nvidia.com/gpu` is served):
    they are parts of the same devices. So do implicit names of classes that nobody knows.
    """
    return pods.resource_requests(pod, lambda name: _can_give_devices(name, facts))


def _can_give_devices(name: str, facts: Facts) -> bool:
    if name in facts.device_resources or name.partition("/")[0] in facts.served_domains:
        return True
    return name.startswith(IMPLICIT_PREFIX) and name.removeprefix(IMPLICIT_PREFIX) not in facts.known_classes


def plan(pod: Object, scope: Scope, facts: Facts) -> Plan:
    """What mutate will do to `pod` in a namespace with a tenant."""
    assert scope.tenant is not None and scope.policy is not None  # noqa: S101, PT018 - callers ask only then
    requests = list(islice(device_requests(pod, facts), MAX_REQUESTS + 1))
    if not requests:
        return Plan()
    if len(requests) > MAX_REQUESTS:
        return Plan(findings=(too_many_requests(RULE),))
    served = served_resources(scope.policy, facts)
    findings = [finding for request in requests if (finding := _finding(request, served, scope.policy))]
    wanted = pods.devices_by_container(requests)
    findings += [
        _too_many(container, count, scope.policy) for container, count in wanted if count > scope.policy.max_devices
    ]
    if findings:
        return Plan(findings=tuple(findings))
    return _assign(pod, wanted, tuple(requests), scope, facts)


def _assign(
    pod: Object,
    wanted: list[tuple[Container, int]],
    requests: tuple[ResourceRequest, ...],
    scope: Scope,
    facts: Facts,
) -> Plan:
    assert scope.tenant is not None and scope.policy is not None  # noqa: S101, PT018
    held, beside = set[str](), set[str]()  # the claim entries that containers see, and that sidecars see
    for container in pods.claim_users(pod):
        (beside if container.is_sidecar else held).update(container.claim_names())
    shared = _Reusable()
    for name, own in tenant_templates(pod, scope, facts).items():
        if name in held and name not in beside:
            shared.offer(name, own.count)
    counts: dict[str, int] = {}  # new entry (by a provisional name) -> devices
    chosen: dict[tuple[str | int, ...], str] = {}
    for container, count in wanted:
        if not container.is_serial_init:
            name = f"new{len(counts)}"
            counts[name] = count
            chosen[container.path] = name
            if not container.is_sidecar:
                shared.offer(name, count)
    for container, count in reversed(wanted):
        if container.is_serial_init:
            found = shared.take(container, count)
            if found is None:
                found = f"new{len(counts)}"
                counts[found] = count
                shared.offer(found, count)
            chosen[container.path] = found
    # Not free is a name that a container asks for without there being such an entry: another's claim is not for it.
    taken = {text(entry.get("name")) for entry in pods.claim_entries(pod)} | held | beside
    names = _entry_names(taken, dict.fromkeys(chosen[c.path] for c, _ in wanted if chosen[c.path] in counts))
    return Plan(
        entries=tuple((name, _template(pod, counts[old], scope, facts)) for old, name in names.items()),
        uses=tuple((container, names.get(chosen[container.path], chosen[container.path])) for container, _ in wanted),
        converted=requests,
    )


def _template(pod: Object, count: int, scope: Scope, facts: Facts) -> Template:
    """What a new entry for `count` devices names, or what its late claim will be made of."""
    assert scope.tenant is not None and scope.policy is not None  # noqa: S101, PT018
    tenant, ref = scope.tenant, scope.policy.ref
    if tenant.kueue_exactly and managed_by_kueue(pod, scope.namespace, facts.policy_set.settings):
        return facts.index.exactly(tenant.name, ref)[count]
    return facts.index.for_count(tenant.name, ref, count)


@dataclass(slots=True)
class _Reusable:
    """Claim entries that a serial init container may use: those of later containers that are no sidecars.

    Existing entries of the tenant's own templates are among them: another webhook may have added an init container to a
    Pod that we have already converted.
    """

    offers: dict[int, list[str]] = field(default_factory=dict)  # count of devices -> entries, in order

    def offer(self, name: str, count: int) -> None:
        self.offers.setdefault(count, []).append(name)

    def take(self, container: Container, count: int) -> str | None:
        already = frozenset(container.claim_names())
        enough = (name for offered in sorted(self.offers) if offered >= count for name in self.offers[offered])
        return next((name for name in enough if name not in already), None)


def tenant_templates(pod: Object, scope: Scope, facts: Facts) -> Mapping[str, Template]:
    """The Pod's claim entries that name a template compiled from the tenant's policies, by entry name; and those of
    its late claims, with the templates that the claims will be made of.
    """
    if scope.tenant is None:
        return {}
    entries, key = pods.claim_entries(pod), "resourceClaimTemplateName"
    named = {text(entry.get(key)) for entry in entries}
    own = {name: found for name in named if (found := facts.index.by_name(scope.tenant.name, name)) is not None}
    late = _late_templates(pod, scope, facts)
    held: dict[str, Template] = {}
    for entry in entries if own or late else ():
        name = text(entry.get("name"))
        template = late.get(name) if entry.get("resourceClaimName") else own.get(text(entry.get(key)))
        if template is not None:
            held[name] = template
    return held


def _late_templates(pod: Object, scope: Scope, facts: Facts) -> Mapping[str, Template]:
    """By entry, what the Pod's late claims will be made of: in a Pod that the gate holds, as its stamp says.

    Entries that the stamp does not say, or for more devices than a claim holds, are none of them; of several that name
    one claim, only the first is.
    """
    named: dict[str, str] = {}  # claim -> entry
    for entry, name in late_entries(pod):
        named.setdefault(name, entry)
    if not named or not stamps.is_held(pod) or hold_of(pod, scope, facts) != "late":
        return {}
    assert scope.tenant is not None and scope.policy is not None  # noqa: S101, PT018 - or there is no hold
    try:
        counts = counts_of(at(pod, "metadata", "annotations", stamps.CLAIMS))
    except ValueError:
        return {}
    return {
        entry: facts.index.for_count(scope.tenant.name, scope.policy.ref, counts[entry])
        for entry in named.values()
        if entry in counts and counts[entry] <= scope.policy.max_devices
    }


def late_counts(pod: Object, templates: Mapping[str, Template]) -> dict[str, int]:
    """The devices of those of `templates`, by entry, that are of late claims."""
    return {entry: templates[entry].count for entry, _ in late_entries(pod) if entry in templates}


def _entry_names(taken: Set[str], provisional: Iterable[str]) -> dict[str, str]:
    """Free names for new entries, numbered on from the `taken` ones; the same Pod gets the same names every time."""
    names: dict[str, str] = {}
    number = 0
    for old in provisional:
        while f"{_ENTRY}{number}" in taken:
            number += 1
        names[old] = f"{_ENTRY}{number}"
        number += 1
    return names


def _finding(request: ResourceRequest, served: frozenset[str], policy: DevicePolicy) -> Finding | None:
    if request.count is None:
        return malformed(request, RULE)
    if request.resource not in served:
        return Finding(
            RULE,
            "UNSUPPORTED_RESOURCE",
            request.field,
            f"{request.resource} is not served here",
            f"Ask for {' or '.join(policy.serves)}: the policy picks the device",
        )
    return None


def malformed(request: ResourceRequest, rule: str) -> Finding:
    """What `rule` says of a request for what is no number of devices."""
    return Finding(rule, "MALFORMED", request.field, request.problem, "Ask for a whole number of devices, such as 1")


def too_many_requests(rule: str) -> Finding:
    """What `rule` says of a Pod with more than `MAX_REQUESTS`."""
    return Finding(
        rule,
        "MALFORMED",
        "spec",
        f"more than {MAX_REQUESTS} requests for devices in one Pod",
        f"Make several Pods of it: one may have at most {MAX_REQUESTS} requests in all its containers",
    )


def _too_many(container: Container, count: int, policy: DevicePolicy) -> Finding:
    most, holds = policy.max_devices, f"one claim holds at most {MAX_DEVICES}"
    if policy.companions:
        holds += f", {MAX_DEVICES - most} of them for {listed(one.name for one in policy.companions)}"
    return Finding(
        RULE,
        "QUOTA",
        f"{container.field}.resources.limits",
        f"{count} devices for one container, and {holds}",
        f"Ask for at most {most} devices a container",
    )
