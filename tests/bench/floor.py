"""The floor: the gate's own server, TLS, log and metrics, with one constant answer in the place of every decision."""

from __future__ import annotations

import sys
from pathlib import Path

from dra_gate.admission.facts import Facts
from dra_gate.admission.review import Answer, Record, Route
from dra_gate.admission.verdict import Verdict
from dra_gate.server.app import App
from dra_gate.server.log import LineWriter
from dra_gate.server.metrics import Metrics
from dra_gate.server.run import Process, serve

_BODY = (
    b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",'
    b'"response":{"uid":"0ad7aab1-3a0b-4c8c-a8f0-6c5c9cb3c1a0","allowed":true}}'
)


def _constant(route: Route, body: bytes, facts: Facts) -> Answer:
    record = Record(route, "uid", "CREATE", "team-0", "train-0-0-0", "admit", (), "policy-0@5", "tenant-0")
    return Answer(_BODY, record, Verdict(allowed=True, mode="enforce"))


def _build(process: Process) -> App:
    writer = LineWriter()
    return App(
        facts=lambda: None,  # type: ignore[arg-type, return-value]
        ready=lambda: ["stopping"] if process.stopping() else [],
        metrics=Metrics(),
        write=writer.write,
        decide=_constant,
        start=writer.start,
        stop=writer.close,
    )


if __name__ == "__main__":
    serve(_build, listen=sys.argv[1], certificates=Path(sys.argv[2]))
