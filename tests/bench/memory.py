"""`python -m bench.memory`: what one replica holds, and how soon it answers, in an empty and in a large cluster.

Everything is real: the objects (large.py) are created in a real API server, and `dra-gate serve` lists and watches
them. Memory is the proportional set size (PSS) of its master and its worker. A start is timed from the process's birth
to the first review that is answered with a patch. The scheduler and the controller manager are stopped.

`--profile` feeds the same objects to the same code in this process and says what holds the memory.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import gc
import http.client
import json
import os
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any
from urllib.parse import urlsplit

from bench.creates import Creator, bench_plane
from bench.large import Large
from bench.load import closed_loop, prepare
from bench.machine import Patience, child_named, commit, described, family, peak, pss
from bench.workload import Question
from controlplane.api import wait_for
from controlplane.control_plane import ADMIN, CONTROLLER_MANAGER, SCHEDULER, ControlPlane
from controlplane.gate import Gate
from dra_gate.cluster.facts import World
from dra_gate.policy.load import load

ROOT = Path(__file__).parents[2]
PROOF = ROOT / "docs" / "proofs" / "memory.md"
REPLICA = "gate-0"
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
TARGETS = {"empty": (80.0, 1.0), "large": (150.0, 5.0)}  # megabytes, seconds
HEAD = ("cluster", "first answer s", "PSS MB", "master", "worker", "PSS MB after load", "worker's peak MB")


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a replica. Seconds and megabytes."""

    cluster: str
    answered: float
    master: float
    worker: float
    loaded: float  # both, after the reviews
    peak: float  # of the worker, resident


def main() -> int:
    """Measure, print, judge. Exit status 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the large cluster (default 1)")
    parser.add_argument("--starts", type=int, default=3, help="starts in each state; medians are shown (default 3)")
    parser.add_argument("--patience", type=float, default=0.0, metavar="MINUTES", help="wait so long for quiet moments")
    parser.add_argument("--profile", action="store_true", help="no control plane: what holds the memory")
    parser.add_argument("--write", action="store_true", help=f"write docs/proofs/{PROOF.name} too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dra-gate-bench-memory-") as folder:
        large = Large(Path(folder) / "large", options.scale)
        if options.profile:
            _profile(large)
            return 0
        loads = [os.getloadavg()[0]]
        starts: list[Start] = []
        counts = ""
        with bench_plane(Path(folder)) as plane:
            for starts_here, said in _states(plane, large, options.starts, Patience(options.patience)):
                starts += starts_here
                counts = said
                print(_line(_cells(starts_here)), flush=True)
            version = plane.api().request("GET", "/version").body["gitVersion"]
        loads.append(os.getloadavg()[0])
    setting = [
        f"{dt.datetime.now(dt.UTC).date()}, commit {commit()}, Kubernetes {version.removeprefix('v')}; {described()};",
        f"load average {loads[0]:.1f} before and {loads[1]:.1f} after, this run included. Medians of {options.starts}",
        f"starts each. In the end the cluster has {counts}.",
    ]
    clusters = list(dict.fromkeys(start.cluster for start in starts))
    table = [_line(HEAD), _line(["---"] + ["---:"] * (len(HEAD) - 1))]
    table += [_line(_cells([start for start in starts if start.cluster == cluster])) for cluster in clusters]
    verdicts = [verdict for cluster in TARGETS for verdict in _verdicts(cluster, starts)]
    print("\n" + "\n".join([*setting, "", *table, "", *verdicts]))
    if options.write:
        PROOF.write_text(_proof(setting, table, verdicts))
    return 0


# -- a real control plane ---------------------------------------------------------------------------------------------


def _states(plane: ControlPlane, large: Large, count: int, patience: Patience) -> Iterator[tuple[list[Start], str]]:
    """Fills the cluster step by step; after each step some starts, and what the cluster holds by then."""
    api = plane.api()
    creator = Creator(plane, ADMIN)
    held: dict[str, int] = {}

    def fill(objects: Iterable[dict[str, Any]]) -> None:
        def requests() -> Iterator[bytes]:
            for one in objects:
                kind = one["kind"].lower() + ("es" if one["kind"].endswith("s") else "s")
                held[kind] = held.get(kind, 0) + 1
                yield creator.request(api.path(kind, one["metadata"].get("namespace")), one)

        result = creator.send(requests(), 16)
        if result.errors:
            raise SystemExit(f"{result.errors} objects were refused")

    def say() -> str:
        return ", ".join(f"{number:,} {kind}" for kind, number in held.items())

    plane.wait_for_default_roles()
    with _gate(plane, ROOT / "policies") as gate:
        labels = {"dra-gate.io/lane": "dra"}
        fill([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "vision-train", "labels": labels}}])
        yield _starts(gate, plane, "empty", large.review("vision-train"), count, patience), say()
    with _gate(plane, large.policies) as gate:
        plane.stop(SCHEDULER)
        plane.stop(CONTROLLER_MANAGER)
        review = large.review(large.namespaces[0])
        for objects in (large.namespace_objects(), large.classes(), large.slices(), large.templates()):
            fill(objects)
        yield _starts(gate, plane, "large", review, count, patience), say()
        fill(large.pods())
        yield _starts(gate, plane, "large, with Pods", review, count, patience), say()
        statuses: list[bytes] = []
        fill(_claims(creator, plane, large, statuses))
        if creator.send(iter(statuses), 16).errors:
            raise SystemExit("claims could not be allocated")
        yield _starts(gate, plane, "large, with Pods and claims", review, count, patience), say()


@contextlib.contextmanager
def _gate(plane: ControlPlane, policies: Path) -> Iterator[Gate]:
    """Certificates and rights for one replica, which is stopped; nobody calls it."""
    with Gate(plane, policies, controllers=0) as gate:
        gate.unregister()
        gate.stop_replica(REPLICA)
        yield gate


def _claims(creator: Creator, plane: ControlPlane, large: Large, statuses: list[bytes]) -> Iterator[dict[str, Any]]:
    """The Pods' claims; puts into `statuses` what allocates them."""
    api = plane.api()
    number = 0
    for namespace in large.namespaces:
        for pod in api.request("GET", api.path("pods", namespace), accept=METADATA).body["items"]:
            claim, status = large.claim(namespace, pod["metadata"]["name"], pod["metadata"]["uid"], number)
            number += 1
            path = api.path("resourceclaims", namespace, claim["metadata"]["name"], "status")
            statuses.append(creator.request(path, status, patch=True))
            yield claim


def _starts(
    gate: Gate, plane: ControlPlane, cluster: str, review: bytes, count: int, patience: Patience
) -> list[Start]:
    context = ssl.create_default_context(cafile=str(gate.ca_file))
    port = int(urlsplit(gate.replica_url(REPLICA)).port or 0)
    made = []
    for _ in range(count):
        patience.wait()
        began = time.monotonic()
        gate.start_replica(REPLICA, wait=False)
        wait_for(lambda: _answers(port, context, review), 300, "a first good answer", every=0.01)
        answered = time.monotonic() - began
        time.sleep(3.0)  # what was needed for the start only is let go
        master, worker = family(child_named(plane.processes.supervisor, "", word=f"127.0.0.1:{port}"))[:2]
        held = pss([master]), pss([worker])
        closed_loop(("127.0.0.1", port), context, prepare([Question("mutate", review, True)], "127.0.0.1"), 25, 3.0)
        loaded = pss([master, worker])
        made.append(Start(cluster, answered, *held, loaded, peak(worker)))
        gate.stop_replica(REPLICA)
    return made


def _answers(port: int, context: ssl.SSLContext, review: bytes) -> bool:
    """Whether the replica answers the review with a patch."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=10)
    try:
        connection.request("POST", "/mutate", review, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status == 200 and "patch" in json.loads(answer.read())["response"]
    except OSError:
        return False
    finally:
        connection.close()


# -- in this process --------------------------------------------------------------------------------------------------


def _profile(large: Large) -> None:
    """Feeds a World kind by kind; prints by how much this process grew, and then what each part of the World holds."""
    policy_set = load(large.policies)
    for _ in (*large.slices(), *large.pods()):
        pass  # what the generator keeps for itself is there before we look
    gc.collect()
    before = pss([os.getpid()])
    world = World(policy_set)
    pods: list[tuple[str, str, str]] = []
    sources: list[tuple[str, Callable[[], Iterable[dict[str, Any]]]]] = [
        ("policies, compiled", tuple),
        ("namespaces", large.namespace_objects),
        ("classes", large.classes),
        ("slices", large.slices),
        ("templates", large.templates),
        ("Pods", large.pods),
        ("claims", lambda: ({**c, **s} for n, pod in enumerate(pods) for c, s in [large.claim(*pod, n)])),
    ]
    for kind, objects in sources:
        number = 0
        spent = 0.0
        for obj in objects():
            number += 1
            meta = {**obj["metadata"], "resourceVersion": str(number), "uid": f"00000000-0000-4000-8000-{number:012}"}
            if kind == "Pods":
                pods.append((meta["namespace"], meta["name"], meta["uid"]))
            wire = json.dumps({**obj, "metadata": meta})  # what comes off the wire shares nothing
            began = time.perf_counter()
            world.apply(json.loads(wire))
            spent += time.perf_counter() - began
        gc.collect()
        held = pss([os.getpid()])
        print(
            f"{kind}: {number:,} taken in within {spent:.1f} s, this process grew by {held - before:.1f} MB", flush=True
        )
        before = held
    print("\nheld by the World's fields; what several hold is counted where it is met first:")
    seen: set[int] = {id(policy_set)}
    for name, value in sorted(vars(world).items(), key=lambda item: hasattr(item[1], "__dict__")):
        inner = vars(value).items() if hasattr(value, "__dict__") else [("", value)]
        for field, part in inner:
            size, count = _size(part, seen)
            if size > 100_000:
                print(f"{size / 1e6:8.2f} MB in {count:9,} objects  {name}{'.' if field else ''}{field}")


def _size(root: object, seen: set[int]) -> tuple[int, int]:
    """Bytes and objects that can be reached from `root` and are not in `seen`, which grows; code and types aside."""
    size = count = 0
    open_ends = [root]
    while open_ends:
        one = open_ends.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType | MethodType | BuiltinFunctionType):
            continue
        seen.add(id(one))
        size += sys.getsizeof(one)
        count += 1
        open_ends += gc.get_referents(one)
    return size, count


# -- words ------------------------------------------------------------------------------------------------------------


def _cells(starts: list[Start]) -> list[str]:
    def middle(value: Callable[[Start], float], form: str = ".0f") -> str:
        return format(statistics.median(map(value, starts)), form)

    return [
        starts[0].cluster,
        middle(lambda start: start.answered, ".2f"),
        middle(lambda start: start.master + start.worker),
        middle(lambda start: start.master),
        middle(lambda start: start.worker),
        middle(lambda start: start.loaded),
        middle(lambda start: start.peak),
    ]


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def _verdicts(cluster: str, starts: list[Start]) -> list[str]:
    megabytes, seconds = TARGETS[cluster]
    here = [start for start in starts if start.cluster == cluster]
    held = statistics.median(max(start.master + start.worker, start.loaded) for start in here)
    answered = statistics.median(start.answered for start in here)
    told = [
        (held <= megabytes, f"at most {megabytes:.0f} MB, {cluster}: {held:.0f} MB"),
        (answered <= seconds, f"first good answer within {seconds:.0f} s, {cluster}: {answered:.2f} s"),
    ]
    return [f"- {'met' if met else '**missed**'}: {text}" for met, text in told]


def _proof(setting: list[str], table: list[str], verdicts: list[str]) -> str:
    about = (__doc__ or "").partition("\n\n")[2].strip()
    return "\n".join(
        [
            "# Memory and start of a replica",
            "",
            "Made by `make bench-memory`.",
            "",
            *setting,
            "",
            about,
            "",
            *table,
            "",
            "## Targets",
            "",
            *verdicts,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
