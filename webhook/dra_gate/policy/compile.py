"""Policy words to ResourceClaimTemplates. Pure: the same policy set gives the same templates, byte for byte.

Every default of the API is written out, so that what the API server stores equals what is compiled here: the validating
webhook tells a tenant's template from a look-alike by content (resource.k8s.io/v1 ResourceClaimTemplateSpec).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra_gate.policy.drivers import DRIVERS
from dra_gate.policy.model import MAX_DEVICES, Constraints, DevicePolicy, Model, PolicyRef, PolicySet, Tenant

NAME_PREFIX = "dra-gate-"  # reserved for the gate's own claims and templates
REQUEST = "gpu"  # the one request of a template; its alternatives are called after their models
DOMAIN = "dra-gate.io"


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled ResourceClaimTemplate. `spec` is its `.spec`: metadata for the generated claims, and their spec.

    `candidates` are the models in order of preference; `count` is how many devices a claim gets, all of one model.
    """

    name: str
    tenant: str
    policy: PolicyRef
    count: int
    candidates: tuple[str, ...]
    spec: Mapping[str, Any]

    def manifest(self, namespace: str) -> dict[str, Any]:
        """The object to create in `namespace`; it carries the same labels and annotations as its claims will."""
        stamp = self.spec["metadata"]
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {
                "name": self.name,
                "namespace": namespace,
                "labels": dict(stamp["labels"]),
                "annotations": dict(stamp["annotations"]),
            },
            "spec": self.spec,
        }


class TemplateIndex:
    """All templates of a policy set: every policy a tenant honours, at every device count from 1 to `MAX_DEVICES`."""

    def __init__(self, templates: Iterator[Template]) -> None:
        self._by_count: dict[tuple[str, PolicyRef, int], Template] = {}
        self._by_name: dict[tuple[str, str], Template] = {}
        self._any_by_name: dict[str, Template] = {}
        for template in templates:
            self._by_count[template.tenant, template.policy, template.count] = template
            self._by_name[template.tenant, template.name] = template
            self._any_by_name[template.name] = template

    def for_count(self, tenant: str, ref: PolicyRef, count: int) -> Template:
        """The tenant's template for `count` devices.

        Raises KeyError for a policy that the tenant does not honour, and for a count out of range.
        """
        return self._by_count[tenant, ref, count]

    def named(self, name: str) -> Template | None:
        """The template of that name, whoever's it is: the name holds a digest of its content, the tenant included."""
        return self._any_by_name.get(name)

    def by_name(self, tenant: str, name: str) -> Template | None:
        """The tenant's template of that name, or None: a name that this policy set does not compile to."""
        return self._by_name.get((tenant, name))


def templates_of(policy_set: PolicySet) -> TemplateIndex:
    """Compiles everything the tenants of `policy_set` may use. Done once when a set is loaded, never per request."""

    def each() -> Iterator[Template]:
        for tenant in policy_set.tenants.values():
            refs = dict.fromkeys(ref for namespace in tenant.namespaces for ref in tenant.valid_refs(namespace))
            for ref in refs:
                for count in range(1, MAX_DEVICES + 1):
                    yield compile_template(tenant, policy_set.policies[ref], policy_set.models, count)

    return TemplateIndex(each())


def compile_template(tenant: Tenant, policy: DevicePolicy, models: Mapping[str, Model], count: int) -> Template:
    """The template that gives a tenant's container `count` devices of one model under `policy`.

    `models` is the catalogue that `policy` was loaded with. Raises ValueError when `count` is not in 1..`MAX_DEVICES`.
    """
    if not 1 <= count <= MAX_DEVICES:
        raise ValueError(f"a claim holds 1 to {MAX_DEVICES} devices, not {count}")
    devices: dict[str, Any] = {
        "requests": [
            {
                "name": REQUEST,
                "firstAvailable": [
                    {
                        "name": name,
                        "deviceClassName": models[name].device_class,
                        "allocationMode": "ExactCount",
                        "count": count,
                        "selectors": [
                            {"cel": {"expression": text}} for text in selectors(models[name], policy.constraints)
                        ],
                    }
                    for name in policy.candidates
                ],
            }
        ]
    }
    if count > 1 and policy.constraints.same_attribute:
        devices["constraints"] = [
            {"requests": [REQUEST], "matchAttribute": attribute} for attribute in policy.constraints.same_attribute
        ]
    spec = {
        "metadata": {
            "labels": {
                "app.kubernetes.io/managed-by": "dra-gate",
                f"{DOMAIN}/tenant": tenant.name,
                f"{DOMAIN}/policy": policy.ref.name,
                f"{DOMAIN}/policy-version": str(policy.ref.version),
            },
            "annotations": {
                f"{DOMAIN}/candidates": ",".join(policy.candidates),
                f"{DOMAIN}/devices": str(count),
                f"{DOMAIN}/policy-digest": policy.digest,
            },
        },
        "spec": {"devices": devices},
    }
    name = f"{NAME_PREFIX}{policy.ref.name}-v{policy.ref.version}-x{count}-{content_digest(spec)[:10]}"
    return Template(name, tenant.name, policy.ref, count, policy.candidates, spec)


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
        memory = f"device.capacity['{model.driver}'].{_name(model, 'memory')}"
        floor = quoted(str(constraints.memory_min))
        found.append(("memory", f"has({memory}) && {memory}.compareTo(quantity({floor})) >= 0"))
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
