"""What each tenant holds beside its open grants and the Pods that wait, kept up to date one object at a time.

A claim is charged to its tenant when it is allocated, by what it was given; before that its Pod is charged, by the
worst case. So a charge ends when the Pod is gone or has ended and its claim is gone or deallocated. What a bound Pod
was given counts until the Pod ends, whatever becomes of the claim; and for a grace longer if the Pod goes without
having ended, deleted by force: its node may not have let go.

No clock: times come with what is told, in milliseconds since 1970. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from sys import intern
from typing import NamedTuple

from dra_gate.allocation.capacity import DeviceId, held_devices
from dra_gate.fairness.charge import NOTHING, Charge, Given, given_devices
from dra_gate.fairness.holding import (
    EXTENDED_CLAIM_ANNOTATION,
    POD_CLAIM_ANNOTATION,
    PodHolding,
    pod_holding,
    stamped_tenant,
)
from dra_gate.kube.pod import is_finished
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.model import Model

Key = tuple[str, str]  # namespace and name
Owner = tuple[str, str]  # namespace and UID of the Pod that a claim was made for

GRACE = 60_000  # milliseconds


@dataclass(frozen=True, slots=True)
class Scales:
    """What things weigh under the policy sets and classes of the moment. Who changes any of them calls `recharge`.

    `tenant` says who pays in a namespace for what is stamped with a tenant's name ("": not stamped). `template` and
    `claim` give the worst case of a template and of a claim by namespace and name: nothing for one that can give no
    gated device. `given` is the truth. `is_device` judges extended resources. `model` names a device's model where it
    is known; without it the names of alternatives are all there is.
    """

    tenant: Callable[[str, str], str | None]
    template: Callable[[str, str], Charge]
    claim: Callable[[str, str], Charge]
    given: Callable[[Given], Charge]
    is_device: Callable[[str], bool]
    model: Callable[[DeviceId], str] | None = None


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What a Pod that was deleted by force held: charged, and its devices not free, `until` then or its node's end."""

    uid: str
    namespace: str
    name: str
    node: str
    tenant: str  # empty: nobody pays
    devices: tuple[DeviceId, ...]
    charge: Charge
    until: int


class _Claim(NamedTuple):
    uid: str
    owner: Owner | None  # None: nobody's own
    entry: str  # the Pod's claim entry, where it was made from a template
    extended: bool  # made by the scheduler for extended resources
    tenant: str  # stamped
    given: Given | None  # None: not allocated
    devices: tuple[DeviceId, ...]
    results: Object | None = None  # kept where models are to be asked for again
    kept: bool = False  # gone or deallocated while its Pod runs


class Holdings:
    """The account. Pods and claims are raw JSON as projected; of a Pod without UID or a claim nothing is assumed.

    `grace` in milliseconds, for which devices are held back after a deletion by force; 0: they never are. Only Pods on
    nodes that `set_node` has told are held back: there is nobody to wait for on others.
    """

    def __init__(self, scales: Scales, *, grace: int = GRACE) -> None:
        self.used: dict[str, Charge] = {}
        self._scales = scales
        self._grace = grace
        self._pods: dict[Key, PodHolding] = {}
        self._pod_of: dict[Owner, Key] = {}
        self._namers: dict[Key, set[Key]] = {}  # template -> Pods that name it
        self._claims: dict[Key, _Claim] = {}
        self._claims_of: dict[Owner, set[Key]] = {}
        self._truths: dict[Given, Given] = {}  # one of each, for thousands of claims
        self._asked: set[Key] = set()  # claims whose devices' models were asked for
        self._nodes: dict[str, str] = {}  # -> the one model that its labels name, if they do
        self._raw_on: dict[str, set[Key]] = {}  # node -> Pods there that ask for devices directly
        self._open: set[Owner] = set()
        self._held_back: dict[Owner, HeldBack] = {}
        self._charged: dict[tuple[str, Key], tuple[str, Charge]] = {}  # kind of holder and its key -> tenant, charge
        self._changed: set[str] = set()

    # -- what is told -------------------------------------------------------------------------------------------------

    def set_pod(self, key: Key, pod: Object, now: int = 0) -> None:
        """A Pod was made or changed. Of another UID than before: the one before is gone."""
        holding = pod_holding(pod, self._scales.is_device)
        before = self._pods.get(key)
        if before is not None and before.uid != holding.uid:
            self.drop_pod(key, now)
        if (key[0], holding.uid) in self._held_back:
            self._let_go((key[0], holding.uid))  # it is there
        if is_finished(pod):
            self._end(key)
            return
        if before == holding:
            return
        self._unlink(key)
        self._pods[key] = holding
        self._pod_of[key[0], holding.uid] = key
        for _, template in holding.templates:
            self._namers.setdefault((key[0], template), set()).add(key)
        if holding.raw_devices and holding.node:
            self._raw_on.setdefault(holding.node, set()).add(key)
        self._recharge((key[0], holding.uid))

    def drop_pod(self, key: Key, now: int = 0) -> None:
        """A Pod is gone. One that was bound and has neither ended nor used up its grace was deleted by force."""
        holding = self._pods.get(key)
        if holding is not None and self._grace and holding.node in self._nodes and not 0 < holding.ends <= now:
            owner = (key[0], holding.uid)
            claims = {name: self._claims[name] for name in self._claims_of.get(owner, ())}
            charge = self._of_pod(holding)
            for name, claim in claims.items():
                charge += self._of_claim(name, claim)
            devices = tuple(sorted({device for claim in claims.values() for device in claim.devices}))
            if charge != NOTHING:
                tenant = self._scales.tenant(key[0], holding.tenant) or ""
                until = now + self._grace
                self._held_back[owner] = HeldBack(holding.uid, *key, holding.node, tenant, devices, charge, until)
        self._end(key)

    def set_claim(self, key: Key, claim: Object) -> None:
        """A claim was made or changed."""
        new = self._read(key, claim)
        before = self._claims.get(key)
        if before is not None and before.uid != new.uid:
            self.drop_claim(key)
        gone = self._take(_gone(key, new.uid))
        before = self._take(key) or gone
        if new.given is None and before is not None and before.given is not None and self._is_bound(new.owner):
            new = new._replace(given=before.given, devices=before.devices, results=before.results, kept=True)
        self._put(key, new)
        self._recharge(before.owner if before is not None else None)
        if before is None or before.owner != new.owner:
            self._recharge(new.owner)

    def drop_claim(self, key: Key) -> None:
        """A claim is gone."""
        before = self._take(key)
        if before is not None:
            if before.given is not None and self._is_bound(before.owner):
                self._put(_gone(key, before.uid), before._replace(kept=True))
            self._recharge(before.owner)

    def set_node(self, name: str, model: str = "") -> None:
        """A node is there; `model` is the one that its labels name (`named_model`)."""
        before = self._nodes.get(name)
        self._nodes[name] = model
        if (before or "") != model:
            self._recharge_node(name)

    def drop_node(self, name: str) -> None:
        """A node is gone, and with it whatever ran there: nothing is held back for it."""
        if self._nodes.pop(name, ""):
            self._recharge_node(name)
        for owner in [owner for owner, held in self._held_back.items() if held.node == name]:
            self._let_go(owner)

    def open(self, namespace: str, uid: str) -> None:
        """The Pod has an open grant, which counts at its worst case elsewhere: nothing of it counts here."""
        self._open.add((namespace, uid))
        self._recharge((namespace, uid))

    def close(self, namespace: str, uid: str) -> None:
        """The Pod's grant is open no more: what it holds counts here again."""
        self._open.discard((namespace, uid))
        self._recharge((namespace, uid))

    def close_all(self) -> None:
        """No grant is known to be open."""
        for namespace, uid in tuple(self._open):
            self.close(namespace, uid)

    def hold_back(self, held: HeldBack) -> None:
        """What a ledger says was held back. What claims of that Pod still hold is in its charge, and counts once."""
        self._held_back[held.namespace, held.uid] = held
        self._recharge_held((held.namespace, held.uid))

    def expire(self, now: int) -> None:
        """Holds nothing back any more whose time is over."""
        for owner in [owner for owner, held in self._held_back.items() if held.until <= now]:
            self._let_go(owner)

    def template_changed(self, key: Key) -> None:
        """A template is new or gone: Pods that name it may weigh differently."""
        for pod in self._namers.get(key, ()):
            self._recharge_pod(pod)

    def devices_changed(self) -> None:
        """Devices may be of other models than when claims were read. Only those claims cost something."""
        for key in self._asked:
            claim = self._claims[key]
            found = given_devices(claim.results or {}, self._scales.model)
            self._claims[key] = claim._replace(given=self._one(found))
            self._recharge_claim(key)

    def recharge(self, namespace: str | None = None) -> None:
        """Owners of namespaces, or what anything weighs, may have changed; in one namespace, or anywhere."""
        for pod in self._pods:
            if namespace in (None, pod[0]):
                self._recharge_pod(pod)
        for claim in self._claims:
            if namespace in (None, claim[0]):
                self._recharge_claim(claim)

    # -- what is asked ------------------------------------------------------------------------------------------------

    def changed(self) -> set[str]:
        """The tenants whose charge has changed since this was last asked."""
        found, self._changed = self._changed, set()
        return found

    def held_back(self) -> tuple[HeldBack, ...]:
        """What is held back now, by namespace and UID."""
        return tuple(self._held_back[owner] for owner in sorted(self._held_back))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _read(self, key: Key, claim: Object) -> _Claim:
        metadata = claim.get("metadata")
        owners = (mapping(one) for one in sequence(at(metadata, "ownerReferences")))
        owner = next((text(one.get("uid")) for one in owners if one.get("kind") == "Pod"), None)
        annotations = at(metadata, "annotations")
        stamped = stamped_tenant(at(metadata, "labels"))
        # Alternatives of the gate's own claims are called after their models; people may call theirs what they like.
        ask = self._scales.model is not None and not stamped and at(claim, "status", "allocation") is not None
        return _Claim(
            intern(text(at(metadata, "uid"))),
            None if owner is None else (key[0], intern(owner)),
            "" if owner is None else intern(text(at(annotations, POD_CLAIM_ANNOTATION))),
            owner is not None and at(annotations, EXTENDED_CLAIM_ANNOTATION) == "true",
            stamped if owner is not None else "",  # who writes a claim by hand may write any label
            self._one(given_devices(claim, self._scales.model if ask else None)),
            held_devices(claim) if self._grace else (),
            {"status": claim["status"]} if ask else None,
        )

    def _one(self, given: Given | None) -> Given | None:
        return None if given is None else self._truths.setdefault(given, given)

    def _put(self, key: Key, claim: _Claim) -> None:
        self._claims[key] = claim
        if claim.owner is not None:
            self._claims_of.setdefault(claim.owner, set()).add(key)
        if claim.results is not None:
            self._asked.add(key)
        self._recharge_claim(key)

    def _take(self, key: Key) -> _Claim | None:
        claim = self._claims.pop(key, None)
        if claim is not None:
            self._asked.discard(key)
            if claim.owner is not None:
                _discard(self._claims_of, claim.owner, key)
            self._charge(("claim", key), None, NOTHING)
        return claim

    def _is_bound(self, owner: Owner | None) -> bool:
        pod = self._pods.get(self._pod_of[owner]) if owner in self._pod_of else None
        return pod is not None and bool(pod.node)

    def _end(self, key: Key) -> None:
        """The Pod runs no more: what was kept of its claims goes."""
        holding = self._pods.get(key)
        if holding is None:
            return
        owner = (key[0], holding.uid)
        self._unlink(key)
        self._charge(("pod", key), None, NOTHING)
        for name in [name for name in self._claims_of.get(owner, ()) if self._claims[name].kept]:
            claim = self._take(name)
            if claim is not None and "/" not in name[1]:  # not gone, only deallocated
                self._put(name, claim._replace(given=None, devices=(), results=None, kept=False))
        self._recharge(owner)

    def _unlink(self, key: Key) -> None:
        holding = self._pods.pop(key, None)
        if holding is None:
            return
        if self._pod_of.get((key[0], holding.uid)) == key:
            del self._pod_of[key[0], holding.uid]
        for _, template in holding.templates:
            _discard(self._namers, (key[0], template), key)
        _discard(self._raw_on, holding.node, key)

    def _let_go(self, owner: Owner) -> None:
        del self._held_back[owner]
        self._charge(("held back", owner), None, NOTHING)

    def _recharge_node(self, name: str) -> None:
        for key in self._raw_on.get(name, ()):
            self._recharge_pod(key)

    def _recharge(self, owner: Owner | None) -> None:
        """A Pod, its claims, and what is held back of it."""
        if owner is None:
            return
        if owner in self._pod_of:
            self._recharge_pod(self._pod_of[owner])
        for key in self._claims_of.get(owner, ()):
            self._recharge_claim(key)
        self._recharge_held(owner)

    def _recharge_pod(self, key: Key) -> None:
        holding = self._pods[key]
        charge = NOTHING if (key[0], holding.uid) in self._open else self._of_pod(holding)
        self._charge(("pod", key), self._scales.tenant(key[0], holding.tenant), charge)

    def _recharge_claim(self, key: Key) -> None:
        claim = self._claims[key]
        charge = NOTHING if claim.owner in self._open else self._of_claim(key, claim)
        stamped = claim.tenant
        if not stamped and claim.owner in self._pod_of:
            stamped = self._pods[self._pod_of[claim.owner]].tenant
        self._charge(("claim", key), self._scales.tenant(key[0], stamped), charge)

    def _recharge_held(self, owner: Owner) -> None:
        held = self._held_back.get(owner)
        if held is None:
            return
        charge = held.charge
        for key in self._claims_of.get(owner, ()):
            charge -= self._of_claim(key, self._claims[key])
        self._charge(("held back", owner), held.tenant or None, NOTHING if owner in self._open else charge)

    def _of_pod(self, holding: PodHolding) -> Charge:
        """What the Pod holds beside what its claims were given."""
        if holding.waiting or self._is_withdrawn(holding):
            return NOTHING
        allocated: dict[str, bool] = {}
        there: set[str] = set()
        extended = NOTHING
        for key in self._claims_of.get((holding.namespace, holding.uid), ()):
            claim = self._claims[key]
            there.add(key[1].partition("/")[0])
            allocated[claim.entry] = allocated.get(claim.entry, True) and claim.given is not None
            if claim.extended:
                extended += self._of_claim(key, claim)
        charge = NOTHING
        for entry, template in holding.templates:
            if not allocated.get(entry):
                charge += self._scales.template(holding.namespace, template)
        for name, worst in holding.late:
            if name not in there:
                charge += worst
        if holding.raw_devices:
            model = self._nodes.get(holding.node, "")
            # Until its node tells: any model that it was stamped with may be the one.
            models = (model,) if model else holding.candidates
            raw = Charge(holding.raw_devices, dict.fromkeys(models, holding.raw_devices))
            charge += raw - extended
        return charge

    def _is_withdrawn(self, holding: PodHolding) -> bool:
        """It was granted, and its late claims were taken away before anything was allocated: it waits again."""
        if not holding.late or holding.node:
            return False
        there = {name.partition("/")[0] for _, name in self._claims_of.get((holding.namespace, holding.uid), ())}
        return not any(name in there for name, _ in holding.late)

    def _of_claim(self, key: Key, claim: _Claim) -> Charge:
        """What a claim holds by itself."""
        if claim.given is not None:
            if claim.owner is None and self._scales.claim(*key) == NOTHING:
                return NOTHING  # such as network cards: their alternatives may be called anything
            return self._scales.given(claim.given)
        if claim.owner is None:
            return self._scales.claim(*key)
        pod = self._pods.get(self._pod_of[claim.owner]) if claim.owner in self._pod_of else None
        if pod is None or pod.waiting or claim.extended or any(claim.entry == entry for entry, _ in pod.templates):
            return NOTHING
        return self._scales.claim(*key)

    def _charge(self, holder: tuple[str, Key], tenant: str | None, charge: Charge) -> None:
        before = self._charged.get(holder)
        after = None if tenant is None or charge == NOTHING else (tenant, charge)
        if before == after:
            return  # most events change nothing of this
        if before is not None and after is not None and before[0] == after[0]:
            self._charged[holder] = after
            self._count(after[0], before[1], after[1])
            return
        if before is not None:
            del self._charged[holder]
            self._count(before[0], before[1], NOTHING)
        if after is not None:
            self._charged[holder] = after
            self._count(after[0], NOTHING, after[1])

    def _count(self, tenant: str, less: Charge, more: Charge) -> None:
        self._changed.add(tenant)
        self.used[tenant] = self.used.get(tenant, NOTHING) + more - less  # one step: readers take no lock


def named_model(labels: Mapping[str, object], models: Iterable[Model]) -> str:
    """The one model that a node's labels name; empty where they name none or several."""
    found = [
        model.name
        for model in models
        if model.node_labels and all(labels.get(key) in values for key, values in model.node_labels.items())
    ]
    return found[0] if len(found) == 1 else ""


def _gone(key: Key, uid: str) -> Key:
    """Under what a claim is kept that is gone: no name has a slash in it."""
    return key[0], f"{key[1]}/{uid}"


def _discard(index: dict, key: object, value: object) -> None:  # type: ignore[type-arg]
    values = index.get(key)
    if values is not None:
        values.discard(value)
        if not values:
            del index[key]
