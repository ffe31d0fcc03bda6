"""Which Pods belong together, by what the workloads that make them write on them."""

from __future__ import annotations

from typing import Any

import pytest

from dra_gate.kube.group import Group, group_of, size_from

JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job-uid", "controller": True}
INDEX = {"batch.kubernetes.io/job-completion-index": "3"}
JOB_PATH = "/apis/batch/v1/namespaces/n/jobs/j"


def pod(
    labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, *owners: Any
) -> dict[str, Any]:
    metadata = {"namespace": "n", "name": "p", "uid": "u", "labels": labels, "annotations": annotations}
    return {"metadata": {**metadata, "ownerReferences": list(owners)}}


def test_annotations_name_a_group_and_win() -> None:
    named = {"dra-gate.io/group": "g", "dra-gate.io/group-size": "4"}
    assert group_of(pod(None, named)) == Group("n/g/4", 4)
    assert group_of(pod({"leaderworkerset.sigs.k8s.io/group-key": "k"}, {**named, **INDEX}, JOB)) == Group("n/g/4", 4)


@pytest.mark.parametrize("size", ["", "0", "1", "-3", "4.0", "four", "1001", "99999999999999999999"])
def test_a_size_that_is_none_makes_no_group(size: str) -> None:
    assert group_of(pod(None, {"dra-gate.io/group": "g", "dra-gate.io/group-size": size})) is None


def test_who_says_another_size_is_in_another_group() -> None:
    two, three = (group_of(pod(None, {"dra-gate.io/group": "g", "dra-gate.io/group-size": n})) for n in "23")
    assert two is not None
    assert three is not None
    assert two.key != three.key


def test_a_name_that_no_ledger_has_room_for_makes_no_group() -> None:
    assert group_of(pod(None, {"dra-gate.io/group": "g" * 600, "dra-gate.io/group-size": "2"})) is None


@pytest.mark.parametrize("name", ["?watch=true", "../secrets", "", "a/b", "n" * 300])
def test_what_an_owner_reference_says_becomes_no_other_path(name: str) -> None:
    assert group_of(pod(None, INDEX, {**JOB, "name": name})) is None


def test_leader_worker_set() -> None:
    labels = {"leaderworkerset.sigs.k8s.io/name": "l", "leaderworkerset.sigs.k8s.io/group-key": "abc"}
    assert group_of(pod(labels, {"leaderworkerset.sigs.k8s.io/size": "5"})) == Group("n/lws/abc", 5)
    assert group_of(pod(labels)) is None


def test_an_indexed_job_is_asked_and_any_other_is_a_work_queue() -> None:
    assert group_of(pod(None, INDEX, JOB)) == Group("n/job/job-uid", ask=JOB_PATH)
    assert group_of(pod(None, None, JOB)) is None
    assert group_of(pod(None, INDEX, {**JOB, "controller": False})) is None
    job: dict[str, Any] = {"spec": {"completionMode": "Indexed", "completions": 8, "parallelism": 8}}
    assert size_from(job) == 8
    assert size_from({"spec": {**job["spec"], "completions": 20}}) == 0
    assert size_from({"spec": {"completionMode": "NonIndexed", "completions": 8, "parallelism": 8}}) == 0
    assert size_from({"spec": {**job["spec"], "completions": 1, "parallelism": 1}}) == 0, "one is no group"


def test_the_jobs_of_one_name_in_a_jobset_are_a_group() -> None:
    labels = {
        "jobset.sigs.k8s.io/jobset-uid": "set",
        "jobset.sigs.k8s.io/replicatedjob-name": "workers",
        "jobset.sigs.k8s.io/replicatedjob-replicas": "2",
        "jobset.sigs.k8s.io/restart-attempt": "1",
    }
    assert group_of(pod(labels, INDEX, JOB)) == Group("n/jobset/set/workers/1", ask=JOB_PATH, copies=2)
    job = {"spec": {"completionMode": "Indexed", "completions": 4, "parallelism": 4}}
    assert size_from(job, 2) == 8


def test_a_pytorchjob_tells_its_pods_in_their_environment() -> None:
    owner = {"kind": "PyTorchJob", "name": "t", "uid": "torch", "controller": True}
    found = group_of(pod({"training.kubeflow.org/job-name": "t"}, None, owner))
    assert found == Group("n/pytorch/torch", ask="/api/v1/namespaces/n/pods/p")

    def with_env(**env: str) -> dict[str, Any]:
        return {"spec": {"containers": [{"env": [{"name": name, "value": value} for name, value in env.items()]}]}}

    assert size_from(with_env(RANK="1", WORLD_SIZE="4")) == 4
    assert size_from(with_env(PET_NNODES="2", WORLD_SIZE="16")) == 2
    assert size_from(with_env(PET_NNODES="1:4")) == 0, "an elastic job goes as its Pods come"
    assert size_from({"spec": {"containers": [{}]}}) == 0
