"""`python -m bench.grants`: what it costs a Pod to be granted its devices, end to end on a real control plane.

Pods of two tenants with the same policy on the same fleet, in turn: one tenant's name a template and nothing holds
them, the other's are held, and their claims are written at the grant. First one Pod after the other with nobody else
about, then bursts of them. Times are those of the API server's audit log: from a Pod's create until its binding.
"""

from __future__ import annotations

import argparse
import datetime as dt
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.creates import bench_plane
from bench.machine import QUIET, Patience, commit, described
from controlplane.api import Api, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.fleet import Fleet
from controlplane.gate import Gate
from e2e import scene
from e2e.granted import is_held

PROOF = Path(__file__).parents[2] / "docs" / "proofs" / "grants.md"
POLICIES = Path(__file__).parent / "grants_policies"
PLAIN, HELD = "bench-plain", "bench-held"
NODES = 180  # of eight devices: nothing has to be given back in between
BURST, BURSTS, SINGLES = 128, 5, 30
RATIO, ADDED = 0.8, 0.3  # what is wanted: of plain Pods a second, and seconds more than a plain Pod


@dataclass(frozen=True, slots=True)
class Burst:
    """Pods that were created at once. Seconds until the last was created, and until the last was bound."""

    namespace: str
    created: float
    bound: float

    @property
    def rate(self) -> float:
        return BURST / self.bound


@dataclass(frozen=True, slots=True)
class Grants:
    """What was measured. Seconds from create to binding of single Pods, by namespace."""

    singles: dict[str, list[float]]
    bursts: list[Burst]

    @property
    def added(self) -> float:
        """What a grant adds, between the medians."""
        return statistics.median(self.singles[HELD]) - statistics.median(self.singles[PLAIN])

    @property
    def ratio(self) -> float:
        """Held Pods a second by plain ones, between the medians of the bursts."""
        return self.rate(HELD) / self.rate(PLAIN)

    def rate(self, namespace: str) -> float:
        """Pods a second, the median of its bursts."""
        return statistics.median(one.rate for one in self.bursts if one.namespace == namespace)


class Audit:
    """When Pods were asked for and bound, from the audit log."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def times(self, namespace: str) -> tuple[dict[str, float], dict[str, float]]:
        """By Pod: when its create came in, and when its binding was answered; seconds since 1970."""
        created: dict[str, float] = {}
        bound: dict[str, float] = {}
        for event in self._plane.audit_events():
            reference = event.get("objectRef", {})
            ours = reference.get("resource") == "pods" and reference.get("namespace") == namespace
            if ours and event["verb"] == "create" and event["responseStatus"]["code"] == 201:
                binds = reference.get("subresource") == "binding"
                stamp = event["stageTimestamp" if binds else "requestReceivedTimestamp"]
                (bound if binds else created)[reference["name"]] = dt.datetime.fromisoformat(stamp).timestamp()
        return created, bound


def measure(patience: Patience) -> Grants:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plane = stack.enter_context(bench_plane(folder))
        api = plane.api()
        groups = [{"name": "hopper", "count": NODES // 2, "devices": {"h100": 8}},
                  {"name": "ampere", "count": NODES // 2, "devices": {"a100": 8}}]  # fmt: skip
        Fleet.of("grants", {"nodes": groups}).install(api)
        for name in (PLAIN, HELD):
            scene.namespace(api, name)
        stack.enter_context(Gate(plane, POLICIES))
        audit = Audit(plane)
        wait_for(lambda: api.list("resourceclaimtemplates", PLAIN), 30, "the templates")
        for name in (PLAIN, HELD):  # warm
            assert is_held(api.create(scene.pod("warm"), name)) == (name == HELD)
            scene.bound(api, name, "warm")
        for number in range(SINGLES):
            for name in (PLAIN, HELD):
                patience.wait()
                api.create(scene.pod(f"single-{number}"), name)
                scene.bound(api, name, f"single-{number}")
        singles = {}
        for name in (PLAIN, HELD):
            created, bound = audit.times(name)
            singles[name] = sorted(bound[pod] - created[pod] for pod in bound if pod.startswith("single"))
        bursts = []
        for number in range(BURSTS):
            for name in (PLAIN, HELD) if number % 2 else (HELD, PLAIN):
                patience.wait()
                bursts.append(_burst(api, audit, name, number))
        return Grants(singles, bursts)


def _burst(api: Api, audit: Audit, namespace: str, number: int) -> Burst:
    names = [f"burst-{number}-{n}" for n in range(BURST)]
    api.create_many((scene.pod(name) for name in names), namespace)

    def everyone() -> bool:
        return all("nodeName" in pod["spec"] for pod in api.list("pods", namespace))

    wait_for(everyone, 300, f"{BURST} Pods of {namespace} to be bound", every=0.5)
    created, bound = audit.times(namespace)
    start = min(created[name] for name in names)
    return Burst(namespace, max(created[name] for name in names) - start, max(bound[name] for name in names) - start)


def page(found: Grants) -> str:
    def row(namespace: str) -> str:
        waits = found.singles[namespace]
        rates = ", ".join(f"{one.rate:.1f}" for one in found.bursts if one.namespace == namespace)
        return (
            f"| {namespace.removeprefix('bench-')} | {statistics.median(waits):.3f} | "
            f"{waits[int(len(waits) * 0.95)]:.3f} | {found.rate(namespace):.1f} | {rates} |\n"
        )

    return f"""# What a grant costs

Made by `make bench-grants` on {dt.datetime.now(dt.UTC).date()} at commit {commit()} on {described()},
which control plane, gate, client and neighbours shared. {NODES} nodes of eight devices, client rates of scheduler and
controller manager raised, so that the figures are about the machinery. Plain Pods name their tenant's template; held
ones wait for a grant and name a claim that is written then. From a Pod's create to its binding, in the API server's
audit log; {SINGLES} Pods of each one by one, then {BURSTS} bursts of {BURST} of each in turn.

| Pods | one by one: median s | 95 % s | bursts: Pods/s, median | each |
| --- | --- | --- | --- | --- |
{row(PLAIN)}{row(HELD)}
A grant adds {found.added:+.3f} s with an idle queue (wanted: at most {ADDED:g} s). Held Pods are bound
{found.ratio:.2f} times as fast as plain ones (wanted: at least {RATIO:g}).
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.grants", description=__doc__)
    parser.add_argument(
        "--patience",
        type=float,
        default=5.0,
        metavar="MINUTES",
        help=f"to wait for moments in which less than {QUIET:g} CPUs are used; default: %(default)s",
    )
    parser.add_argument("--write", action="store_true", help=f"write {PROOF.name}")
    arguments = parser.parse_args()
    found = measure(Patience(arguments.patience))
    print(page(found))
    if arguments.write:
        PROOF.write_text(page(found))
    return 0 if found.added <= ADDED and found.ratio >= RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
