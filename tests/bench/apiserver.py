"""`python -m bench.apiserver`: what the gate costs a Pod that is created through a real API server.

Three cases in one run, in turn: no webhook; the gate (one replica, called directly by URL); a pair of admission
policies inside the API server that does the nearest thing (peers/). In each case Pods of about 10 KB that ask for
devices are created at 1, 8 and 32 in flight, and deleted between cases. Only admission differs: the scheduler, the
controller manager and the gate's controller are stopped meanwhile, and the replica runs in its own case only.

CPU is read from /proc. The replica's counts both calls and its watch of Pods; everything shares the machine's CPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import yaml

from bench import workload
from bench.creates import Creator, bench_plane
from bench.load import Result
from bench.machine import QUIET, Patience, child_named, commit, cpu, described, family, machine_cpu
from controlplane.api import Api, ApiError, wait_for
from controlplane.control_plane import API_SERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER, User
from controlplane.gate import Gate

PEERS = Path(__file__).parent / "peers" / "admission-policies.yaml"
PROOF = Path(__file__).parents[2] / "docs" / "proofs" / "bench-api.md"
IN_FLIGHT = (1, 8, 32)
CASES = ("none", "gate", "policies")
NAMED = {"none": "no webhook", "gate": "the gate", "policies": "MAP + VAP"}
PERSON = User("ada@bench.example", ("bench",))
NOBODY = "bench-nobody"  # a gated namespace that no tenant owns: both ways refuse device Pods in it
REPLICA = "gate-0"
# The API server's own clock around the four plug-ins that can differ between the cases.
_ADMISSION = re.compile(
    r"^apiserver_admission_controller_admission_duration_seconds_sum\{"
    r'name="(?:Mutating|Validating)Admission(?:Webhook|Policy)",operation="CREATE",rejected="false",'
    r'type="(?:admit|validate)"\} (\S+)$',
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. Seconds; CPU by who used it."""

    case: str
    in_flight: int
    result: Result
    engine: float  # the replica's processes
    api_server: float
    etcd: float
    machine: float
    admission: float  # seconds that Pods spent in webhooks and policies, as the API server counts it

    @property
    def others(self) -> float:
        """CPUs that nobody of ours used."""
        ours = self.engine + self.api_server + self.etcd + self.result.generator_cpu
        return max(0.0, self.machine - ours) / self.result.seconds

    def per_pod(self, seconds: float) -> float:
        """Milliseconds a Pod."""
        return seconds / len(self.result.latencies) * 1000


class Bench:
    """The control plane, the Pods, and what turns each case on and off."""

    def __init__(self, stack: contextlib.ExitStack, patience: Patience) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dra-gate-bench-api-")))
        self.patience = patience
        policies = folder / "policies"
        workload.write_policies(policies)
        workload.write_cluster(folder / "cluster.yaml")
        known = workload.world(folder)
        _lift_quotas(policies / "bench.yaml")
        self.plane = stack.enter_context(bench_plane(folder, [PERSON]))
        self.api = self.plane.api()
        self.plane.wait_for_default_roles()
        self.namespaces = _install(self.api, folder / "cluster.yaml")
        self.gate = stack.enter_context(Gate(self.plane, policies))
        self._webhooks = self.gate.command(
            "webhooks", "--url", self.gate.replica_url(REPLICA), "--ca-file", self.gate.ca_file
        )
        _wait_templates(self.api)
        self.gate.unregister()
        self.gate.stop_controller()
        self.gate.stop_replica(REPLICA)
        self.plane.stop(SCHEDULER)
        self.plane.stop(CONTROLLER_MANAGER)
        self.creator = Creator(self.plane, PERSON)
        bodies = [json.loads(q.body)["request"] for q in workload.questions(known) if q.route == "mutate"]
        pods = [(body["namespace"], _to_create(body["object"])) for body in bodies]
        self._probe = pods[0][1]
        self.sizes = [len(json.dumps(pod)) for _, pod in pods]
        self._requests = cycle([self.creator.request(self.api.path("pods", ns), pod) for ns, pod in pods])
        self._wait_in_force(on=False)
        supervisor = self.plane.processes.supervisor
        self._pids = {name: [child_named(supervisor, name)] for name in (API_SERVER, ETCD)}

    @contextlib.contextmanager
    def case(self, name: str) -> Iterator[None]:
        """What Pods meet inside: warm, in force, and proved to do what it should."""
        self._pids["engine"] = []
        if name == "gate":
            self.gate.start_replica(REPLICA)
            port = self.gate.replica_url(REPLICA).rpartition("/")[2]
            supervisor = self.plane.processes.supervisor
            self._pids["engine"] = family(child_named(supervisor, "", word=port))
            made = self.api.apply_yaml(self._webhooks)
        elif name == "policies":
            made = self.api.apply_yaml(PEERS.read_text())
        else:
            made = []
        self._wait_in_force(on=bool(made))
        self.creator.send(self._requests, 8, 1.0)
        try:
            yield
            self._check(name)
        finally:
            for one in made:
                plural = one["kind"].lower().removesuffix("y") + ("ies" if one["kind"].endswith("y") else "s")
                self.api.delete(plural, one["metadata"]["name"])
            if name == "gate":
                self.gate.stop_replica(REPLICA)
            self._wait_in_force(on=False)
            self.api.parallel(lambda namespace: self.api.delete_all("pods", namespace, grace=0), self.namespaces)

    def measure(self, case: str, in_flight: int, seconds: float) -> Row:
        """One measurement inside a case; made again, as long as there is patience, when neighbours disturbed it."""
        while True:
            self.patience.wait()
            admission = self._admission()
            before = {name: cpu(pids) for name, pids in self._pids.items()}
            machine = machine_cpu()
            result = self.creator.send(self._requests, in_flight, seconds)
            machine = machine_cpu() - machine
            used = {name: cpu(pids) - before[name] for name, pids in self._pids.items()}
            row = Row(
                case,
                in_flight,
                result,
                used["engine"],
                used[API_SERVER],
                used[ETCD],
                machine,
                self._admission() - admission,
            )
            if row.others <= QUIET or self.patience.over:
                return row

    def _admission(self) -> float:
        return sum(map(float, _ADMISSION.findall(str(self.api.request("GET", "/metrics").body))))

    def _wait_in_force(self, *, on: bool) -> None:
        """Until device Pods are both changed and, where nobody owns the namespace, refused; or neither."""

        def answered(namespace: str) -> str:
            try:
                pod = self.api.create(self._probe, namespace, dry_run=True)
            except ApiError as problem:
                return "refused" if "denied" in problem.message else "failed"
            return "changed" if "resourceClaims" in pod["spec"] else "as it came"

        wanted = ("changed", "refused") if on else ("as it came", "as it came")

        def look() -> bool:
            return (answered(self.namespaces[0]), answered(NOBODY)) == wanted

        wait_for(look, 30, f"admission to be {'in force' if on else 'gone'}", every=0.2)

    def _check(self, case: str) -> None:
        """Every Pod that was stored looks as the case would have it."""
        for pod in self.api.list("pods", self.namespaces[0]):
            spec = pod["spec"]
            containers = spec["containers"] + spec.get("initContainers", [])
            raw = any("nvidia.com/gpu" in container["resources"].get("limits", {}) for container in containers)
            claims = "resourceClaims" in spec
            stamped = any(key.endswith("/policy-version") for key in pod["metadata"]["annotations"])
            if (raw, claims, stamped) != (case == "none", case != "none", case != "none"):
                raise SystemExit(f"{NAMED[case]}: wrong Pod {json.dumps(pod)[:2000]}")


def main() -> int:
    """Measure, print, judge. Exit status 1 if a create failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.apiserver", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is made; medians are shown (default 3)")
    parser.add_argument(
        "--patience",
        type=float,
        default=0.0,
        metavar="MINUTES",
        help="on a shared machine: wait so long in all for quiet moments, and repeat what neighbours disturbed",
    )
    parser.add_argument("--write", action="store_true", help=f"write docs/proofs/{PROOF.name} too")
    options = parser.parse_args()
    loads = [os.getloadavg()[0]]
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        bench = Bench(stack, Patience(options.patience))
        version = bench.api.request("GET", "/version").body["gitVersion"]
        sizes = f"{min(bench.sizes) / 1024:.1f} to {max(bench.sizes) / 1024:.1f} KB"
        for number in range(options.rounds):
            turn = number % len(CASES)
            for case in CASES[turn:] + CASES[:turn]:  # nobody is always first, or always after the same one
                with bench.case(case):
                    for in_flight in IN_FLIGHT:
                        rows.append(bench.measure(case, in_flight, options.seconds))
                        print(_line(_cells(rows[-1:])), flush=True)
    loads.append(os.getloadavg()[0])
    setting = [
        f"{dt.datetime.now(dt.UTC).date()}, commit {commit()}, Kubernetes {version.removeprefix('v')}; {described()};",
        f"load average {loads[0]:.1f} before and {loads[1]:.1f} after, this run included. Pods of {sizes} as sent.",
        f"{options.rounds} rounds of {options.seconds:g} s for each line, in turn; each figure is the median of the",
        "rounds, ratios and differences are taken within a round.",
    ]
    others = statistics.median(row.others for row in rows)
    if others > QUIET:
        setting.append(
            f"**Disturbed**: neighbours used {others:.1f} CPUs meanwhile; only a quiet run is worth quoting."
        )
    table, verdicts = _table(rows), _verdicts(rows)
    print("\n" + "\n".join([*setting, "", *table, "", *verdicts]))
    if options.write:
        PROOF.write_text(_proof(setting, table, verdicts))
    return 1 if any(row.result.errors for row in rows) else 0


HEAD = (
    "in flight",
    "case",
    "creates/s",
    "of no webhook",
    "p50 ms",
    "p99 ms",
    "in admission ms",
    "engine CPU ms/Pod",
    "API server CPU ms/Pod",
    "etcd CPU ms/Pod",
    "client",
    "others",
    "failed",
)


def _cells(rows: list[Row], base: list[Row] | None = None) -> list[str]:
    """One line of the table: medians over the rounds."""

    def middle(value: Callable[[Row], float], form: str) -> str:
        return format(statistics.median(map(value, rows)), form)

    ratio = "" if base is None else f"{_ratio(rows, base):.2f}"
    return [
        str(rows[0].in_flight),
        NAMED[rows[0].case],
        middle(lambda row: row.result.rate, ".0f"),
        ratio,
        middle(lambda row: row.result.percentile(0.5), ".1f"),
        middle(lambda row: row.result.percentile(0.99), ".1f"),
        middle(lambda row: row.per_pod(row.admission), ".2f"),
        middle(lambda row: row.per_pod(row.engine), ".2f"),
        middle(lambda row: row.per_pod(row.api_server), ".2f"),
        middle(lambda row: row.per_pod(row.etcd), ".2f"),
        middle(lambda row: row.result.generator_cpu / row.result.seconds * 100, ".0f") + "%",
        middle(lambda row: row.others * 100, ".0f") + "%",
        str(sum(row.result.errors for row in rows)),
    ]


def _ratio(rows: list[Row], base: list[Row]) -> float:
    return statistics.median(row.result.rate / other.result.rate for row, other in zip(rows, base, strict=True))


def _of(rows: list[Row], case: str, in_flight: int) -> list[Row]:
    return [row for row in rows if row.case == case and row.in_flight == in_flight]


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(rows: list[Row]) -> list[str]:
    lines = [_line(HEAD), _line(["---"] * 2 + ["---:"] * (len(HEAD) - 2))]
    for in_flight in IN_FLIGHT:
        base = _of(rows, "none", in_flight)
        lines += [_line(_cells(_of(rows, case, in_flight), base)) for case in CASES]
    return lines


def _verdicts(rows: list[Row]) -> list[str]:
    """The targets, what the gate reached, and the same figure of the other two."""

    def added(case: str, share: float) -> float:
        pairs = zip(_of(rows, case, 1), _of(rows, "none", 1), strict=True)
        return statistics.median(a.result.percentile(share) - b.result.percentile(share) for a, b in pairs)

    def middle(case: str, in_flight: int, value: Callable[[Row], float]) -> float:
        return statistics.median(map(value, _of(rows, case, in_flight)))

    def tail(case: str) -> float:
        return middle(case, 32, lambda row: row.result.percentile(0.99))

    def inside(case: str) -> float:
        """CPU of the API server beyond what it uses without either: the engine of the policies is in it."""
        pairs = zip(_of(rows, case, 8), _of(rows, "none", 8), strict=True)
        return statistics.median(a.per_pod(a.api_server) - b.per_pod(b.api_server) for a, b in pairs)

    share = _ratio(_of(rows, "gate", 8), _of(rows, "none", 8))
    theirs = _ratio(_of(rows, "policies", 8), _of(rows, "none", 8))
    engine = middle("gate", 8, lambda row: row.per_pod(row.engine))
    told = [
        (
            "creates/s at 8 in flight at least 0.5 of no webhook",
            share >= 0.5,
            f"{share:.2f}; MAP + VAP {theirs:.2f}",
        ),
        (
            "engine at most 2 ms of CPU a Pod, both calls",
            engine <= 2,
            f"{engine:.2f} ms at 8 in flight, and {inside('gate'):.2f} ms more in the API server; "
            f"MAP + VAP {inside('policies'):.2f} ms more in the API server",
        ),
        (
            "added p50 at most 5 ms, 1 in flight",
            added("gate", 0.5) <= 5,
            f"{added('gate', 0.5):.1f} ms (p99 {added('gate', 0.99):+.1f} ms); "
            f"MAP + VAP {added('policies', 0.5):.1f} ms (p99 {added('policies', 0.99):+.1f} ms)",
        ),
        (
            "p99 at most 60 ms at 32 in flight",
            tail("gate") <= 60,
            f"{tail('gate'):.0f} ms; no webhook {tail('none'):.0f} ms, MAP + VAP {tail('policies'):.0f} ms",
        ),
    ]
    return [f"- {'met' if met else '**missed**'}: {target}: {value}" for target, met, value in told]


def _proof(setting: list[str], table: list[str], verdicts: list[str]) -> str:
    about = (__doc__ or "").partition("\n\n")[2].strip()
    return "\n".join(
        [
            "# The cost of a Pod through the API server",
            "",
            "Made by `make bench-api`.",
            "",
            *setting,
            "",
            about,
            "",
            *table,
            "",
            "*In admission* is the API server's own clock around webhooks and policies, a Pod. *Engine* is the gate's",
            "replica. The policies run in the API server, so their cost is in its column. *Client* and *others* are",
            "shares of one CPU.",
            "",
            "## Targets",
            "",
            *verdicts,
            "",
        ]
    )


def _lift_quotas(file: Path) -> None:
    documents = list(yaml.safe_load_all(file.read_text()))
    for document in documents:
        if document["kind"] == "Tenant":
            document["spec"]["quota"] = {"devices": 1_000_000}  # still added up and asked, never reached
    file.write_text(yaml.safe_dump_all(documents, sort_keys=False))


def _install(api: Api, cluster: Path) -> list[str]:
    """Namespaces, class and slices, rights for the person, and the peers' parameters. Returns the namespaces."""
    made = [one for one in yaml.safe_load_all(cluster.read_text()) if one["kind"] != "Pod"]
    labels = {"dra-gate.io/lane": "dra"}
    made.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NOBODY, "labels": labels}})
    namespaces = [one["metadata"]["name"] for one in made if one["kind"] == "Namespace"]
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": PERSON.groups[0]}
    for number, namespace in enumerate(namespaces):
        made.append(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": "people", "namespace": namespace},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
                "subjects": [subject],
            }
        )
        # Where no LimitRange is known, LimitRanger asks for them live every 30 s, which takes 100 ms: not our subject.
        made.append(
            {
                "apiVersion": "v1",
                "kind": "LimitRange",
                "metadata": {"name": "volumes", "namespace": namespace},
                "spec": {"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "1Pi"}}]},
            }
        )
        if namespace != NOBODY:
            parameters = {
                "templates": f"policy-{number}-v{workload.VERSIONS}",
                "policy": f"policy-{number}",
                "policy-version": str(workload.VERSIONS),
                "tenant": f"tenant-{number}",
                "candidates": "h100,a100,h200,l40s,l4,a10",
                "pool": f"pool-{number % 4}",
            }
            meta = {"name": "devices", "namespace": namespace}
            made.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": parameters})
    for one in made:
        api.apply(one)
    return [namespace for namespace in namespaces if namespace != NOBODY]


def _wait_templates(api: Api) -> None:
    """Until the controller has made all that it makes ahead of need."""
    seen = -1
    while (count := len(api.list("resourceclaimtemplates"))) != seen or not count:
        seen = count
        time.sleep(1.0)


def _to_create(pod: dict[str, Any]) -> dict[str, Any]:
    """The Pod as a person sends it, good for any number of creates."""
    meta = {key: pod["metadata"][key] for key in ("labels", "annotations")}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**meta, "generateName": pod["metadata"]["name"] + "-"},
        "spec": pod["spec"],
    }


if __name__ == "__main__":
    sys.exit(main())
