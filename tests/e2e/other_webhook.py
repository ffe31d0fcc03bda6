"""Somebody else's mutating webhook, which adds a container that asks for a device."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

from controlplane.authority import Authority

CONTAINER = {
    "name": "injected",
    "image": "registry.example/check:1",
    "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}},
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["content-length"])))
        request = review["request"]
        response = {"uid": request["uid"], "allowed": True}
        names = [container["name"] for container in request["object"]["spec"]["containers"]]
        if CONTAINER["name"] not in names:
            patch = [{"op": "add", "path": "/spec/containers/-", "value": CONTAINER}]
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        body = json.dumps(
            {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}
        ).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Quiet."""


class OtherWebhook:
    """Serves on loopback over TLS; a context manager. `configuration(name, namespace)` registers it."""

    def __init__(self, folder: Path) -> None:
        self._authority = Authority(folder)
        certificate, key = self._authority.issue("other")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> OtherWebhook:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def configuration(self, name: str, namespace: str) -> dict[str, object]:
        url = f"https://127.0.0.1:{self._server.server_address[1]}/"
        bundle = base64.b64encode(self._authority.certificate.read_bytes()).decode()
        hook = {
            "name": "other.example.com",
            "clientConfig": {"url": url, "caBundle": bundle},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "timeoutSeconds": 5,
            "reinvocationPolicy": "Never",
            "admissionReviewVersions": ["v1"],
        }
        api = "admissionregistration.k8s.io/v1"
        return {
            "apiVersion": api,
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [hook],
        }
