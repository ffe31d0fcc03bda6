"""What lane `device-plugin` makes of a policy: there requests stay, and node labels are all that tells devices apart.

Candidates are placed on by their models' `nodeLabels`, constraints hold by what models declare. A model of which
nothing says that it meets them is left out; words that no label can express are not kept, and named. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra_gate.kube.pod import IMPLICIT_PREFIX
from dra_gate.policy.documents import Document, Path
from dra_gate.policy.drivers import DRIVERS
from dra_gate.policy.meaning import Findings, contradiction
from dra_gate.policy.model import NEVER, NOW, OTHERS, Constraints, DevicePolicy, Model, Settings, Tenant
from dra_gate.policy.words import listed

Term = tuple[Mapping[str, Any], ...]  # node selector requirements (core v1) that must all hold


@dataclass(frozen=True, slots=True)
class Placement:
    """On which nodes Pods of a policy may run in this lane.

    `models` are the candidates that they may get, in order. A node must fit one of `terms`: none when there is no
    model. `left_out` are the other candidates, with the reason; `unkept` the words of the policy that do not hold
    here, each with the reason.
    """

    models: tuple[str, ...]
    terms: tuple[Term, ...]
    left_out: Mapping[str, str]
    unkept: Mapping[str, str]


def placement(policy: DevicePolicy, models: Mapping[str, Model]) -> Placement:
    """What the lane keeps of `policy`, and how."""
    candidates = policy.candidates[:1] if policy.fallback == NEVER else policy.candidates
    reasons = {name: _why_left_out(models[name], policy.constraints) for name in candidates}
    kept = [models[name] for name, why in reasons.items() if not why]
    return Placement(
        models=tuple(model.name for model in kept),
        terms=_terms(model.node_labels for model in kept),
        left_out={name: why for name, why in reasons.items() if why},
        unkept=dict(_unkept(policy, kept)),
    )


def served(policy: DevicePolicy) -> tuple[str, ...]:
    """The names that Pods may ask for in this lane: a class's implicit name always makes a claim (KEP-5004)."""
    return tuple(name for name in policy.serves if not name.startswith(IMPLICIT_PREFIX))


def _why_left_out(model: Model, constraints: Constraints) -> str:
    if not model.node_labels:
        return f"{model.name} has no nodeLabels"
    if constraints.memory_min is not None and model.memory is None:
        return f"{model.name} declares no memory"
    if constraints.architectures and model.architecture is None:
        return f"{model.name} declares no architecture"
    return contradiction(model, constraints) or ""


def _terms(labels: Iterable[Mapping[str, tuple[str, ...]]]) -> tuple[Term, ...]:
    """As few terms as fit the same nodes: those that differ in the values of one label are one."""
    merged: list[dict[str, tuple[str, ...]]] = []
    for one in labels:
        for other in merged:
            differing = [key for key in one if other.get(key) != one[key]]
            if one.keys() == other.keys() and len(differing) < 2:
                other.update({key: tuple(dict.fromkeys((*other[key], *one[key]))) for key in differing})
                break
        else:
            merged.append(dict(one))
    return tuple(
        tuple({"key": key, "operator": "In", "values": list(values)} for key, values in sorted(one.items()))
        for one in merged
    )


def _unkept(policy: DevicePolicy, kept: Iterable[Model]) -> Iterator[tuple[str, str]]:
    constraints = policy.constraints
    if constraints.driver_min is not None:
        yield "driverVersion", "no node label can be held against a floor"
    if constraints.same_attribute:
        yield "sameAttribute", "a device plugin picks devices by itself"
    if constraints.whole_device and not all(_only_whole(model, policy) for model in kept):
        yield "wholeDevice", "the models' nodeLabels do not tell whole devices from parts and shared ones"
    if constraints.cel:
        yield "cel", "it is about published devices, and a device plugin publishes none"
    if policy.companions:
        yield "companions", "a device plugin gives nothing beside what is asked for"
    if policy.fallback not in (NOW, NEVER):
        yield "fallback", "nothing holds a Pod here while it waits for its first choice"


def _only_whole(model: Model, policy: DevicePolicy) -> bool:
    """The model's nodes give whole devices only, by the label that the vendor's tools mark parts in."""
    driver = DRIVERS.get(model.driver)
    if driver is None or driver.product_label is None or any(name != driver.plugin[0] for name in served(policy)):
        return False
    values = model.node_labels.get(driver.product_label, ())
    return bool(values) and not any(mark in value for value in values for mark in driver.part_marks)


def warn(
    documents: Iterable[Document],
    policies: Mapping[str, DevicePolicy],
    models: Mapping[str, Model],
    tenants: Iterable[Tenant],
    settings: Settings,
    findings: Findings,
) -> None:
    """Tells what this lane does not keep of tenants' policies, in a folder that says anything of the lane.

    `policies` are by `name@version`, `documents` what they were read from.
    """
    used = {str(ref) for tenant in tenants for namespace in tenant.namespaces for ref in tenant.valid_refs(namespace)}
    for document in documents:
        assert isinstance(document.value, dict)  # noqa: S101 - the schema has seen it
        metadata, spec = document.value["metadata"], document.value["spec"]
        policy = policies.get(f"{metadata['name']}@{metadata['version']}")
        if policy is None or str(policy.ref) not in used:
            continue
        if not settings.device_plugin_nodes:
            if "devicePluginLane" in spec:
                findings.warn(
                    document.key_at(("spec", "devicePluginLane")),
                    "nothing says which nodes give devices by device plugin: Pods of that lane may land on others",
                    "add devicePluginNodes to ClusterSettings",
                )
            continue
        _warn_about(policy, document, models, settings, findings)


def _warn_about(
    policy: DevicePolicy, document: Document, models: Mapping[str, Model], settings: Settings, findings: Findings
) -> None:
    found, where = placement(policy, models), "in lane device-plugin"
    assert isinstance(document.value, dict)  # noqa: S101
    named: list[str] = document.value["spec"]["candidates"]
    for name, why in found.left_out.items():
        if contradiction(models[name], policy.constraints):
            continue  # it is given in no lane, and that is told
        index = named.index(name if name in named else OTHERS)
        findings.warn(
            document.at(("spec", "candidates", index)),
            f"{why}, so it is not given {where}",
            "write nodeLabels, and the memory and architecture that constraints ask for, in the catalogue",
        )
    if not found.models:
        message = f"{where} no Pod of {policy.ref} is let in: none of its candidates can be told there"
        findings.warn(document.key_at(("spec", "candidates")), message, "see the warnings about each candidate")
    for word, why in found.unkept.items() if not policy.strict_plugin_lane else ():
        path: Path = ("spec", word) if word in ("companions", "fallback") else ("spec", "constraints", word)
        remedy = "write devicePluginLane: strict, so that its Pods are refused there"
        findings.warn(document.key_at(path), f"{word} is not kept {where}: {why}", remedy)
    for label, value in settings.device_plugin_nodes.items():
        if policy.constraints.nodes.get(label, value) != value:
            findings.warn(
                document.key_at(("spec", "constraints", "nodes", label)),
                f"{where} no Pod of {policy.ref} is let in: its nodes with a device plugin have {label}={value}",
                f"tell {listed(policy.constraints.nodes)} and devicePluginNodes by different labels",
            )
