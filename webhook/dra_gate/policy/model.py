"""The policy set as values: what the loader makes of a folder and everything else reads.

All of it is immutable: whoever holds a `PolicySet` holds one digest and may compare, compile and judge with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from dra_gate.kube.quantity import Quantity
from dra_gate.kube.semver import Semver
from dra_gate.kube.workload import senders

# Rules that an exception may name: those that judge what people write. The others are what the gate itself does.
EXCEPTABLE = (
    "admin-access",
    "device-annotation",
    "foreign-claim",
    "host-device",
    "node-pinning",
    "privileged",
    "runtime-class",
    "third-party-allocator",
    "visible-devices",
)
API_VERSION = "policy.dra-gate.io/v1alpha1"
OTHERS = "others"  # the word at the end of a candidate list
GATE_NAMESPACE = "dra-gate"
# Never gated, whatever their labels: what the cluster stands on must not wait for the gate. So no tenant can own them.
NEVER_GATED = frozenset({"kube-system", "kube-public", "kube-node-lease", GATE_NAMESPACE})
ON_UNHEALTHY = ("alert", "recreate", "keep")  # the default first
ON_ROLLBACK = ("recreate", "keep", "release")  # the default first
NOW, NEVER = 0, -1  # of a policy's fallback
MAX_CANDIDATES = 8  # firstAvailable takes at most 8 alternatives: resource.k8s.io/v1 FirstAvailableDeviceRequestMaxSize
RESERVE_AFTER = 1800  # seconds; of a tenant that does not say
MAX_WAITING = 1000  # Pods; the same
Hold = Literal["free", "template", "late"]
MAX_DEVICES = 32  # devices in one claim: resource.k8s.io/v1 AllocationResultsMaxSize


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in a policy file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Model:
    """A kind of device the cluster owns.

    Either `products`, globs with `*` at the ends, or `selector`, CEL over one device, says which devices it has within
    its DeviceClass. `memory` and `architecture` are declared, for warnings and for `others`; they select nothing.
    """

    name: str
    device_class: str
    driver: str
    products: tuple[str, ...]
    selector: str | None
    memory: Quantity | None
    architecture: str | None
    node_labels: Mapping[str, tuple[str, ...]]
    place: Place


@dataclass(frozen=True, slots=True)
class Constraints:
    """What holds for every candidate. An absent word is None, empty or False."""

    memory_min: Quantity | None = None
    driver_min: Semver | None = None
    architectures: tuple[str, ...] = ()
    same_attribute: tuple[str, ...] = ()
    whole_device: bool = False
    nodes: Mapping[str, str] = field(default_factory=dict)
    cel: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Companion:
    """Further devices in the same claim: a network card beside the accelerators. No accelerator itself: its driver is
    none of the catalogue's, so that it is in no order and counts against no quota.

    `minimum` are floors on published capacities by their names, each with its domain; `same_attribute` is what it and
    all accelerators of the container agree on.
    """

    name: str
    device_class: str
    driver: str
    count: int
    minimum: Mapping[tuple[str, str], Quantity]  # by domain and name
    same_attribute: tuple[str, ...]
    cel: tuple[str, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class PolicyRef:
    """A policy at a version, written `name@version`."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class DevicePolicy:
    """One reviewed policy. `candidates` are model names in order of preference, `others` already expanded.

    `on_unhealthy` says what is done when a device turns out unhealthy before its Pod runs: one of ON_UNHEALTHY.
    `on_rollback` says what becomes of Pods that wait when their lane goes back: one of ON_ROLLBACK.
    `fallback` says after how many seconds of waiting for the first candidate the others count too: NOW, NEVER or more.
    With `strict_plugin_lane` lane device-plugin refuses its Pods if it cannot keep all that the policy says.
    `digest` is the SHA-256 (hex) of the policy document's canonical JSON: what tells that a released version changed.
    """

    ref: PolicyRef
    serves: tuple[str, ...]
    candidates: tuple[str, ...]
    constraints: Constraints
    companions: tuple[Companion, ...]
    digest: str
    place: Place
    on_unhealthy: str = ON_UNHEALTHY[0]
    on_rollback: str = ON_ROLLBACK[0]
    fallback: int = NOW
    strict_plugin_lane: bool = False

    @property
    def max_devices(self) -> int:
        """The most accelerators that one container can get: companions take up room in the claim too."""
        return MAX_DEVICES - sum(companion.count for companion in self.companions)


@dataclass(frozen=True, slots=True)
class Quota:
    """Devices a tenant may hold, in all and by model; None and absence mean no limit."""

    devices: int | None = None
    models: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Canary:
    """The policy version that some of a tenant's namespaces get instead."""

    policy: PolicyRef
    namespaces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who pays: its namespaces, policy, kept versions, quota and weight.

    `lease` limits in seconds how long a Pod may run that was given a device above the tenant's share; None: no limit.
    `reserve` are devices of its share, by model, that are never lent. What a Pod needs that has waited `reserve_after`
    seconds is kept for it once its turn has come. No more than `max_waiting` Pods wait at once. With `kueue_exactly`
    Pods that Kueue manages get a claim that asks for the first candidate only.
    """

    name: str
    namespaces: tuple[str, ...]
    policy: PolicyRef
    keep_versions: tuple[int, ...]
    canary: Canary | None
    quota: Quota
    weight: int | None
    over_quota: str  # reject or wait
    place: Place
    lease: int | None = None
    reserve: Mapping[str, int] = field(default_factory=dict)
    reserve_after: int = RESERVE_AFTER
    max_waiting: int = MAX_WAITING
    kueue_exactly: bool = False

    def hold(self, policy: DevicePolicy) -> Hold:
        """How a Pod of this tenant under `policy` comes by its claims, and whether it is held until granted.

        `late`: held, and its claims are written at the grant, with the candidates that it may then have. `template`:
        held, its claims come from the template. `free`: from the template, and nothing holds it.
        """
        if self.quota.models or self.weight is not None or policy.fallback != NOW:
            return "late"
        return "free" if self.quota.devices is None else "template"

    def policy_for(self, namespace: str) -> PolicyRef:
        """The policy that new Pods in `namespace` get: the canary's in its namespaces, else the tenant's."""
        if self.canary is not None and namespace in self.canary.namespaces:
            return self.canary.policy
        return self.policy

    def valid_refs(self, namespace: str) -> tuple[PolicyRef, ...]:
        """The policies that Pods in `namespace` may name: its own first, then the others that the tenant honours."""
        refs = [self.policy_for(namespace), self.policy]
        refs += [PolicyRef(self.policy.name, version) for version in self.keep_versions]
        return tuple(dict.fromkeys(refs))


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind that makes Pods: where its Pod templates stand, each path a tuple of fields, `*` for every item."""

    group: str
    resource: str
    pod_templates: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for all tenants. The defaults are what a folder without a ClusterSettings document gets.

    `device_runtimes` are RuntimeClass handlers, `device_node_labels` label keys (one `*` at the end allowed).
    """

    device_runtimes: tuple[str, ...] = ("nvidia", "nvidia-cdi", "nvidia-legacy", "nvidia-experimental")
    device_node_labels: tuple[str, ...] = (
        "nvidia.com/gpu*",
        "nvidia.com/mig*",
        "nvidia.com/cuda*",
        "amd.com/gpu*",
        "gpu.intel.com/*",
        "cloud.google.com/gke-accelerator",
        "cloud.google.com/gke-gpu*",
        "k8s.amazonaws.com/accelerator",
        "karpenter.k8s.aws/instance-gpu-*",
        "eks.amazonaws.com/instance-gpu-*",
        "kubernetes.azure.com/accelerator",
        "accelerator",
    )
    visible_devices_void: str = "envFrom"  # or withoutClaim, off
    exempt_users: frozenset[str] = frozenset()
    workloads: tuple[Workload, ...] = ()
    workload_verdict: str = "warn"  # or deny
    kueue_namespaces: tuple[str, ...] = ()  # where Kueue manages all Pods: the gate holds none of them
    # Labels of all nodes with a device plugin, and of no others.
    device_plugin_nodes: Mapping[str, str] = field(default_factory=dict, hash=False)

    def tells_device_node(self, label: str) -> bool:
        """The label key is one by which device nodes are told."""
        return any(label.startswith(key[:-1]) if key.endswith("*") else label == key for key in self.device_node_labels)


@dataclass(frozen=True, slots=True)
class PolicyException:
    """What may pass some rules all the same. `owner` is a kind and a name, `*` at its end for any ending.

    Who creates Pods may write any owner into them, so an owner counts only in Pods that its kind's controller creates,
    or one of `users`. `expires` is the last day, in days since 1970-01-01 UTC, on which it counts.
    """

    name: str
    rules: tuple[str, ...]
    namespaces: tuple[str, ...]
    owner: tuple[str, str] | None
    users: tuple[str, ...]
    reason: str
    ticket: str
    approver: str
    expires: int
    place: Place

    def covers(self, rule: str, namespace: str, owners: Iterable[tuple[str, str]], user: str, day: int) -> bool:
        """Whether a finding of `rule` is let pass for a Pod of these owners (kind, name) that `user` creates."""
        if rule not in self.rules or namespace not in self.namespaces or day > self.expires:
            return False
        if (self.users or self.owner is not None) and user not in self.creators:
            return False
        return self.owner is None or any(_is_owner(self.owner, found) for found in owners)

    @property
    def creators(self) -> tuple[str, ...]:
        """By whom a Pod has to be created: `users`, else the owner's controller; empty without either: by anybody."""
        return self.users or (senders(self.owner[0]) if self.owner is not None else ())


def _is_owner(wanted: tuple[str, str], found: tuple[str, str]) -> bool:
    kind, name = wanted
    ending = name.endswith("*")
    return found[0] == kind and (found[1].startswith(name[:-1]) if ending else found[1] == name)


@dataclass(frozen=True, slots=True)
class PolicySet:
    """All files of a folder, loaded together. `digest` is SHA-256 (hex) over the documents' canonical JSON.

    Comments, file names and the order of documents do not change the digest; everything that decides does.
    """

    digest: str
    models: Mapping[str, Model]  # in catalogue order
    policies: Mapping[PolicyRef, DevicePolicy]
    tenants: Mapping[str, Tenant]
    tenant_by_namespace: Mapping[str, str]
    settings: Settings = Settings()
    exceptions: tuple[PolicyException, ...] = ()

    def served_domains(self) -> frozenset[str]:
        """The domains of the names that some policy serves, such as nvidia.com."""
        return frozenset(name.partition("/")[0] for policy in self.policies.values() for name in policy.serves)

    def policies_of(self, tenant: Tenant) -> tuple[DevicePolicy, ...]:
        """The policies that the tenant honours, wherever."""
        refs = dict.fromkeys(ref for namespace in tenant.namespaces for ref in tenant.valid_refs(namespace))
        return tuple(self.policies[ref] for ref in refs)

    def weights(self, model: str) -> Mapping[str, int]:
        """The tenants that have a share of `model`, and their weights: 1 for one that is held late without saying."""
        return {
            tenant.name: tenant.weight or 1
            for tenant in self.tenants.values()
            if any(model in one.candidates and tenant.hold(one) == "late" for one in self.policies_of(tenant))
        }

    def tenant_of(self, namespace: str) -> Tenant | None:
        """The tenant that owns `namespace`, or None."""
        name = self.tenant_by_namespace.get(namespace)
        return None if name is None else self.tenants[name]
