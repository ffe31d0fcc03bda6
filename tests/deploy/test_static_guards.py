"""The guards from the API server's disk (KEP-5793), on an API server that reads them: deploy/static."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.api import ApiError, wait_for
from controlplane.control_plane import TENANT, ControlPlane, ControlPlaneError
from deploy.kubectl import DEPLOY
from deploy.test_guards import BINDING, HOOKS, ROLE, ROWS, THERE, may, refused, serve_our_kinds
from dra_gate.admission import backstop, guards

pytestmark = pytest.mark.controlplane
STATIC = DEPLOY / "static"
# On from 1.37; alpha and off in 1.36.
GATE = "--feature-gates=ManifestBasedAdmissionControlConfig=true"


def reading(folder: Path) -> list[str]:
    """The flags that make an API server read the committed files, from there."""
    policies = folder / "policies"
    shutil.copytree(STATIC / "policies", policies, dirs_exist_ok=True)
    config = yaml.safe_load((STATIC / "admission.yaml").read_text())
    config["plugins"][0]["configuration"]["staticManifestsDir"] = str(policies)
    (folder / "admission.yaml").write_text(yaml.safe_dump(config))
    return [f"--admission-control-config-file={folder / 'admission.yaml'}", GATE]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """With what is guarded in place, and no guard in the API. The tenant may do everything but `guard`."""
    running = ControlPlane(api_server_flags=reading(tmp_path_factory.mktemp("static")))
    running.start_all()
    try:
        api = running.api()
        serve_our_kinds(api)
        for obj in (ROLE, BINDING, *THERE):
            api.apply(obj)
        everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["create", "deletecollection"]}
        api.apply({**ROLE, "rules": [*ROLE["rules"], everything]})
        wait_for(lambda: may(running.api(TENANT)), 10, "the role to count")
        yield running
    finally:
        running.close(keep=request.session.testsfailed > 0)


@pytest.mark.parametrize(("doing", "obj", "wanted"), [pytest.param(*row[1:], id=row[0]) for row in ROWS])
def test_they_hold_what_the_guards_of_the_api_hold(
    doing: str, obj: dict[str, Any], wanted: bool, plane: ControlPlane
) -> None:
    assert not plane.api().list("validatingadmissionpolicies")
    said = refused(plane.api(TENANT), doing, obj)
    assert bool(said) is wanted
    assert not wanted or ".static.k8s.io" in said
    assert refused(plane.api(), doing, obj) == ""  # the cluster admin is never kept out


def test_they_hold_the_policies_of_the_api(plane: ControlPlane) -> None:
    """What no policy of the API can do: whoever may not `guard` takes neither guards nor backstop away."""
    admin, tenant = plane.api(), plane.api(TENANT)
    for manifest in (*guards.manifests(), *backstop.manifests()):
        admin.apply(manifest)
    try:
        for kind in ("validatingadmissionpolicies", "validatingadmissionpolicybindings"):
            for name in (f"{guards.NAME}-guard-labels", backstop.BACKSTOP):
                with pytest.raises(ApiError, match="guard-policies"):
                    tenant.delete(kind, name)
                with pytest.raises(ApiError, match="guard-policies"):
                    tenant.patch(kind, name, {"metadata": {"labels": {"x": "y"}}})
            with pytest.raises(ApiError, match="guard-policies"):
                tenant.delete_all(kind)
        other = {**guards.manifests()[0], "metadata": {"name": "another"}}
        tenant.create(other)
        tenant.delete("validatingadmissionpolicies", "another")
    finally:
        for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            admin.delete_all(kind)


def test_a_cluster_admin_who_deletes_all_policies_does_not_delete_them(plane: ControlPlane) -> None:
    admin, tenant = plane.api(), plane.api(TENANT)
    for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
        admin.delete_all(kind)
        with pytest.raises(ApiError) as missing:
            admin.delete(kind, f"{guards.NAME}-guard-configurations{guards.STATIC_SUFFIX}")
        assert missing.value.status == 404
        assert not admin.list(kind)
    assert refused(tenant, "delete", HOOKS[1])
    with pytest.raises(ApiError, match=r"\.static\.k8s\.io"):
        admin.create(guards.manifests(static=True)[0])
    plane.restart("kube-apiserver")
    wait_for(lambda: may(tenant), 30, "the API server to be back")
    assert refused(tenant, "delete", HOOKS[1])


def test_the_backstop_cannot_be_there(tmp_path: Path) -> None:
    """The reason is the API server's own: it takes no parameters from disk."""
    flags = reading(tmp_path)
    policy = backstop.manifests()[0]
    policy["metadata"] = {"name": f"{backstop.BACKSTOP}{guards.STATIC_SUFFIX}"}
    (tmp_path / "policies" / "backstop.yaml").write_text(yaml.safe_dump(policy))
    plane = ControlPlane(api_server_flags=flags)
    with pytest.raises(ControlPlaneError, match="kube-apiserver ended"):
        plane.start_all()
    assert "spec.paramKind is not supported for static manifests" in plane.log("kube-apiserver").read_text()
    shutil.rmtree(plane.run_dir)
