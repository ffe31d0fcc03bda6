"""`dra-gate demo`: the gate as a process behind TLS, real AdmissionReviews, and what comes back, for people to read."""

from __future__ import annotations

import base64
import contextlib
import difflib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import urllib3
import yaml

from dra_gate.cli.failure import Failure
from dra_gate.cli.options import load_policies
from dra_gate.cluster.files import InputError, load_manifests
from dra_gate.kube.patch import apply
from dra_gate.kube.pod import claim_entries, containers, display_name, extended_resource_names
from dra_gate.kube.raw import at, mapping, text
from dra_gate.kube.workload import pod_of
from dra_gate.policy.model import Constraints, Model, PolicySet

_START_SECONDS = 20
_WIDTH = 100


@click.command(name="demo")
@click.option(
    "--policies", default="policies", show_default=True, metavar="DIR", help="Policy folder, with examples/ in it."
)
def command(policies: str) -> None:
    """Serve the example policies over TLS, send example Pods, and show what the gate makes of each.

    No cluster is needed: it is kept in DIR/examples/cluster.yaml, the Pods in DIR/examples/pods.yaml.

    \b
    Examples:
      dra-gate demo
      dra-gate demo --policies my-policies/
    """
    examples = Path(policies) / "examples"
    policy_set = load_policies(policies)
    try:
        workloads = load_manifests([str(examples / "pods.yaml")])
    except InputError as error:
        raise Failure(f"{error}; run this from a checkout, or name a folder that has examples/") from None
    with (
        tempfile.TemporaryDirectory(prefix="dra-gate-demo-") as folder,
        _gate(policies, examples, Path(folder)) as gate,
    ):
        for number, workload in enumerate(workloads, 1):
            click.echo(_told(number, workload, gate, policy_set))
    called = "dra-gate" if shutil.which("dra-gate") else os.path.relpath(sys.argv[0])  # what finds it from here
    click.echo(f"Judge your own: {called} review --policies {policies} --cluster {examples / 'cluster.yaml'} pod.yaml")


class _Client:
    """Sends AdmissionReviews as kube-apiserver does: over TLS, JSON both ways."""

    def __init__(self, port: int, ca_file: Path) -> None:
        self._address = f"https://127.0.0.1:{port}"
        self._http = urllib3.PoolManager(ca_certs=str(ca_file), retries=False, timeout=5)

    def ready(self) -> bool:
        try:
            return self._http.request("GET", f"{self._address}/readyz").status == 200
        except urllib3.exceptions.HTTPError:
            return False

    def review(self, route: str, pod: Any, namespace: str) -> dict[str, Any]:
        """The `response` to a CREATE of `pod`."""
        asked = {
            "uid": str(uuid.uuid4()),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": namespace,
            "userInfo": {"username": "ada@research.example", "groups": ["system:authenticated"]},
            "object": pod,
        }
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
        response: dict[str, Any] = self._http.request("POST", f"{self._address}/{route}", json=review).json()[
            "response"
        ]
        return response


@contextlib.contextmanager
def _gate(policies: str, examples: Path, folder: Path) -> Iterator[_Client]:
    """A gate of its own on a free loopback port, with a CA of its own; ended on leaving."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    run = [sys.executable, "-m", "dra_gate"]
    certs = [*run, "certs", "--out", str(folder), "--ip", "127.0.0.1"]
    subprocess.run(certs, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own program
    serve = ["serve", "--policies", policies, "--cluster", str(examples / "cluster.yaml"), "--cert-dir", str(folder)]
    with (
        (folder / "log").open("w+") as log,
        subprocess.Popen(  # noqa: S603 - our own program
            [*run, *serve, "--listen", f"127.0.0.1:{port}", "--status-listen", "off", "--drain-seconds", "0"],
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            client = _Client(port, folder / "ca.crt")
            deadline = time.monotonic() + _START_SECONDS
            while not client.ready():
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise Failure(f"the gate did not start:\n{log.read()}")
                time.sleep(0.05)
            yield client
        finally:
            process.terminate()


def _told(number: int, workload: dict[str, Any], gate: _Client, policy_set: PolicySet) -> str:
    """One example: what was asked, what the gate said, and what changed."""
    pod = pod_of(workload) or workload
    namespace = text(at(workload, "metadata", "namespace"))
    annotations = dict(mapping(at(workload, "metadata", "annotations")))
    story = annotations.pop("demo", "")
    if pod is workload:
        metadata = {key: value for key, value in mapping(workload.get("metadata")).items() if key != "annotations"}
        pod = {**workload, "metadata": metadata | ({"annotations": annotations} if annotations else {})}
    lines = ["─" * _WIDTH, click.style(f"{number}. {story}", bold=True)]
    lines += [f"   {workload['kind']} {namespace}/{display_name(workload)}  {_asks(pod)}"]
    first = gate.review("mutate", pod, namespace)
    result = apply(pod, json.loads(base64.b64decode(first["patch"]))) if "patch" in first else pod
    last = gate.review("validate", result, namespace) if first["allowed"] else first
    word, colour = (
        ("DENIED", "red") if not last["allowed"] else ("MUTATED", "green") if result != pod else ("ADMITTED", "green")
    )
    audit = last.get("auditAnnotations", {})
    by = f"policy {audit['policy']} of tenant {audit['tenant']}" if "policy" in audit else "no policy was asked"
    lines.append(f"   {click.style(word, fg=colour, bold=True)}  {by}")
    if not last["allowed"]:
        lines.append(_folded(last["status"]["message"]))
    warnings = dict.fromkeys((*first.get("warnings", ()), *last.get("warnings", ())))  # the API server folds equal ones
    lines += [_folded(f"Warning: {warning}") for warning in warnings]
    if word == "MUTATED":
        lines.append(_folded(_devices(policy_set, audit["policy"])))
    lines += _diff(pod, result)
    return "\n".join(lines)


def _devices(policy_set: PolicySet, ref: str) -> str:
    """Which models the Pod may get, in order, and why not the others."""
    policy = next(policy for policy in policy_set.policies.values() if str(policy.ref) == ref)
    left_out = [
        f"{model.name} ({_why_not(model, policy.constraints)})"
        for model in policy_set.models.values()
        if model.name not in policy.candidates
    ]
    order = ", else ".join(policy.candidates)
    return f"Gets {order}{'; never ' + ', '.join(left_out) if left_out else ''}"


def _why_not(model: Model, constraints: Constraints) -> str:
    if constraints.memory_min and model.memory and model.memory < constraints.memory_min:
        return f"{model.memory} is below the floor of {constraints.memory_min}"
    if constraints.architectures and model.architecture and model.architecture not in constraints.architectures:
        return f"{model.architecture} is none of {', '.join(constraints.architectures)}"
    return "the policy does not list it"


def _asks(pod: dict[str, Any]) -> str:
    asked = []
    for container in containers(pod):
        resources = mapping(container.raw.get("resources"))
        written = {**mapping(resources.get("requests")), **mapping(resources.get("limits"))}
        asked += [f"{container.name}: {written[name]} x {name}" for name in extended_resource_names(container)]
    claims = [text(entry.get("resourceClaimTemplateName")) for entry in claim_entries(pod)]
    asked += [f"claim from template {name}" for name in claims]
    return f"asks for {'; '.join(asked)}" if asked else "asks for no device"


def _folded(message: str) -> str:
    return click.wrap_text(message, _WIDTH, "   ", "     ")


def _diff(before: Any, after: Any) -> list[str]:
    was, now = (yaml.safe_dump(value, sort_keys=False, width=200).splitlines() for value in (before, after))
    colours = {"+": "green", "-": "red"}
    return [
        f"   {click.style(line, fg=colours.get(line[:1]))}"
        for line in list(difflib.unified_diff(was, now, lineterm="", n=1))[2:]
        if not line.startswith("@@")
    ]
