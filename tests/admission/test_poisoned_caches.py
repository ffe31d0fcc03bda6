"""Whatever arrives from the cluster, caches stay up and decisions go on: unknown means gated, never an exception."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from admission import pods, setting
from admission.setting import asking, pod, request
from dra_gate.admission.mutate import mutate
from dra_gate.admission.validate import validate
from dra_gate.cluster.facts import PATHS

BOMB = "[1,2,3,4,5,6,7,8,9].all(a, " * 6 + "true" + ")" * 6
SELECTORS = [
    BOMB,
    "device.attributes['gpu.nvidia.com'].type == 'gpu'",
    "device.attributes['x'].y.z",
    "no CEL at all (",
    "1",
    "'" + "x" * 20_000 + "' == ''",
]


@pytest.mark.parametrize("selector", SELECTORS, ids=lambda text: text[:20])
def test_a_class_that_cannot_be_judged_is_gated(selector: str) -> None:
    spec = {"selectors": [{"cel": {"expression": selector}}], "extendedResourceName": "odd.example/thing"}
    world = setting.world({"kind": "DeviceClass", "metadata": {"name": "odd.example"}, "spec": spec})
    verdict = validate(request(pod(containers=[asking(1, "odd.example/thing")])), world.facts())
    assert [finding.code for finding in verdict.findings] == ["UNSUPPORTED_RESOURCE"]


@hypothesis.settings(max_examples=400, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    kind=st.sampled_from(sorted(PATHS)),
    spec=pods.ANYTHING,
    status=pods.ANYTHING,
    labels=pods.ANYTHING,
    owners=pods.ANYTHING,
)
def test_garbage_of_every_kind(kind: str, spec: Any, status: Any, labels: Any, owners: Any) -> None:
    metadata = {"name": "fern-dev", "namespace": "fern-dev", "labels": labels, "ownerReferences": owners, "uid": "u"}
    world = setting.world()
    before = world.facts().used.get("fern")
    obj = {"kind": kind, "metadata": metadata, "spec": spec, "status": status}
    sink = world.sinks()[PATHS[kind]]
    sink.upsert(obj)
    mutate(request(pod(containers=[asking(1)])), world.facts())
    sink.delete(obj)
    if kind != "DeviceClass":  # a class that is gone leaves claims of it unknown, and unknown means gated
        assert world.facts().used.get("fern") == before, "what goes takes its charge along"
    sink.replace([])
