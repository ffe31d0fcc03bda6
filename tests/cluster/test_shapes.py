"""What the shapes leave of an object tells the caches all that the whole object would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
import msgspec
from hypothesis import strategies as st

from admission import pods
from bench.large import Large
from dra_gate.cluster import shapes
from dra_gate.cluster.client import decoder
from dra_gate.cluster.facts import PATHS, World
from dra_gate.controller.plan import read_slice, references
from dra_gate.fairness.holding import pod_holding
from dra_gate.kube.raw import at
from dra_gate.policy.load import load

STATUS = st.one_of(
    pods.ANYTHING,
    st.fixed_dictionaries(
        {
            "phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
            "resourceClaimStatuses": st.lists(
                st.fixed_dictionaries({"name": st.sampled_from("abc"), "resourceClaimName": st.just("c")}), max_size=2
            ),
        }
    ),
)


def shaped(obj: Any, shape: type) -> Any:
    return decoder(shape)(msgspec.json.encode(obj))


@hypothesis.settings(max_examples=600, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    pod=st.one_of(pods.pods(), pods.pods(valid=True)),
    status=STATUS,
    node=st.sampled_from(["", "node-1"]),
    deleted=st.booleans(),
)
def test_pods(pod: dict[str, Any], status: Any, node: str, deleted: bool) -> None:
    pod = msgspec.json.decode(msgspec.json.encode(pod))
    pod["status"] = status
    if node and isinstance(pod.get("spec"), dict):
        pod["spec"]["nodeName"] = node
    if deleted and isinstance(pod.get("metadata"), dict):
        pod["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z"
    left = shaped(pod, shapes.Pod)
    assert pod_holding(left, lambda _: True) == pod_holding(pod, lambda _: True)
    assert references(left) == references(pod)


def test_a_whole_cluster(tmp_path: Path) -> None:
    large = Large(tmp_path / "large", 0.01)
    objects = [*large.namespace_objects(), *large.classes(), *large.slices(), *large.templates()]
    for number, pod in enumerate(large.pods()):
        meta = pod["metadata"] = {**pod["metadata"], "uid": f"uid-{number}"}
        claim, status = large.claim(meta["namespace"], meta["name"], meta["uid"], number)
        objects += [pod, {**claim, **status}]
    policy_set = load(large.policies)
    worlds = World(policy_set), World(policy_set)
    for obj in objects:
        worlds[0].apply(msgspec.json.decode(msgspec.json.encode(obj)))
        sink = worlds[1].sinks()[PATHS[obj["kind"]]]
        assert sink.shape is not None
        sink.upsert(shaped(obj, sink.shape))
    whole, left = (world.facts() for world in worlds)
    assert whole.used
    for part in ("namespaces", "templates", "claims", "used", "device_resources", "known_classes"):
        assert getattr(left, part), part
        assert getattr(left, part) == getattr(whole, part), part


def test_slices_and_namespaces_for_the_controller(tmp_path: Path) -> None:
    for one in Large(tmp_path / "large", 0.01).slices():
        left = shaped(one, shapes.Spec)
        assert read_slice(left) == read_slice(one)
        assert left["metadata"]["name"] == one["metadata"]["name"]
    for metadata, phase in (({"deletionTimestamp": "2026-11-30T00:00:00Z"}, "Active"), ({}, "Terminating")):
        left = shaped({"metadata": metadata, "status": {"phase": phase}}, shapes.Namespace)
        assert at(left, "metadata", "deletionTimestamp") == metadata.get("deletionTimestamp")
        assert at(left, "status", "phase") == phase
