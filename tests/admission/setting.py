"""The small world that admission tests judge in: two tenants, three classes that give devices, two that give none."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from dra_gate.admission.facts import Facts
from dra_gate.admission.request import Request
from dra_gate.cluster.facts import World
from dra_gate.cluster.files import load_manifests
from dra_gate.policy.load import load_documents
from dra_gate.policy.model import PolicyRef, PolicySet, Settings

WORLD = Path(__file__).parent / "world"
_TEMPLATE = re.compile(r"<(\w+): (\w+)@(\d+) x(\d+)>")  # <fern: train@2 x1>: the compiled template's name


@cache
def policy_set() -> PolicySet:
    return load_documents({name: (WORLD / name).read_bytes() for name in ("policies.yaml", "settings.yaml")})


def world(*objects: dict[str, Any]) -> World:
    made = World(policy_set())
    for obj in [*load_manifests([str(WORLD / "cluster.yaml")]), *objects]:
        assert made.apply(obj)
    return made


@cache
def facts() -> Facts:
    return world().facts()


def with_settings(known: Facts, settings: Settings) -> Facts:
    """The same facts under other settings of the cluster."""
    return replace(known, policy_set=replace(known.policy_set, settings=settings))


@cache
def facts_where_void_is_set(on: str) -> Facts:
    """The same facts under `visibleDevicesVoid: <on>`."""
    settings = replace(policy_set().settings, visible_devices_void=on)
    return replace(facts(), policy_set=replace(policy_set(), settings=settings))


def template_name(tenant: str, policy: str, version: int, count: int) -> str:
    return facts().index.for_count(tenant, PolicyRef(policy, version), count).name


def resolved(value: Any) -> Any:
    """`value` with every `<tenant: policy@version xN>` replaced by the compiled template's name, and `<set>` by the
    policy set's digest."""
    if isinstance(value, dict):
        return {resolved(key): resolved(item) for key, item in value.items()}
    if isinstance(value, list):
        return [resolved(item) for item in value]
    if isinstance(value, str):
        named = _TEMPLATE.sub(lambda m: template_name(m[1], m[2], int(m[3]), int(m[4])), value)
        return named.replace("<set>", policy_set().digest)
    return value


def request(
    obj: dict[str, Any],
    *,
    namespace: str = "fern-dev",
    operation: str = "CREATE",
    old: dict[str, Any] | None = None,
    resource: tuple[str, str] = ("", "pods"),
    user: str = "ada@fern.example",
    groups: tuple[str, ...] = ("system:authenticated",),
    uid: str = "00000000-0000-4000-8000-000000000001",
) -> Request:
    """`resource` is group and resource, a subresource behind a slash."""
    return Request(
        uid=uid,
        operation=operation,
        group=resource[0],
        resource=resource[1].partition("/")[0],
        subresource=resource[1].partition("/")[2],
        namespace=namespace,
        name="",
        username=user,
        groups=frozenset(groups),
        dry_run=False,
        object=obj,
        old_object=old or {},
    )


def pod(**spec: Any) -> dict[str, Any]:
    """A Pod with one container that asks for nothing, unless `spec` says otherwise."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "registry.example/a:1"}], **spec},
    }


def asking(count: Any, resource: str = "nvidia.com/gpu") -> dict[str, Any]:
    """A container that asks for devices, as the API server sends it: requests copied from limits."""
    return {"name": "c", "image": "a", "resources": {"limits": {resource: count}, "requests": {resource: count}}}


def labelled(name: str, **labels: str) -> dict[str, Any]:
    """A namespace with labels of our domain."""
    return {
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {f"dra-gate.io/{k}": v for k, v in labels.items()}},
    }


def row_request(row: dict[str, Any]) -> Request:
    """The request that a row of a rule's table stands for."""
    return request(
        row["object"],
        old=row.get("old"),
        namespace=row.get("namespace", "fern-dev"),
        operation=row.get("operation", "CREATE"),
        resource=tuple(row.get("resource", ("", "pods"))),
        user=row.get("user", "ada@fern.example"),
    )


def load_table(path: Path) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = yaml.safe_load(path.read_text())
    return loaded
