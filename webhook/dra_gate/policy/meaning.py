"""From documents of the right shape to values: what a schema cannot say, each with its place in the file.

Pure. Every function adds what is wrong to `Findings` and goes on, so that a reviewer sees all of it at once.
"""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from dra_gate.cel import check
from dra_gate.kube.pod import IMPLICIT_PREFIX
from dra_gate.kube.quantity import Quantity, QuantityError
from dra_gate.kube.semver import Semver, SemverError
from dra_gate.kube.workload import owner_of_pods, senders
from dra_gate.policy.compile import content_digest, floor_on
from dra_gate.policy.documents import Document, Path
from dra_gate.policy.drivers import DRIVERS, STANDARD_DOMAIN, driver_of_class
from dra_gate.policy.errors import PolicyError, PolicyWarning
from dra_gate.policy.model import (
    EXCEPTABLE,
    MAX_CANDIDATES,
    MAX_DEVICES,
    MAX_WAITING,
    NEVER,
    NEVER_GATED,
    NOW,
    ON_ROLLBACK,
    ON_UNHEALTHY,
    OTHERS,
    RESERVE_AFTER,
    Canary,
    Companion,
    Constraints,
    DevicePolicy,
    Model,
    Place,
    PolicyException,
    PolicyRef,
    Quota,
    Settings,
    Tenant,
    Workload,
)
from dra_gate.policy.words import UNITS, listed, many

_SMALL_MEMORY = 2**28  # bytes: a floor below it is a number whose unit was forgotten
_MAX_DOMAIN = 253 - len("requests.")  # a ResourceQuota names the resource with that before it


@dataclass(slots=True)
class Findings:
    """What was found so far."""

    errors: list[PolicyError] = field(default_factory=list)
    warnings: list[PolicyWarning] = field(default_factory=list)

    def error(self, place: Place, message: str, remedy: str) -> None:
        """Adds something that makes the folder unusable."""
        self.errors.append(PolicyError(place, message, remedy))

    def warn(self, place: Place, message: str, remedy: str) -> None:
        """Adds something valid that is probably not meant."""
        self.warnings.append(PolicyWarning(place, message, remedy))


def read_models(document: Document, findings: Findings) -> dict[str, Model]:
    """The catalogue's models in order. One without a known driver is left out, with an error; None is skipped."""
    models: dict[str, Model] = {}
    for index, raw in enumerate(_mapping(document)["models"]):
        if raw is None:
            continue
        path: Path = ("models", index)
        driver = raw.get("driver") or driver_of_class(raw["deviceClassName"])
        if driver is None:
            findings.error(
                document.at((*path, "deviceClassName")),
                f"no driver table knows DeviceClass {raw['deviceClassName']}",
                "add driver: with the name of the DRA driver behind it",
            )
            continue
        if "products" in raw and driver not in DRIVERS:
            findings.error(
                document.key_at((*path, "products")),
                f"no table says under which attribute driver {driver} publishes product names",
                "write selector: with CEL instead",
            )
        if "selector" in raw:
            _check_cel(document, (*path, "selector"), findings)
        model = Model(
            name=raw["name"],
            device_class=raw["deviceClassName"],
            driver=driver,
            products=tuple(raw.get("products", ())),
            selector=raw.get("selector"),
            memory=_quantity(document, (*path, "memory"), findings) if "memory" in raw else None,
            architecture=raw.get("architecture"),
            node_labels={label: tuple(values) for label, values in raw.get("nodeLabels", {}).items()},
            place=document.at(path),
        )
        if model.name in models:
            first = models[model.name].place
            findings.error(
                document.at((*path, "name")), f"model {model.name} is there twice", f"the first one is at {first}"
            )
            continue
        models[model.name] = model
    _check_disjoint(models, findings)
    return models


def _check_disjoint(models: Mapping[str, Model], findings: Findings) -> None:
    for one, other in combinations(models.values(), 2):
        if one.driver != other.driver:
            continue
        same_selector = one.selector is not None and one.selector == other.selector
        shared = next(((a, b) for a in one.products for b in other.products if globs_meet(a, b)), None)
        if shared is None and not same_selector:
            continue
        how = "by the same selector" if shared is None else f"by product {shared[0]} against {shared[1]}"
        if one.device_class == other.device_class:
            findings.error(
                other.place,
                f"models {one.name} and {other.name} may both be one device, {how}",
                "make them disjoint: quota and charges are counted by model",
            )
        else:
            findings.warn(
                other.place,
                f"models {one.name} and {other.name} overlap {how} and differ only by DeviceClass",
                f"make sure that no device is in both {one.device_class} and {other.device_class}",
            )


def globs_meet(one: str, other: str) -> bool:
    """Whether some product name fits both globs, which have `*` at most at their ends. Never says no wrongly."""
    for a, b in ((one, other), (other, one)):
        if "*" not in a:
            return _fits(a, b)
    if one.endswith("*") and other.endswith("*") and not one.startswith("*") and not other.startswith("*"):
        return one[:-1].startswith(other[:-1]) or other[:-1].startswith(one[:-1])
    if one.startswith("*") and other.startswith("*") and not one.endswith("*") and not other.endswith("*"):
        return one[1:].endswith(other[1:]) or other[1:].endswith(one[1:])
    return True  # a start and an end, or a middle: put together they make a name that fits both


def _fits(text: str, glob: str) -> bool:
    inner = glob.strip("*")
    if "*" not in glob:
        return text == glob
    if glob.startswith("*") and glob.endswith("*"):
        return inner in text
    return text.endswith(inner) if glob.startswith("*") else text.startswith(inner)


def read_policy(document: Document, models: Mapping[str, Model] | None, findings: Findings) -> DevicePolicy:
    """The policy with `others` expanded.

    `models` is None when the catalogue could not be read: then candidates go unchecked.
    """
    raw = _mapping(document)
    spec = raw["spec"]
    _check_serves(document, findings)
    constraints = _read_constraints(document, spec.get("constraints", {}), findings)
    candidates = tuple(spec["candidates"])
    companions = _read_companions(document, models or {}, findings)
    if models is not None:
        candidates = _expand(document, candidates, constraints, models, findings)
        _check_words(document, candidates, models, findings)
        _check_agreement(document, candidates, models, findings)
        _warn_about_floors(document, candidates, constraints, models, findings)
    fallback = spec.get("fallback", "now")
    if len(candidates) == 1 and fallback != "now":
        findings.warn(
            document.key_at(("spec", "fallback")),
            f"fallback has nothing to fall back to: {candidates[0]} is the only candidate",
            "leave it out, or name more candidates",
        )
    return DevicePolicy(
        ref=PolicyRef(raw["metadata"]["name"], raw["metadata"]["version"]),
        serves=tuple(spec["serves"]),
        candidates=candidates,
        constraints=constraints,
        companions=companions,
        digest=content_digest(raw),
        place=document.at(()),
        on_unhealthy=spec.get("onUnhealthy", ON_UNHEALTHY[0]),
        on_rollback=spec.get("onRollback", ON_ROLLBACK[0]),
        fallback=_fallback(fallback),
        strict_plugin_lane=spec.get("devicePluginLane") == "strict",
    )


def _check_serves(document: Document, findings: Findings) -> None:
    """Finds names that Kubernetes does not take for an extended resource (core v1, IsExtendedResourceName), nor for a
    class's implicit name. Names without a domain have been refused by the schema.
    """
    for index, name in enumerate(_mapping(document)["spec"]["serves"]):
        domain, _, _ = name.partition("/")
        if domain.endswith("kubernetes.io") and not name.startswith(IMPLICIT_PREFIX):
            why = "names under kubernetes.io are Kubernetes' own"
        elif domain.startswith("requests."):
            why = "names that begin with requests. are a ResourceQuota's"
        elif len(domain) > _MAX_DOMAIN:
            why = f"its domain has {len(domain)} characters, and at most {_MAX_DOMAIN} can be"
        else:
            continue
        findings.error(
            document.at(("spec", "serves", index)),
            f"{name} is no extended resource: {why}",
            "use the name that containers ask for, such as nvidia.com/gpu",
        )


def _read_constraints(document: Document, raw: Mapping[str, Any], findings: Findings) -> Constraints:
    path: Path = ("spec", "constraints")
    memory_min = driver_min = None
    if "memory" in raw:
        memory_min = _quantity(document, (*path, "memory", "min"), findings)
        if memory_min is not None and memory_min.value < _SMALL_MEMORY:
            said = f"a floor of {memory_min} ({many(int(memory_min.value), 'byte')}) turns no device away"
            findings.warn(document.at((*path, "memory", "min")), said, "write the unit, such as 40Gi")
    if "driverVersion" in raw:
        place, text = document.at((*path, "driverVersion", "min")), raw["driverVersion"]["min"]
        try:
            driver_min = Semver.normalise(text)
        except SemverError:
            findings.error(place, f"{text!r} is no version", "write major.minor.patch in numbers, such as 550.127.08")
        if driver_min is not None and driver_min.build:
            findings.error(
                place, f"{text} has build metadata, which no comparison looks at", "leave out + and what follows"
            )
    for index, _ in enumerate(raw.get("cel", ())):
        _check_cel(document, (*path, "cel", index), findings)
    return Constraints(
        memory_min=memory_min,
        driver_min=driver_min,
        architectures=tuple(raw.get("architectures", ())),
        same_attribute=tuple(raw.get("sameAttribute", ())),
        whole_device=raw.get("wholeDevice", False),
        nodes=dict(raw.get("nodes", {})),
        cel=tuple(raw.get("cel", ())),
    )


def _read_companions(document: Document, models: Mapping[str, Model], findings: Findings) -> tuple[Companion, ...]:
    """The companions, but those whose driver is not known. Findings tell what `models` have against the others."""
    path: Path = ("spec", "companions")
    companions: list[Companion] = []
    named: dict[str, Place] = {}
    devices = 0
    for index, raw in enumerate(_mapping(document)["spec"].get("companions", ())):
        here = (*path, index)
        devices += raw.get("count", 1)
        _check_no_accelerator(document, here, raw, models, findings)
        place = document.at(here)
        if (first := named.setdefault(raw["name"], place)) is not place:
            message = f"companion {raw['name']} is there twice"
            findings.error(document.at((*here, "name")), message, f"the first one is at {first}")
        if (driver := raw.get("driver") or driver_of_class(raw["deviceClassName"])) is None:
            continue
        companion = Companion(
            name=raw["name"],
            device_class=raw["deviceClassName"],
            driver=driver,
            count=raw.get("count", 1),
            minimum=_floors(document, (*here, "minimum"), raw.get("minimum", {}), driver, findings),
            same_attribute=tuple(raw.get("sameAttribute", ())),
            cel=tuple(raw.get("cel", ())),
            place=place,
        )
        for number, _ in enumerate(companion.cel):
            _check_cel(document, (*here, "cel", number), findings)
        companions.append(companion)
    if devices >= MAX_DEVICES:
        findings.error(
            document.at(path),
            f"{devices} companions for one container leave no room for an accelerator",
            f"a claim takes {MAX_DEVICES} devices in all; ask for fewer",
        )
    return tuple(companions)


def _check_no_accelerator(
    document: Document, path: Path, raw: Mapping[str, Any], models: Mapping[str, Model], findings: Findings
) -> None:
    """An accelerator as companion would be in no order and count against no quota."""
    device_class = raw["deviceClassName"]
    driver = raw.get("driver") or driver_of_class(device_class)
    of_class = next((model.name for model in models.values() if model.device_class == device_class), None)
    of_driver = next((model.name for model in models.values() if model.driver == driver), None)
    remedy = "a companion is no accelerator: leave it out, and let containers ask for more devices"
    if of_class is not None:
        message = f"DeviceClass {device_class} gives model {of_class} of the catalogue"
        findings.error(document.at((*path, "deviceClassName")), message, remedy)
    elif driver is None:
        message = f"no driver table knows DeviceClass {device_class}"
        findings.error(
            document.at((*path, "deviceClassName")), message, "add driver: with the name of the DRA driver behind it"
        )
    elif of_driver is not None:
        where = document.at((*path, "driver" if "driver" in raw else "deviceClassName"))
        findings.error(where, f"driver {driver} publishes model {of_driver} of the catalogue", remedy)


def _floors(
    document: Document, path: Path, raw: Mapping[str, Any], driver: str, findings: Findings
) -> dict[tuple[str, str], Quantity]:
    floors: dict[tuple[str, str], Quantity] = {}
    for key in raw:
        domain, _, name = key.rpartition("/")
        domain = domain or driver
        floor = _quantity(document, (*path, key), findings)
        place = document.key_at((*path, key))
        if floor is not None and check(floor_on(domain, name, floor)):
            findings.error(place, f"{name} is a word of CEL, which cannot ask for it", "ask for another capacity")
        elif (domain, name) in floors:
            message = f"capacity {name} of {domain} is there twice"
            findings.error(place, message, "keep one: a name without domain is the driver's own")
        elif floor is not None:
            floors[domain, name] = floor
    return floors


def _check_agreement(
    document: Document, candidates: tuple[str, ...], models: Mapping[str, Model], findings: Findings
) -> None:
    """Attributes on which companion and accelerators are to agree, but which a driver of theirs does not publish."""
    drivers: dict[str, str] = {}
    for name in candidates:
        drivers.setdefault(models[name].driver, f"candidate {name}")
    for index, raw in enumerate(_mapping(document)["spec"].get("companions", ())):
        own = raw.get("driver") or driver_of_class(raw["deviceClassName"])
        both = {**drivers, **({own: f"companion {raw['name']}"} if own is not None else {})}
        for number, attribute in enumerate(raw.get("sameAttribute", ())):
            _check_published(
                document, ("spec", "companions", index, "sameAttribute", number), attribute, both, findings
            )


def _expand(
    document: Document,
    candidates: tuple[str, ...],
    constraints: Constraints,
    models: Mapping[str, Model],
    findings: Findings,
) -> tuple[str, ...]:
    path: Path = ("spec", "candidates")
    named: list[str] = []
    for index, name in enumerate(candidates):
        place = document.at((*path, index))
        if name == OTHERS:
            if index != len(candidates) - 1:
                findings.error(
                    place, "others is not the last candidate", "move it to the end: it stands for all that remain"
                )
        elif name in named:
            findings.error(place, f"{name} is there twice", "keep its first place")
        elif name not in models:
            findings.error(place, f"no model is called {name}", f"the catalogue has {', '.join(models)}")
        else:
            named.append(name)
    if OTHERS not in candidates:
        expanded = tuple(named)
    else:
        rest = [
            model for model in models.values() if model.name not in named and contradiction(model, constraints) is None
        ]
        expanded = (*named, *(model.name for model in rest))
        drivers = dict.fromkeys(models[name].driver for name in expanded)
        if len(drivers) > 1:
            findings.warn(
                document.at((*path, len(candidates) - 1)),
                f"others brings in devices of several drivers: {', '.join(drivers)}",
                "name the models instead unless the workload runs on all of them",
            )
    if not expanded:
        findings.error(
            document.at(path),
            "no candidate is left",
            "name a model; others left out all that contradict the constraints",
        )
    if len(expanded) > MAX_CANDIDATES:
        findings.error(
            document.at(path),
            f"{len(expanded)} candidates: {', '.join(expanded)}",
            f"a claim takes at most {MAX_CANDIDATES}; name the ones that matter instead of others",
        )
    return expanded


def contradiction(model: Model, constraints: Constraints) -> str | None:
    """Why no device of `model` can meet `constraints`, going by what the model declares; None if nothing says so."""
    floor = constraints.memory_min
    if floor is not None and model.memory is not None and model.memory < floor:
        return f"the floor of {floor} is above the {model.memory} that {model.name} declares"
    if (
        constraints.architectures
        and model.architecture is not None
        and model.architecture not in constraints.architectures
    ):
        return f"{model.name} declares architecture {model.architecture}, which the policy does not list"
    driver = DRIVERS.get(model.driver)
    if constraints.whole_device and driver is not None and not driver.classes.get(model.device_class, True):
        return f"DeviceClass {model.device_class} of {model.name} has no whole devices"
    return None


def _warn_about_floors(
    document: Document,
    candidates: tuple[str, ...],
    constraints: Constraints,
    models: Mapping[str, Model],
    findings: Findings,
) -> None:
    raw = _mapping(document)["spec"]["candidates"]
    for name in candidates:
        reason = contradiction(models[name], constraints)
        if reason is not None:
            index = raw.index(name)
            order = "so the order of candidates starts further down" if index == 0 else "so it is never given"
            findings.warn(
                document.at(("spec", "candidates", index)),
                f"{reason}, {order}",
                f"change the constraint or take {name} out",
            )


def _check_words(
    document: Document, candidates: tuple[str, ...], models: Mapping[str, Model], findings: Findings
) -> None:
    path: Path = ("spec", "constraints")
    raw = _mapping(document)["spec"].get("constraints", {})
    drivers: dict[str, str] = {}
    for name in candidates:
        drivers.setdefault(models[name].driver, name)
    for index, attribute in enumerate(raw.get("sameAttribute", ())):
        whose = {driver: f"candidate {model}" for driver, model in drivers.items()}
        _check_published(document, (*path, "sameAttribute", index), attribute, whose, findings)
    for driver_name, model in drivers.items():
        driver = DRIVERS.get(driver_name)
        for word in ("memory", "driverVersion", "architectures", "wholeDevice"):
            if word in raw and (driver is None or driver.cannot_express(word)):
                findings.error(
                    document.key_at((*path, word)),
                    f"driver {driver_name} of candidate {model} publishes nothing that {word} could ask for",
                    f"take {model} out of the candidates (name them instead of others), or leave {word} out",
                )


def _check_published(
    document: Document, path: Path, attribute: str, whose: Mapping[str, str], findings: Findings
) -> None:
    """`whose` says what each driver by name is wanted for. Of a driver without a table nothing is known."""
    for name, wanted_for in whose.items():
        driver = DRIVERS.get(name)
        if driver is not None and not driver.publishes(attribute):
            known = ", ".join(sorted(driver.standard)) or f"none of {STANDARD_DOMAIN}"
            findings.error(
                document.at(path),
                f"driver {name} of {wanted_for} does not publish {attribute}",
                f"it publishes {known} and attributes of its own, {name}/…",
            )


def read_tenant(
    document: Document,
    policies: Mapping[PolicyRef, DevicePolicy] | None,
    models: Mapping[str, Model] | None,
    findings: Findings,
) -> Tenant:
    """The tenant. `policies` and `models` are what the folder has, or None where that could not be read in full."""
    raw = _mapping(document)
    spec = raw["spec"]
    policy = _policy_ref(spec["policy"])
    keep = tuple(spec.get("keepVersions", ()))
    wanted: list[tuple[PolicyRef, Path]] = [(policy, ("spec", "policy"))]
    wanted += [(PolicyRef(policy.name, version), ("spec", "keepVersions", index)) for index, version in enumerate(keep)]
    canary = None
    if "canary" in spec:
        canary = Canary(_policy_ref(spec["canary"]["policy"]), tuple(spec["canary"]["namespaces"]))
        wanted.append((canary.policy, ("spec", "canary", "policy")))
        for index, namespace in enumerate(canary.namespaces):
            if namespace not in spec["namespaces"]:
                findings.error(
                    document.at(("spec", "canary", "namespaces", index)),
                    f"{namespace} is not one of the tenant's namespaces",
                    f"add it to namespaces, or use one of {', '.join(spec['namespaces'])}",
                )
    for ref, path in wanted:
        if policies is not None and ref not in policies:
            same = ", ".join(str(other) for other in sorted(policies, key=_order) if other.name == ref.name)
            names = ", ".join(sorted({other.name for other in policies}))
            there = f"there is {same or names or 'no policy'}"
            findings.error(document.at(path), f"no policy {ref}", there)
    for index, namespace in enumerate(spec["namespaces"]):
        if namespace in NEVER_GATED:
            findings.error(
                document.at(("spec", "namespaces", index)),
                f"namespace {namespace} is never gated, so no policy would ever be applied there",
                "take it out: the webhooks leave it alone, and what needs devices belongs into a namespace of its own",
            )
    quota = spec.get("quota", {})
    by_model: list[Path] = [("spec", "quota", "models", name) for name in quota.get("models", {})]
    by_model += [("spec", "reserve", name) for name in spec.get("reserve", {})]
    for path in by_model:
        if models is not None and path[-1] not in models:
            findings.error(
                document.key_at(path), f"no model is called {path[-1]}", f"the catalogue has {', '.join(models)}"
            )
    tenant = Tenant(
        name=raw["metadata"]["name"],
        namespaces=tuple(spec["namespaces"]),
        policy=policy,
        keep_versions=keep,
        canary=canary,
        quota=Quota(quota.get("devices"), dict(quota.get("models", {}))),
        weight=spec.get("weight"),
        over_quota=spec.get("overQuota", "reject"),
        place=document.at(()),
        lease=_seconds(spec["lease"]) if "lease" in spec else None,
        reserve=dict(spec.get("reserve", {})),
        reserve_after=_seconds(spec["reserveAfter"]) if "reserveAfter" in spec else RESERVE_AFTER,
        max_waiting=spec.get("maxWaiting", MAX_WAITING),
        kueue_exactly="kueue" in spec,
    )
    if policies is not None and all(ref in policies for ref, _ in wanted):
        _warn_about_turns(document, tenant, [policies[ref] for ref, _ in wanted], by_model, findings)
    return tenant


def _warn_about_turns(
    document: Document,
    tenant: Tenant,
    policies: Sequence[DevicePolicy],
    by_model: Sequence[Path],
    findings: Findings,
) -> None:
    """Words about quota, shares and waiting that say less than they seem to. `policies` are the tenant's."""
    spec = _mapping(document)["spec"]
    reachable = dict.fromkeys(model for policy in policies for model in policy.candidates)
    for path in by_model:
        if path[-1] not in reachable:
            findings.warn(
                document.key_at(path),
                f"no policy of the tenant gives {path[-1]}",
                f"its policies give {listed(reachable)}: take it out, or add it to their candidates",
            )
    held = {tenant.hold(policy) for policy in policies}
    for word, what in (("reserve", "is a part of"), ("lease", "limits what is above")):
        if word in spec and tenant.weight is None:
            findings.warn(
                document.key_at(("spec", word)),
                f"{word} {what} the tenant's share, and no weight says how big that is",
                "add weight" + (": until then it counts as 1" if "late" in held else ": until then it has no share"),
            )
    for model, count in tenant.reserve.items():
        caps = [cap for cap in (tenant.quota.models.get(model), tenant.quota.devices) if cap is not None]
        if caps and count > (cap := min(caps)):
            findings.warn(
                document.at(("spec", "reserve", model)),
                f"{count} of {model} are kept for the tenant, and its quota lets it hold {cap}",
                f"reserve at most {cap}: the others are of use to nobody",
            )
    if "overQuota" in spec and "quota" not in spec:
        findings.warn(
            document.key_at(("spec", "overQuota")), "there is no quota to be over", "add quota, or leave overQuota out"
        )
    if held == {"free"}:
        for word in ("reserveAfter", "maxWaiting"):
            if word in spec:
                findings.warn(
                    document.key_at(("spec", word)),
                    f"{word} says nothing: no Pod of this tenant is held",
                    "add weight or quota, or leave it out",
                )
    several = next((policy for policy in policies if len(policy.candidates) > 1), None)
    if tenant.kueue_exactly and several is not None:
        findings.warn(
            document.key_at(("spec", "kueue")),
            f"Pods that Kueue manages get {several.candidates[0]} of {several.ref} or nothing: they have no fallback",
            "leave kueue out unless Kueue has to count devices by model",
        )


def read_settings(document: Document, namespaces: Mapping[str, str] | None, findings: Findings) -> Settings:
    """The settings; what the document leaves out has its default. `namespaces` as for `read_exception`."""
    spec = _mapping(document)["spec"]
    for index, name in enumerate(spec.get("kueueNamespaces", ())):
        if namespaces is not None and name not in namespaces:
            findings.warn(
                document.at(("spec", "kueueNamespaces", index)),
                f"namespace {name} belongs to no tenant",
                "check its name: no Pod would be held there anyway",
            )
    default = Settings()
    workloads = tuple(
        Workload(raw["group"], raw["resource"], tuple(tuple(path.split(".")) for path in raw["podTemplates"]))
        for raw in spec.get("workloads", ())
    )
    return Settings(
        device_runtimes=tuple(spec.get("deviceRuntimes", default.device_runtimes)),
        device_node_labels=tuple(spec.get("deviceNodeLabels", default.device_node_labels)),
        visible_devices_void=spec.get("visibleDevicesVoid", default.visible_devices_void),
        exempt_users=frozenset(spec.get("exemptUsers", ())),
        workloads=workloads,
        workload_verdict=spec.get("workloadVerdict", default.workload_verdict),
        kueue_namespaces=tuple(spec.get("kueueNamespaces", default.kueue_namespaces)),
        device_plugin_nodes=dict(spec.get("devicePluginNodes", {})),
    )


def read_exception(document: Document, namespaces: Mapping[str, str] | None, findings: Findings) -> PolicyException:
    """The exception. `namespaces` are those that tenants own, or None where they could not be read in full."""
    raw = _mapping(document)
    spec = raw["spec"]
    for index, rule in enumerate(spec["rules"]):
        if rule not in EXCEPTABLE:
            close = difflib.get_close_matches(rule, EXCEPTABLE, n=1)
            remedy = f"write {close[0]}" if close else f"one of {', '.join(EXCEPTABLE)}"
            findings.error(document.at(("spec", "rules", index)), f"no exception can be made from {rule}", remedy)
    for index, namespace in enumerate(spec["namespaces"]):
        if namespaces is not None and namespace not in namespaces:
            findings.error(
                document.at(("spec", "namespaces", index)),
                f"namespace {namespace} belongs to no tenant",
                "name a tenant's namespace: in others no rule holds that an exception could be from",
            )
    if "owner" in spec and "users" not in spec:
        _check_owner(document, spec["owner"]["kind"], findings)
    try:
        expires = (dt.date.fromisoformat(spec["expires"]) - dt.date(1970, 1, 1)).days
    except ValueError:
        findings.error(
            document.at(("spec", "expires")), f"{spec['expires']} is no date", "write the last day it counts"
        )
        expires = 0
    return PolicyException(
        name=raw["metadata"]["name"],
        rules=tuple(spec["rules"]),
        namespaces=tuple(spec["namespaces"]),
        owner=(spec["owner"]["kind"], spec["owner"]["name"]) if "owner" in spec else None,
        users=tuple(spec.get("users", ())),
        reason=spec["reason"],
        ticket=spec["ticket"],
        approver=spec["approver"],
        expires=expires,
        place=document.at(()),
    )


def _check_owner(document: Document, kind: str, findings: Findings) -> None:
    """Finds owners that nobody vouches for: who creates Pods may write any owner into them."""
    if senders(kind):
        return
    if (owner := owner_of_pods(kind)) is not None:
        what, remedy = f"Pods of a {kind} name a {owner}", f"write kind: {owner}, and the name with -* at its end"
    else:
        what = f"it is not known who creates the Pods of a {kind}, and anybody may write that owner into a Pod"
        remedy = "add users: with the account of that kind's controller"
    findings.error(document.at(("spec", "owner", "kind")), what, remedy)


def _order(ref: PolicyRef) -> tuple[str, int]:
    return ref.name, ref.version


def _policy_ref(text: str) -> PolicyRef:
    name, _, version = text.partition("@")
    return PolicyRef(name, int(version))


def _fallback(text: str) -> int:
    return {"now": NOW, "never": NEVER}[text] if " " not in text else _seconds(text.removeprefix("after "))


def _seconds(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1]][1]


def _value(document: Document, path: Path) -> Any:
    value: Any = document.value
    for step in path:
        value = value[step]
    return value


def _quantity(document: Document, path: Path, findings: Findings) -> Quantity | None:
    value = _value(document, path)
    try:
        quantity = Quantity.parse(value)
    except QuantityError:
        findings.error(document.at(path), f"{value!r} is no quantity", "write a number and one suffix, such as 40Gi")
        return None
    if quantity.value <= 0:
        findings.error(document.at(path), f"{value} is not above 0", "write a floor or a size, such as 40Gi")
        return None
    return quantity


def _check_cel(document: Document, path: Path, findings: Findings) -> None:
    """What the API server or the scheduler would refuse or stumble over in an own expression, at its place."""
    for problem in check(_value(document, path)):
        place = document.texts[path].place(problem.line, problem.column)
        findings.error(place, f"CEL ({problem.kind}): {problem.message}", "")


def _mapping(document: Document) -> Mapping[str, Any]:
    assert isinstance(document.value, dict)  # noqa: S101 - the schema has seen it
    return document.value
