"""Every manifest is accepted by the real API server, and the Pods that they make pass admission and are hardened.

There is no kubelet: Pods are made and judged, not run.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from controlplane.api import Api, wait_for
from controlplane.control_plane import ControlPlane
from deploy.kubectl import DEPLOY, Kubectl
from dra_gate.admission.backstop import BACKSTOP
from dra_gate.admission.configurations import GATE_WRITERS
from dra_gate.cli import controller, serve, webhooks
from dra_gate.server.run import LINGER, SPARE

OVERLAYS = ("base", "overlays/own-ca", "overlays/cert-manager", "overlays/url-host-network", "overlays/url-outside")
# cert-manager itself is not here: these stand in for its CRDs, so the API server checks names and metadata, not specs.
CERT_MANAGER = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %(plural)s.cert-manager.io}
spec:
  group: cert-manager.io
  scope: Namespaced
  names: {kind: %(kind)s, plural: %(plural)s}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
"""


def test_the_committed_configurations_are_what_the_command_prints() -> None:
    done = CliRunner().invoke(webhooks.command, ["--service", "dra-gate/dra-gate-webhook"])
    assert done.exit_code == 0, done.output
    committed = (DEPLOY / "base" / "webhook-configurations.yaml").read_text()
    assert committed.partition("\n")[2] == done.output, "write it anew as its first line says"


def everything(kubectl: Kubectl, folder: str, kind: str) -> dict[str, dict[str, Any]]:
    return {found["metadata"]["name"]: found for found in kubectl.build(folder) if found["kind"] == kind}


# -- on the API server ------------------------------------------------------------------------------------------------


@pytest.fixture
def empty(kubectl: Kubectl, plane: ControlPlane) -> Iterator[Api]:
    """Nothing of the gate is there, before and after."""
    yield plane.api()
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        plane.api().delete(kind, "zz-dra-gate", missing_ok=True)
    kubectl("delete", "namespace", "dra-gate", "--ignore-not-found", "--wait=true")
    # The kind stays: the API server takes up to minutes over a definition that comes and goes within seconds.
    kubectl("delete", "clusterroles,clusterrolebindings", "-l", "app.kubernetes.io/part-of=dra-gate")


@pytest.mark.controlplane
@pytest.mark.parametrize("folder", OVERLAYS)
def test_it_is_accepted_twice_and_its_pods_pass_admission(folder: str, kubectl: Kubectl, empty: Api) -> None:
    if folder.endswith("cert-manager"):
        kinds = {"issuers": "Issuer", "certificates": "Certificate"}
        kubectl("apply", "-f", "-", text="".join(CERT_MANAGER % {"plural": p, "kind": k} for p, k in kinds.items()))
        kubectl("wait", "--for=condition=established", *(f"crd/{plural}.cert-manager.io" for plural in kinds))
    built = kubectl.build(folder)
    assert len({(one["kind"], one["metadata"]["name"]) for one in built}) == len(built)
    said = kubectl("apply", "--validate=strict", "-k", DEPLOY / folder)
    assert "Warning" not in said, said
    first = [generation(empty, one) for one in built]
    kubectl("apply", "--validate=strict", "-k", DEPLOY / folder)
    assert [generation(empty, one) for one in built] == first, "nothing in it fights with what the server stores"
    wanted = {d["metadata"]["name"]: d["spec"]["replicas"] for d in built if d["kind"] == "Deployment"}

    def made() -> bool:
        found = {
            d["metadata"]["name"]: d.get("status", {}).get("replicas") for d in empty.list("deployments", "dra-gate")
        }
        return found == wanted

    wait_for(made, 60, f"the Pods of {wanted}; {kubectl('get', 'events', '-n', 'dra-gate')}")
    for pod in empty.list("pods", "dra-gate"):
        assert pod["spec"]["priority"] == 2_000_000_000


def generation(api: Api, obj: dict[str, Any]) -> tuple[str, int | None]:
    """What is stored under the object's name, and how often its content was changed, where the kind counts that."""
    stored = api.stored(obj)
    return stored["metadata"]["name"], stored["metadata"].get("generation")


@pytest.mark.controlplane
def test_applying_again_leaves_the_certificates_alone(kubectl: Kubectl, empty: Api) -> None:
    """A pipeline applies all day; what the controller or cert-manager put into the configurations must stay."""
    kubectl("apply", "-k", DEPLOY / "overlays/own-ca")
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        count = len(empty.get(kind, "zz-dra-gate")["webhooks"])
        patch = [{"op": "add", "path": f"/webhooks/{n}/clientConfig/caBundle", "value": CA} for n in range(count)]
        empty.patch(kind, "zz-dra-gate", patch, content_type="application/json-patch+json")
    for flags in ((), ("--server-side", "--force-conflicts")):
        kubectl("apply", *flags, "-k", DEPLOY / "overlays/own-ca")
        for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            hooks = empty.get(kind, "zz-dra-gate")["webhooks"]
            assert all(hook["clientConfig"].get("caBundle") == CA for hook in hooks), (flags, kind)


CA = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUJtRENDQVQ2Z0F3SUJBZ0lVQXY3Tk1vcz0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo="


# -- what the Pods may do ---------------------------------------------------------------------------------------------


@pytest.mark.controlplane
@pytest.mark.parametrize("folder", [one for one in OVERLAYS if not one.endswith("outside")])
def test_pods_are_hardened_and_can_drain(folder: str, kubectl: Kubectl) -> None:
    deployments = everything(kubectl, folder, "Deployment")
    assert {name: d["spec"]["replicas"] for name, d in deployments.items()} == {
        "dra-gate-webhook": 3,
        "dra-gate-controller": 2,
    }
    drain = next(option.default for option in serve.command.params if option.name == "drain_seconds")
    assert isinstance(drain, float)
    for deployment in deployments.values():
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 65532
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "cpu" not in container["resources"]["limits"]
        assert container["resources"]["limits"]["memory"]
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert pod["terminationGracePeriodSeconds"] > drain + LINGER + SPARE
        assert pod["priorityClassName"] == "system-cluster-critical"
        assert pod["topologySpreadConstraints"]
        known(container["args"])
        mounted = [volume["secret"] for volume in pod.get("volumes", [])]
        assert all({item["key"] for item in secret["items"]} == {"tls.crt", "tls.key"} for secret in mounted)


def known(arguments: list[str]) -> None:
    """The command has these options."""
    command = {"serve": serve.command, "controller": controller.command}[arguments[0]]
    options = {name for parameter in command.params for name in parameter.opts}
    assert {argument.partition("=")[0] for argument in arguments[1:]} <= options


@pytest.mark.controlplane
def test_with_the_backstop_comes_a_controller_that_looks_for_it(kubectl: Kubectl, tmp_path: Path) -> None:
    paths = {name: os.path.relpath(DEPLOY / name, tmp_path) for name in ("base", "components/backstop")}
    wanted = {"resources": [paths["base"]], "components": [paths["components/backstop"]]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    built = list(yaml.safe_load_all(kubectl("kustomize", tmp_path)))
    arguments = {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]["containers"][0]["args"]
        for one in built
        if one["kind"] == "Deployment"
    }
    assert "--backstop" in arguments["dra-gate-controller"]
    known(arguments["dra-gate-controller"])
    assert [one["kind"] for one in built if one["metadata"]["name"] == BACKSTOP] == [
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]


@pytest.mark.controlplane
def test_the_right_to_evict_and_the_switch_come_together(kubectl: Kubectl, tmp_path: Path) -> None:
    for components in ([], ["components/recreate"]):
        paths = {name: os.path.relpath(DEPLOY / name, tmp_path) for name in ("base", *components)}
        wanted = {"resources": [paths["base"]], "components": [paths[one] for one in components]}
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
        built = list(yaml.safe_load_all(kubectl("kustomize", tmp_path)))
        (arguments,) = (
            one["spec"]["template"]["spec"]["containers"][0]["args"]
            for one in built
            if one["kind"] == "Deployment" and one["metadata"]["name"] == "dra-gate-controller"
        )
        known(arguments)
        rights = [rule["resources"] for one in built for rule in one.get("rules") or ()]
        assert ("--recreate" in arguments) is (["pods/eviction"] in rights) is bool(components)


@pytest.mark.controlplane
def test_the_right_to_change_namespaces_comes_with_its_component_alone(kubectl: Kubectl, tmp_path: Path) -> None:
    for components in ([], ["components/canary-rollback"]):
        paths = {name: os.path.relpath(DEPLOY / name, tmp_path) for name in ("base", *components)}
        wanted = {"resources": [paths["base"]], "components": [paths[one] for one in components]}
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
        built = list(yaml.safe_load_all(kubectl("kustomize", tmp_path)))
        verbs = {
            verb
            for one in built
            for rule in one.get("rules") or ()
            if "namespaces" in rule["resources"]
            for verb in rule["verbs"]
        }
        assert verbs == {"list", "watch", *(["patch"] if components else [])}


@pytest.mark.controlplane
def test_names_that_the_code_knows_are_those_of_the_manifests(kubectl: Kubectl) -> None:
    accounts = everything(kubectl, "base", "ServiceAccount")
    assert {f"system:serviceaccount:dra-gate:{name}" for name in accounts} == set(GATE_WRITERS)
    service = everything(kubectl, "base", "Service")["dra-gate-webhook"]
    webhook = everything(kubectl, "base", "Deployment")["dra-gate-webhook"]
    for selected in (service["spec"]["selector"], webhook["spec"]["selector"]["matchLabels"]):
        assert selected.items() <= webhook["spec"]["template"]["metadata"]["labels"].items()
    for kind, selector in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        for name, found in everything(kubectl, "base", kind).items():
            pods = everything(kubectl, "base", "Deployment")[name]["spec"]["template"]["metadata"]["labels"]
            assert found["spec"][selector]["matchLabels"].items() <= pods.items()


@pytest.mark.controlplane
def test_the_scheduler_takes_its_configuration(plane: ControlPlane, tmp_path: Path) -> None:
    """kube-scheduler itself reads it; only the kubeconfig is put in place of the node's."""
    config = yaml.safe_load((DEPLOY / "scheduler" / "config.yaml").read_text())
    config["clientConnection"]["kubeconfig"] = str(plane.kubeconfig_for())
    given, written = tmp_path / "given.yaml", tmp_path / "written.yaml"
    given.write_text(yaml.safe_dump(config))
    scheduler = plane.kubectl.with_name("kube-scheduler")
    command = [scheduler, f"--config={given}", f"--write-config-to={written}", "--secure-port=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(written.read_text())["percentageOfNodesToScore"] == 100
