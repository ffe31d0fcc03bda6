"""What only a kubelet would write, written by hand and labelled as constructed in `status.message`.

There is no kubelet in the kit: bound Pods stay Pending, and a graceful delete never finishes, until one of these is
called or a `PlayedKubelet` runs.
"""

from __future__ import annotations

import contextlib
import datetime as dt

from controlplane.api import STRATEGIC, Api, ApiError, Object
from controlplane.background import Background

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


def end_all(api: Api, namespace: str) -> None:
    """All Pods of the namespace go, the bound ones having ended first: what one deleted by force held counts on."""
    for pod in api.list("pods", namespace):
        if "nodeName" in pod["spec"] and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            with contextlib.suppress(ApiError):  # it is gone, or has ended
                mark_succeeded(api, namespace, pod["metadata"]["name"])
    api.delete_all("pods", namespace, grace=0)


class PlayedKubelet(Background):
    """Plays the kubelets of all nodes: bound Pods run at once, and those being deleted go; a context manager.

    For clusters that people look at. Tests call the functions, so that they say what happens when.
    """

    def __init__(self, api: Api, every: float = 0.3) -> None:
        super().__init__(self._look, every)
        self._api = api

    def _look(self) -> None:
        for pod in self._api.list("pods"):
            self._play(pod)

    def _play(self, pod: Object) -> None:
        if "nodeName" not in pod["spec"]:
            return
        at = pod["metadata"]["namespace"], pod["metadata"]["name"]
        if "deletionTimestamp" in pod["metadata"]:
            if pod["status"].get("phase") == "Running":
                mark_succeeded(self._api, *at)  # a Pod that goes without having ended was deleted by force
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
