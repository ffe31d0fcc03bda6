"""Jobs and bare Pods of several tenants at a steady rate, and the kubelets of both pools that run them.

What a kubelet would write is constructed: that of a node with a device plugin counts its devices and refuses a Pod that
they are not enough for, and now and then one without cause (`UnexpectedAdmissionError`); that of a node under DRA may
be told to fail to prepare what it is given.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from controlplane.api import STRATEGIC, Api, ApiError, Object
from controlplane.background import Background
from controlplane.kubelet import MESSAGE, delete_now, mark_running, mark_succeeded
from e2e import scene
from proofs.audited import FINISHED, asks

LASTS = "example.com/lasts"  # annotation: seconds that the Pod runs
DEVICES = "example.com/devices"  # annotation of Jobs and Pods: what they ask for
SIZES, SHARES = (1, 2, 4), (70, 22, 8)  # devices of a Pod, and how many in a hundred ask for so many
UNEXPECTED = 0.003  # share of the Pods on nodes with a device plugin that the kubelet refuses without cause
PATIENCE = 8.0  # seconds after which a user deletes a Pod that hangs in its creation
_WORKERS = 8
Name = tuple[str, str]


class Kubelets(Background):
    """Runs every bound Pod for its time; Jobs' Pods are left to their Jobs then, others are taken away.

    `failing`: nodes under DRA that prepare nothing: their Pods stay where they are, and their users delete them after a
    while. `sound`: namespaces whose Pods are never refused without cause. `there` are the Jobs and Pods of the last
    look.
    """

    def __init__(self, api: Api, namespaces: Iterable[str], seed: int) -> None:
        super().__init__(self._look, 0.3)
        self.failing = False
        self.sound: set[str] = set()
        self.there: set[Name] = set()
        self.looked = time.monotonic()
        self.told: Counter[str] = Counter()
        self._api, self._rng = api, random.Random(seed)
        self._namespaces = frozenset(namespaces)
        self._since: dict[str, float] = {}  # UID of a Pod -> since when it runs, or hangs
        self._nodes = {one["metadata"]["name"]: int(one["status"]["allocatable"].get("nvidia.com/gpu", 0))
                       for one in api.list("nodes")}  # fmt: skip

    def _look(self) -> None:
        began = time.monotonic()
        pods = [one for one in self._api.list("pods") if one["metadata"]["namespace"] in self._namespaces]
        jobs = [one for one in self._api.list("jobs") if one["metadata"]["namespace"] in self._namespaces]
        self.there, self.looked = {_name(one) for one in (*pods, *jobs)}, began
        bound = [one for one in pods if "nodeName" in one["spec"]]
        given = Counter[str]()
        for pod in bound:
            if pod["status"].get("phase") == "Running":
                given[pod["spec"]["nodeName"]] += asks(pod)
        self._since = {pod["metadata"]["uid"]: self._since.get(pod["metadata"]["uid"], began) for pod in bound}
        steps = [step for pod in bound if (step := self._next(pod, given, began)) is not None]
        with ThreadPoolExecutor(_WORKERS) as pool:
            for done in [pool.submit(step) for step in steps]:
                with contextlib.suppress(ApiError):  # it went in between
                    done.result()

    def _next(self, pod: Object, given: Counter[str], now: float) -> Callable[[], object] | None:
        """What its kubelet does with the Pod now, or its user."""
        api, at, node = self._api, _name(pod), pod["spec"]["nodeName"]
        phase, since = pod["status"].get("phase", "Pending"), self._since[pod["metadata"]["uid"]]
        if "deletionTimestamp" in pod["metadata"]:
            return lambda: self._end(pod)
        if phase in FINISHED:
            owned = pod["metadata"].get("ownerReferences")
            return None if owned else lambda: delete_now(api, *at)
        if phase == "Running":
            lasts = float(pod["metadata"]["annotations"][LASTS])
            return (lambda: mark_succeeded(api, *at)) if now - since >= lasts else None
        asked = asks(pod)
        if asked and (given[node] + asked > self._nodes[node] or self._is_unexpected(at[0])):
            return lambda: self._refuse(pod, asked, self._nodes[node] - given[node])
        if not asked and self.failing:
            if now - since < 1e-3:
                return lambda: self._fail_to_prepare(pod)
            return (lambda: api.delete("pods", at[1], at[0])) if now - since > PATIENCE else None
        given[node] += asked
        self._since[pod["metadata"]["uid"]] = now  # not while it hung
        return lambda: mark_running(api, *at)

    def _is_unexpected(self, namespace: str) -> bool:
        return namespace not in self.sound and self._rng.random() < UNEXPECTED

    def _end(self, pod: Object) -> None:
        """The kubelet's part of a deletion: everything is stopped, then the object goes."""
        at = _name(pod)
        if pod["status"].get("phase") == "Running":
            mark_succeeded(self._api, *at)
        elif pod["status"].get("phase") not in FINISHED:
            unknown = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": MESSAGE}
            self._set(pod, {"phase": "Failed"}, {"terminated": unknown})
        delete_now(self._api, *at)

    def _refuse(self, pod: Object, asked: int, free: int) -> None:
        self.told["UnexpectedAdmissionError"] += 1
        text = "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu."
        message = f"{text} Requested: {asked}, Available: {free}, which is unexpected ({MESSAGE})"
        self._set(pod, {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message})

    def _fail_to_prepare(self, pod: Object) -> None:
        self.told["FailedPrepareDynamicResources"] += 1
        namespace, name = _name(pod)
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        text = "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources failed"
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name}
        self._api.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"generateName": f"{name}.", "namespace": namespace},
                "involvedObject": about | {"uid": pod["metadata"]["uid"]},
                "type": "Warning",
                "reason": "FailedPrepareDynamicResources",
                "message": f"{text}: unknown device ({MESSAGE})",
                "source": {"component": "kubelet", "host": pod["spec"]["nodeName"]},
                "reportingComponent": "kubelet",
                "reportingInstance": pod["spec"]["nodeName"],
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            }
        )
        self._set(pod, {"phase": "Pending", "startTime": now}, {"waiting": {"reason": "ContainerCreating"}})

    def _set(self, pod: Object, status: Object, state: Object | None = None) -> None:
        if state is not None:
            each = {"image": "", "imageID": "", "restartCount": 0, "ready": False, "started": False, "state": state}
            status = status | {
                "containerStatuses": [{"name": one["name"], **each} for one in pod["spec"]["containers"]]
            }
        namespace, name = _name(pod)
        self._api.patch("pods", name, {"status": status}, namespace, subresource="status", content_type=STRATEGIC)


class Load(Background):
    """Submits for each tenant so many a second as `rates` has it, half of them Jobs; all Jobs for those in `most`, who
    never have more than so many devices out at once.
    """

    def __init__(
        self,
        api: Api,
        kubelets: Kubelets,
        namespaces: dict[str, list[str]],
        rates: dict[str, float],
        most: dict[str, int],
        seed: int,
    ) -> None:
        super().__init__(self._submit_due, 0.05)
        self.refused: list[str] = []
        self.submitted: Counter[str] = Counter()  # by tenant
        self.paused: set[str] = set()
        self.factor = 1.0
        self._api, self._kubelets, self._namespaces, self._most = api, kubelets, namespaces, most
        self._rates, self._rng = rates, random.Random(seed)
        self._due = {name: time.monotonic() + self._rng.expovariate(rate) for name, rate in rates.items()}
        self._out: dict[str, dict[Name, tuple[int, float]]] = {name: {} for name in rates}
        self._number = 0
        self._pool = ThreadPoolExecutor(_WORKERS)
        api.list("jobs")  # discovery once, before the threads

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._pool.shutdown()

    def out(self, tenant: str) -> int:
        """Devices that its Pods ask for which are there, those that are held among them."""
        there, looked = self._kubelets.there, self._kubelets.looked
        mine = self._out[tenant]
        for name in [name for name, (_, at) in list(mine.items()) if name not in there and at < looked - 1]:
            del mine[name]
        return sum(size for size, _ in list(mine.values()))

    def burst(self, namespace: str, number: int, devices: int, lasts: float, *, bare: bool = False) -> None:
        """So many Jobs at once, or Pods, whatever their tenant may have out."""
        tenant = next(name for name, places in self._namespaces.items() if namespace in places)
        for _ in range(number):
            self._submit(tenant, namespace, devices, lasts, job=not bare)

    def _submit_due(self) -> None:
        now = time.monotonic()
        for tenant, due in self._due.items():
            if due > now:
                continue
            self._due[tenant] = max(due, now - 1) + self._rng.expovariate(self._rates[tenant] * self.factor)
            if tenant in self.paused:
                continue
            (size,) = self._rng.choices(SIZES, SHARES)
            most = self._most.get(tenant)
            if most is not None and self.out(tenant) + size > most:
                continue
            namespace, lasts = self._rng.choice(self._namespaces[tenant]), round(self._rng.uniform(1, 4), 1)
            self._submit(tenant, namespace, size, lasts, job=most is not None or self._rng.random() < 0.5)

    def _submit(self, tenant: str, namespace: str, size: int, lasts: float, *, job: bool) -> None:
        self._number += 1
        name = f"{'job' if job else 'pod'}-{self._number}"
        obj = (job_of if job else pod_of)(name, size, lasts)
        self._out[tenant][namespace, name] = (size, time.monotonic())
        self.submitted[tenant] += 1
        self._pool.submit(self._create, obj, namespace)

    def _create(self, obj: Object, namespace: str) -> None:
        try:
            self._api.create(obj, namespace)
        except ApiError as problem:  # the judge reads it in the audit log; here it is for who looks on
            self.refused.append(f"{namespace}: {problem}")


def pod_of(name: str, size: int, lasts: float) -> Object:
    """A bare Pod that asks for so many devices and runs so long."""
    pod = scene.pod(name, scene.container(gpus=size, cpu="100m"))
    pod["metadata"]["annotations"] = {LASTS: str(lasts), DEVICES: str(size)}
    return pod


def job_of(name: str, size: int, lasts: float) -> Object:
    """A Job of one such Pod, which goes when it has ended."""
    pod = pod_of(name, size, lasts)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": {DEVICES: str(size)}},
        "spec": {
            "backoffLimit": 50,
            "ttlSecondsAfterFinished": 0,
            "template": {"metadata": {"annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]},
        },
    }


def _name(obj: Object) -> Name:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]
