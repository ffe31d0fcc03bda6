"""The cluster as the arbiter's loop sees it: Pods with our stamp, their claims, and what each tenant holds. No I/O.

One thread at a time; it is told by whoever holds the lock of the caches that it lives by.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from sys import intern

import msgspec

from dra_gate.admission import late
from dra_gate.admission import stamp as stamps
from dra_gate.admission.held import Key, Names, Waiting, read
from dra_gate.admission.reach import Reach
from dra_gate.admission.rules.quota import charge_of
from dra_gate.allocation.capacity import Capacity
from dra_gate.controller.arbiter_lanes import Lanes
from dra_gate.fairness.charge import NOTHING, Charge, Given, claim_charge, given_charge, given_devices
from dra_gate.fairness.events import Why
from dra_gate.fairness.holding import POD_CLAIM_ANNOTATION
from dra_gate.fairness.holdings import Holdings, Scales, named_model
from dra_gate.fairness.rules import payer_of
from dra_gate.kube.claim import UnknownAllocationMode
from dra_gate.kube.group import controller_of, group_of
from dra_gate.kube.pod import IMPLICIT_PREFIX
from dra_gate.kube.raw import Object, at, mapping, text
from dra_gate.policy.compile import DOMAIN, NAME_PREFIX, Template, TemplateIndex, content_digest, templates_of
from dra_gate.policy.model import PolicySet

GENERATION = f"{DOMAIN}/ledger-generation"  # annotation of late claims: the ledger's when they were granted


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """A claim under a late name, whoever made it, or one made for a Pod from a tenant's template.

    `model`: None while it is not allocated, empty where no alternative of ours was.
    """

    uid: str
    version: str
    owner: str  # UID of the Pod that it was made for
    entry: str  # the Pod's claim entry, of one made from a template
    late: bool
    generation: int
    digest: str  # of the spec of a late one
    candidates: tuple[str, ...]
    model: str | None
    deleting: bool


class View:
    """What is known, and what has changed since the loop last looked: `dirty` Pods and `dirty_claims` by key, `gone`
    Pods as they were."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self.pods: dict[Key, Waiting] = {}
        self.by_uid: dict[str, Key] = {}
        self.claims: dict[Key, ClaimSeen] = {}
        self.of_pod: dict[str, set[Key]] = {}  # Pod UID -> its claims
        self.names = Names()
        self.dirty: set[Key] = set()
        self.dirty_claims: set[Key] = set()
        self.gone: list[Waiting] = []
        self.sets: tuple[PolicySet, ...] = ()
        self._payer: Callable[[str, str], str | None] | None = None
        self.lanes = Lanes(self)
        self._indexes: dict[str, TemplateIndex] = {}
        self._reach = Reach(())
        self._class_specs: dict[str, Object] = {}
        self._resources: frozenset[str] = frozenset()
        self._labels: dict[str, Object] = {}  # of nodes
        self._groups: dict[str, set[Key]] = {}
        self._group_of: dict[Key, tuple[str, str]] = {}  # Pod -> its UID and group
        self._there: dict[str, int] = {}  # group -> members that do not wait, where that was counted
        self._model_in: dict[str, str] = {}  # group -> the model that it has, or is granted
        self._given_in: dict[str, str] = {}  # group -> the model that it was given
        self._spec_of: dict[Key, bytes] = {}  # claim -> digest of its spec: thousands of claims share few
        self._specs: dict[bytes, Object] = {}
        self._worst: dict[bytes, Charge] = {}
        self._uses: Counter[bytes] = Counter()
        self._given: dict[Given, Charge] = {}
        self.holdings = Holdings(
            Scales(
                tenant=self.payer,
                template=self.template_charge,
                claim=self._claim_charge,
                given=self._given_charge,
                is_device=lambda name: name in self._resources,
                model=capacity.model_of,
            )
        )

    # -- what is told -------------------------------------------------------------------------------------------------

    def use(self, sets: Sequence[PolicySet]) -> None:
        """Judge by these sets from now on, the active one first."""
        self.sets = tuple(sets)
        self._payer = payer_of(sets)
        self._indexes = {one.digest: self._indexes.get(one.digest) or templates_of(one) for one in sets}
        self._reach = Reach([model for one in sets for model in one.models.values()])
        for name, spec in self._class_specs.items():
            self._reach.set_class(name, spec)
        self._judge_published()
        self._judge_again()
        self.lanes.judge()
        for name, labels in self._labels.items():
            self.holdings.set_node(name, named_model(labels, sets[0].models.values()))
        self.dirty.update(self.pods)

    def set_lane(self, namespace: str, label: str | None) -> None:
        """What the namespace's lane label says; None: it has none, and is not gated."""
        if self.lanes.set_label(namespace, label):
            self.holdings.recharge(namespace)
            self.dirty.update(key for key in self.pods if key[0] == namespace)

    def set_class(self, name: str, spec: Object) -> None:
        """A DeviceClass was made or changed."""
        if self._class_specs.get(name) == spec:
            return  # a new list brings it again, and judging it means every slice
        self._class_specs[name] = spec
        if self._reach.set_class(name, spec):
            self._judge_published()
        self._judge_again()

    def drop_class(self, name: str) -> None:
        """A DeviceClass is gone."""
        self._class_specs.pop(name, None)
        self._reach.drop_class(name)
        self._judge_again()

    def set_slice(self, spec: Object) -> None:
        """A ResourceSlice was made or changed: what it publishes may make a class give gated devices."""
        if self._reach.judge_slice(spec):
            self._judge_again()

    def set_node(self, name: str, labels: Object) -> None:
        """A Node was made or changed."""
        self._labels[name] = labels
        self.holdings.set_node(name, named_model(labels, self.sets[0].models.values()) if self.sets else "")

    def drop_node(self, name: str) -> None:
        """A Node is gone."""
        self._labels.pop(name, None)
        self.holdings.drop_node(name)

    def set_pod(self, key: Key, pod: Object, now: int) -> None:
        """A Pod was made or changed; `now` in milliseconds."""
        self.holdings.set_pod(key, pod, now)
        seen = read(pod)
        before = self.pods.get(key)
        if before is not None and (seen is None or seen.uid != before.uid):
            self._forget(key, before)
            before = None
        self._join(key, pod, seen)
        if seen is None or before == seen:
            return
        if before is None:
            self.by_uid[seen.uid] = key
        elif before.late != seen.late:
            self._unname(before)
        self.names.add(seen)
        self.pods[key] = seen
        self.lanes.note(seen)
        self.dirty.add(key)

    def drop_pod(self, key: Key, now: int) -> None:
        """A Pod is gone."""
        self.holdings.drop_pod(key, now)
        before = self.pods.get(key)
        if before is not None:
            self._forget(key, before)
        self._leave(key)

    def set_claim(self, key: Key, claim: Object) -> None:
        """A claim was made or changed."""
        spec = mapping(claim.get("spec"))
        digest = hashlib.blake2b(msgspec.json.encode(spec, order="sorted"), digest_size=16).digest()
        self._unuse(key)
        self._spec_of[key] = digest
        self._uses[digest] += 1
        if digest not in self._specs:
            self._specs[digest], self._worst[digest] = spec, self._worst_case(spec)
        self.holdings.set_claim(key, claim)
        seen = read_claim(claim)
        before = self.claims.get(key)
        if seen == before:
            return
        self._unlink(key)
        if seen is not None:
            self.claims[key] = seen
            self.of_pod.setdefault(seen.owner, set()).add(key)
        self._touch(key, before, seen)

    def drop_claim(self, key: Key) -> None:
        """A claim is gone."""
        self._unuse(key)
        self.holdings.drop_claim(key)
        self._touch(key, self._unlink(key), None)

    # -- what is asked ------------------------------------------------------------------------------------------------

    def payer(self, namespace: str, stamped: str) -> str | None:
        """Who pays for what is in that namespace with that tenant's stamp; None for nobody.

        Where no webhook judges what is written anybody may write a stamp: there it says nothing.
        """
        return (
            None if self._payer is None else self._payer(namespace, stamped if self.lanes.is_gated(namespace) else "")
        )

    def template(self, pod: Waiting, count: int, *, as_told: bool = False) -> Template | None:
        """The template that a late claim of the Pod is made of; None where no set that counts has it.

        The set of its stamp first: it's the one by which the Pod was judged.
        """
        ref = pod.ref
        if ref is None:
            return None
        told = next((one.policies[ref].candidates for one in self.sets if ref in one.policies), ())
        stamped = self._indexes.get(pod.policy_set)
        for index in (stamped, *self._indexes.values()) if stamped is not None else self._indexes.values():
            try:
                found = index.for_count(pod.tenant, ref, count)
            except KeyError:
                continue
            if not as_told or found.candidates == told:
                return found
        return None

    def templates(self, pod: Waiting, *, as_told: bool = False) -> tuple[Template, ...] | None:
        """The templates of all its late claims; None where one is not to be had.

        `as_told`: of a set in which the policy has the candidates that the arbiter is told of, those of the first set.
        Sets of different catalogues may have different ones for the same version.
        """
        found = [self.template(pod, one.count, as_told=as_told) for one in pod.late]
        return None if None in found else tuple(one for one in found if one is not None)

    def refusal(self, pod: Waiting, templates: tuple[Template, ...] | None) -> Why | None:
        """Why the Pod can't be granted, whatever becomes free."""
        if back := self.lanes.refusal(pod):
            return Why("LaneWentBack", f"its namespace is back under device plugins: it {back}")
        if pod.trouble:
            return Why("StampUnreadable", f"{pod.trouble}; create the Pod again")
        unknown = any(name.startswith(NAME_PREFIX) and self._named(name) is None for _, name in pod.templates)
        if templates is None or unknown:
            text = f"no policy set that counts has policy {pod.policy} for tenant {pod.tenant}; create the Pod again"
            return Why("PolicyUnknown", text)
        if self.payer(pod.namespace, pod.tenant) != pod.tenant:
            text = (
                f"nobody judges what is written into namespace {pod.namespace}, and tenant {pod.tenant} does not own it"
            )
            return Why(
                "NotGated", f"{text}; give it back its label dra-gate.io/lane, or create the Pod again elsewhere"
            )
        if not self.names.owns(pod):
            return Why("NameTaken", "another Pod was created with the name of its claim first; create the Pod again")
        return None

    def given(self, pod: Waiting, late: Iterable[str]) -> str | None:
        """The model that a granted Pod was given in its claims, those named `late` and those made from templates; empty
        where no alternative of ours was. None while not all of them are allocated."""
        claims = {key[1]: self.claims[key] for key in self.of_pod.get(pod.uid, ())}
        made = {claim.entry: claim for claim in claims.values() if claim.entry}
        named = [*(claims.get(name) for name in late), *(made.get(entry) for entry, _ in pod.templates)]
        models = [claim.model for claim in named if claim is not None and claim.model is not None]
        return next(filter(None, models), "") if len(models) == len(named) else None

    def lacking(self, group: str, size: int, granted: Container[str]) -> int:
        """How many Pods of a group of that size have to wait, one that waits and is not granted itself included.

        Those that hold what they need already, have an open grant, or need nothing, count as there. Counted once for
        all members, until `look_anew` or `group_changed`.
        """
        there = self._there.get(group)
        if there is None:
            others = (self.pods.get(member) for member in self._groups.get(group, ()))
            there = sum(other is None or not self.waits(other) or other.uid in granted for other in others)
            self._there[group] = there
        return max(1, size - there)

    def model_in(self, group: str, granted: Callable[[str], str]) -> str:
        """The model that live members of the group have: given, or `granted` (by UID, empty for none). Empty where
        there is none. For one that has neither: of the others. Kept as in `lacking`."""
        if group not in self._model_in:
            self._model_in[group] = self._model_of(group, granted)
        return self._model_in[group]

    def given_in(self, group: str) -> str:
        """The same of models that were given, whatever was granted."""
        if group not in self._given_in:
            self._given_in[group] = self._model_of(group, lambda _: "")
        return self._given_in[group]

    def _model_of(self, group: str, granted: Callable[[str], str]) -> str:
        found = set[str]()
        for member in self._groups.get(group, ()):
            other = self.pods.get(member)
            if other is not None and not (other.finished or other.deleting):
                found.add(granted(other.uid) or self.given(other, [one.claim for one in other.late]) or "")
        return min(found - {""}, default="")

    def look_anew(self) -> None:
        """Grants have changed since groups were looked at."""
        for counted in (self._there, self._model_in, self._given_in):
            counted.clear()

    def template_charge(self, _namespace: str, name: str) -> Charge:
        """The worst case of a claim from the named template of a tenant; nothing for one that people wrote."""
        found = self._named(name)
        return NOTHING if found is None else charge_of((found,))

    def members(self, group: str, but: Key) -> list[Key]:
        """The Pods of a group, those aside that failed and `but`."""
        return [key for key in self._groups.get(group, ()) if key != but]

    def group_changed(self, group: str) -> None:
        """Look at the group's Pods again."""
        for counted in (self._there, self._model_in, self._given_in):
            counted.pop(group, None)
        self.dirty.update(key for key in self._groups.get(group, ()) if key in self.pods)

    def waits(self, pod: Waiting) -> bool:
        """The Pod waits for a grant: our gate holds it, or it had one that was withdrawn."""
        return pod.held or (stamps.GRANT_GATE not in pod.gates and self.lanes.phase(pod) == "held")

    # -- inside -------------------------------------------------------------------------------------------------------

    def _named(self, name: str) -> Template | None:
        return next((found for index in self._indexes.values() if (found := index.named(name))), None)

    def _claim_charge(self, namespace: str, name: str) -> Charge:
        digest = self._spec_of.get((namespace, name))
        return NOTHING if digest is None else self._worst[digest]

    def _unuse(self, key: Key) -> None:
        digest = self._spec_of.pop(key, None)
        if digest is not None:
            self._uses[digest] -= 1
            if not self._uses[digest]:
                del self._uses[digest], self._specs[digest], self._worst[digest]

    def _worst_case(self, spec: Object) -> Charge:
        if not self._reach.of_spec(spec):
            return NOTHING
        try:
            return claim_charge(spec)
        except UnknownAllocationMode:
            return NOTHING  # validate refuses such a claim; the scheduler doesn't know it either

    def _given_charge(self, given: Given) -> Charge:
        found = self._given.get(given)
        if found is None:
            found = self._given[given] = given_charge(given, self._reach.drivers)
        return found

    def _judge_published(self) -> None:
        """Some classes only a published device makes gated ones, and slices may have come before them."""
        for driver, devices in self._capacity.published():
            self._reach.judge_slice({"driver": driver, "devices": devices})

    def _judge_again(self) -> None:
        names = {IMPLICIT_PREFIX + name for name in self._reach.gated}
        for name in self._reach.gated:
            names.add(text(mapping(self._class_specs.get(name)).get("extendedResourceName")))
        for one in self.sets:
            names.update(served for policy in one.policies.values() for served in policy.serves)
        self._resources = frozenset(names - {""})
        self._worst = {digest: self._worst_case(spec) for digest, spec in self._specs.items()}
        self._given = {}
        self.holdings.recharge()

    def _forget(self, key: Key, pod: Waiting) -> None:
        self._unname(pod)
        del self.pods[key]
        self.lanes.forget(pod)
        if self.by_uid.get(pod.uid) == key:
            del self.by_uid[pod.uid]
        self.gone.append(pod)
        # What was made for it is an orphan.
        self.dirty_claims.update(self.of_pod.get(pod.uid, ()))

    def _unname(self, pod: Waiting) -> None:
        """Whoever named its claims, too, may have them now."""
        self.names.drop(pod)
        for one in pod.late:
            for uid in self.names.namers((pod.namespace, one.claim)):
                self.dirty.add(self.by_uid[uid])

    def _join(self, key: Key, pod: Object, seen: Waiting | None) -> None:
        """Keep who is in which group, Pods without devices among them: a leader may have none."""
        group = seen.group if seen is not None else group_of(pod)
        if group is None or at(pod, "status", "phase") == "Failed":
            self._leave(key)
            return
        now = (text(at(pod, "metadata", "uid")), group.key)
        if self._group_of.get(key) != now:
            self._leave(key)
            self._group_of[key] = now
            self._groups.setdefault(group.key, set()).add(key)
        self.group_changed(group.key)

    def _leave(self, key: Key) -> None:
        _, group = self._group_of.pop(key, ("", ""))
        if group:
            self._groups[group].discard(key)
            self.group_changed(group)
            if not self._groups[group]:
                del self._groups[group]

    def _unlink(self, key: Key) -> ClaimSeen | None:
        before = self.claims.pop(key, None)
        if before is not None:
            keys = self.of_pod[before.owner]
            keys.discard(key)
            if not keys:
                del self.of_pod[before.owner]
        return before

    def _touch(self, key: Key, *claims: ClaimSeen | None) -> None:
        for claim in claims:
            if claim is not None:
                self.dirty_claims.add(key)
                if claim.owner in self.by_uid:
                    self.dirty.add(self.by_uid[claim.owner])


def read_claim(claim: Object) -> ClaimSeen | None:
    """The claim as the loop knows it; None for one that is neither under a late name nor made for a Pod of ours."""
    metadata = mapping(claim.get("metadata"))
    name = text(metadata.get("name"))
    labels, annotations = mapping(metadata.get("labels")), mapping(metadata.get("annotations"))
    is_late = late.is_late_name(name)
    entry = text(annotations.get(POD_CLAIM_ANNOTATION))
    if not is_late and not (labels.get(stamps.TENANT) and entry):
        return None
    written = text(annotations.get(GENERATION))
    given = given_devices(claim)
    return ClaimSeen(
        uid=text(metadata.get("uid")),
        version=text(metadata.get("resourceVersion")),
        owner=intern(text(controller_of(claim).get("uid"))),
        entry=intern(entry),
        late=is_late,
        generation=int(written) if written.isascii() and written.isdigit() and len(written) < 19 else 0,
        digest=content_digest(claim.get("spec")) if is_late else "",
        candidates=tuple(intern(one) for one in text(annotations.get(stamps.CANDIDATES)).split(",") if one),
        model=None if given is None else next((model for (_, model), _ in given if model), ""),
        deleting=bool(metadata.get("deletionTimestamp")),
    )
