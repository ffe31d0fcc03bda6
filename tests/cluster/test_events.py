"""What Kubernetes demands of an Event holds for all that the gate writes."""

from __future__ import annotations

from dra_gate.cluster.events import event

POD = {"apiVersion": "v1", "kind": "Pod", "namespace": "research", "name": "p", "uid": "u"}


def test_what_is_too_long_is_clipped() -> None:
    made = event(POD, "Told", "Tell", "é" * 1024, identity="h" * 200)
    assert made["note"].startswith("é" * 500)
    assert len(made["note"].encode()) <= 1024
    assert made["reportingInstance"] == "h" * 128


def test_it_stands_beside_what_it_is_about() -> None:
    assert event(POD, "Told", "Tell", "")["metadata"] == {"generateName": "dra-gate-", "namespace": "research"}
    gate = {"apiVersion": "dra-gate.io/v1alpha1", "kind": "Gate", "name": "default"}
    assert event(gate, "Told", "Tell", "", name="once")["metadata"] == {"name": "once", "namespace": "default"}
