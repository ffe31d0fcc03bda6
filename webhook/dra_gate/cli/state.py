"""Where the verbs that explain get their state from: a file that `dra-gate snapshot` wrote, or a live cluster."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dra_gate.allocation.around import AROUND, CANARY_PLAN, FEATURE_GATE, TOOL
from dra_gate.allocation.snapshot import SnapshotError
from dra_gate.allocation.state import State, loads, state_of
from dra_gate.cli.failure import Failure
from dra_gate.cli.options import connect
from dra_gate.cluster.facts import DRA, PATHS
from dra_gate.cluster.gate import GATE_PATH, read_gate
from dra_gate.cluster.policy_map import MAPS_PATH, SELECTOR, digest_of
from dra_gate.kube.raw import Object, at, mapping, text
from dra_gate.policy.load import PolicyErrors, load_documents, read_folder

if TYPE_CHECKING:
    from dra_gate.cluster.client import Client

_KINDS = ("Namespace", "Node", "DeviceClass", "ResourceSlice", "ResourceClaim", "Pod", "ResourceClaimTemplate")
_AROUND = {
    "RuntimeClass": PATHS["RuntimeClass"],
    **{
        kind: f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}s"
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    },
    **{
        kind: f"/apis/rbac.authorization.k8s.io/v1/{kind.lower()}s"
        for kind in ("ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding")
    },
}
_GATE_LINE = re.compile(rb'^kubernetes_feature_enabled\{name="((?:DRA|Dynamic)\w+)".*\} ([01])', re.MULTILINE)
_RULE_VERSIONS = ("v1", "v1beta2", "v1alpha3")


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """What is read stays to the end: to look for garbage among a million such objects costs more than reading them."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@_kept()
def read_state(file: str) -> State:
    """The state in a file, `-` for standard input. Ends the command with exit code 2 for what is none."""
    try:
        return loads(sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())
    except OSError as error:
        raise Failure(f"{file}: {error.strerror or error}") from None
    except SnapshotError as error:
        raise Failure(f"{file}: {error}") from None


def state_from(
    file: str | None, kubeconfig: str | None, context: str | None, policies: str | None, *, with_around: bool = False
) -> State:
    """The state to explain: of a file, or of a live cluster, with the policies of a folder in place of its own."""
    if file and (kubeconfig or context):
        raise click.UsageError("--snapshot reads a file and --kubeconfig a live cluster: give one of the two")
    if file:
        return read_state(file)
    return live_state(kubeconfig, context, policies, with_around=with_around)


@_kept()
def live_state(
    kubeconfig: str | None,
    context: str | None,
    policies: str | None = None,
    namespace: str = "",
    *,
    with_around: bool = False,
) -> State:
    """The state of a live cluster, listed once; without `policies` under its published sets. `with_around`: with what
    stands around, as far as the caller may read it.
    """
    from dra_gate.cluster.client import ClusterError  # noqa: PLC0415 - slow to import, and often not needed

    client = connect(kubeconfig, context)
    try:
        version = text(client.get("/version").get("gitVersion"))
        files, active = folder_set(policies) if policies else _published(client)
        around = _around(client) if with_around else {}
        return state_of(
            chain(*around.values(), _objects(client, namespace, old=with_around)),
            version=version,
            policies=files,
            active=active,
            namespace=namespace,
            around=around,
        )
    except ClusterError as error:
        raise Failure(f"the cluster cannot be read: {error}") from None
    finally:
        client.close()


def folder_set(folder: str) -> tuple[Mapping[str, Mapping[str, str]], str]:
    """The one policy set of a folder, in the form that a state has. Errors end the command with exit code 2."""
    try:
        files = read_folder(folder)
        documents = dict(files)
        digest = load_documents(documents, documents.pop("RELEASED", None)).digest
    except PolicyErrors as errors:
        raise Failure(str(errors)) from None
    return {digest: {name: content.decode() for name, content in files.items()}}, digest


def _objects(client: Client, namespace: str, *, old: bool) -> Iterator[Object]:
    """The objects of all kinds. `old`: also of a cluster that is too old to have those of DRA."""
    from dra_gate.cluster.client import NotFound  # noqa: PLC0415 - slow to import, and often not needed

    within = f"/api/v1/namespaces/{namespace}" if namespace else "/api/v1"
    for path in (*(PATHS[kind] for kind in _KINDS), f"{within}/resourcequotas"):
        with contextlib.suppress(*([NotFound] if old and path.startswith(DRA) else [])):
            yield from client.list(path)
    yield from client.list(f"{within}/events", params={"fieldSelector": "type=Warning"})
    yield from _taint_rules(client)
    yield from _ledgers(client)


def _around(client: Client) -> dict[str, list[Object]]:
    """What stands around, by kind; kinds that this user may not read are left out."""
    from dra_gate.cluster.client import ApiError  # noqa: PLC0415 - slow to import, and often not needed

    found: dict[str, list[Object]] = {TOOL: []}  # they are told from Pods
    for kind in set(AROUND) - found.keys():
        try:
            if kind == FEATURE_GATE:
                found[kind] = [
                    {"kind": kind, "metadata": {"name": name.decode()}, "enabled": state == b"1"}
                    for name, state in _GATE_LINE.findall(client.read("/metrics"))
                ]
            elif kind == CANARY_PLAN:
                found[kind] = _plan(client)
            else:
                found[kind] = list(client.list(_AROUND[kind]))
        except ApiError as error:
            if error.status not in (403, 404):
                raise
    return found


def _plan(client: Client) -> list[Object]:
    """What the plan of waves wants done on a hard stop; nothing of one that can't be read: nobody is moved by it."""
    from dra_gate.cluster.lanes import read_stored  # noqa: PLC0415 - slow to import, and often not needed
    from dra_gate.migration.waves import PlanError  # noqa: PLC0415

    try:
        stored, plan = read_stored(client)
    except PlanError:
        return []
    if stored is None or plan is None:
        return []
    return [{"kind": CANARY_PLAN, "metadata": mapping(stored.get("metadata")), "onStop": plan.on_stop.act}]


def _taint_rules(client: Client) -> list[Object]:
    """The taint rules, under the version of their API that the cluster serves; none where it serves none."""
    from dra_gate.cluster.client import NotFound  # noqa: PLC0415 - slow to import, and often not needed

    for version in _RULE_VERSIONS:
        try:
            return list(client.list(f"/apis/resource.k8s.io/{version}/devicetaintrules"))
        except NotFound:
            continue
    return []


def _ledgers(client: Client) -> list[Object]:
    """The tenants' ledgers; none where the gate of before they were made is installed."""
    from dra_gate.cluster.client import NotFound  # noqa: PLC0415 - slow to import, and often not needed
    from dra_gate.cluster.ledger import PATH  # noqa: PLC0415

    try:
        return list(client.list(PATH))
    except NotFound:
        return []


def _published(client: Client) -> tuple[Mapping[str, Mapping[str, str]], str]:
    """The policy sets that the Gate names, and which of them is active; none where there is no Gate."""
    from dra_gate.cluster.client import NotFound  # noqa: PLC0415 - slow to import, and often not needed

    try:
        gate = read_gate(client.get(GATE_PATH))
    except NotFound:
        return {}, ""
    files = {}
    for obj in client.list(MAPS_PATH, params={"labelSelector": SELECTOR}):
        digest = digest_of(text(at(obj, "metadata", "name")))
        if digest in gate.named:
            files[digest] = {name: text(content) for name, content in mapping(obj.get("data")).items()}
    return files, gate.active
