"""Policy words in plain English, for people who know neither Kubernetes nor the files. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dra_gate.kube.quantity import Quantity
from dra_gate.policy.model import Companion, Constraints, DevicePolicy, Model, Quota

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
        yield f"Of model {model} at most {count} at once (written down; not enforced yet)."
