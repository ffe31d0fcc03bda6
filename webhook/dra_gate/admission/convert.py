"""From device requests to claims: what mutate will do to a Pod, and why it cannot where it cannot.

Each container that asks for n devices gets one claim for n, so that all n come from one model. A serial init container
reuses the claim of a later container that asks for as many: they never run at the same time, and the device plugin
would have handed the same devices on. A sidecar runs beside everything after it and never shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice

from dra_gate.admission.facts import Facts
from dra_gate.admission.scope import Scope
from dra_gate.admission.verdict import Finding
from dra_gate.kube import pod as pods
from dra_gate.kube.pod import IMPLICIT_PREFIX, Container, ResourceRequest
from dra_gate.kube.raw import Object, text
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
        return Plan(findings=(_too_many_requests(),))
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
    template = facts.index.for_count
    return Plan(
        entries=tuple(
            (name, template(scope.tenant.name, scope.policy.ref, counts[old])) for old, name in names.items()
        ),
        uses=tuple((container, names.get(chosen[container.path], chosen[container.path])) for container, _ in wanted),
        converted=requests,
    )


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
        return next((name for name in self.offers.get(count, ()) if name not in already), None)


def tenant_templates(pod: Object, scope: Scope, facts: Facts) -> Mapping[str, Template]:
    """The Pod's claim entries that name a template compiled from the tenant's policies, by entry name."""
    if scope.tenant is None:
        return {}
    entries, key = pods.claim_entries(pod), "resourceClaimTemplateName"
    named = {text(entry.get(key)) for entry in entries}
    own = {name: found for name in named if (found := facts.index.by_name(scope.tenant.name, name)) is not None}
    return {
        text(entry.get("name")): own[name]
        for entry in (entries if own else ())
        if (name := text(entry.get(key))) in own and not entry.get("resourceClaimName")
    }


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
        return Finding(
            RULE, "MALFORMED", request.field, request.problem, "Ask for a whole number of devices, such as 1"
        )
    if request.resource not in served:
        return Finding(
            RULE,
            "UNSUPPORTED_RESOURCE",
            request.field,
            f"{request.resource} is not served here",
            f"Ask for {' or '.join(policy.serves)}: the policy picks the device",
        )
    return None


def _too_many_requests() -> Finding:
    return Finding(
        RULE,
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
