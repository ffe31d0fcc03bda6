"""The clean cluster of the preflight checks, and changes to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dra_gate.allocation.around import AROUND, FEATURE_GATE
from dra_gate.allocation.state import State, dumps, loads, state_of
from dra_gate.migration import preflight
from dra_gate.policy.compile import templates_of
from dra_gate.policy.load import load_documents

Object = dict[str, Any]

HERE = Path(preflight.__file__).parent
DEPLOY = Path(__file__).parents[2] / "deploy"
_GATES = ("DynamicResourceAllocation", "DRAPrioritizedList", "DRAExtendedResource", "DRADeviceTaints")


def fault(
    *,
    change: list[Object] = [],  # noqa: B006 - never changed
    without: list[str] = [],  # noqa: B006
    policies: list[Object] | str = [],  # noqa: B006
    version: str = "v1.37.2",
    gates: dict[str, bool] = {},  # noqa: B006
    unread: list[str] = [],  # noqa: B006
) -> State:
    """The clean cluster with `change` in place of objects of the same kind, namespace and name, and without those of a
    `Kind`, `Kind/name` or `Kind/namespace/name`. It went through a file.
    """
    documents = list(yaml.safe_load_all((HERE / "clean.yaml").read_text()))
    base = [
        one
        for name in ("base/rbac.yaml", "base/webhook-configurations.yaml", "components/recreate/rbac.yaml")
        for one in yaml.safe_load_all((DEPLOY / name).read_text())
        if one
    ]
    files = {_place(one): one for one in documents if one["apiVersion"].startswith("policy.")}
    digest = ""
    objects = [one for one in documents if _place(one) not in files] + base
    published = {}
    if policies != "none":
        files |= {_place(one): one for one in policies if isinstance(one, dict)}
        content = yaml.safe_dump_all(files.values())
        policy_set = load_documents({"all.yaml": content.encode()})
        digest = policy_set.digest
        published = {digest: {"all.yaml": content}}
        objects += [
            template.manifest(namespace)
            for namespace, tenant in policy_set.tenant_by_namespace.items()
            for template in templates_of(policy_set).of(tenant, policy_set.tenants[tenant].policy)
        ]
    objects += [{"kind": FEATURE_GATE, "metadata": {"name": name}, "enabled": gates.get(name, True)} for name in _GATES]
    placed = {_place(one): one for one in objects} | {_place(one): one for one in change}
    for name in without:
        gone = [place for place in placed if f"{place}/".startswith(f"{name}/")]
        assert gone, f"the clean cluster has no {name}"
        for place in gone:
            del placed[place]
    state = state_of(
        placed.values(),
        version=version,
        policies=published,
        active=digest,
        around=[kind for kind in AROUND if kind not in unread],
    )
    return loads(dumps(state))


def _place(one: Object) -> str:
    metadata = one.get("metadata", {})
    parts = (one["kind"], metadata.get("namespace", ""), metadata.get("name", ""))
    return "/".join(part for part in parts if part)
