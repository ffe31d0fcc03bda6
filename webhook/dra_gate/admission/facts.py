"""What a decision may know beside the request: the policy set and the cluster, as far as rules read it.

Assembled by the cluster layer from caches, by the command line from files, by tests by hand; always before the
decision, never during it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dra_gate.admission.nodes import Nodes
from dra_gate.fairness.charge import NOTHING, Charge
from dra_gate.kube.raw import Object
from dra_gate.policy.compile import TemplateIndex
from dra_gate.policy.model import PolicySet
from dra_gate.policy.switch import NO_SWITCH, Switch

LANE_LABEL = "dra-gate.io/lane"
MODE_LABEL = "dra-gate.io/mode"


@dataclass(frozen=True, slots=True)
class Reached:
    """A request of a claim spec that can give a gated device, and why."""

    request: str
    why: str


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ClaimFacts:
    """A ResourceClaim or ResourceClaimTemplate as rules see it.

    `spec` is the template's whole spec (metadata and claim spec) or the claim's spec; `reached` says which of its
    requests can give a gated device, judged when the object or a class last changed.
    """

    spec: Object
    reached: tuple[Reached, ...]


@dataclass(frozen=True, slots=True)
class LedgerView:
    """A tenant's account as its TenantLedger's status says it: what it holds, how many of its Pods wait, and the most
    devices of each model that any node has (a model that is not named: not known)."""

    used: Charge
    waiting: int = 0
    largest: Mapping[str, int] = field(default_factory=dict)


def _not_known(_: Object) -> tuple[Reached, ...]:
    return (Reached("(any)", "no device class is known"),)


class BehindError(Exception):
    """A stamp names a policy set or a Gate generation that these facts do not know (yet): look again, then decide.

    Not a verdict: whoever asked fetches the Gate once and asks again with what it then knows.
    """

    def __init__(self, digest: str, generation: int) -> None:
        super().__init__(f"policy set {digest} at Gate generation {generation} is not known here")
        self.digest = digest
        self.generation = generation


@dataclass(frozen=True, slots=True)
class Facts:
    """One moment's view of the cluster. Mappings may be live caches: they are read, never written, by decisions.

    `policy_set` is the active one, which new Pods get; `accepted` are others whose stamps are still honoured, each with
    its compiled templates. `previous_labels` holds what the labels of namespaces were that changed lane or mode a
    moment ago (None: not gated): replicas see such a change a moment apart.
    """

    policy_set: PolicySet
    index: TemplateIndex
    accepted: Mapping[str, tuple[PolicySet, TemplateIndex]] = field(default_factory=dict)  # by digest
    gate_generation: int = 0
    switch: Switch = NO_SWITCH
    switch_previous: Switch = NO_SWITCH  # what it was a moment ago, and the same otherwise
    previous_labels: Mapping[str, Mapping[str, str] | None] = field(default_factory=dict)
    writers: frozenset[str] = frozenset()  # user names of the gate's own accounts
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # name -> labels
    # Extended resource names that give a gated device, and the class behind each: the classes' own names, their
    # extendedResourceName and the implicit deviceclass.resource.kubernetes.io/ names (KEP-5004).
    device_resources: Mapping[str, str] = field(default_factory=dict)
    known_classes: frozenset[str] | set[str] = frozenset()
    templates: Mapping[tuple[str, str], ClaimFacts] = field(default_factory=dict)  # (namespace, name)
    claims: Mapping[tuple[str, str], ClaimFacts] = field(default_factory=dict)
    # Which requests of a claim spec that is only now being written can give a gated device. Nothing is compiled for it.
    reached_by: Callable[[Object], tuple[Reached, ...]] = _not_known
    ledgers: Mapping[str, LedgerView] = field(default_factory=dict)  # by tenant
    used: Mapping[str, Charge] = field(default_factory=dict)  # by tenant: counted from Pods and claims, without ledgers
    nodes: Nodes = field(default_factory=Nodes)
    day: int = 0  # days since 1970-01-01 UTC: exceptions end
    runtime_handlers: Mapping[str, str] = field(default_factory=dict)  # RuntimeClass name -> handler
    # Domains of the names that some policy serves, such as nvidia.com: looked up for every resource of every Pod.
    served_domains: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "served_domains", self.policy_set.served_domains())

    def ledger(self, tenant: str) -> LedgerView:
        """The tenant's ledger; where there is none, what was counted."""
        return self.ledgers.get(tenant) or LedgerView(self.used.get(tenant, NOTHING))

    def under(self, digest: str) -> Facts | None:
        """The same facts under the honoured set of that digest; None for a set that is not honoured."""
        if digest == self.policy_set.digest:
            return self
        found = self.accepted.get(digest)
        return None if found is None else replace(self, policy_set=found[0], index=found[1])
