"""The arbiter as the objects of a state tell it, in place of events: for who asks when no loop runs."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from dra_gate.admission.facts import LANE_LABEL
from dra_gate.admission.held import Ages
from dra_gate.allocation.capacity import Capacity
from dra_gate.allocation.snapshot import SnapshotError
from dra_gate.allocation.state import State
from dra_gate.controller.arbiter_view import View
from dra_gate.fairness.arbiter import Arbiter
from dra_gate.fairness.events import Granted, Tags, Used
from dra_gate.fairness.holdings import HeldBack
from dra_gate.fairness.ledger import Grant, LedgerSpec, read_spec
from dra_gate.fairness.rules import capacity_of, config_of
from dra_gate.fairness.view import Refused
from dra_gate.kube.raw import Object, at, mapping, text


@dataclass(frozen=True, slots=True)
class Standing:
    """`unsized` Pods are of groups whose size only another object says: those that are there count as all of them.
    `due` are Pods that a pass would grant now; with any, the arbiter is as it was before that pass. `held_back` are
    devices of Pods that were deleted by force."""

    arbiter: Arbiter
    refused: tuple[Refused, ...]
    unsized: int
    due: int
    held_back: tuple[HeldBack, ...]


def standing(state: State, now: int) -> Standing:
    """What the arbiter knows if it begins with this state at `now` (milliseconds since 1970).

    Raises SnapshotError where there is no active policy set, or a ledger is none.
    """
    sets = list(state.policy_sets().values())
    if state.active not in state.policies:
        raise SnapshotError("no policy set is active there: nobody has a quota, a weight or a share")
    ledgers = {text(at(obj, "metadata", "name")): _spec(obj) for obj in state.ledgers}
    capacity = Capacity()
    capacity.use(sets)
    view = View(capacity)
    view.use(sets)
    _tell(state, capacity, view, now)
    grants = {tenant: [one for one in ledger.grants if _is_open(view, one)] for tenant, ledger in ledgers.items()}
    open_grants = {grant.uid for found in grants.values() for grant in found}
    for tenant, ledger in ledgers.items():
        for grant in grants[tenant]:
            view.holdings.open(grant.namespace, grant.uid)
        for kept in ledger.held_back:
            if kept.until > now:
                view.holdings.hold_back(kept.held(tenant))
    capacity.hold_back(device for held in view.holdings.held_back() for device in held.devices)

    arbiter = Arbiter()
    arbiter.take(config_of(sets, capacity.needs))
    arbiter.take(capacity_of(capacity.kinds()))
    for tenant, ledger in ledgers.items():
        arbiter.take(Tags(tenant=tenant, tags={model: (one.start, one.finish) for model, one in ledger.tags.items()}))
        for grant in grants[tenant]:
            arbiter.take(grant.opened(tenant))
    for tenant, charge in view.holdings.used.items():
        arbiter.take(Used(tenant=tenant, devices=charge.devices, models=dict(charge.models)))
    refused, unsized, ages = [], 0, Ages()
    for key, pod in sorted(view.pods.items()):
        if not view.waits(pod) or pod.uid in open_grants:
            continue
        why = view.refusal(pod, view.templates(pod))
        if why is not None:
            refused.append(Refused("/".join(key), pod.tenant, why.reason, why.text))
            continue
        members = 1
        if pod.group is not None:
            unsized += not pod.group.size
            size = pod.group.size or 1 + len(view.members(pod.group.key, key))
            members = view.lacking(pod.group.key, size, open_grants)
        held = pod.request(ages.of(pod), view.template_charge, members)
        arbiter.take(replace(held, tenant=view.payer(pod.namespace, pod.tenant) or pod.tenant))
    before = arbiter.state()
    due = sum(isinstance(one, Granted) for one in arbiter.decide(now))
    if due:
        arbiter = Arbiter()
        arbiter.take(before)
    return Standing(arbiter, tuple(refused), unsized, due, view.holdings.held_back())


def _is_open(view: View, grant: Grant) -> bool:
    """A ledger is written a little after the last claim was allocated, or the Pod went."""
    pod = view.pods.get((grant.namespace, grant.name))
    if pod is None or pod.uid != grant.uid or pod.finished:
        return False
    return view.given(pod, [claim.name for claim in grant.claims]) is None


def _spec(obj: Object) -> LedgerSpec:
    try:
        return read_spec(obj.get("spec"))
    except ValueError as error:
        raise SnapshotError(f"TenantLedger {text(at(obj, 'metadata', 'name'))}: {error}") from None


def _tell(state: State, capacity: Capacity, view: View, now: int) -> None:
    snapshot = state.snapshot
    for obj in state.namespaces:
        view.set_lane(_key(obj)[1], mapping(at(obj, "metadata", "labels")).get(LANE_LABEL))
    for obj in snapshot.classes:
        capacity.set_class(_key(obj), obj)
        view.set_class(_key(obj)[1], mapping(obj.get("spec")))
    for obj in snapshot.nodes:
        capacity.set_node(_key(obj), obj)
        view.set_node(_key(obj)[1], mapping(at(obj, "metadata", "labels")))
    for obj in snapshot.taint_rules:
        capacity.set_taint_rule(_key(obj), obj)
    for obj in snapshot.slices:
        capacity.set_slice(_key(obj), obj)
        view.set_slice(mapping(obj.get("spec")))
    for obj in snapshot.claims:
        capacity.set_claim(_key(obj), obj)
        view.set_claim(_key(obj), obj)
    for obj in snapshot.pods:
        view.set_pod(_key(obj), obj, now)


def _key(obj: Object) -> tuple[str, str]:
    return text(at(obj, "metadata", "namespace")), text(at(obj, "metadata", "name"))
