"""What only a kubelet would write, written by hand and labelled as constructed in `status.message`.

There is no kubelet in the kit: bound Pods stay Pending, and a graceful delete never finishes, until one of these is
called or a `PlayedKubelet` runs.
"""

from __future__ import annotations

import datetime as dt
import threading
from types import TracebackType

from controlplane.api import STRATEGIC, Api, ApiError, Object

MESSAGE = "written by the control-plane kit: there is no kubelet"


def mark_running(api: Api, namespace: str, name: str) -> Object:
    """The Pod runs and is ready, and so are its containers and sidecars; plain init containers have completed."""
    return _set_phase(api, namespace, name, "Running")


def mark_succeeded(api: Api, namespace: str, name: str) -> Object:
    """Every container ended with exit code 0."""
    return _set_phase(api, namespace, name, "Succeeded")


def mark_failed(api: Api, namespace: str, name: str, exit_code: int = 1) -> Object:
    """Every container ended with `exit_code`."""
    return _set_phase(api, namespace, name, "Failed", exit_code)


def delete_now(api: Api, namespace: str, name: str) -> None:
    """Takes the Pod object away, as the kubelet does when its containers are gone (and `--force` does too early)."""
    api.delete("pods", name, namespace, grace=0, missing_ok=True)


class PlayedKubelet:
    """Plays the kubelets of all nodes: bound Pods run at once, and those being deleted go; a context manager.

    For clusters that people look at. Tests call the functions, so that they say what happens when.
    """

    def __init__(self, api: Api, every: float = 0.3) -> None:
        self._api = api
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="played-kubelet", daemon=True)

    def __enter__(self) -> PlayedKubelet:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._stop.wait(self._every):
            try:
                for pod in self._api.list("pods"):
                    self._play(pod)
            except ApiError:  # the API server is away, or a Pod went in between: look again
                continue

    def _play(self, pod: Object) -> None:
        if "nodeName" not in pod["spec"]:
            return
        at = pod["metadata"]["namespace"], pod["metadata"]["name"]
        if "deletionTimestamp" in pod["metadata"]:
            delete_now(self._api, *at)
        elif pod["status"].get("phase", "Pending") == "Pending":
            mark_running(self._api, *at)


def _set_phase(api: Api, namespace: str, name: str, phase: str, exit_code: int = 0) -> Object:
    spec = api.get("pods", name, namespace)["spec"]
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    runs = {"running": {"startedAt": now}}

    def ended(code: int) -> Object:
        reason = "Completed" if code == 0 else "Error"
        return {"terminated": {"exitCode": code, "reason": reason, "startedAt": now, "finishedAt": now}}

    def status(container: Object, state: Object) -> Object:
        up = "running" in state
        return {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "restartCount": 0,
            "ready": up or phase == "Running",
            "started": up,
            "state": state,
        }

    running = phase == "Running"
    mains = [status(c, runs if running else ended(exit_code)) for c in spec["containers"]]
    inits = [
        status(c, runs if running and c.get("restartPolicy") == "Always" else ended(0))
        for c in spec.get("initContainers", [])
    ]
    yes_no = "True" if running else "False"
    conditions = [{"type": kind, "status": yes_no, "lastTransitionTime": now} for kind in ("Ready", "ContainersReady")]
    body: Object = {
        "phase": phase,
        "message": MESSAGE,
        "startTime": now,
        "conditions": conditions,
        "containerStatuses": mains,
    }
    if inits:
        body["initContainerStatuses"] = inits
    return api.patch("pods", name, {"status": body}, namespace, subresource="status", content_type=STRATEGIC)
