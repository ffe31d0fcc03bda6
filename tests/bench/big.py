"""`python -m bench.big`: verdicts on objects of 3 MiB, beside what it takes to read their JSON at all.

The API server takes request bodies of up to 3 MiB (apiserver, MaxRequestBodyBytes) and etcd stores requests of up to
1.5 MiB (--max-request-bytes), so that most of these Pods could never be stored: they are what somebody may send.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from admission import setting
from bench.machine import commit, described
from dra_gate.admission.facts import Facts
from dra_gate.admission.review import Route, answer
from dra_gate.server.app import uncollected
from hostile.honest import Calls, call
from server.process import Served, ask, served

Object = dict[str, Any]
TARGET = 50.0  # milliseconds
ROUNDS = 7
LARGE_EVERY = 1.0  # seconds between a large review's answer and the next one
PROOF = Path(__file__).parents[2] / "docs" / "proofs" / "big.md"
HEAD = ["shape", "MiB", "read ms", "mutate ms", "validate ms", "slower / read"]
_PROOF_HEAD = [
    "# Verdicts on objects of 3 MiB",
    "",
    "Made by `make bench-big`. `read` is the JSON decoder by itself, over the same bytes in the same run; mutate and",
    "validate are whole answers, reading included, as the server gives them (`server/app.py`, `uncollected`). CPU is",
    "told, not time: what neighbours on the machine take is not in it. A Deployment is judged by mutate and validate",
    "in one answer.",
    "",
]
GPU = setting.asking("1")
# What the API server adds to a container before it asks us.
_DEFAULTED = {
    "image": "a",
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": "Always",
}


def _containers(count: int, what: Object, **spec: Any) -> Object:
    return setting.pod(containers=[GPU, *({"name": f"c{number}", **what} for number in range(count))], **spec)


def _gpu(**spec: Any) -> Object:
    return setting.pod(containers=[GPU], **spec)


def _described(**metadata: Any) -> Object:
    return {**_gpu(), "metadata": {"name": "p", **metadata}}


def _variables(count: int, **variable: Any) -> Object:
    return setting.pod(containers=[{**GPU, "env": [{"name": "A", **variable}] * count}])


def _required(term: Object, count: int) -> Object:
    required = {"nodeSelectorTerms": [term] * count}
    return _gpu(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}})


def _deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def _managed(pod: Object) -> Object:
    """With the managedFields that the API server writes of its variables and its containers, before it asks."""
    spec: Object = {}
    for container in pod["spec"]["containers"]:
        variables = {
            f'k:{{"name":"{one["name"]}"}}': {".": {}, "f:name": {}, "f:value": {}} for one in container.get("env", ())
        }
        fields = {
            f"f:{key}": {}
            for key in (
                "image",
                "imagePullPolicy",
                "name",
                "resources",
                "terminationMessagePath",
                "terminationMessagePolicy",
            )
        }
        spec[f'k:{{"name":"{container["name"]}"}}'] = {".": {}, **fields, **({"f:env": variables} if variables else {})}
    manager = {"manager": "kubectl", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    managed = {**manager, "fieldsV1": {"f:spec": {"f:containers": spec}}}
    return {**pod, "metadata": {**pod["metadata"], "managedFields": [managed]}}


# Pods of about 3 MiB, or with as many parts as the server reads (app.COLLECTIONS_LIMIT, app.VALUES_LIMIT).
PODS: dict[str, Callable[[], Object]] = {
    "60,000 containers": lambda: _containers(60_000, {"image": "a", "resources": {}}),
    "18,000 containers as the API server sends them": lambda: _containers(18_000, _DEFAULTED),
    "50,000 containers that ask for no device": lambda: _containers(
        50_000, {"resources": {"limits": {"nvidia.com/gpu": "0"}}}
    ),
    "80,000 resources of one container, zero of each": lambda: setting.pod(
        containers=[GPU, {"name": "d", "resources": {"limits": {f"nvidia.com/x{n}": "0" for n in range(80_000)}}}]
    ),
    "50,000 paths of the node": lambda: _gpu(
        volumes=[{"name": "v", "hostPath": {"path": f"/data/{number}"}} for number in range(50_000)]
    ),
    "100,000 volumes": lambda: _gpu(volumes=[{"name": f"v{n}", "emptyDir": {}} for n in range(100_000)]),
    "100,000 mounts": lambda: setting.pod(
        containers=[{**GPU, "volumeMounts": [{"name": "v", "mountPath": "/v"}] * 100_000}]
    ),
    "60,000 annotations about devices": lambda: _described(
        annotations={f"cdi.k8s.io/{number}": "a.b/c=d" for number in range(60_000)}
    ),
    "150,000 annotations": lambda: _described(annotations={f"a.b/{number}": "c" for number in range(150_000)}),
    "150,000 labels": lambda: _described(labels={f"a.b/{number}": "c" for number in range(150_000)}),
    "150,000 labels of nodes": lambda: _gpu(nodeSelector={f"a.b/{number}": "c" for number in range(150_000)}),
    "100,000 variables": lambda: _variables(100_000, value="b"),
    "30,000 variables from elsewhere": lambda: _variables(
        30_000, valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}
    ),
    "100,000 tolerations": lambda: _gpu(tolerations=[{"key": "a", "operator": "Exists"}] * 100_000),
    "60,000 required node terms": lambda: _required({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, 60_000),
    "50,000 claim entries": lambda: _gpu(
        resourceClaims=[{"name": f"n{n}", "resourceClaimTemplateName": "nics"} for n in range(50_000)]
    ),
    "a string of 3 MB": lambda: _described(annotations={"a.b/c": "x" * 3_000_000}),
    "20,000 containers, with managedFields": lambda: _managed(_containers(20_000, _DEFAULTED)),
    "50,000 variables, with managedFields": lambda: _managed(
        setting.pod(containers=[{**GPU, "env": [{"name": f"A{number}", "value": "b"} for number in range(50_000)]}])
    ),
    "lists 400 deep, 300 times": lambda: _gpu(topologySpreadConstraints=[_deep(400)] * 300),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """One review. `routes` are those that it comes by."""

    name: str
    body: bytes
    routes: tuple[Route, ...] = ("mutate", "validate")


def review(
    obj: Object, old: Object | None = None, *, resource: tuple[str, str] = ("", "pods"), namespace: str = "fern-dev"
) -> bytes:
    """The body that the API server would send: a CREATE, or an UPDATE of `old`."""
    request = {
        "uid": "u-1",
        "resource": {"group": resource[0], "version": "v1", "resource": resource[1]},
        "operation": "UPDATE" if old else "CREATE",
        "namespace": namespace,
        "object": obj,
    }
    if old:
        request["oldObject"] = old
    made = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    return json.dumps(made, separators=(",", ":")).encode()


def shapes() -> Iterator[Shape]:
    """All of them, one after the other: together they would fill the memory."""
    for name, make in PODS.items():
        yield Shape(name, review(make()))
    half, deployments = _containers(18_000, {"image": "a", "resources": {}}), ("apps", "deployments")
    changed = {**half, "metadata": {"name": "p", "annotations": {"a": "b"}}}
    yield Shape("a Pod changed, 18,000 containers before and after", review(changed, half), ("validate",))
    for name in ("60,000 containers", "100,000 variables", "50,000 paths of the node"):
        workload = {"metadata": {"name": "w"}, "spec": {"template": PODS[name]()}}
        yield Shape(f"a Deployment, {name}", review(workload, resource=deployments), ("validate",))
    other = _containers(18_000, {"image": "b", "resources": {}})
    before, after = ({"metadata": {"name": "w"}, "spec": {"template": pod}} for pod in (half, other))
    yield Shape(
        "a Deployment changed, 18,000 containers before and after",
        review(after, before, resource=deployments),
        ("validate",),
    )


@dataclass(frozen=True, slots=True)
class Row:
    """What one review cost, in milliseconds: to read its JSON and no more, and to judge it by each of its routes."""

    shape: str
    mebibytes: float
    read: float
    verdicts: tuple[float, ...]

    @property
    def slowest(self) -> float:
        """Of its routes."""
        return max(self.verdicts)

    def cells(self) -> list[str]:
        """As HEAD names them."""
        mutate = f"{self.verdicts[0]:.0f}" if len(self.verdicts) == 2 else ""
        over = f"{self.slowest / self.read:.1f}"
        return [self.shape, f"{self.mebibytes:.1f}", f"{self.read:.0f}", mutate, f"{self.verdicts[-1]:.0f}", over]


def measured(shape: Shape, facts: Facts, rounds: int = ROUNDS) -> Row:
    """The row of one shape: the fastest of `rounds`, as the server judges such bodies."""
    with uncollected():
        read = best(partial(msgspec.json.decode, shape.body), rounds)
        verdicts = tuple(best(partial(answer, route, shape.body, facts), rounds) for route in shape.routes)
    return Row(shape.name, len(shape.body) / 2**20, read, verdicts)


def best(work: Callable[[], object], rounds: int) -> float:
    """Milliseconds of CPU of the fastest of several, what it made thrown away included."""
    times = []
    for _ in range(rounds):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return min(times) * 1000


def beside(seconds: float) -> tuple[Calls, Calls]:
    """Small reviews to a real server by themselves, and while another client sends it a large one every second."""
    large = Shape("", review(PODS["60,000 containers"](), namespace="lilac-train")).body
    with tempfile.TemporaryDirectory(prefix="dra-gate-bench-big-") as folder, served(Path(folder)) as one:
        alone = call(one, seconds)
        sender = multiprocessing.get_context("fork").Process(target=_send, args=(one, large), daemon=True)
        sender.start()
        time.sleep(1)
        try:
            return alone, call(one, seconds)
        finally:
            sender.kill()
            sender.join()


def _send(one: Served, large: bytes) -> None:
    connection = one.connection()
    while True:
        status = ask(connection, "POST", "/validate?timeout=3s", large)[0]
        if status != 200:
            raise SystemExit(f"the large one was answered with {status}")
        time.sleep(LARGE_EVERY)


def _held_up(alone: Calls, disturbed: Calls) -> list[str]:
    return [
        "A verdict holds the server's one loop and the interpreter lock: who asks meanwhile waits until it is there.",
        "100 small reviews a second, by themselves and beside a client that sends 60,000 containers a second after its",
        "last answer; here it is time that is told, neighbours included.",
        "",
        "| small reviews | p50 ms | p99 ms | slowest ms | wrong |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {name} | {calls.median:.1f} | {calls.p99:.1f} | {calls.milliseconds[-1]:.1f} | {len(calls.wrong)} |"
            for name, calls in (("by themselves", alone), ("beside large ones", disturbed))
        ),
    ]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.big", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of which the fastest counts (default {ROUNDS})")
    parser.add_argument("--seconds", type=float, default=20.0, help="of small reviews beside large ones (default 20)")
    parser.add_argument("--write", action="store_true", help=f"write docs/proofs/{PROOF.name} too")
    options = parser.parse_args()
    loads = [os.getloadavg()[0]]
    facts = setting.facts()
    print(_line(HEAD), flush=True)
    rows = []
    for shape in shapes():
        rows.append(measured(shape, facts, options.rounds))
        print(_line(rows[-1].cells()), flush=True)
    alone, disturbed = beside(options.seconds)
    loads.append(os.getloadavg()[0])
    lines = [
        f"{dt.datetime.now(dt.UTC).date()}, commit {commit()}; {described()};",
        f"load average {loads[0]:.1f} before and {loads[1]:.1f} after, this run included. Fastest of {options.rounds}.",
        "",
        _line(HEAD),
        _line(["---"] + ["---:"] * (len(HEAD) - 1)),
        *(_line(row.cells()) for row in rows),
        "",
        f"At most {TARGET} ms: {sum(row.slowest <= TARGET for row in rows)} of {len(rows)} shapes; "
        f"over it: {'; '.join(row.shape for row in rows if row.slowest > TARGET) or 'none'}.",
        "",
        *_held_up(alone, disturbed),
    ]
    print("\n".join(lines))
    if options.write:
        PROOF.write_text("\n".join([*_PROOF_HEAD, *lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
