"""A replica of the webhook, asked directly: what it says, whatever the API server and the other replicas do."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import jsonpatch

from controlplane.gate import Gate


class Replica:
    """One connection to one replica, which is kept open; a context manager."""

    def __init__(self, running: Gate, replica: str = "gate-0") -> None:
        host = running.replica_url(replica).removeprefix("https://")
        context = ssl.create_default_context(cafile=str(running.ca_file))
        self._connection = http.client.HTTPSConnection(host, context=context, timeout=10)

    def __enter__(self) -> Replica:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def ask(
        self, route: str, pod: dict[str, Any], *, username: str = "ada", groups: Sequence[str] = ()
    ) -> dict[str, Any]:
        """The response about creating the Pod, as if the API server had asked."""
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "1", "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"}, "operation": "CREATE",
            "namespace": pod["metadata"]["namespace"], "name": pod["metadata"]["name"],
            "userInfo": {"username": username, "groups": list(groups)}, "object": pod, "dryRun": False,
        }}  # fmt: skip
        self._connection.request("POST", f"/{route}", json.dumps(review), {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        response: dict[str, Any] = json.loads(content)["response"]
        return response

    def mutated(self, pod: dict[str, Any]) -> dict[str, Any]:
        """The Pod as mutate makes it; it has to be admitted."""
        response = self.ask("mutate", pod)
        assert response["allowed"], response
        patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
        patched: dict[str, Any] = jsonpatch.apply_patch(pod, patch)
        return patched
