"""Policy words in plain English, for people who know neither Kubernetes nor the files. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dra_gate.kube.quantity import Quantity
from dra_gate.policy.model import NEVER, NOW, Companion, Constraints, DevicePolicy, Model, Quota, Tenant

UNITS = {"s": ("second", 1), "m": ("minute", 60), "h": ("hour", 3600)}
_GB = 10**9
_SHARED = {  # KEP-4381 and KEP-6072
    "resource.kubernetes.io/pcieRoot": "sit on the same PCIe root (the shortest way between them)",
    "resource.kubernetes.io/numaNode": "sit at the same processor (NUMA node)",
}


def listed(names: Iterable[str], last: str = "and", nothing: str = "none") -> str:
    """`a, b and c`."""
    *first, end = list(names) or [nothing]
    return f"{', '.join(first)} {last} {end}" if first else end


def some(names: Sequence[str], shown: int = 4) -> str:
    """`a, b, c, d and 3 more`; empty for none."""
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")


def many(count: int, one: str, more: str = "") -> str:
    """`1 device`, `2 devices`."""
    return f"{count} {one if count == 1 else more or one + 's'}"


def size(quantity: Quantity) -> str:
    """An amount of memory as written, and in the unit that data sheets use."""
    return f"{quantity} ({float(quantity.value) / _GB:.1f} GB)"


def duration(seconds: int) -> str:
    """Seconds as policy files write them, in the largest unit that leaves nothing over: `90s`, `30m`, `4h`."""
    unit = next(unit for unit in ("h", "m", "s") if seconds % UNITS[unit][1] == 0)
    return f"{seconds // UNITS[unit][1]}{unit}"


def time(seconds: int) -> str:
    """`90 seconds`, `30 minutes`, `4 hours`."""
    text = duration(seconds)
    return many(int(text[:-1]), UNITS[text[-1]][0])


def fallback(policy: DevicePolicy) -> str:
    """The word as policy files write it."""
    return {NOW: "now", NEVER: "never"}.get(policy.fallback) or f"after {duration(policy.fallback)}"


def later_choices(policy: DevicePolicy) -> str:
    """When a program gets another than its first choice."""
    if len(policy.candidates) == 1:
        return "There is no second choice."
    if policy.fallback == NOW:
        return "A later choice is taken as soon as no earlier one is to be had."
    if policy.fallback == NEVER:
        said = "A later choice is not taken, however long the program waits for the first"
    else:
        said = f"A later choice is taken only when the program has waited {time(policy.fallback)} for the first"
    return f"{said}; programs that name the tenant's claim themselves, or that Kueue manages, may get every choice."


def promises(policy: DevicePolicy) -> Iterator[tuple[str, str]]:
    """What holds whichever candidate is given, one sentence for each constraint word and each companion."""
    yield from never(policy.constraints)
    for one in policy.companions:
        yield companion_word(one), companion(one)


def companion_word(one: Companion) -> str:
    """What a device is turned away by that has no such companion beside it."""
    return f"companion {one.name}"


def companion(one: Companion) -> str:
    """What a program gets beside its devices. Own CEL is told by its presence only."""
    limits = [f"at least {floor} of {name}" for (_, name), floor in one.minimum.items()]
    if one.cel:
        limits.append(f"meeting {many(len(one.cel), 'condition')} of the policy's own, below")
    which = f"{many(one.count, 'device')} of class {one.device_class} ({', '.join([one.name, *limits])})"
    beside = [_SHARED.get(attribute, f"have the same {attribute}") for attribute in one.same_attribute]
    together = f"; it and all devices of the program {listed(beside)}" if beside else ""
    return f"Every program also gets {which}{together}; otherwise it waits."


def never(constraints: Constraints) -> Iterator[tuple[str, str]]:
    """What is never given up, one sentence for each constraint word. Own CEL is told by its presence only."""
    if constraints.memory_min is not None:
        yield "memory", f"Never a device with less than {size(constraints.memory_min)} of memory."
    if constraints.driver_min is not None:
        yield "driverVersion", f"Never a device whose driver is older than version {constraints.driver_min}."
    if constraints.architectures:
        yield (
            "architectures",
            f"Never a device of an architecture other than {listed(constraints.architectures, 'or')}.",
        )
    if constraints.whole_device:
        yield "wholeDevice", "Never a part of a device, and never one that somebody else uses at the same time."
    for attribute in constraints.same_attribute:
        shared = _SHARED.get(attribute, f"have the same {attribute}")
        yield "sameAttribute", f"Several devices for one program always {shared}; otherwise it waits."
    if constraints.nodes:
        labels = (f"{label}={value}" for label, value in constraints.nodes.items())
        yield "nodes", f"Never on a machine outside the pool that carries the mark {listed(labels)}."
    if constraints.cel:
        yield "cel", f"Never a device that fails {many(len(constraints.cel), 'condition')} of the policy's own, below."


_UNHEALTHY = {
    "alert": "it stays, and its owner and the operators are told",
    "recreate": "it is stopped and whatever made it makes another, which may get another device; one that nothing "
    "makes again stays and is told of",
    "keep": "it stays, and only the operators' figures show it",
}


def unhealthy(policy: DevicePolicy) -> str:
    """What happens to a program whose device falls ill in the short time before it starts."""
    return f"When its device falls ill before the program starts, {_UNHEALTHY[policy.on_unhealthy]}."


_ROLLBACK = {
    "recreate": "it is stopped and whatever made it makes another, which asks for devices the old way; one that "
    "nothing makes again waits until the new way is open again",
    "keep": "it waits until the new way is open again",
    "release": "it still gets its devices the new way",
}


def rollback(policy: DevicePolicy) -> str:
    """What happens to a program that waits for devices when its namespace goes back to device plugins."""
    return f"When its namespace goes back to device plugins while it waits, {_ROLLBACK[policy.on_rollback]}."


def model_facts(model: Model) -> str:
    """What a model is, by its products or its selector, and what the catalogue declares of it."""
    found = [f"named {listed((glob.replace('*', '…') for glob in model.products), 'or')}"] if model.products else []
    if model.selector is not None:
        found.append("told by an expression of its own")
    if model.memory is not None:
        found.append(f"{size(model.memory)} of memory")
    if model.architecture is not None:
        found.append(f"architecture {model.architecture}")
    return ", ".join(found)


def own_conditions(policy: DevicePolicy) -> Iterator[str]:
    """The policy's own CEL, as it stands in the file."""
    yield from policy.constraints.cel
    for one in policy.companions:
        yield from one.cel


def limits(quota: Quota) -> Iterator[str]:
    """What a tenant may hold, a sentence each."""
    if quota.devices is None:
        yield "There is no limit to how many devices it may hold at once."
    else:
        yield f"At most {many(quota.devices, 'device')} at once, all models together."
    for model, count in quota.models.items():
        yield f"Of model {model} at most {count} at once."


def turns(tenant: Tenant, policies: Sequence[DevicePolicy]) -> Iterator[str]:
    """How its programs come by scarce devices, a sentence each. `policies` are those that it honours."""
    holds = {tenant.hold(policy) for policy in policies}
    if "late" in holds:
        yield (
            f"When devices of a model are scarce its share of them is its weight, {tenant.weight or 1}, against those "
            "of all who may have that model. Nobody gets one above their share while somebody below theirs waits."
        )
    if tenant.lease is not None:
        yield f"A program that got a device above its share runs for at most {time(tenant.lease)}; then it is stopped."
    for model, count in tenant.reserve.items():
        kept = f"{many(count, 'device')} {'is' if count == 1 else 'are'} kept"
        yield f"Of its share of model {model}, {kept} for it and never lent."
    if "late" in holds:
        yield (
            f"What a program waits for that has waited {time(tenant.reserve_after)} is kept for it when its turn "
            "comes: no later and smaller one takes it away."
        )
    if holds != {"free"}:
        yield f"At most {many(tenant.max_waiting, 'program')} wait at once; more are refused."
    if tenant.kueue_exactly:
        yield "Programs that another queue (Kueue) manages get the first choice and no other."
