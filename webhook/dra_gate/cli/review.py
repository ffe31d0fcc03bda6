"""`dra-gate review`: what the gate would say, without a cluster in between."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import click
import yaml

from dra_gate.admission.facts import LANE_LABEL, Facts
from dra_gate.admission.judge import Judgement, judge
from dra_gate.admission.request import BadRequest, Request, read
from dra_gate.admission.workloads import pod_request, workload_in
from dra_gate.cli.options import cluster_options, gate_tenants, load_policies, output_option, world_from
from dra_gate.cli.text import verdict_text
from dra_gate.cluster.facts import World
from dra_gate.cluster.files import Document, InputError, read_manifests
from dra_gate.fairness.charge import Charge
from dra_gate.kube.pod import display_name
from dra_gate.kube.raw import at, mapping, text
from dra_gate.kube.workload import templates
from dra_gate.policy.model import Settings

_COUNT = re.compile(r"[0-9]{1,9}", re.ASCII)


class UsedCharge(click.ParamType[tuple[str, Charge]]):
    """`TENANT=DEVICES[,MODEL=N…]`."""

    name = "TENANT=DEVICES[,MODEL=N...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Charge]:
        """The tenant and what it holds. Fails with a usage error."""
        if isinstance(value, tuple):
            return value
        tenant, _, amounts = str(value).partition("=")
        devices, *models = amounts.split(",")
        pairs = dict(part.partition("=")[::2] for part in models)
        numbers = [devices, *pairs.values()]
        if not tenant or not all(_COUNT.fullmatch(number) for number in numbers):
            self.fail(f"{value!r} is not {self.name}, such as lilac=8 or lilac=8,h100=4", param, ctx)
        return tenant, Charge(int(devices), {model: int(count) for model, count in pairs.items()})


@click.command(epilog="Exit codes: 0 nothing denied, 1 something denied, 2 input or policy error.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--policies", required=True, metavar="DIR", help="Folder of policy files.")
@cluster_options
@click.option("--user", default="", metavar="NAME", help="Who sends bare objects: exceptions go by it.")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="A group of that user; may be given again.")
@click.option("-n", "--namespace", default="default", metavar="NAME", help="Namespace of objects that name none.")
@click.option("--used", multiple=True, type=UsedCharge(), help="What a tenant holds already; wins over the cluster.")
@output_option
def command(
    files: tuple[str, ...],
    policies: str,
    cluster: tuple[str, ...],
    kubeconfig: str | None,
    context: str | None,
    user: str,
    groups: tuple[str, ...],
    namespace: str,
    used: tuple[tuple[str, Charge], ...],
    output: str,
) -> None:
    """Judge Pods, workloads that make Pods, and recorded AdmissionReviews.

    FILE is YAML or JSON with one document or several, or a folder of such files, or - for standard input.
    Without --cluster and --kubeconfig the namespaces of all tenants count as gated.

    \b
    Examples:
      dra-gate review --policies policies/ --cluster cluster/ pod.yaml
      dra-gate review --policies policies/ --kubeconfig ~/.kube/config -o json job.yaml
      kubectl get pod p -o yaml | dra-gate review --policies policies/ --cluster cluster/ -
    """
    policy_set = load_policies(policies)
    world = World(policy_set)
    world_from(world, cluster, kubeconfig, context)
    if not cluster and not kubeconfig and not context:
        gate_tenants(world, (policy_set,))
    for tenant, charge in used:
        world.set_used(tenant, charge)
    try:
        documents = list(read_manifests(files))
    except InputError as error:
        raise click.UsageError(str(error)) from None
    sender = (user, frozenset(groups))
    entries = list(_entries(documents, world.facts(), sender, namespace))
    _print(entries, output)
    words = {entry["verdict"] for entry in entries}
    sys.exit(2 if "invalid" in words else 1 if "deny" in words else 0)


def _entries(
    documents: Iterable[Document], facts: Facts, sender: tuple[str, frozenset[str]], namespace: str
) -> Iterator[dict[str, Any]]:
    for document in documents:
        head = {"source": document.source, "index": document.index}
        try:
            requests = list(requests_of(document.value, sender, namespace, facts.policy_set.settings))
        except BadRequest as error:
            kind = text(mapping(document.value).get("kind"))
            yield {**head, "kind": kind, "verdict": "invalid", "message": str(error)}
            continue
        for where, request in requests:
            template = {"template": where} if where else {}
            yield head | template | _entry(document.value, request, judge(request, facts), facts)


def _entry(value: Any, request: Request, judgement: Judgement, facts: Facts) -> dict[str, Any]:
    verdict = judgement.deciding
    kind = request.object.get("kind") if value.get("kind") == "AdmissionReview" else value.get("kind")
    return {
        "kind": kind or text(at(value, "request", "kind", "kind")),
        "namespace": request.namespace,
        "name": request.name or display_name(request.object),
        "operation": request.operation,
        "verdict": judgement.word,
        "policy": verdict.policy,
        "reasons": [
            {
                "code": finding.code,
                "field": finding.field,
                "message": f"{finding.message}. {finding.remedy}",
                "rule": finding.rule,
                "policy": verdict.policy,
            }
            for finding in verdict.findings
        ],
        "patch": list(judgement.patch),
        "result": judgement.result,
        "charge": {"devices": judgement.charge.devices, "models": dict(judgement.charge.models)},
        "warnings": list(judgement.warnings),
        "auditAnnotations": dict(verdict.audit),
        "note": _note(request, judgement, facts),
    }


def _note(request: Request, judgement: Judgement, facts: Facts) -> str:
    """Why it is ignored, where that is because of its namespace; else empty."""
    if judgement.word != "ignore" or LANE_LABEL in facts.namespaces.get(request.namespace, ()):
        return ""
    return f"namespace {request.namespace} is not gated here: nothing says that it has the label {LANE_LABEL}"


def requests_of(
    value: Any, sender: tuple[str, frozenset[str]], namespace: str, settings: Settings
) -> Iterator[tuple[str, Request]]:
    """The requests that a document stands for: a recorded one, or a CREATE. Raises BadRequest.

    A workload stands for a Pod of each of its Pod templates, named by the template's path: whoever asks wants to know
    what becomes of the Pods, not only what `kubectl apply` would be told. Pods of built-in kinds are sent by their
    controller, those of custom kinds by `sender`.
    """
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise BadRequest(400, "this document is no Kubernetes object: it has no kind")
    if value["kind"] == "AdmissionReview":
        yield "", read(value)
        return
    create = _create(value, sender, namespace)
    workload = workload_in(create, settings)
    made = [found for path in (workload.paths if workload else ()) for found in templates(value, path)]
    for where, template in made:
        assert workload is not None  # noqa: S101 - it is where the templates were found
        asked = pod_request(create, workload, template)
        yield where, asked if workload.kind else replace(asked, username=create.username, groups=create.groups)
    if not made:
        yield "", create


def _create(obj: dict[str, Any], sender: tuple[str, frozenset[str]], namespace: str) -> Request:
    group, _, _ = text(obj.get("apiVersion")).rpartition("/")
    return Request(
        uid="review",
        operation="CREATE",
        group=group,
        resource=_RESOURCES.get(obj["kind"], obj["kind"].lower() + "s"),
        subresource="",
        namespace=text(at(obj, "metadata", "namespace")) or namespace,
        name=text(at(obj, "metadata", "name")),
        username=sender[0],
        groups=sender[1],
        dry_run=False,
        object=obj,
        old_object={},
    )


_RESOURCES = {"Ingress": "ingresses", "StorageClass": "storageclasses", "DeviceClass": "deviceclasses"}


def _print(entries: list[dict[str, Any]], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(entries, indent=2))
    elif output == "yaml":
        click.echo(yaml.safe_dump(entries, sort_keys=False), nl=False)
    else:
        for entry in entries:
            click.echo(verdict_text(entry))
