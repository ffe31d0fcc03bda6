"""A state as the checks read it: which nodes give devices by device plugin, which by slices, and what uses them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property

from dra_gate.allocation.fleet import Fleet
from dra_gate.allocation.state import State
from dra_gate.kube.pod import IMPLICIT_PREFIX, is_finished, resource_requests
from dra_gate.kube.quantity import Quantity, QuantityError
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.compile import DOMAIN
from dra_gate.policy.drivers import DRIVERS
from dra_gate.policy.lint import Cluster as Published
from dra_gate.policy.model import PolicySet, Tenant

LANE = f"{DOMAIN}/lane"
EXTENDED_CLAIM = "resource.kubernetes.io/extended-resource-claim"  # on claims that kube-scheduler makes for a request
_MINOR = re.compile(r"v?1\.([0-9]+)", re.ASCII)
_ALWAYS = frozenset(
    {"Namespace", "Node", "ResourceSlice", "DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "Pod"}
    | {"ResourceQuota"}
)


class Cluster:
    """What checks ask about. Raises SnapshotError where the active policy set does not load."""

    def __init__(self, state: State) -> None:
        self.state = state
        snapshot = state.snapshot
        self.policy_set: PolicySet | None = state.policy_sets().get(state.active)
        self.nodes: Mapping[str, Object] = {name_of(node): node for node in snapshot.nodes}
        self.classes: Mapping[str, Object] = {name_of(one): one for one in snapshot.classes}
        minor = _MINOR.match(snapshot.version)
        self.minor = int(minor[1]) if minor else None  # of the API server; None: not told
        self.published = Published(snapshot.slices, snapshot.classes, snapshot.nodes, snapshot.taint_rules)

    def knows(self, kind: str) -> bool:
        """Whether all objects of the kind were read."""
        if kind == "PolicySet":
            return self.policy_set is not None
        return kind in _ALWAYS or kind in self.state.around

    def around(self, kind: str) -> tuple[Object, ...]:
        """The objects of a kind that stands around; none where it was not read."""
        return self.state.around.get(kind, ())

    def gate(self, name: str) -> bool | None:
        """Whether the API server has the feature gate on; None where it does not say."""
        return next((one["enabled"] for one in self.around("FeatureGate") if name_of(one) == name), None)

    def tools(self, *names: str) -> list[Object]:
        """The tools of these names that Pods run."""
        return [one for one in self.around("Tool") if one.get("tool") in names]

    @cached_property
    def drivers(self) -> Mapping[str, frozenset[str]]:
        """The DRA drivers of accelerators, each with the extended resources as which device plugins give the same
        devices (`*` at the end for any ending): those that are known here, and what the policies serve.
        """
        found = {name: set(driver.plugin) for name, driver in DRIVERS.items()}
        if self.policy_set is not None:
            for model in self.policy_set.models.values():
                found.setdefault(model.driver, set())
            for policy in self.policy_set.policies.values():
                for candidate in policy.candidates:
                    served = (name for name in policy.serves if not name.startswith(IMPLICIT_PREFIX))
                    found[self.policy_set.models[candidate].driver].update(served)
        return {name: frozenset(names) for name, names in found.items()}

    def is_device(self, resource: str, driver: str = "") -> bool:
        """Whether an extended resource stands for devices of `driver`, or of any."""
        globs = self.drivers.get(driver, ()) if driver else {one for each in self.drivers.values() for one in each}
        return any(resource.startswith(one[:-1]) if one.endswith("*") else resource == one for one in globs)

    @cached_property
    def by_plugin(self) -> Mapping[str, Mapping[str, int]]:
        """By node, how many devices device plugins report as allocatable, by resource; nodes without any left out."""
        found = {}
        for name, node in self.nodes.items():
            amounts = mapping(at(node, "status", "allocatable")).items()
            counts = {key: number for key, value in amounts if self.is_device(key) and (number := _whole(value)) > 0}
            if counts:
                found[name] = counts
        return found

    @cached_property
    def fleet(self) -> Fleet:
        """All published devices."""
        return Fleet(self.state.snapshot)

    @cached_property
    def by_slices(self) -> Mapping[str, Mapping[str, int]]:
        """By node, how many accelerators its slices publish, by driver; those of an old generation left out."""
        found: dict[str, Counter[str]] = {}
        for device in self.fleet.devices:
            if device.id[0] in self.drivers and device.problem[0] != "old-generation":
                for node in device.nodes:
                    found.setdefault(node, Counter())[device.id[0]] += 1
        return found

    @property
    def plugin_nodes(self) -> list[str]:
        """Nodes whose devices come by device plugin alone."""
        return sorted(self.by_plugin.keys() - self.by_slices.keys())

    @property
    def dra_nodes(self) -> list[str]:
        """Nodes whose devices are in slices alone."""
        return sorted(self.by_slices.keys() - self.by_plugin.keys())

    @cached_property
    def plugin_pods(self) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
        """By node and Pod (`namespace/name`), the devices that bound Pods hold from device plugins, by resource."""
        by_claim = {
            text(owner.get("uid"))
            for claim in self.state.snapshot.claims
            if at(claim, "metadata", "annotations", EXTENDED_CLAIM) == "true"
            for owner in map(mapping, sequence(at(claim, "metadata", "ownerReferences")))
        }
        found: dict[str, dict[str, Mapping[str, int]]] = {}
        for pod in self.state.snapshot.pods:
            node = text(at(pod, "spec", "nodeName"))
            if not node or is_finished(pod) or text(at(pod, "metadata", "uid")) in by_claim:
                continue
            held: Counter[str] = Counter()
            for request in resource_requests(pod, self.is_device):
                held[request.resource] += request.count or 0
            if held:
                found.setdefault(node, {})[full_name(pod)] = held
        return found

    @cached_property
    def names(self) -> Mapping[str, list[str]]:
        """The classes by `extendedResourceName`."""
        found: dict[str, list[str]] = {}
        for name, one in self.classes.items():
            resource = text(at(one, "spec", "extendedResourceName"))
            if resource:
                found.setdefault(resource, []).append(name)
        return found

    @property
    def names_count(self) -> bool:
        """Whether an `extendedResourceName` means anything: KEP-5004, on by default from 1.36 on."""
        on = self.gate("DRAExtendedResource")
        return on if on is not None else self.minor is not None and self.minor >= 36

    @cached_property
    def namespaces(self) -> Mapping[str, str]:
        """The namespaces that are there, each with its lane, empty where it is not gated."""
        return {name_of(one): text(at(one, "metadata", "labels", LANE)) for one in self.state.namespaces}

    def tenants(self) -> Iterator[tuple[str, Tenant]]:
        """The namespaces that are there and have a tenant, whether they are gated or come next."""
        if self.policy_set is not None:
            for name in self.namespaces:
                tenant = self.policy_set.tenant_of(name)
                if tenant is not None:
                    yield name, tenant


def name_of(item: Object) -> str:
    """The object's name."""
    return text(at(item, "metadata", "name"))


def full_name(item: Object) -> str:
    """`namespace/name`."""
    return f"{text(at(item, 'metadata', 'namespace'))}/{name_of(item)}"


def _whole(value: object) -> int:
    try:
        return Quantity.parse(value).whole() or 0 if isinstance(value, str | int) else 0
    except QuantityError:
        return 0
