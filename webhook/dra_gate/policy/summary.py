"""What changed between two policy sets, in one line for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from dra_gate.policy.model import Canary, PolicySet, Quota, Tenant
from dra_gate.policy.words import duration

WIDTH = 240  # characters; what does not fit is counted


def summary(before: PolicySet | None, after: PolicySet) -> str:
    """One line: tenants first, then policies, then the catalogue. `before` None: the first set there is."""
    if before is None:
        counts = (
            ("tenant", "tenants", len(after.tenants)),
            ("policy", "policies", len(after.policies)),
            ("model", "models", len(after.models)),
        )
        return "first set: " + ", ".join(f"{n} {one if n == 1 else many}" for one, many, n in counts)
    return _joined([*_tenants(before, after), *_policies(before, after), *_models(before, after)])


def _joined(changes: list[str]) -> str:
    if not changes:
        return "no change"
    line = ""
    for number, change in enumerate(changes):
        longer = f"{line}; {change}" if line else change
        rest = len(changes) - number
        if len(longer) > WIDTH:
            return f"{line}; and {rest} more" if line else f"{change[: WIDTH - 1]}…"
        line = longer
    return line


def _tenants(before: PolicySet, after: PolicySet) -> Iterator[str]:
    if moved := _moved(before.tenants, after.tenants):
        yield f"tenants {moved}"
    for name, new in after.tenants.items():
        old = before.tenants.get(name)
        if old is not None and (changes := list(_tenant(old, new))):
            yield f"{name}: {', '.join(changes)}"


def _tenant(old: Tenant, new: Tenant) -> Iterator[str]:
    if old.policy != new.policy:
        yield f"{old.policy}→{new.policy}"
    if old.canary != new.canary:
        yield f"canary {_canary(old.canary)}→{_canary(new.canary)}"
    if moved := _moved(map(str, old.keep_versions), map(str, new.keep_versions)):
        yield f"keepVersions {moved}"
    if moved := _moved(old.namespaces, new.namespaces):
        yield f"namespaces {moved}"
    yield from _quota(old.quota, new.quota)
    if old.weight != new.weight:
        yield f"weight {_number(old.weight)}→{_number(new.weight)}"
    if old.over_quota != new.over_quota:
        yield f"overQuota {old.over_quota}→{new.over_quota}"
    if old.lease != new.lease:
        yield f"lease {_time(old.lease)}→{_time(new.lease)}"
    for model in dict.fromkeys((*old.reserve, *new.reserve)):
        if old.reserve.get(model) != new.reserve.get(model):
            yield f"reserve {model} {_number(old.reserve.get(model))}→{_number(new.reserve.get(model))}"
    if old.reserve_after != new.reserve_after:
        yield f"reserveAfter {_time(old.reserve_after)}→{_time(new.reserve_after)}"
    if old.max_waiting != new.max_waiting:
        yield f"maxWaiting {old.max_waiting}→{new.max_waiting}"
    if old.kueue_exactly != new.kueue_exactly:
        yield "kueue none→exactly" if new.kueue_exactly else "kueue exactly→none"


def _quota(old: Quota, new: Quota) -> Iterator[str]:
    if old.devices != new.devices:
        yield f"quota {_number(old.devices)}→{_number(new.devices)}"
    for model in dict.fromkeys((*old.models, *new.models)):
        if old.models.get(model) != new.models.get(model):
            yield f"quota {model} {_number(old.models.get(model))}→{_number(new.models.get(model))}"


def _policies(before: PolicySet, after: PolicySet) -> Iterator[str]:
    if moved := _moved(map(str, before.policies), map(str, after.policies)):
        yield f"policies {moved}"
    changed = [str(ref) for ref, new in after.policies.items() if before.policies.get(ref, new).digest != new.digest]
    if changed:
        yield f"{', '.join(changed)} edited"


def _models(before: PolicySet, after: PolicySet) -> Iterator[str]:
    if moved := _moved(before.models, after.models):
        yield f"models {moved}"
    changed = [
        name
        for name, new in after.models.items()
        if name in before.models and replace(before.models[name], place=new.place) != new
    ]
    if changed:
        yield f"models {', '.join(changed)} edited"
    common = [name for name in after.models if name in before.models]
    if common != [name for name in before.models if name in after.models]:
        yield "order of models"


def _moved(before: Iterable[str] | Mapping[str, object], after: Iterable[str] | Mapping[str, object]) -> str:
    """`+new` and `-gone`, in the order of the files."""
    old, new = dict.fromkeys(before), dict.fromkeys(after)
    return " ".join([f"+{name}" for name in new if name not in old] + [f"-{name}" for name in old if name not in new])


def _canary(canary: Canary | None) -> str:
    return "none" if canary is None else f"{canary.policy} in {' '.join(canary.namespaces)}"


def _time(seconds: int | None) -> str:
    return "none" if seconds is None else duration(seconds)


def _number(value: int | None) -> str:
    return "none" if value is None else str(value)
