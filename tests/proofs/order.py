"""Order kept across nodes, on a small and a large fleet, with the gate and without. Writes docs/proofs/order.md.

On more than 100 nodes kube-scheduler looks at a sample of the feasible ones (percentageOfNodesToScore), so that a node
with a better device may never be seen: that is counted here, with the stock setting and with 100.
"""

from __future__ import annotations

import datetime as dt
import random
import subprocess
import sys
from pathlib import Path

from controlplane.control_plane import ControlPlane
from controlplane.fleet import Fleet
from controlplane.gate import Gate
from controlplane.rate import plain_template
from e2e import scene
from e2e.order import Outcome, run_pods

ROOT = Path(__file__).parents[2]
POLICIES = ROOT / "tests" / "e2e" / "policies"
PROOF = ROOT / "docs" / "proofs" / "order.md"
NAMESPACE = "e2e-ordered"


def run(fleet_name: str, pods: int, cpus: range, *, with_gate: bool, percentage: int | None = None) -> Outcome:
    """One run on a control plane of its own."""
    asked = [random.Random(7 * number).choice(cpus) for number in range(pods)]
    with ControlPlane() as plane:
        if percentage is not None:
            plane.configure_scheduler(percentageOfNodesToScore=percentage)
        api = plane.api()
        fleet = Fleet.load(fleet_name)
        fleet.install(api)
        if with_gate:
            with Gate(plane, POLICIES):
                scene.namespace(api, NAMESPACE)
                made = [scene.pod(f"p{i}", scene.container(cpu=str(cpu))) for i, cpu in enumerate(asked)]
                return run_pods(api, fleet, made, NAMESPACE)
        namespace = scene.namespace(api, "plain", {"team": "nobody"})
        api.apply(plain_template("plain"), namespace)
        made = []
        for i, cpu in enumerate(asked):
            pod = scene.pod(f"p{i}", scene.container(gpus=0, cpu=str(cpu)))
            pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "plain"}]
            pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
            made.append(pod)
        return run_pods(api, fleet, made, namespace)


RUNS = (
    ("nine-nodes", 60, range(8, 13), True, None),
    ("nine-nodes", 60, range(8, 13), False, None),
    ("big", 400, range(8, 13), True, None),
    ("big", 400, range(8, 13), False, None),
    ("big", 400, range(8, 13), True, 100),
    ("big", 400, range(8, 13), False, 100),
)


def main() -> int:
    rows = []
    for fleet, pods, cpus, with_gate, percentage in RUNS:
        outcome = run(fleet, pods, cpus, with_gate=with_gate, percentage=percentage)
        row = [
            f"{fleet} ({len(Fleet.load(fleet).nodes)} nodes)",
            "the gate" if with_gate else "plain firstAvailable",
            "stock" if percentage is None else str(percentage),
            str(pods),
            str(outcome.inversions),
            str(outcome.unbound),
        ]
        print(" | ".join(row), flush=True)
        rows.append(row)
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    today = dt.datetime.now(dt.UTC).date()
    head = ["fleet", "claims by", "percentageOfNodesToScore", "Pods", "inversions", "unbound"]
    lines = [
        "# Order kept across nodes",
        "",
        f"Made by `make prove-order` on {today} at commit {commit}.",
        "",
        "Pods of one device and 8 to 12 CPUs, made one after the other. An inversion is a Pod that got a lower",
        "candidate while a higher one was free on a node where it fits.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + " --- |" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]
    PROOF.write_text("\n".join(lines))
    kept = [row for row in rows if row[1] == "the gate" and (row[2] == "100" or row[0].startswith("nine"))]
    return 0 if all(row[4] == "0" and row[5] == "0" for row in kept) else 1


if __name__ == "__main__":
    sys.exit(main())
