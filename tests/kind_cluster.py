"""`make kind`: the gate, as deploy/ installs it, on a kind cluster, and the tests marked `cluster` on it.

Needs Docker or Podman, kind and kubectl; says so and stops where one is missing. The cluster is called dra-gate and is
removed at the end, or kept with KEEP=1. KIND_IMAGE chooses the node image: Kubernetes 1.36 or newer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from controlplane.cluster import VARIABLE

ROOT = Path(__file__).parents[1]
NAME = "dra-gate"
IMAGE = "dra-gate:0.1.0"
OLDEST = (1, 36)
POLICIES = ROOT / "tests" / "e2e" / "policies"


def main() -> int:
    """Exit code 0 when every test passed, 1 when not, 2 when there is nothing to run on."""
    engine = _engine()
    missing = [] if engine else ["a container engine that answers (Docker or Podman; `docker info` has to work)"]
    missing += [program for program in ("kind", "kubectl") if shutil.which(program) is None]
    if engine is None or missing:
        print(f"make kind needs {' and '.join(missing)}; nothing was done", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        environment = os.environ | {"KUBECONFIG": str(kubeconfig), "KIND_EXPERIMENTAL_PROVIDER": engine}
        try:
            return _run(engine, kubeconfig, environment)
        except subprocess.CalledProcessError as error:
            print(f"make kind: {' '.join(map(str, error.cmd))} ended with {error.returncode}", file=sys.stderr)
            return 1
        finally:
            if os.environ.get("KEEP"):
                print(f"kept: kind get kubeconfig --name {NAME}", file=sys.stderr)
            else:
                subprocess.run(["kind", "delete", "cluster", "--name", NAME], env=environment, check=False)


def _engine() -> str | None:
    for engine in ("docker", "podman"):
        if shutil.which(engine) and subprocess.run([engine, "info"], capture_output=True, check=False).returncode == 0:
            return engine
    return None


def _run(engine: str, kubeconfig: Path, environment: dict[str, str]) -> int:
    def step(*words: str | Path) -> None:
        print("+", *words, file=sys.stderr, flush=True)
        subprocess.run(words, env=environment, cwd=ROOT, check=True)

    image = os.environ.get("KIND_IMAGE")
    step(engine, "build", "--tag", IMAGE, ".")
    step("kind", "create", "cluster", "--name", NAME, *(["--image", image] if image else []))
    if not _new_enough(environment):
        print(f"make kind: the node image is older than Kubernetes {OLDEST}; set KIND_IMAGE", file=sys.stderr)
        return 2
    step("kind", "load", "docker-image", IMAGE, "--name", NAME)
    step("kubectl", "apply", "-k", "deploy/overlays/own-ca")
    step("kubectl", "wait", "--for=condition=established", "crd/gates.dra-gate.io", "crd/tenantledgers.dra-gate.io")
    step("kubectl", "-n", "dra-gate", "rollout", "status", "deployment/dra-gate-controller", "--timeout=180s")
    step(Path(sys.executable).with_name("dra-gate"), "policy", "publish", POLICIES, "--activate", "--no-lint")
    step("kubectl", "-n", "dra-gate", "rollout", "status", "deployment/dra-gate-webhook", "--timeout=180s")
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "cluster", "tests/e2e"]
    return subprocess.run(tests, env=environment | {VARIABLE: str(kubeconfig)}, cwd=ROOT, check=False).returncode


def _new_enough(environment: dict[str, str]) -> bool:
    words = ["kubectl", "get", "nodes", "-o", "jsonpath={.items[0].status.nodeInfo.kubeletVersion}"]
    version = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    major, minor = version.removeprefix("v").split(".")[:2]
    return (int(major), int(minor)) >= OLDEST


if __name__ == "__main__":
    sys.exit(main())
