"""What a snapshot keeps, and that its bytes are one."""

from __future__ import annotations

import pytest

from dra_gate.allocation import Snapshot, SnapshotError, dumps, loads, snapshot_of, with_objects

SECRET = "hunter2"
POD = {
    "kind": "Pod",
    "metadata": {
        "name": "p",
        "namespace": "t",
        "uid": "u",
        "annotations": {"dra-gate.io/policy": "training", "example.com/note": SECRET},
        "managedFields": [{"manager": SECRET}],
    },
    "spec": {
        "containers": [
            {
                "name": "c",
                "image": SECRET,
                "command": [SECRET],
                "env": [{"name": "A", "value": SECRET}],
                "resources": {"requests": {"cpu": "1"}},
            }
        ],
        "volumes": [{"name": SECRET}],
        "resourceClaims": [{"name": "gate-0", "resourceClaimName": "c"}],
        "serviceAccountName": SECRET,
    },
    "status": {"phase": "Pending", "podIP": SECRET, "conditions": [{"type": "PodScheduled", "status": "False"}]},
}
CLAIM = {
    "kind": "ResourceClaim",
    "metadata": {"name": "c", "namespace": "t", "annotations": {"dra-gate.io/x": "y", "other": SECRET}},
    "spec": {"devices": {"requests": [{"name": "gpu"}], "config": [{"opaque": {"parameters": SECRET}}]}},
    "status": {
        "allocation": {"devices": {"results": [{"device": "g"}], "config": [{"opaque": {"parameters": SECRET}}]}},
        "devices": [{"data": SECRET}],
    },
}
CLASS = {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"config": [{"opaque": SECRET}], "selectors": []}}
NODE = {
    "kind": "Node",
    "metadata": {"name": "n", "labels": {"zone": "a"}, "annotations": {"a": SECRET}},
    "spec": {"providerID": SECRET, "unschedulable": True},
    "status": {
        "addresses": [{"address": SECRET}],
        "conditions": [{"type": "Ready", "status": "True", "message": SECRET}],
    },
}


def test_what_is_nobodys_business_is_left_out() -> None:
    snapshot = snapshot_of([POD, CLAIM, CLASS, NODE, {"kind": "Secret", "data": SECRET}], version="v1.37.2")
    assert SECRET not in dumps(snapshot).decode()
    pod = snapshot.pods[0]
    assert pod["metadata"]["annotations"] == {"dra-gate.io/policy": "training"}
    assert pod["spec"]["containers"] == [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
    assert pod["spec"]["resourceClaims"] == [{"name": "gate-0", "resourceClaimName": "c"}]
    assert snapshot.claims[0]["status"] == {"allocation": {"devices": {"results": [{"device": "g"}]}}}
    assert snapshot.nodes[0]["status"] == {"conditions": [{"type": "Ready", "status": "True"}]}
    assert snapshot.nodes[0]["spec"] == {"unschedulable": True}


def test_the_bytes_are_one_whatever_the_order() -> None:
    objects = [POD, CLAIM, NODE, NODE | {"metadata": {"name": "m"}}]
    one, two = (
        snapshot_of(listed, version="v1.37.2", gates={"B": True, "A": False}) for listed in (objects, objects[::-1])
    )
    assert dumps(one) == dumps(two)
    assert loads(dumps(one)) == one
    assert [node["metadata"]["name"] for node in one.nodes] == ["m", "n"]


def test_an_object_takes_the_place_of_its_namesake() -> None:
    snapshot = snapshot_of([NODE, CLAIM], version="v1.37.2")
    changed = with_objects(snapshot, [NODE | {"spec": {}}, NODE | {"metadata": {"name": "m"}}])
    assert [(node["metadata"]["name"], node["spec"]) for node in changed.nodes] == [
        ("m", {"unschedulable": True}),
        ("n", {}),
    ]
    assert (changed.claims, changed.version) == (snapshot.claims, snapshot.version)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "no JSON"),
        (b"[]", "apiVersion is None"),
        (b'{"apiVersion": "snapshot.dra-gate.io/v9"}', "apiVersion is 'snapshot.dra-gate.io/v9'"),
    ],
)
def test_other_bytes_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(SnapshotError, match=words):
        loads(data)


def test_an_empty_snapshot() -> None:
    assert loads(dumps(Snapshot("v1.37.2"))) == Snapshot("v1.37.2")


def test_of_volumes_and_ports_only_what_binds_a_pod_to_nodes_is_kept() -> None:
    spec = {
        "containers": [
            {"name": "c", "ports": [{"name": SECRET, "containerPort": 80, "hostPort": 80}, {"hostPort": 0}]}
        ],
        "volumes": [{"name": SECRET, "persistentVolumeClaim": {"claimName": SECRET}}, {"name": SECRET, "emptyDir": {}}],
    }
    snapshot = snapshot_of([{"kind": "Pod", "metadata": {"name": "p"}, "spec": spec}], version="v1.37.2")
    assert snapshot.pods[0]["spec"] == {
        "containers": [{"name": "c", "ports": [{"hostPort": 80}]}],
        "volumes": [{"persistentVolumeClaim": {}}],
    }
