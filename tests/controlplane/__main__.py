"""`python -m controlplane`: `up`, `story`, `build` and `rate`."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from controlplane import rate, story
from controlplane.build import BuildError, Versions, ensure_allocate, ensure_programs, pinned
from controlplane.control_plane import TENANT, ControlPlane, ControlPlaneError
from controlplane.fleet import Fleet, FleetError, fleet_names
from controlplane.gate import Gate, GateError, policy_namespaces
from controlplane.kubelet import PlayedKubelet
from controlplane.processes import free_port

POLICIES = Path(__file__).parents[2] / "policies"
ARBITER_LOG = "arbiter"


def main() -> int:
    """Exit code 0, or 1 when something couldn't be built or started."""
    parser = argparse.ArgumentParser(prog="python -m controlplane", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start a control plane with fake nodes and the gate, until Ctrl-C")
    up.add_argument("--fleet", default="demo", choices=fleet_names(), help="default: %(default)s")
    up.add_argument("--policies", type=Path, default=POLICIES, help="policy folder of the gate; default: policies/")
    up.add_argument("--replicas", type=int, default=2, help="replicas of the gate; default: %(default)s")
    up.add_argument("--no-gate", action="store_true", help="only the control plane and the fleet")
    verbs.add_parser("story", help="play first choice, fallback, floor and bypass on a control plane of its own")
    verbs.add_parser("build", help="build the programs into the cache, if they aren't there")
    measured = verbs.add_parser("rate", help="measure plain-template Pods a second")
    measured.add_argument("--pods", type=int, default=400, help="default: %(default)s")
    measured.add_argument("--stock-rates", action="store_true", help="with the default client rate limits")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell starts background jobs with SIGINT ignored
        signal.signal(number, _interrupt)
    try:
        if arguments.verb == "build":
            print(ensure_programs())
            if Versions.wanted().kubernetes == pinned("kubernetes"):  # its source needs the types of that version
                print(ensure_allocate())
        elif arguments.verb == "rate":
            with ControlPlane(stock_rates=arguments.stock_rates) as plane:
                print(rate.measure(plane, arguments.pods))
        elif arguments.verb == "story":
            with contextlib.ExitStack() as stack:
                plane, gate = _bring_up(stack, Fleet.load("demo"), POLICIES)
                assert gate is not None
                story.tell(plane, gate)
        else:
            _up(arguments)
    except (BuildError, ControlPlaneError, FleetError, GateError) as problem:
        print(f"controlplane: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("controlplane: stopped", file=sys.stderr)
    return 0


def _up(arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        policies = None if arguments.no_gate else arguments.policies
        page = f"127.0.0.1:{free_port()}"
        plane, _ = _bring_up(stack, Fleet.load(arguments.fleet), policies, arguments.replicas, page)
        _say(f"ready after {time.monotonic() - started:.1f} s; logs and the audit log: {plane.run_dir / 'logs'}")
        print(f"export KUBECONFIG={plane.kubeconfig_for()}   # cluster admin")
        print(f"# as the tenant user {TENANT.name}: KUBECONFIG={plane.kubeconfig_for(TENANT)}")
        print(f"# kubectl of this version: {plane.kubectl}")
        if policies is not None:
            print(f"# who waits: http://{page}/queue, and the arbiter's log: {plane.run_dir / ARBITER_LOG}")
        print("# Ctrl-C stops and removes everything", flush=True)
        while True:
            ended = {name: code for name, code in plane.processes.codes().items() if code is not None}
            if ended:
                raise ControlPlaneError(f"ended: {ended}; logs are in {plane.run_dir / 'logs'}")
            threading.Event().wait(1.0)


def _bring_up(
    stack: contextlib.ExitStack, fleet: Fleet, policies: Path | None, replicas: int = 1, page: str | None = None
) -> tuple[ControlPlane, Gate | None]:
    """A control plane with the fleet, a played kubelet and, given `policies`, the gate; closed by the stack.

    The policies are published and active, so that others can be. `page` is where the controller serves its pages.
    """
    started = time.monotonic()
    plane = stack.enter_context(ControlPlane())
    _say(f"control plane ready after {time.monotonic() - started:.1f} s")
    fleet.install(plane.api())
    _say(f"fleet {fleet.name}: {len(fleet.nodes)} fake nodes, {len(fleet.slices)} slices")
    stack.enter_context(PlayedKubelet(plane.api()))
    gate = None
    if policies is not None:
        plane.wait_for_default_roles()
        namespaces = policy_namespaces(policies)
        for namespace in namespaces:
            _tenant_namespace(plane, namespace)
        flags = ["--arbiter-log", str(plane.run_dir / ARBITER_LOG), *(["--metrics-listen", page] if page else [])]
        gate = stack.enter_context(Gate(plane, policies, replicas=replicas, published=True, controller_flags=flags))
        _say(f"gate installed with {replicas} replicas; gated: {', '.join(namespaces) or 'no namespace'}")
    return plane, gate


def _tenant_namespace(plane: ControlPlane, namespace: str) -> None:
    api = plane.api()
    labels = {"dra-gate.io/lane": "dra"}
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    subjects = [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": group} for group in TENANT.groups]
    api.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "tenant", "namespace": namespace},
            "roleRef": role,
            "subjects": subjects,
        }
    )


def _say(text: str) -> None:
    print(f"controlplane: {text}", file=sys.stderr, flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
