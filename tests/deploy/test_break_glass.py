"""docs/operations/break-glass.md: for each trouble, what the API server says, and that Pods come in after the step."""

from __future__ import annotations

import base64
import datetime as dt
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane.api import Answer, Api, ApiError, Object, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.fleet import Fleet
from deploy.doc import Shell, sections
from deploy.kubectl import DEPLOY
from deploy.played_pods import CONTROLLER, WEBHOOK, PlayedPods
from dra_gate.controller.x509 import Pair, new_authority, new_serving

pytestmark = pytest.mark.controlplane
ROOT = DEPLOY.parent
STEPS = sections(ROOT / "docs" / "operations" / "break-glass.md")
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
NAMESPACE = "research-train"
POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "p-"},
    "spec": {"containers": [{"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
}
KUSTOMIZATION = "kind: Kustomization\nresources: [../../deploy/overlays/own-ca]\n"


class Site:
    """An installed gate, with two published policy sets and a gated namespace."""

    def __init__(self, shell: Shell, pods: PlayedPods) -> None:
        self.shell = shell
        self.api: Api = shell.api
        self.pods = pods

    def create(self) -> Object:
        """A device Pod, as whoever submits one."""
        return self.api.create(POD, NAMESPACE)

    def refused(self) -> str:
        """What the API server says to a device Pod; empty if it takes it."""
        try:
            self.api.create(POD, NAMESPACE, dry_run=True)
        except ApiError as error:
            return error.message
        return ""

    def stamped(self) -> bool:
        """Whether the gate judges and changes Pods."""
        try:
            return "dra-gate.io/policy" in self.api.create(POD, NAMESPACE, dry_run=True)["metadata"].get(
                "annotations", {}
            )
        except ApiError:
            return False

    def commands(self, title: str) -> list[str]:
        return STEPS[title]


@pytest.fixture(scope="module")
def site(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(DEPLOY, folder / "deploy")
    shutil.copytree(ROOT / "policies", folder / "my-policies")
    own = folder / "cluster" / "dra-gate"
    own.mkdir(parents=True)
    (own / "kustomization.yaml").write_text(KUSTOMIZATION)
    api = plane.api()
    fleet = Fleet.load("demo")
    fleet.install(api)
    with PlayedPods(plane) as pods:
        shell = Shell(folder, plane)
        shell.run("kubectl apply -k cluster/dra-gate")
        shell.run("kubectl wait --for=condition=established crd/gates.dra-gate.io")
        publish = 'dra-gate policy publish my-policies --no-lint --activate --note x --kubeconfig "$KUBECONFIG"'
        shell.run(publish)
        metadata = {"name": NAMESPACE, "labels": {"dra-gate.io/lane": "dra"}}
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        made = Site(shell, pods)
        wait_for(made.stamped, 60, f"the gate to work; {pods.logs()}", every=0.3)
        yield made
        shell.run("kubectl delete mutatingwebhookconfiguration,validatingwebhookconfiguration zz-dra-gate")
        shell.run(f"kubectl delete --ignore-not-found -k cluster/dra-gate && kubectl delete namespace {NAMESPACE}")
    fleet.remove(api)


@pytest.fixture(autouse=True)
def works_before_and_after(site: Site) -> Iterator[None]:
    """Every test leaves the gate at work."""
    yield
    site.pods.paused.clear()
    wait_for(site.stamped, 60, f"the gate to work again; {site.refused()} {site.pods.logs()}", every=0.3)


@contextmanager
def gone(site: Site) -> Iterator[None]:
    """Every replica and controller is dead, and nobody starts them again before the end."""
    site.pods.paused.set()
    site.pods.kill(WEBHOOK)
    site.pods.kill(CONTROLLER)
    wait_for(lambda: not site.pods.forwarder.ready, 10, "nobody to answer")
    # A call on a connection that is just breaking is told otherwise.
    wait_for(lambda: "connection refused" in site.refused(), 10, "calls to be refused")
    assert 'failed calling webhook "validate.dra-gate.io"' in site.refused()
    yield
    site.pods.paused.clear()


def test_the_gate_is_gone_bring_it_back(site: Site) -> None:
    with gone(site):
        for command in site.commands("The gate is gone: bring it back"):
            site.shell.run(command)
    wait_for(site.stamped, 60, "the gate to work", every=0.3)
    site.create()


@pytest.mark.parametrize(
    "title",
    [
        "The gate is gone: one namespace without it",
        "The gate is gone: admit without judging",
        "The gate is gone: take it out of the way",
    ],
)
def test_the_gate_is_gone_and_stays_away(title: str, site: Site) -> None:
    first, *after = site.commands(title)
    with gone(site):
        site.shell.run(first)
        made = wait_for(lambda: attempt(site), 5, "a Pod to be created")
        assert "dra-gate.io/policy" not in made["metadata"].get("annotations", {})
        (afterwards,) = site.commands("Afterwards")
        lines = site.shell.run(afterwards).splitlines()
        assert any(line.split()[:2] == [made["metadata"]["name"], "<none>"] for line in lines)
    for command in after:
        site.shell.run(command)
    wait_for(site.stamped, 60, "the gate to work", every=0.3)


def attempt(site: Site) -> Object | None:
    try:
        return site.create()
    except ApiError:
        return None


def test_nobody_trusts_the_certificate_own_ca(site: Site) -> None:
    """The Secret holds a pair that somebody else's CA signed, and replicas have been started with it."""
    foreign = new_authority(dt.datetime.now(dt.UTC), dt.timedelta(days=10))
    with x509_trouble(
        site, new_serving(foreign, ["dra-gate-webhook.dra-gate.svc"], dt.datetime.now(dt.UTC), dt.timedelta(days=1))
    ):
        site.pods.forwarder.wait_ready(3, 60)
        wait_for(lambda: "x509: certificate signed by unknown authority" in site.refused(), 10, "nobody to trust it")
    for command in site.commands("The certificate has ended or nobody trusts it"):
        site.shell.run(command)
    site.pods.kill(WEBHOOK)  # the rollout
    wait_for(site.stamped, 60, "the gate to work", every=0.3)
    site.create()


def test_the_certificate_by_hand(site: Site) -> None:
    """It has ended, and there is no controller."""
    began = dt.datetime.now(dt.UTC) - dt.timedelta(days=100)
    authority = new_authority(began, dt.timedelta(days=1000))
    ended = new_serving(authority, ["dra-gate-webhook.dra-gate.svc"], began, dt.timedelta(days=90))
    with x509_trouble(site, ended):
        wait_for(lambda: "connection refused" in site.refused(), 10, "replicas not to be ready: the certificate ended")
        for command in site.commands("The certificate, by hand"):
            site.shell.run(command)
        site.pods.kill(WEBHOOK)  # the rollout
        site.pods.start_replicas()
        wait_for(site.stamped, 60, "the gate to work without a controller", every=0.3)
        site.create()
    wait_for(
        lambda: len(site.api.get("secrets", "dra-gate-tls", "dra-gate")["data"]) > 2, 60, "the controller to take over"
    )


@contextmanager
def x509_trouble(site: Site, pair: Pair) -> Iterator[None]:
    """The replicas serve `pair`; no controller mends it before the end."""
    site.pods.paused.set()
    for name in (WEBHOOK, CONTROLLER):
        site.pods.kill(name)
    data = {"tls.crt": pair.certificate_pem, "tls.key": pair.key_pem}
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    site.api.patch("secrets", "dra-gate-tls", {"data": encoded}, "dra-gate")
    site.pods.start_replicas()
    yield
    site.pods.paused.clear()


def test_a_policy_that_is_wrong_the_one_before(site: Site) -> None:
    with wrong_policy(site):
        for command in site.commands("A policy refuses what it should admit"):
            site.shell.run(command)
        wait_for(site.stamped, 10, "Pods to come in")


def test_a_policy_that_is_wrong_kubectl_only(site: Site) -> None:
    with wrong_policy(site):
        site.shell.run("\n".join(site.commands("A policy refuses what it should admit: kubectl only")))
        wait_for(site.stamped, 10, "Pods to come in")


def test_a_policy_that_is_wrong_warn_instead(site: Site) -> None:
    first, after = site.commands("A policy refuses what it should admit: warn instead")
    with wrong_policy(site):
        site.shell.run(first)
        answer = wait_for(lambda: admitted(site), 10, "Pods to come in")
        assert any("refused by policy" in warning or "dra-gate" in warning for warning in answer.warnings), (
            answer.warnings
        )
        site.shell.run(after)
        wait_for(lambda: "refused by policy" in site.refused(), 10, "denials again")
        for command in site.commands("A policy refuses what it should admit"):
            site.shell.run(command)


@pytest.mark.parametrize("title", ["DRA fails: everybody back to device plugins", "DRA fails: kubectl only"])
def test_everybody_goes_back_to_device_plugins(title: str, site: Site) -> None:
    def has_claims() -> bool:
        return bool(site.api.create(POD, NAMESPACE, dry_run=True)["spec"].get("resourceClaims"))

    back, forward = site.commands(title)
    assert has_claims()
    site.shell.run(back)
    wait_for(lambda: not has_claims(), 5, "the switch to count")
    site.shell.run(forward)
    wait_for(has_claims, 5, "labels to count again")


def admitted(site: Site) -> Answer | None:
    try:
        return site.api.create_answer(POD, NAMESPACE)
    except ApiError:
        return None


@contextmanager
def wrong_policy(site: Site) -> Iterator[None]:
    """A set is activated in which the tenant may have no device any more."""
    good = site.api.get("gates", "default")["spec"]["active"]
    folder = site.shell.folder / "wrong-policies"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(site.shell.folder / "my-policies", folder)
    tenants = folder / "tenants.yaml"
    tenants.write_text(tenants.read_text().replace("quota: {devices: 16}", "quota: {devices: 0}", 1))
    site.shell.run(
        'dra-gate policy publish wrong-policies --no-lint --activate --note "wrong" --kubeconfig "$KUBECONFIG"'
    )
    wait_for(lambda: "refused by policy" in site.refused(), 10, "the wrong policy to refuse")

    def recorded() -> bool:
        history = site.api.get("gates", "default").get("status", {}).get("history", [])
        return len(history) > 1 and history[1]["digest"] == good

    try:
        wait_for(recorded, 40, "the history to know both")  # a killed controller's Lease lasts for 15 s
        yield
        assert site.api.get("gates", "default")["spec"]["active"] == good
    finally:
        site.api.patch("gates", "default", {"spec": {"active": good}})


def test_the_gate_and_the_policy_set_were_deleted(site: Site) -> None:
    """The kind, even. A replica that starts in that state is not ready."""
    site.api.delete("customresourcedefinitions", "gates.dra-gate.io")
    site.api.delete_all("configmaps", "dra-gate", labels="dra-gate.io/policy-set")
    # One that is still going would be taken for there by the first step, and go afterwards.
    wait_for(lambda: site.api.find("customresourcedefinitions", "gates.dra-gate.io") is None, 60, "the kind to be gone")
    assert site.stamped(), "replicas that run go on"
    site.pods.kill(WEBHOOK)
    wait_for(lambda: "connection refused" in site.refused(), 10, "nobody to be ready")
    for command in site.commands("The Gate or a policy set was deleted"):
        site.shell.run(command)
    wait_for(site.stamped, 60, f"the gate to work; {site.pods.logs()}", every=0.3)


def test_the_version_forth_and_back(site: Site) -> None:
    """docs/operations/upgrade.md and rollback.md: another image, and the one before again."""
    steps = sections(ROOT / "docs" / "operations" / "rollback.md")["The gate's version"]
    kustomization = site.shell.folder / "cluster" / "dra-gate" / "kustomization.yaml"
    kustomization.write_text(KUSTOMIZATION + "images: [{name: dra-gate, newTag: 9.9.9}]\n")
    assert "9.9.9" in site.shell.run("kubectl diff -k cluster/dra-gate || test $? = 1")
    site.shell.run("kubectl apply -k cluster/dra-gate")
    site.shell.run("kubectl -n dra-gate rollout status deployment/dra-gate-webhook --timeout=120s")
    for command in steps:
        site.shell.run(command)
    site.shell.run("kubectl -n dra-gate rollout status deployment/dra-gate-webhook --timeout=120s")
    for deployment in site.api.list("deployments", "dra-gate"):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["image"] == "dra-gate:0.1.0"
    kustomization.write_text(KUSTOMIZATION)


def test_every_step_of_the_document_is_tried() -> None:
    text = Path(__file__).read_text()
    tried = {title for title in STEPS if f'"{title}"' in text}
    assert {title for title, commands in STEPS.items() if commands} == tried
