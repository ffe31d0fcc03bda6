"""Policy words to ResourceClaimTemplates. Pure: the same policy set gives the same templates, byte for byte.

Every default of the API is written out, so that what the API server stores equals what is compiled here: the validating
webhook tells a tenant's template from a look-alike by content (resource.k8s.io/v1 ResourceClaimTemplateSpec).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from dra_gate.kube.quantity import Quantity
from dra_gate.policy.drivers import DRIVERS
from dra_gate.policy.model import Companion, Constraints, DevicePolicy, Model, PolicyRef, PolicySet, Tenant

NAME_PREFIX = "dra-gate-"  # reserved for the gate's own claims and templates
REQUEST = "gpu"  # the request for accelerators, its alternatives called after their models; others are companions
DOMAIN = "dra-gate.io"


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled ResourceClaimTemplate for `count` devices, all of one model, and the policy's companions beside them.

    Equal names mean equal content.
    """

    name: str
    count: int
    _plan: _Plan = field(repr=False, compare=False)

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self._plan.tenant

    @property
    def policy(self) -> PolicyRef:
        """What it was compiled from."""
        return self._plan.policy.ref

    @property
    def candidates(self) -> tuple[str, ...]:
        """The models in order of preference."""
        return self._plan.candidates

    @property
    def exactly(self) -> bool:
        """It asks for the first candidate and nothing else, in the form that Kueue can charge."""
        return self._plan.exactly

    @property
    def spec(self) -> Mapping[str, Any]:
        """The object's `.spec`: metadata for the generated claims, and their spec. Read only: others share parts."""
        return self._plan.spec(self.count)

    def manifest(self, namespace: str) -> dict[str, Any]:
        """The object to create in `namespace`; it carries the same labels and annotations as its claims will."""
        spec = self.spec
        stamp = spec["metadata"]
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {
                "name": self.name,
                "namespace": namespace,
                "labels": dict(stamp["labels"]),
                "annotations": dict(stamp["annotations"]),
            },
            "spec": spec,
        }


@dataclass(frozen=True, slots=True)
class LateClaim:
    """A claim that is written when its Pod is granted: what a template for `count` would give, with fewer
    candidates."""

    template: Template
    candidates: tuple[str, ...]  # in the policy's order

    @property
    def spec(self) -> Mapping[str, Any]:
        """The claim's `.spec`. An alternative says the same as the template's of that name, whatever the others are."""
        devices = self.template.spec["spec"]["devices"]
        request, *companions = devices["requests"]
        kept = [one for one in request["firstAvailable"] if one["name"] in self.candidates]
        return {"devices": {**devices, "requests": [{**request, "firstAvailable": kept}, *companions]}}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Labels and annotations of the claim."""
        stamp = self.template.spec["metadata"]
        candidates = {f"{DOMAIN}/candidates": ",".join(self.candidates)}
        return {"labels": dict(stamp["labels"]), "annotations": {**stamp["annotations"], **candidates}}

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the spec: what tells whether a stored claim is this one."""
        return content_digest(self.spec)


def late_claim(template: Template, candidates: Collection[str]) -> LateClaim:
    """The claim of `template` narrowed to `candidates`. Raises ValueError for none, or one that it does not have."""
    if not candidates or not set(candidates) <= set(template.candidates):
        raise ValueError(f"{', '.join(candidates) or 'nothing'} is not among {', '.join(template.candidates)}")
    return LateClaim(template, tuple(name for name in template.candidates if name in candidates))


class TemplateIndex:
    """All templates of a policy set: every policy a tenant honours, at every device count from 1 to its largest."""

    def __init__(self, templates: Iterable[Template]) -> None:
        self._by_count: dict[tuple[str, PolicyRef], dict[int, Template]] = {}
        self._exactly: dict[tuple[str, PolicyRef], dict[int, Template]] = {}
        # By name alone: of two tenants only those of one policy could meet, and only by 40 bits of their digests.
        self._by_name: dict[str, Template] = {}
        for template in templates:
            counts = self._exactly if template.exactly else self._by_count
            counts.setdefault((template.tenant, template.policy), {})[template.count] = template
            self._by_name[template.name] = template

    def for_count(self, tenant: str, ref: PolicyRef, count: int) -> Template:
        """The tenant's template for `count` devices.

        Raises KeyError for a policy that the tenant does not honour, and for a count out of range.
        """
        return self._by_count[tenant, ref][count]

    def of(self, tenant: str, ref: PolicyRef) -> Iterable[Template]:
        """The tenant's templates of a policy that it honours, one for each count, smallest first."""
        return self._by_count[tenant, ref].values()

    def exactly(self, tenant: str, ref: PolicyRef) -> Mapping[int, Template]:
        """By count, the tenant's templates of a policy for Pods that Kueue manages; none but where it says
        `kueue: exactly`."""
        return self._exactly.get((tenant, ref), {})

    def named(self, name: str) -> Template | None:
        """The template of that name, whoever's it is: the name holds a digest of its content, the tenant included."""
        return self._by_name.get(name)

    def by_name(self, tenant: str, name: str) -> Template | None:
        """The tenant's template of that name, or None: a name that this policy set does not compile to."""
        found = self._by_name.get(name)
        return found if found is not None and found.tenant == tenant else None


def templates_of(policy_set: PolicySet) -> TemplateIndex:
    """Compiles everything the tenants of `policy_set` may use. Done once when a set is loaded, never per request."""

    def each() -> Iterator[Template]:
        alternatives = {ref: _alternatives(one, policy_set.models) for ref, one in policy_set.policies.items()}
        for tenant in policy_set.tenants.values():
            refs = dict.fromkeys(ref for namespace in tenant.namespaces for ref in tenant.valid_refs(namespace))
            for ref in refs:
                plan = _Plan(tenant.name, policy_set.policies[ref], alternatives[ref])
                yield from plan.templates()
                if tenant.kueue_exactly:
                    yield from replace(plan, exactly=True).templates()

    return TemplateIndex(each())


def compile_template(tenant: Tenant, policy: DevicePolicy, models: Mapping[str, Model], count: int) -> Template:
    """The template that gives a tenant's container `count` devices of one model under `policy`.

    `models` is the catalogue that `policy` was loaded with. Raises ValueError when `count` is not in
    1..`policy.max_devices`.
    """
    if not 1 <= count <= policy.max_devices:
        raise ValueError(f"a claim of {policy.ref} holds 1 to {policy.max_devices} devices, not {count}")
    plan = _Plan(tenant.name, policy, _alternatives(policy, models))
    return Template(plan.name(count, content_digest(plan.spec(count))), count, plan)


def _alternatives(policy: DevicePolicy, models: Mapping[str, Model]) -> tuple[Mapping[str, Any], ...]:
    """The candidates as alternatives of a request, without their count: the same for every tenant and count."""
    return tuple(
        {
            "name": name,
            "deviceClassName": models[name].device_class,
            "allocationMode": "ExactCount",
            "count": 0,  # holds the place
            "selectors": [{"cel": {"expression": text}} for text in selectors(models[name], policy.constraints)],
        }
        for name in policy.candidates
    )


def _companion(companion: Companion) -> Mapping[str, Any]:
    return {
        "name": companion.name,
        "exactly": {
            "deviceClassName": companion.device_class,
            "allocationMode": "ExactCount",
            "count": companion.count,
            "selectors": [{"cel": {"expression": text}} for _, text in companion_words(companion)],
        },
    }


def _constraints(policy: DevicePolicy, count: int) -> Iterator[Mapping[str, Any]]:
    """What must agree: among the accelerators of a claim for several, and between them and each companion."""
    if count > 1:
        for attribute in policy.constraints.same_attribute:
            yield {"requests": [REQUEST], "matchAttribute": attribute}
    for companion in policy.companions:
        for attribute in companion.same_attribute:
            yield {"requests": [REQUEST, companion.name], "matchAttribute": attribute}


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a tenant's templates of one policy have in common. There may be thousands, and few are ever looked into:
    each is put together from shared parts when it is.
    """

    tenant: str
    policy: DevicePolicy
    alternatives: tuple[Mapping[str, Any], ...]
    exactly: bool = False

    @property
    def candidates(self) -> tuple[str, ...]:
        return self.policy.candidates[:1] if self.exactly else self.policy.candidates

    def request(self, count: int) -> Mapping[str, Any]:
        if self.exactly:
            only = {key: value for key, value in self.alternatives[0].items() if key != "name"}
            return {"name": REQUEST, "exactly": {**only, "count": count}}
        return {"name": REQUEST, "firstAvailable": [{**one, "count": count} for one in self.alternatives]}

    def spec(self, count: int) -> Mapping[str, Any]:
        policy = self.policy
        devices: dict[str, Any] = {"requests": [self.request(count), *map(_companion, policy.companions)]}
        if constraints := list(_constraints(policy, count)):
            devices["constraints"] = constraints
        return {
            "metadata": {
                "labels": {
                    "app.kubernetes.io/managed-by": "dra-gate",
                    f"{DOMAIN}/tenant": self.tenant,
                    f"{DOMAIN}/policy": policy.ref.name,
                    f"{DOMAIN}/policy-version": str(policy.ref.version),
                },
                "annotations": {
                    f"{DOMAIN}/candidates": ",".join(self.candidates),
                    f"{DOMAIN}/devices": str(count),
                    f"{DOMAIN}/policy-digest": policy.digest,
                },
            },
            "spec": {"devices": devices},
        }

    def name(self, count: int, digest: str) -> str:
        only = "-exactly" if self.exactly else ""
        return f"{NAME_PREFIX}{self.policy.ref.name}-v{self.policy.ref.version}-x{count}{only}-{digest[:10]}"

    def templates(self) -> Iterator[Template]:
        """One for each count. Above 1 only the count differs, so what two counts differ in is where it stands."""
        one, two, three = (canonical_json(self.spec(count)) for count in (1, 2, 3))
        places = [place for place, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
        parts = [two[start + 1 : end] for start, end in pairwise([-1, *places, len(two)])]
        for count in range(1, self.policy.max_devices + 1):
            text = one if count == 1 else str(count).encode().join(parts)
            yield Template(self.name(count, hashlib.sha256(text).hexdigest()), count, self)


def canonical_json(value: object) -> bytes:
    """One spelling per JSON value: keys sorted, no spaces, UTF-8. What digests are taken over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def content_digest(value: object) -> str:
    """SHA-256 (64 hex digits) of the value's canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def selectors(model: Model, constraints: Constraints) -> list[str]:
    """CEL for one alternative, all of which must hold: which devices are of `model`, then the constraints.

    Every attribute is asked for with has() first: one device without it would otherwise end the scheduling attempt on
    all nodes. Raises ValueError for a word that the model's driver cannot express; the loader has refused it before.
    """
    return [text for _, text in words(model, constraints)]


def words(model: Model, constraints: Constraints) -> list[tuple[str, str]]:
    """`selectors`, each with the policy word that it stands for; the first word is the model itself."""
    found = [("model", model_selector(model))]
    if constraints.memory_min is not None:
        found.append(("memory", floor_on(model.driver, _name(model, "memory"), constraints.memory_min)))
    if constraints.driver_min is not None:
        version = _attribute(model, "driver_version")
        floor = quoted(str(constraints.driver_min))
        found.append(("driverVersion", f"has({version}) && {version}.compareTo(semver({floor})) >= 0"))
    if constraints.architectures:
        architecture = _attribute(model, "architecture")
        wanted = ", ".join(quoted(text) for text in constraints.architectures)
        found.append(("architectures", f"has({architecture}) && {architecture} in [{wanted}]"))
    if constraints.whole_device:
        found.append(("wholeDevice", _name(model, "whole")))
    return [*found, *(("cel", text) for text in constraints.cel)]


def companion_words(companion: Companion) -> list[tuple[str, str]]:
    """CEL for a companion, all of which must hold, each with the policy word that it stands for.

    The driver comes first: whatever its DeviceClass lets through, an accelerator never comes as a companion.
    """
    found = [("driver", f"device.driver == {quoted(companion.driver)}")]
    for (domain, name), floor in companion.minimum.items():
        found.append((f"minimum.{name}", floor_on(domain, name, floor)))
    return [*found, *(("cel", text) for text in companion.cel)]


def floor_on(domain: str, name: str, floor: Quantity) -> str:
    """CEL that holds for the devices whose capacity of that name is published and not below `floor`."""
    capacity = f"device.capacity[{quoted(domain)}].{name}"
    return f"has({capacity}) && {capacity}.compareTo(quantity({quoted(str(floor))})) >= 0"


def model_selector(model: Model) -> str:
    """CEL that holds for the devices of `model` within its DeviceClass: its own, or one made of its product globs."""
    if model.selector is not None:
        return model.selector
    product = _attribute(model, "product")
    matches = [_glob(product, glob) for glob in model.products]
    if "" in matches:
        return f"has({product})"
    return f"has({product}) && " + (matches[0] if len(matches) == 1 else f"({' || '.join(matches)})")


def quoted(text: str) -> str:
    """`text` as a CEL string literal; quotes, backslashes and control characters cannot end it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + "".join(c if c.isprintable() else _escape(c) for c in escaped) + "'"


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _glob(product: str, glob: str) -> str:
    if not glob.strip("*"):
        return ""
    inner = quoted(glob.strip("*"))
    if glob.startswith("*") and glob.endswith("*"):
        return f"{product}.contains({inner})"
    if glob.endswith("*"):
        return f"{product}.startsWith({inner})"
    if glob.startswith("*"):
        return f"{product}.endsWith({inner})"
    return f"{product} == {inner}"


def _attribute(model: Model, word: str) -> str:
    return f"device.attributes['{model.driver}'].{_name(model, word)}"


def _name(model: Model, word: str) -> str:
    published = getattr(DRIVERS.get(model.driver), word, None)
    if published is None:
        raise ValueError(f"driver {model.driver} of model {model.name} publishes nothing for {word}")
    assert isinstance(published, str)  # noqa: S101 - the table's fields named here are strings
    return published
