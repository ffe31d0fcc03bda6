"""Creates at a steady rate while everything about the gate changes under them. Writes docs/proofs/rolling.md.

Three replicas behind the kit's forwarder (which follows readiness as Endpoints would), two controllers, policies
published in the cluster. Each chapter runs the load for `--seconds` and does its change again and again.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from controlplane.api import Object, wait_for
from controlplane.control_plane import CONTROLLER_MANAGER, GATE_WEBHOOK, SCHEDULER, ControlPlane
from controlplane.delay import Delay
from controlplane.gate import Gate
from dra_gate.policy.load import load
from e2e import scene
from proofs.load import Load, Outcome

ROOT = Path(__file__).parents[2]
POLICIES = ROOT / "tests" / "e2e" / "policies"
PROOF = ROOT / "docs" / "proofs" / "rolling.md"
NAMESPACE = "e2e-ordered"
DELAY_SECONDS = 1.0


class Stage:
    """The gate under load, and what a right stamp is at the moment."""

    def __init__(self, gate: Gate, second_policies: Path) -> None:
        self.gate = gate
        self.api = gate.plane.api()
        self.folders = (POLICIES, second_policies)
        self.versions = {load(folder).digest: version for folder, version in zip(self.folders, ("1", "2"), strict=True)}

    def wrong(self, annotations: Object) -> str:
        """Every set that was ever active is one of two, and each gives its own version of the policy."""
        digest = annotations.get("dra-gate.io/policy-set", "")
        if digest not in self.versions:
            return f"policy set {digest or 'none'}"
        if annotations.get("dra-gate.io/policy-version") != self.versions[digest]:
            return f"version {annotations.get('dra-gate.io/policy-version')} of set {digest}"
        return "" if annotations.get("dra-gate.io/devices") == "1" else "no device count"

    # -- chapters: each does one change; the load goes on meanwhile --

    def nothing(self) -> None:
        time.sleep(1)

    def restart(self) -> None:
        """One replica after the other, with two left meanwhile."""
        for name in self.gate.replicas:
            self.gate.stop_replica(name)
            self.gate.start_replica(name)

    def leaf(self) -> None:
        self.gate.command("certs", "--out", self.gate.folder, "--ip", "127.0.0.1", "--dns", "localhost")
        time.sleep(1.5)

    def authority(self) -> None:
        """Both CAs in the bundle, then the new certificate, then the old CA out (docs/operations/certificates.md)."""
        with tempfile.TemporaryDirectory() as fresh:
            self.gate.command("certs", "--out", fresh, "--ip", "127.0.0.1", "--dns", "localhost")
            old = self.gate.ca_file.read_bytes()
            both = Path(fresh) / "both.crt"
            both.write_bytes(old + (Path(fresh) / "ca.crt").read_bytes())
            self._bundle(both)
            for name in ("tls.key", "tls.crt", "ca.key", "ca.crt"):
                staged = self.gate.folder / f".{name}"
                shutil.copy(Path(fresh) / name, staged)
                staged.replace(self.gate.folder / name)
            time.sleep(1.5)
            self._bundle(self.gate.ca_file)

    def _bundle(self, ca_file: Path) -> None:
        words: list[str | Path] = ["webhooks", "--url", self.gate.forwarder.url, "--ca-file", ca_file]
        self.api.apply_yaml(self.gate.command(*words))
        time.sleep(3)  # the API server's webhook clients take a changed configuration within about a second

    def publish(self) -> None:
        """Publish and activate the other set, let it serve, roll back."""
        self.gate.policy("publish", self.folders[1], "--activate", "--no-lint")
        time.sleep(2)
        self.gate.policy("rollback")
        time.sleep(2)

    def failover(self) -> None:
        """The controller that holds the Lease dies; the other takes over."""
        holder = wait_for(self._holder, 30, "a controller to lead", every=0.3)
        self.gate.stop_controller(holder, kill=True)
        wait_for(lambda: self._holder() != holder, 40, "the other controller to take the Lease", every=0.3)
        self.gate.start_controller(holder)

    def _holder(self) -> str:
        lease: Object = self.api.find("leases", "dra-gate-controller", "dra-gate") or {"spec": {}}
        return str(lease["spec"].get("holderIdentity") or "")

    def lanes(self) -> None:
        """The namespace changes mode and back while one replica sees everything late."""
        for mode in ("warn", "enforce"):
            scene.namespace(self.api, NAMESPACE, scene.LANE | {"dra-gate.io/mode": mode})
            time.sleep(1)
        self.publish()
        for template in self.api.list("resourceclaimtemplates", NAMESPACE)[:2]:
            self.api.delete("resourceclaimtemplates", template["metadata"]["name"], NAMESPACE, missing_ok=True)


chapters: dict[str, Callable[[Stage], None]] = {
    "nothing changes": Stage.nothing,
    "rolling restart of the replicas": Stage.restart,
    "serving certificate changes": Stage.leaf,
    "CA changes": Stage.authority,
    "publish, activate, rollback": Stage.publish,
    "controller failover": Stage.failover,
}


def play(stage: Stage, change: Callable[[], None], rate: float, seconds: float) -> tuple[Outcome, int]:
    """The load for `seconds`, and the change over and over; how often it was made."""
    times = 0
    with Load(stage.api, NAMESPACE, rate, stage.wrong) as running:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            change()
            times += 1
    return running.outcome, times


def second_set(folder: Path) -> Path:
    """The same tenants under version 2 of their policy, which prefers the A100."""
    text = (POLICIES / "e2e.yaml").read_text()
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(text))
    for document in documents:
        if document["kind"] == "DevicePolicy" and document["metadata"]["name"] == "ordered":
            newer = yaml.safe_load(yaml.safe_dump(document))
            newer["metadata"]["version"] = 2
            newer["spec"]["candidates"] = ["a100", "h100", "others"]
            documents.append(newer)
            break
    for document in documents:
        if document["kind"] == "Tenant" and document["metadata"]["name"] == "ordered":
            document["spec"] |= {"policy": "ordered@2", "keepVersions": [1]}
    folder.mkdir(parents=True)
    (folder / "e2e.yaml").write_text(yaml.safe_dump_all(documents))
    return folder


@contextlib.contextmanager
def on_stage(*, late: bool = False) -> Any:
    """Three replicas and two controllers on a control plane; `late`: one replica sees everything a second old."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plane = stack.enter_context(ControlPlane())
        scene.namespace(plane.api(), NAMESPACE)
        kubeconfigs = {}
        if late:
            proxy = stack.enter_context(Delay(int(plane.url.rpartition(":")[2]), DELAY_SECONDS))
            config = (
                plane.kubeconfig_for(GATE_WEBHOOK).read_text().replace(plane.url, f"https://127.0.0.1:{proxy.port}")
            )
            kubeconfigs["gate-0"] = folder / "late.conf"
            kubeconfigs["gate-0"].write_text(config)
        # The forwarder looks twice a second; where the machine stands still in between, the kit's 1.5 s are over first.
        drain = ("--drain-seconds", "3")
        gate = Gate(
            plane, POLICIES, replicas=3, controllers=2, published=True, kubeconfigs=kubeconfigs, serve_flags=drain
        )
        stage = Stage(stack.enter_context(gate), second_set(folder / "second"))
        # What they do with a Pod after its creation is not looked at here, and takes two cores most of their time.
        plane.stop(SCHEDULER)
        plane.stop(CONTROLLER_MANAGER)
        yield stage


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proofs.rolling", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="length of each chapter; default: %(default)s")
    parser.add_argument("--rate", type=float, default=50, help="creates a second; default: %(default)s")
    arguments = parser.parse_args()
    rows: list[tuple[str, Outcome, int]] = []
    with on_stage() as stage:
        for title, change in chapters.items():
            rows.append((title, *play(stage, partial(change, stage), arguments.rate, arguments.seconds)))
            _say(rows[-1])
    with on_stage(late=True) as stage:
        rows.append(
            (
                "one replica a second behind: sets, modes, templates",
                *play(stage, stage.lanes, arguments.rate, arguments.seconds),
            )
        )
        _say(rows[-1])
    _write(rows, arguments.seconds, arguments.rate)
    return 1 if any(outcome.failed or outcome.wrong for _, outcome, _ in rows) else 0


def _say(row: tuple[str, Outcome, int]) -> None:
    title, outcome, times = row
    print(f"{title} ({times} times): {outcome}", flush=True)
    for line in [*outcome.failed[:5], *outcome.wrong[:5]]:
        print(f"   {line}", flush=True)


def _write(rows: list[tuple[str, Outcome, int]], seconds: float, rate: float) -> None:
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    lines = [
        "# Creates while the gate changes",
        "",
        f"Made by `make prove-rolling` on {dt.datetime.now(dt.UTC).date()} at commit {commit}: {rate:g} creates",
        f"a second for {seconds:g} s a row, three replicas, two controllers, {os.cpu_count()} cores for everything,",
        "load generator included. Scheduler and controller manager are stopped: what becomes of a Pod later is not",
        "looked at. Failed: the create was refused or not answered. Wrong: stored raw, or without the stamp of a set",
        "that was active.",
        "",
        "| while | times | creates | failed | wrong | p50 ms | p99 ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for title, outcome, times in rows:
        ordered = sorted(outcome.latencies) or [0.0]
        p50, p99 = (1000 * ordered[min(len(ordered) - 1, int(len(ordered) * part))] for part in (0.5, 0.99))
        counts = f"{outcome.created} | {len(outcome.failed)} | {len(outcome.wrong)}"
        lines.append(f"| {title} | {times} | {counts} | {p50:.0f} | {p99:.0f} |")
    PROOF.write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    sys.exit(main())
