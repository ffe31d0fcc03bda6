"""What the arbiter knows, laid out for people: who holds what, who waits for what and how long, who borrows."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from dra_gate.fairness.arbiter import Arbiter
from dra_gate.fairness.events import NO_LIMIT, SCALE, Held, Kind, Opened, TenantRules
from dra_gate.fairness.flow import Flow
from dra_gate.policy.words import many

_MINUTE = 60_000
OTHERS = "other tenants"  # as one tenant sees them


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long it may still take; `minutes` is None where nobody can tell. `basis` says from what."""

    minutes: int | None
    basis: str

    def __str__(self) -> str:
        if self.minutes is None:
            return self.basis
        return f"{f'about {ago(self.minutes * 60)}' if self.minutes else 'now'}: {self.basis}"


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A Pod that waits. `position` counts the tenant's requests from 1: the Pods of a group have one together.

    `model` is the one in whose queue it stands, empty for none; `candidates` are those that count by now, `later` those
    that its policy's fallback adds after `fallback` seconds of waiting. `queued` and `waited` are in milliseconds.
    `overtaken` counts younger requests that were granted `model` since, as far back as is known.
    """

    position: int
    uid: str
    pod: str
    policy: str
    devices: int
    candidates: tuple[str, ...]
    later: tuple[str, ...]
    fallback: int
    model: str
    group: str
    priority: int
    queued: int
    waited: int
    aged: bool
    reason: str
    text: str
    overtaken: int
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class ModelUse:
    """What a tenant holds of a model. `open` of it are granted and not allocated yet, at their worst case.

    `share` is None for a tenant in no fair queue, `quota` where there is no limit. `borrowed` is held above the share.
    """

    model: str
    held: int
    open: int
    share: int | None
    quota: int | None
    reserve: int
    borrowed: int


@dataclass(frozen=True, slots=True)
class TenantView:
    """A tenant. `waiting` are the first of its Pods in its order, `pods` and `devices_waiting` count all."""

    name: str
    weight: int | None
    held: int
    open: int
    quota: int | None
    models: tuple[ModelUse, ...]
    grants: int
    waiting: tuple[WaitingPod, ...]
    pods: int
    devices_waiting: int
    oldest: int | None
    most_overtaken: int


@dataclass(frozen=True, slots=True)
class Lender:
    """A tenant that holds less than its share: `unused` of it, while it waits for `waiting` devices of the model."""

    tenant: str
    unused: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Loan:
    """Who holds more of a model than its share."""

    tenant: str
    devices: int


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model. `open` devices are spoken for by grants that are not allocated yet, at their worst case.

    `waiting` devices are asked for by those that stand in its queue, the oldest of them since `oldest` milliseconds.
    `freed` devices came free within `span` milliseconds. Who borrows, and from whom: `lenders` is empty where nobody
    does.
    """

    model: str
    healthy: int
    free: int
    open: int
    waiting: int
    oldest: int | None
    freed: int
    span: int
    borrowers: tuple[Loan, ...]
    lenders: tuple[Lender, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A Pod that is held and that the arbiter is not told of: whatever becomes free, it can't be granted."""

    pod: str
    tenant: str
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class QueueView:
    """Everything at `at` (milliseconds since 1970). `known`: rules and devices have been told."""

    at: int
    known: bool
    models: tuple[ModelView, ...]
    tenants: tuple[TenantView, ...]
    refused: tuple[Refused, ...] = ()


NOTHING_KNOWN = QueueView(0, known=False, models=(), tenants=())


class _Line(NamedTuple):
    """A request in the queue of a model, as the order would be if nothing else came."""

    key: tuple[int, int, int, str]
    devices: int


def view(
    arbiter: Arbiter, now: int, flow: Flow | None = None, *, tenant: str | None = None, most: int = 200
) -> QueueView:
    """The arbiter as people want to see it; of each tenant at most `most` Pods that wait, or of `tenant` alone.

    Reasons are those of the last pass. Without `flow` there is no history: no estimate, nobody was overtaken.
    """
    config, capacity = arbiter.config, arbiter.capacity
    if config is None or capacity is None:
        return NOTHING_KNOWN
    history = flow if flow is not None else Flow(now)
    queues = _Queues(arbiter, now)
    opened = {name: arbiter.open_grants(name) for name in arbiter.tenants()}
    worst = {name: _worst(grants) for name, grants in opened.items()}
    models = tuple(_model(arbiter, queues, name, capacity.kinds, worst, history, now) for name in config.models)
    teller = _Teller(arbiter, queues, {one.model: one for one in models}, history, now)
    shown = arbiter.tenants() if tenant is None else [one for one in arbiter.tenants() if one == tenant]
    tenants = tuple(_tenant(arbiter, queues, teller, name, opened[name], worst[name], most) for name in shown)
    return QueueView(now, known=True, models=models, tenants=tenants)


def ago(seconds: float) -> str:
    """A span in one unit: `12 s`, `3 min`, `5 h`, `9 d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def as_tenant(seen: QueueView, tenant: str) -> QueueView:
    """What one tenant may see: itself, and of all others only numbers."""
    return replace(
        seen,
        models=tuple(
            replace(
                one,
                borrowers=tuple(_summed(one.borrowers, tenant)),
                lenders=tuple(_added(one.lenders, tenant)),
            )
            for one in seen.models
        ),
        tenants=tuple(one for one in seen.tenants if one.name == tenant),
        refused=tuple(one for one in seen.refused if one.tenant == tenant),
    )


def _summed(loans: Iterable[Loan], tenant: str) -> Iterable[Loan]:
    found = Counter[str]()
    for one in loans:
        found[one.tenant if one.tenant == tenant else OTHERS] += one.devices
    return (Loan(*item) for item in found.items())


def _added(lenders: Iterable[Lender], tenant: str) -> Iterable[Lender]:
    unused, waiting = Counter[str](), Counter[str]()
    for one in lenders:
        name = one.tenant if one.tenant == tenant else OTHERS
        unused[name] += one.unused
        waiting[name] += one.waiting
    return (Lender(name, count, waiting[name]) for name, count in unused.items())


class _Queues:
    """Everything that waits, and how much stands before it in its model's queue.

    The order is what it would be if nobody came and nobody went: tier, start tag, since when, as the arbiter has it.
    Who is held up by its caps stands there all the same.
    """

    def __init__(self, arbiter: Arbiter, now: int) -> None:
        self.requests = arbiter.requests()
        self.model: dict[str, str] = {}  # by UID of a request's first Pod
        self.ahead: dict[str, int] = {}
        self.waiting = Counter[tuple[str, str]]()  # tenant, model -> devices
        self.oldest: dict[str, int] = {}
        lines: dict[str, list[_Line]] = {}
        virtual: dict[str, int] = {}
        for name in arbiter.tenants():
            for model, (start, _) in arbiter.tags(name).items():
                virtual[model] = max(virtual.get(model, 0), start)
        for name, requests in self.requests.items():
            rules = _rules(arbiter, name)
            held = Counter(arbiter.account(name).models)
            starts = {model: finish for model, (_, finish) in arbiter.tags(name).items()}
            shares: dict[str, int] = {}
            for members in requests:
                first, devices = members[0], sum(map(_devices, members))
                model = arbiter.sought(first.uid, now)
                self.model[first.uid] = model
                self.waiting[name, model] += devices
                if not model:
                    continue
                self.oldest[model] = min(self.oldest.get(model, first.queued), first.queued)
                share = shares.setdefault(model, arbiter.share(name, model))
                held[model] += devices
                tag = max(starts.get(model, 0), virtual.get(model, 0))
                starts[model] = tag + devices * SCALE // max(1, rules.weight)
                tier = 0 if held[model] <= share else 1
                lines.setdefault(model, []).append(_Line((tier, tag, first.queued, first.uid), devices))
        for queue in lines.values():
            before = 0
            for line in sorted(queue):
                self.ahead[line.key[-1]] = before
                before += line.devices


class _Teller:
    """Tells of a Pod that waits why, how often it was overtaken, and how long it may still take."""

    def __init__(
        self, arbiter: Arbiter, queues: _Queues, models: Mapping[str, ModelView], flow: Flow, now: int
    ) -> None:
        self._arbiter = arbiter
        self._queues = queues
        self._models = models
        self._flow = flow
        self.now = now
        self._grants = {model: flow.grants(model) for model in models}

    def overtaken(self, first: Held) -> int:
        """How many younger ones were granted the model that it waits for."""
        grants = self._grants.get(self._queues.model[first.uid], [])
        return len(grants) - bisect_right(grants, first.queued)

    def pod(self, position: int, members: tuple[Held, ...], held: Held, ahead: int) -> WaitingPod:
        """The Pod of a request; `ahead` devices are asked for by those of its tenant before it."""
        first, now = members[0], self.now
        rules = _rules(self._arbiter, held.tenant)
        candidates = self._arbiter.candidates(held.uid, now)
        config = self._arbiter.config
        policy = None if config is None else config.policies.get(held.policy)
        later = () if policy is None or policy.fallback <= 0 or not candidates else policy.candidates
        why = self._arbiter.why(held.uid, now)
        reason, told = ("", "") if why is None else (why.reason, why.text)
        return WaitingPod(
            position=position,
            uid=held.uid,
            pod=held.pod,
            policy=held.policy,
            devices=_devices(held),
            candidates=candidates,
            later=tuple(one.model for one in later if one.model not in candidates),
            fallback=max(0, policy.fallback // 1000) if policy is not None else 0,
            model=self._queues.model[first.uid],
            group=held.group,
            priority=held.priority,
            queued=held.queued,
            waited=max(0, now - held.queued),
            aged=bool(rules.weight) and now - first.queued >= rules.reserve_after,
            reason=reason,
            text=told,
            overtaken=self.overtaken(first),
            estimate=self._estimate(first, sum(map(_devices, members)), ahead, reason),
        )

    def _estimate(self, first: Held, asked: int, ahead: int, reason: str) -> Estimate:
        model = self._queues.model[first.uid]
        match reason:
            case "Unsatisfiable":
                return Estimate(None, "no estimate: it can't be granted as things are")
            case "GroupIncomplete":
                return Estimate(None, "no estimate: its group is not all there")
            case "LedgerFull":
                return Estimate(None, "no estimate: it depends on the Pods of its tenant that were granted")
            case "Quota" | "Reserved" if reason == "Quota" or not model:
                what = f"of its tenant's {model}" if model else "of its tenant's devices"
                freed = self._flow.freed(self.now, tenant=first.tenant, model=model)
                basis = f"{many(ahead, 'device')} ahead of it in its tenant's queue and {asked} its own"
                return self._at_rate(ahead + asked, basis, what, freed)
        if not model:
            return Estimate(None, "no estimate: its turn comes with the next pass")
        before, seen = self._queues.ahead[first.uid], self._models[model]
        usable = max(0, seen.free - seen.open) if reason != "Share" else 0
        basis = f"{many(before, 'device')} ahead of it in the queue of {model} and {asked} its own"
        return self._at_rate(before + asked - usable, basis, f"of {model}", seen.freed)

    def _at_rate(self, needed: int, basis: str, what: str, freed: int) -> Estimate:
        if needed <= 0:
            return Estimate(0, f"{basis}; enough {what} are free")
        span = self._flow.span(self.now)
        when = "in the last hour" if span >= 60 * _MINUTE else f"in the {span // _MINUTE} min that are known"
        if span < _MINUTE:
            return Estimate(None, f"no estimate: {basis}; nothing is known yet of what comes free")
        if not freed:
            return Estimate(None, f"no estimate: {basis}; nothing {what} came free {when}")
        minutes = -(-needed * span // (freed * _MINUTE))
        return Estimate(minutes, f"{basis}; {freed} {what} came free {when}")


def _rules(arbiter: Arbiter, tenant: str) -> TenantRules:
    """Those of the tenant; of one that the policies do not know, none of its rights."""
    config = arbiter.config
    return (config.tenants.get(tenant) if config is not None else None) or TenantRules(weight=0)


def _devices(held: Held) -> int:
    return sum(held.claims) + held.fixed


def _worst(grants: Iterable[Opened]) -> Counter[str]:
    worst = Counter[str]()
    for one in grants:
        worst.update(one.request.fixed_models)
        for model in one.candidates:
            worst[model] += sum(one.request.claims)
    return worst


def _model(
    arbiter: Arbiter,
    queues: _Queues,
    model: str,
    kinds: Iterable[Kind],
    worst: Mapping[str, Counter[str]],
    flow: Flow,
    now: int,
) -> ModelView:
    own = [kind for kind in kinds if kind.model == model]
    borrowers, lenders = [], []
    for name in arbiter.tenants():
        rules = _rules(arbiter, name)
        if not rules.weight or model not in rules.wants:
            continue
        above = arbiter.account(name).models.get(model, 0) - arbiter.share(name, model)
        if above > 0:
            borrowers.append(Loan(name, above))
        elif above < 0:
            lenders.append(Lender(name, -above, queues.waiting[name, model]))
    oldest = queues.oldest.get(model)
    return ModelView(
        model=model,
        healthy=sum(kind.healthy for kind in own),
        free=sum(devices * homes for kind in own for devices, homes in kind.free),
        open=sum(one[model] for one in worst.values()),
        waiting=sum(devices for (_, one), devices in queues.waiting.items() if one == model),
        oldest=None if oldest is None else max(0, now - oldest),
        freed=flow.freed(now, model=model),
        span=flow.span(now),
        borrowers=tuple(sorted(borrowers, key=lambda one: (-one.devices, one.tenant))),
        lenders=tuple(sorted(lenders, key=lambda one: (-one.unused, one.tenant))) if borrowers else (),
    )


def _tenant(
    arbiter: Arbiter,
    queues: _Queues,
    teller: _Teller,
    name: str,
    opened: tuple[Opened, ...],
    worst: Counter[str],
    most: int,
) -> TenantView:
    rules, account = _rules(arbiter, name), arbiter.account(name)
    models = []
    for model in arbiter.config.models if arbiter.config is not None else ():
        held, quota, share = account.models.get(model, 0), rules.models.get(model), None
        if rules.weight and model in rules.wants:
            share = arbiter.share(name, model)
        if held or share or quota is not None or queues.waiting[name, model]:
            borrowed = max(0, held - share) if share is not None else 0
            kept = rules.reserve.get(model, 0)
            models.append(ModelUse(model, held, worst[model], share, quota, kept, borrowed))
    requests = queues.requests.get(name, [])
    waiting: list[WaitingPod] = []
    ahead = Counter[str]()
    for position, members in enumerate(requests, 1):
        model = queues.model[members[0].uid]
        for held_pod in members:
            if len(waiting) < most:
                waiting.append(teller.pod(position, members, held_pod, ahead[model]))
        ahead[model] += sum(map(_devices, members))
        if len(waiting) >= most:
            break
    oldest = min((members[0].queued for members in requests), default=None)
    return TenantView(
        name=name,
        weight=rules.weight or None,
        held=account.devices,
        open=sum(_devices(one.request) for one in opened),
        quota=None if rules.devices == NO_LIMIT else rules.devices,
        models=tuple(models),
        grants=len(opened),
        waiting=tuple(waiting),
        pods=sum(map(len, requests)),
        devices_waiting=sum(_devices(held) for members in requests for held in members),
        oldest=None if oldest is None else max(0, teller.now - oldest),
        most_overtaken=max((teller.overtaken(members[0]) for members in requests), default=0),
    )
