"""What a change of policy means: which devices, floors, limits and rules become looser, tighter or just different.

Pure, over two loaded sets: `others` is written out, floors are compared as amounts, what is only spelled differently is
no difference. Who asks wants to miss no loosening: where two things cannot be compared (own CEL, selectors, product
names that are not one within the other) the difference counts as one and its reason says `may loosen`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dra_gate.policy.meaning import contradiction
from dra_gate.policy.model import (
    NEVER,
    Canary,
    Companion,
    Constraints,
    DevicePolicy,
    Model,
    PolicyException,
    PolicyRef,
    PolicySet,
    Quota,
    Settings,
    Tenant,
    Workload,
)
from dra_gate.policy.plugin_lane import placement
from dra_gate.policy.words import duration, fallback, listed, size

Effect = Literal["loosens", "tightens", "changes"]
EFFECTS: tuple[Effect, ...] = ("loosens", "tightens", "changes")
NOTHING = "—"
MAY = "may loosen: "


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. `where` is whom it is about, `what` the word of the policy files, `why` its effect in words."""

    where: str
    what: str
    before: str
    after: str
    effect: Effect
    why: str


@dataclass(frozen=True, slots=True)
class _Change:
    """A difference before it is known whom it is about."""

    what: str
    before: str
    after: str
    effect: Effect
    why: str

    def of(self, where: str) -> Difference:
        return Difference(where, self.what, self.before, self.after, self.effect, self.why)


def compare(before: PolicySet, after: PolicySet) -> tuple[Difference, ...]:
    """Every difference in meaning, what loosens first."""
    found = [
        *_tenants(before, after),
        *_models(before, after),
        *(change.of("whole cluster") for change in _gated(before, after)),
        *(change.of("cluster settings") for change in _settings(before, after)),
        *_exceptions(before, after),
        *_unused(before, after),
    ]
    return tuple(sorted(found, key=lambda difference: EFFECTS.index(difference.effect)))


def against(policy_set: PolicySet, one: PolicyRef, other: PolicyRef) -> tuple[Difference, ...]:
    """What `other` says differently than `one`, both of the same set."""
    policies = policy_set.policies
    return tuple(c.of(f"policy {other}") for c in _policy(policies[one], policies[other], policy_set, policy_set))


def loosens(differences: Iterable[Difference]) -> bool:
    """Whether any of it asks for a second look."""
    return any(difference.effect == "loosens" for difference in differences)


# -- tenants ----------------------------------------------------------------------------------------------------------


def _tenants(before: PolicySet, after: PolicySet) -> Iterator[Difference]:
    for name, new in after.tenants.items():
        where = f"tenant {name}"
        old = before.tenants.get(name)
        if old is None:
            what = f"{new.policy} in {listed(new.namespaces)}, devices: {_limit(new.quota.devices)}"
            refs = dict.fromkeys(ref for namespace in new.namespaces for ref in new.valid_refs(namespace))
            models = dict.fromkeys(model for ref in refs for model in after.policies[ref].candidates)
            yield Difference(where, "tenant", NOTHING, what, "loosens", f"it may now get {listed(models)}")
        else:
            yield from (change.of(where) for change in _tenant(old, new, before))
            yield from _by_namespace(where, old, new, before, after)
    for name, old in before.tenants.items():
        if name not in after.tenants:
            yield Difference(f"tenant {name}", "tenant", str(old.policy), NOTHING, "tightens", "it gets no device now")


def _tenant(old: Tenant, new: Tenant, before: PolicySet) -> Iterator[_Change]:
    if old.policy != new.policy:
        yield _Change("policy", str(old.policy), str(new.policy), "changes", "what it means is told word by word")
    if old.canary != new.canary:
        yield _Change(
            "canary", _canary(old.canary), _canary(new.canary), "changes", "what it means is told by namespace"
        )
    for namespace in _added(old.namespaces, new.namespaces):
        owner = before.tenant_by_namespace.get(namespace)
        taken = f", which tenant {owner} owned" if owner else ""
        yield _Change("namespaces", NOTHING, namespace, "loosens", f"one more place that gets its devices{taken}")
    for namespace in _added(new.namespaces, old.namespaces):
        yield _Change("namespaces", namespace, NOTHING, "tightens", "it gets none of this tenant's devices now")
    yield from _quota(old.quota, new.quota)
    if old.weight != new.weight:
        why = "another share of scarce devices against other tenants"
        yield _Change("weight", _or_none(old.weight), _or_none(new.weight), "changes", why)
    if old.over_quota != new.over_quota:
        waits = new.over_quota == "wait"
        why = "what was refused above the quota now waits and gets its turn" if waits else "no waiting above the quota"
        yield _Change("overQuota", old.over_quota, new.over_quota, "loosens" if waits else "tightens", why)
    yield from _turns(old, new)


def _turns(old: Tenant, new: Tenant) -> Iterator[_Change]:
    """How long what is borrowed is kept, what is kept from others, and who waits how."""
    if old.lease != new.lease:
        looser = new.lease is None or (old.lease is not None and new.lease > old.lease)
        why = f"what it gets above its share {'may be held longer' if looser else 'has to be given back sooner'}"
        was, now = ("no limit" if one.lease is None else duration(one.lease) for one in (old, new))
        yield _Change("lease", was, now, "loosens" if looser else "tightens", why)
    for model in dict.fromkeys((*old.reserve, *new.reserve)):
        less, more = old.reserve.get(model, 0), new.reserve.get(model, 0)
        if less != more:
            why = f"{'more' if more > less else 'fewer'} of its share are never lent to others"
            yield _Change(f"reserve.{model}", str(less), str(more), "changes", why)
    if old.reserve_after != new.reserve_after:
        sooner = new.reserve_after < old.reserve_after
        why = f"what a Pod waits for is kept for it {'sooner' if sooner else 'later'}"
        was, now = duration(old.reserve_after), duration(new.reserve_after)
        yield _Change("reserveAfter", was, now, "changes", why)
    if old.max_waiting != new.max_waiting:
        looser = new.max_waiting > old.max_waiting
        why = f"{'more' if looser else 'fewer'} Pods may wait at once"
        yield _Change(
            "maxWaiting", str(old.max_waiting), str(new.max_waiting), "loosens" if looser else "tightens", why
        )
    if old.kueue_exactly != new.kueue_exactly:
        was, now = ("exactly" if one.kueue_exactly else NOTHING for one in (old, new))
        looser = old.kueue_exactly
        why = f"Pods that Kueue manages may get {'every' if looser else 'only the first'} candidate"
        yield _Change("kueue", was, now, "loosens" if looser else "tightens", why)


def _quota(old: Quota, new: Quota) -> Iterator[_Change]:
    pairs: list[tuple[str, int | None, int | None]] = [("quota.devices", old.devices, new.devices)]
    models = dict.fromkeys((*old.models, *new.models))
    pairs += [(f"quota.models.{model}", old.models.get(model), new.models.get(model)) for model in models]
    for what, less, more in pairs:
        if less == more:
            continue
        looser = more is None or (less is not None and more > less)
        why = ("no limit any more" if more is None else "more at once") if looser else "fewer at once"
        yield _Change(what, _limit(less), _limit(more), "loosens" if looser else "tightens", why)


def _by_namespace(where: str, old: Tenant, new: Tenant, before: PolicySet, after: PolicySet) -> Iterator[Difference]:
    """What Pods get and may name: told of the tenant, or of the namespaces where it is so."""
    common = [namespace for namespace in new.namespaces if namespace in old.namespaces]
    places: dict[_Change, list[str]] = {}
    for namespace in common:
        default = before.policies[old.policy_for(namespace)], after.policies[new.policy_for(namespace)]
        for change in (*_policy(*default, before, after), *_honoured(namespace, old, new, before, after)):
            places.setdefault(change, []).append(namespace)
    for change, namespaces in places.items():
        yield change.of(where if namespaces == common else f"{where}, namespace {listed(namespaces)}")


def _honoured(namespace: str, old: Tenant, new: Tenant, before: PolicySet, after: PolicySet) -> Iterator[_Change]:
    """Policies beside the namespace's own that Pods may name: kept versions, and the tenant's own beside a canary's."""
    was, now = old.valid_refs(namespace), new.valid_refs(namespace)
    olds = [before.policies[ref] for ref in was]
    own = list(_policy(before.policies[was[0]], after.policies[now[0]], before, after))
    tighter = [change.what for change in own if change.effect == "tightens"]
    for ref in now[1:]:
        policy = after.policies[ref]
        # It gives nothing new when some policy that was honoured before allowed as much.
        looser = min(
            ([c for c in _policy(one, policy, before, after) if c.effect == "loosens"] for one in olds), key=len
        )
        said = listed(dict.fromkeys(change.what for change in looser))
        what = "canary" if ref == new.policy else "keepVersions"
        if looser:
            yield _Change(what, NOTHING, str(ref), "loosens", f"Pods may name it, and it is looser in {said}")
        elif ref not in was:
            yield _Change(what, NOTHING, str(ref), "changes", "Pods may name it; it allows nothing new")
        elif ref == was[0]:
            still = f", so what is tighter in {now[0]} ({listed(tighter)}) can be avoided" if tighter else ""
            yield _Change(what, NOTHING, str(ref), "changes", f"Pods may go on naming it{still}")
    for ref in was[1:]:
        if ref not in now:
            what = "canary" if ref == old.policy else "keepVersions"
            yield _Change(what, str(ref), NOTHING, "tightens", "new Pods may no longer name it")


# -- one policy against another ---------------------------------------------------------------------------------------


def _policy(old: DevicePolicy, new: DevicePolicy, before: PolicySet, after: PolicySet) -> Iterator[_Change]:
    for name in _added(old.serves, new.serves):
        yield _Change("serves", NOTHING, name, "loosens", "requests for it are answered now, and were refused")
    for name in _added(new.serves, old.serves):
        yield _Change("serves", name, NOTHING, "tightens", "requests for it are refused now")
    for name in _added(old.candidates, new.candidates):
        yield _Change("candidates", NOTHING, name, "loosens", _why_added(name, old, new, before, after))
    for name in _added(new.candidates, old.candidates):
        yield _Change("candidates", name, NOTHING, "tightens", "never given any more")
    kept = set(old.candidates) & set(new.candidates)
    first, second = ([name for name in policy.candidates if name in kept] for policy in (old, new))
    if first != second:
        yield _Change("candidates", ", ".join(first), ", ".join(second), "changes", "another order of preference")
    yield from _constraints(old.constraints, new.constraints)
    yield from _companions(old, new)
    if old.on_unhealthy != new.on_unhealthy:
        # No device is given that was not given before, whichever way: it only says what is done when one falls ill.
        why = _UNHEALTHY[new.on_unhealthy]
        yield _Change("onUnhealthy", old.on_unhealthy, new.on_unhealthy, "changes", why)
    if old.on_rollback != new.on_rollback:
        yield _Change("onRollback", old.on_rollback, new.on_rollback, "changes", _ROLLBACK[new.on_rollback])
    if old.fallback != new.fallback:
        effect: Effect = "tightens" if new.fallback == NEVER else "loosens" if old.fallback == NEVER else "changes"
        why = {
            "tightens": "candidates after the first are not given any more to Pods that wait",
            "loosens": "candidates after the first may be given now to Pods that wait",
            "changes": f"later candidates count {'sooner' if new.fallback < old.fallback else 'later'}",
        }[effect]
        yield _Change("fallback", fallback(old), fallback(new), effect, why)
    yield from _plugin_lane(old, new, before, after)


def _plugin_lane(old: DevicePolicy, new: DevicePolicy, before: PolicySet, after: PolicySet) -> Iterator[_Change]:
    """What is let in by lane device-plugin, and where it places: there the catalogue's declared facts decide."""
    less, more = ("strict" if policy.strict_plugin_lane else "warn" for policy in (old, new))
    yield from _strength("devicePluginLane", less, more, ("warn", "strict"))
    if not (before.settings.device_plugin_nodes or after.settings.device_plugin_nodes):
        return
    was, now = placement(old, before.models), placement(new, after.models)
    what, why = "lane device-plugin", "by what the catalogue says of it"
    for name in _added(was.models, now.models):
        if name in old.candidates:  # else told as a candidate
            yield _Change(what, NOTHING, name, "loosens", f"may be given there now, {why}")
    for name in _added(now.models, was.models):
        if name in new.candidates:
            yield _Change(what, name, NOTHING, "tightens", f"not given there any more, {why}")
    for name in was.models:
        if name in now.models and before.models[name].node_labels != after.models[name].node_labels:
            less, more = (_labels(one.models[name].node_labels) for one in (before, after))
            other = f"{MAY}other nodes count as having it"
            yield _Change(f"{what}, nodeLabels of {name}", less, more, "loosens", other)


_UNHEALTHY = {
    "alert": "a Pod whose device falls ill before it runs stays, and an Event tells",
    "recreate": "a Pod whose device falls ill before it runs is evicted, so that its controller makes another",
    "keep": "a Pod whose device falls ill before it runs stays, and no Event tells",
}
_ROLLBACK = {
    "recreate": "a Pod that waits when its lane goes back is evicted, so that its controller makes another",
    "keep": "a Pod that waits when its lane goes back stays, held, until the lane is dra again",
    "release": "a Pod that waits when its lane goes back gets its devices under DRA",
}


def _why_added(name: str, old: DevicePolicy, new: DevicePolicy, before: PolicySet, after: PolicySet) -> str:
    if old.digest == new.digest:
        how = "the catalogue has it now" if name not in before.models else "the catalogue declares other facts of it"
        why = f"reachable now: the policy is the same, and others stands for it because {how}"
    else:
        why = "reachable now"
    against = contradiction(after.models[name], new.constraints)
    return why if against is None else f"{why} (by what is declared it is never given: {against})"


def _constraints(old: Constraints, new: Constraints) -> Iterator[_Change]:
    yield from _floor("memory", old.memory_min, new.memory_min, size)
    yield from _floor("driverVersion", old.driver_min, new.driver_min, str)
    yield from _architectures(old.architectures, new.architectures)
    for attribute in _added(new.same_attribute, old.same_attribute):
        why = "the devices of one container may differ in it now"
        yield _Change("sameAttribute", attribute, NOTHING, "loosens", why)
    for attribute in _added(old.same_attribute, new.same_attribute):
        yield _Change("sameAttribute", NOTHING, attribute, "tightens", "must be equal on all devices of a container")
    if old.whole_device != new.whole_device:
        before, after = ("true" if one.whole_device else NOTHING for one in (old, new))
        looser = old.whole_device
        why = "parts of devices, and devices that others use, may be given now" if looser else "whole devices only"
        yield _Change("wholeDevice", before, after, "loosens" if looser else "tightens", why)
    yield from _nodes(old.nodes, new.nodes)
    yield from _cel(old.cel, new.cel)


def _companions(old: DevicePolicy, new: DevicePolicy) -> Iterator[_Change]:
    """Told by name, in whatever order they stand: another name is one gone and one more."""
    was, now = ({one.name: one for one in policy.companions} for policy in (old, new))
    for name in dict.fromkeys((*was, *now)):
        what = f"companions.{name}"
        if name not in now:
            why = "accelerators are given without it now"
            yield _Change(what, was[name].device_class, NOTHING, "loosens", why)
        elif name not in was:
            why = "accelerators are given only together with it"
            yield _Change(what, NOTHING, now[name].device_class, "tightens", why)
        else:
            for change in _companion(was[name], now[name]):
                yield replace(change, what=f"{what}.{change.what}")


def _companion(old: Companion, new: Companion) -> Iterator[_Change]:
    for what, was, now in (("deviceClassName", old.device_class, new.device_class), ("driver", old.driver, new.driver)):
        if was != now:
            yield _Change(what, was, now, "loosens", f"{MAY}other devices count as it")
    if old.count != new.count:
        looser = new.count < old.count
        why = f"{'fewer' if looser else 'more'} of them with each container"
        yield _Change("count", str(old.count), str(new.count), "loosens" if looser else "tightens", why)
    for domain, name in dict.fromkeys((*old.minimum, *new.minimum)):
        key = name if domain == old.driver == new.driver else f"{domain}/{name}"
        yield from _floor(f"minimum.{key}", old.minimum.get((domain, name)), new.minimum.get((domain, name)), str)
    for attribute in _added(new.same_attribute, old.same_attribute):
        why = "companion and accelerators may differ in it now"
        yield _Change("sameAttribute", attribute, NOTHING, "loosens", why)
    for attribute in _added(old.same_attribute, new.same_attribute):
        yield _Change("sameAttribute", NOTHING, attribute, "tightens", "must be equal on it and all accelerators")
    yield from _cel(old.cel, new.cel)


def _floor(what: str, old: Any, new: Any, shown: Any) -> Iterator[_Change]:
    if old == new:
        return
    before, after = (NOTHING if one is None else f"at least {shown(one)}" for one in (old, new))
    looser = new is None or (old is not None and new < old)
    why = (
        ("no floor any more" if new is None else "a lower floor")
        if looser
        else ("a new floor" if old is None else "a higher floor")
    )
    yield _Change(what, before, after, "loosens" if looser else "tightens", why)


def _architectures(old: Sequence[str], new: Sequence[str]) -> Iterator[_Change]:
    if old and not new:
        yield _Change("architectures", ", ".join(old), "any", "loosens", "every architecture may be given now")
    elif new and not old:
        yield _Change("architectures", "any", ", ".join(new), "tightens", "only these are given")
    else:
        for name in _added(old, new):
            yield _Change("architectures", NOTHING, name, "loosens", "may be given now")
        for name in _added(new, old):
            yield _Change("architectures", name, NOTHING, "tightens", "never given any more")


def _nodes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[_Change]:
    for label in dict.fromkeys((*old, *new)):
        was, now = old.get(label), new.get(label)
        if was == now:
            continue
        before, after = (NOTHING if value is None else f"{label}={value}" for value in (was, now))
        if now is None:
            yield _Change("nodes", before, after, "loosens", "nodes outside that pool may be used now")
        elif was is None:
            yield _Change("nodes", before, after, "tightens", "only nodes of that pool are used")
        else:
            yield _Change("nodes", before, after, "loosens", f"{MAY}another pool of nodes")


def _cel(old: Sequence[str], new: Sequence[str]) -> Iterator[_Change]:
    gone, added = list(_added(new, old)), list(_added(old, new))
    if gone and added:
        why = f"{MAY}expressions cannot be compared"
        yield _Change("cel", "; ".join(gone), "; ".join(added), "loosens", why)
    elif gone:
        yield _Change("cel", "; ".join(gone), NOTHING, "loosens", "the condition no longer has to hold")
    elif added:
        yield _Change("cel", NOTHING, "; ".join(added), "tightens", "one more condition")


# -- the catalogue ----------------------------------------------------------------------------------------------------


def _models(before: PolicySet, after: PolicySet) -> Iterator[Difference]:
    for name in _added(before.models, after.models):
        why = "new in the catalogue; who may get it is told by tenant"
        yield Difference(f"model {name}", "model", NOTHING, "there", "changes", why)
    for name in _added(after.models, before.models):
        yield Difference(f"model {name}", "model", "there", NOTHING, "changes", "gone from the catalogue")
    for name, new in after.models.items():
        if name in before.models:
            yield from (change.of(f"model {name}") for change in _model(before.models[name], new))
    common = [name for name in before.models if name in after.models]
    order = [name for name in after.models if name in before.models]
    if common != order:
        why = "the order in which others takes them"
        yield Difference("catalogue", "models", ", ".join(common), ", ".join(order), "changes", why)


def _model(old: Model, new: Model) -> Iterator[_Change]:
    for what, was, now in (
        ("deviceClassName", old.device_class, new.device_class),
        ("driver", old.driver, new.driver),
    ):
        if was != now:
            yield _Change(what, was, now, "loosens", f"{MAY}the model is of other devices")
    if (old.selector, set(old.products)) != (new.selector, set(new.products)):
        narrower = bool(new.products) and all(any(covers(o, n) for o in old.products) for n in new.products)
        what = "selector" if new.selector is not None or old.selector is not None else "products"
        was, now = (model.selector or ", ".join(model.products) for model in (old, new))
        if not narrower:
            why = (
                "expressions cannot be compared"
                if what == "selector"
                else "devices of other products are this model now"
            )
            yield _Change(what, was, now, "loosens", f"{MAY}{why}")
        elif not all(any(covers(n, o) for n in new.products) for o in old.products):
            yield _Change(what, was, now, "tightens", "some devices are not this model any more")
    declared = "declared only: it moves what others stands for, and warnings"
    if old.memory != new.memory:
        yield _Change("memory", _or_none(old.memory), _or_none(new.memory), "changes", declared)
    if old.architecture != new.architecture:
        yield _Change("architecture", _or_none(old.architecture), _or_none(new.architecture), "changes", declared)
    if old.node_labels != new.node_labels:
        was, now = (_labels(model.node_labels) for model in (old, new))
        yield _Change("nodeLabels", was, now, "changes", "which nodes are preferred")


def covers(wide: str, narrow: str) -> bool:
    """Whether every name that fits glob `narrow` fits `wide`, both with `*` at most at their ends."""
    start, end = wide.startswith("*"), wide.endswith("*")
    inner, text = wide.strip("*"), narrow.strip("*")
    if not start and not end:
        return narrow == wide
    if start and end:
        return inner in text
    if end:
        return not narrow.startswith("*") and text.startswith(inner)
    return not narrow.endswith("*") and text.endswith(inner)


def _gated(before: PolicySet, after: PolicySet) -> Iterator[_Change]:
    """What the gate is about: the catalogue's drivers, and the domains of the names that policies serve. What no file
    names is none of its business, so that taking out the last model of a driver opens that driver's devices.
    """
    for what, why, was, now in (
        ("driver", "claims for its devices are judged", _drivers(before), _drivers(after)),
        ("serves", "requests for resources of that domain are judged", _domains(before), _domains(after)),
    ):
        yield from _guarded(what, was, now, why)


def _drivers(policy_set: PolicySet) -> tuple[str, ...]:
    return tuple(dict.fromkeys(model.driver for model in policy_set.models.values()))


def _domains(policy_set: PolicySet) -> tuple[str, ...]:
    served = (name for policy in policy_set.policies.values() for name in policy.serves)
    return tuple(dict.fromkeys(name.partition("/")[0] for name in served))


# -- settings ---------------------------------------------------------------------------------------------------------

_VOID = ("off", "envFrom", "withoutClaim")  # weakest first
_VERDICTS = ("warn", "deny")


def _settings(before: PolicySet, after: PolicySet) -> Iterator[_Change]:
    old, new = before.settings, after.settings
    yield from _guarded(
        "deviceRuntimes", old.device_runtimes, new.device_runtimes, "runtime classes with it are refused"
    )
    yield from _node_labels(before, after)
    yield from _strength("visibleDevicesVoid", old.visible_devices_void, new.visible_devices_void, _VOID)
    yield from _permitted("exemptUsers", sorted(old.exempt_users), sorted(new.exempt_users), "its Pods are not judged")
    yield from _strength("workloadVerdict", old.workload_verdict, new.workload_verdict, _VERDICTS)
    yield from _workloads(old, new)
    why = "none of its Pods is held: neither shares nor the quota at the grant reach them"
    yield from _permitted("kueueNamespaces", old.kueue_namespaces, new.kueue_namespaces, why)
    for change in _nodes(old.device_plugin_nodes, new.device_plugin_nodes):
        yield replace(change, what="devicePluginNodes")


def _permitted(what: str, old: Sequence[str], new: Sequence[str], why: str) -> Iterator[_Change]:
    for name in _added(old, new):
        yield _Change(what, NOTHING, name, "loosens", f"{why} now")
    for name in _added(new, old):
        yield _Change(what, name, NOTHING, "tightens", f"no longer: {why}")


def _guarded(what: str, old: Sequence[str], new: Sequence[str], why: str) -> Iterator[_Change]:
    for name in _added(new, old):
        yield _Change(what, name, NOTHING, "loosens", f"no longer: {why}")
    for name in _added(old, new):
        yield _Change(what, NOTHING, name, "tightens", f"{why} now")


def _node_labels(before: PolicySet, after: PolicySet) -> Iterator[_Change]:
    """Keys that tell device nodes: the settings', and those of the models' own nodeLabels."""
    why = "selecting nodes by it counts as pinning"
    old, new = _telling(before), _telling(after)
    for key in _added(new, old):
        if not any(_matches(pattern, key) for pattern in new):
            yield _Change("deviceNodeLabels", key, NOTHING, "loosens", f"no longer: {why}")
    for key in _added(old, new):
        if not any(_matches(pattern, key) for pattern in old):
            yield _Change("deviceNodeLabels", NOTHING, key, "tightens", f"{why} now")


def _telling(policy_set: PolicySet) -> tuple[str, ...]:
    own = (key for model in policy_set.models.values() for key in model.node_labels)
    return tuple(dict.fromkeys((*policy_set.settings.device_node_labels, *own)))


def _matches(pattern: str, key: str) -> bool:
    return key.rstrip("*").startswith(pattern[:-1]) if pattern.endswith("*") else key == pattern


def _strength(what: str, old: str, new: str, weakest_first: Sequence[str]) -> Iterator[_Change]:
    if old != new:
        looser = weakest_first.index(new) < weakest_first.index(old)
        why = "weaker" if looser else "stronger"
        yield _Change(what, old, new, "loosens" if looser else "tightens", why)


def _workloads(old: Settings, new: Settings) -> Iterator[_Change]:
    was, now = (_paths(settings.workloads) for settings in (old, new))
    refused = "deny" in (old.workload_verdict, new.workload_verdict)
    for path in _added(now, was):
        effect: Effect = "loosens" if refused else "changes"
        yield _Change("workloads", path, NOTHING, effect, "not judged when it is applied any more; its Pods still are")
    for path in _added(was, now):
        yield _Change("workloads", NOTHING, path, "tightens" if refused else "changes", "judged when it is applied")


def _paths(workloads: Sequence[Workload]) -> list[str]:
    return [f"{one.resource}.{one.group} {'.'.join(path)}" for one in workloads for path in one.pod_templates]


# -- exceptions -------------------------------------------------------------------------------------------------------


def _exceptions(before: PolicySet, after: PolicySet) -> Iterator[Difference]:
    old, new = ({one.name: one for one in policy_set.exceptions} for policy_set in (before, after))
    for name in dict.fromkeys((*old, *new)):
        where = f"exception {name}"
        if name not in old:
            what, why = said(new[name]), f"{new[name].reason} ({new[name].ticket}, {new[name].approver})"
            yield Difference(where, "exception", NOTHING, what, "loosens", why)
        elif name not in new:
            yield Difference(where, "exception", said(old[name]), NOTHING, "tightens", "its rules hold again")
        else:
            yield from (change.of(where) for change in _exception(old[name], new[name]))


def _exception(old: PolicyException, new: PolicyException) -> Iterator[_Change]:
    yield from _permitted("rules", old.rules, new.rules, "what it refuses is let pass there")
    yield from _permitted("namespaces", old.namespaces, new.namespaces, "the exception holds there")
    effect: Effect
    if old.creators and new.creators:
        if old.users != new.users:
            yield from _permitted("users", old.creators, new.creators, "the exception holds for what they create")
    elif old.creators or new.creators:
        effect = "loosens" if old.creators else "tightens"
        yield _Change("users", _creators(old), _creators(new), effect, "who creates the Pod")
    if old.owner != new.owner:
        effect = "tightens" if _narrower(new.owner, old.owner) else "loosens"
        why = "other Pods are meant" if old.owner and new.owner else "whose Pods are meant"
        yield _Change("owner", _owner(old), _owner(new), effect, why)
    if old.expires != new.expires:
        effect = "loosens" if new.expires > old.expires else "tightens"
        yield _Change("expires", until(old), until(new), effect, "its last day")
    for what in ("reason", "ticket", "approver"):
        was, now = getattr(old, what), getattr(new, what)
        if was != now:
            yield _Change(what, was, now, "changes", "what it is based on")


def _narrower(one: tuple[str, str] | None, other: tuple[str, str] | None) -> bool:
    """Every Pod of owner `one` is also one of `other`."""
    return other is None or (one is not None and one[0] == other[0] and covers(other[1], one[1]))


def _owner(exception: PolicyException) -> str:
    return "all Pods" if exception.owner is None else " ".join(exception.owner)


def _creators(exception: PolicyException) -> str:
    """By whom Pods have to be created, in words."""
    if exception.users:
        return listed(exception.users, "or")
    return "anybody" if exception.owner is None else "its controller"


def until(exception: PolicyException) -> str:
    """Its last day."""
    return str(dt.date(1970, 1, 1) + dt.timedelta(days=exception.expires))


def said(exception: PolicyException) -> str:
    """What it lets pass, where and until when."""
    whose = "" if exception.owner is None else f" for {_owner(exception)}"
    by = f" created by {_creators(exception)}" if exception.creators else ""
    what = "rule {} does not hold" if len(exception.rules) == 1 else "rules {} do not hold"
    where = listed(exception.namespaces)
    return f"{what.format(listed(exception.rules))} in {where}{whose}{by}, until {until(exception)}"


# -- policies that nobody uses ----------------------------------------------------------------------------------------


def _unused(before: PolicySet, after: PolicySet) -> Iterator[Difference]:
    used = _used(before) | _used(after)
    for ref in dict.fromkeys((*before.policies, *after.policies)):
        if ref in used:
            continue
        old, new = before.policies.get(ref), after.policies.get(ref)
        why = "no tenant uses it"
        if old is None:
            yield Difference(f"policy {ref}", "policy", NOTHING, "there", "changes", why)
        elif new is None:
            yield Difference(f"policy {ref}", "policy", "there", NOTHING, "changes", why)
        else:
            for change in _policy(old, new, before, after):
                yield replace(change.of(f"policy {ref}"), effect="changes", why=f"{change.why}; {why}")


def _used(policy_set: PolicySet) -> set[PolicyRef]:
    tenants = policy_set.tenants.values()
    return {ref for tenant in tenants for namespace in tenant.namespaces for ref in tenant.valid_refs(namespace)}


# -- small words ------------------------------------------------------------------------------------------------------


def _added(old: Iterable[str], new: Iterable[str]) -> Iterator[str]:
    had = set(old)
    return (name for name in new if name not in had)


def _or_none(value: object) -> str:
    return NOTHING if value is None else str(value)


def _limit(value: int | None) -> str:
    return "no limit" if value is None else str(value)


def _canary(canary: Canary | None) -> str:
    return NOTHING if canary is None else f"{canary.policy} in {listed(canary.namespaces)}"


def _labels(labels: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{key}={'|'.join(values)}" for key, values in labels.items()) or NOTHING
