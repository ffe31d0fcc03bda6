"""Which Pods belong together: what the workloads that make them write on them, read as a group and its size."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dra_gate.kube.raw import Object, at, mapping, sequence, text

GROUP, GROUP_SIZE = "dra-gate.io/group", "dra-gate.io/group-size"  # annotations that anybody may put on a Pod template
_LWS = "leaderworkerset.sigs.k8s.io/"  # its page "Labels, Annotations and Environment Variables"
_JOBSET = "jobset.sigs.k8s.io/"  # api/jobset/v1alpha2
_INDEX = "batch.kubernetes.io/job-completion-index"  # batch/v1: on Pods of Indexed Jobs only
_PYTORCH = "training.kubeflow.org/"  # Kubeflow Training Operator v1
GROUPS = (_LWS, _JOBSET, _INDEX, _PYTORCH)  # how labels and annotations begin that say a group, beside our own
_LONGEST = 512  # characters of a key: a TenantLedger has room for no more
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_MOST = 1000  # members; more is no group that could ever be granted at once


@dataclass(frozen=True, slots=True)
class Group:
    """A Pod's group: `key` is the same for all members and for nobody else.

    `size` is how many there are in all, 0 where only the object at `ask` says it: a Job, or the Pod itself as the API
    server has it. `copies` such objects are in the group.
    """

    key: str
    size: int = 0
    ask: str = ""
    copies: int = 1


def group_of(pod: Object) -> Group | None:
    """The group that the Pod says it is in, None for a Pod on its own.

    The annotations win; a group of a size that is no number from 2 to 1,000 is none, nor is one whose name is longer
    than any name of Kubernetes.
    """
    found = _said(pod)
    return found if found is not None and len(found.key) <= _LONGEST else None


def _said(pod: Object) -> Group | None:
    metadata = mapping(pod.get("metadata"))
    namespace = text(metadata.get("namespace"))
    annotations, labels = mapping(metadata.get("annotations")), mapping(metadata.get("labels"))
    if annotations.get(GROUP):
        # The size is part of the key: who says another size is in another group.
        size = _size(annotations.get(GROUP_SIZE))
        return Group(f"{namespace}/{text(annotations[GROUP])}/{size}", size) if size else None
    owner = controller_of(pod)
    if labels.get(_LWS + "group-key"):
        size = _size(annotations.get(_LWS + "size"))
        return Group(f"{namespace}/lws/{text(labels[_LWS + 'group-key'])}", size) if size else None
    # Nobody looks at what an owner reference calls its owner, and it becomes part of a path.
    named_well = _NAME.fullmatch(text(owner.get("name"))) is not None
    if _INDEX in annotations and owner.get("kind") == "Job" and named_well:
        job = f"/apis/batch/v1/namespaces/{namespace}/jobs/{text(owner.get('name'))}"
        if labels.get(_JOBSET + "jobset-uid"):
            # The Jobs of one name in a JobSet. Its other Jobs have Pods of another kind, often without devices.
            named = f"{text(labels[_JOBSET + 'jobset-uid'])}/{text(labels.get(_JOBSET + 'replicatedjob-name'))}"
            attempt = text(labels.get(_JOBSET + "restart-attempt"))
            copies = _size(labels.get(_JOBSET + "replicatedjob-replicas")) or 1
            return Group(f"{namespace}/jobset/{named}/{attempt}", ask=job, copies=copies)
        return Group(f"{namespace}/job/{text(owner.get('uid'))}", ask=job)
    if labels.get(_PYTORCH + "job-name") and owner.get("kind") == "PyTorchJob":
        itself = f"/api/v1/namespaces/{namespace}/pods/{text(metadata.get('name'))}"
        return Group(f"{namespace}/pytorch/{text(owner.get('uid'))}", ask=itself)
    return None


def size_from(asked: Object, copies: int = 1) -> int:
    """The size of a group by the object that says it; 0 where it says that its Pods do not belong together.

    An Indexed Job whose completions equal its parallelism has all its Pods at once; any other Job is a work queue. The
    Training Operator tells the Pods of a PyTorchJob in their environment how many they are.
    """
    spec = mapping(asked.get("spec"))
    if "completionMode" in spec or "parallelism" in spec:
        parallelism = spec.get("parallelism")
        if spec.get("completionMode") != "Indexed" or parallelism != spec.get("completions"):
            return 0
        return _size(str(parallelism * copies)) if isinstance(parallelism, int) else 0
    for container in map(mapping, sequence(spec.get("containers"))):
        said = {text(mapping(one).get("name")): mapping(one).get("value") for one in sequence(container.get("env"))}
        for name in ("PET_NNODES", "WORLD_SIZE"):
            if name in said:
                return _size(said[name])  # an elastic job's is a range such as 1:4: it goes as Pods come
    return 0


def controller_of(obj: Object) -> Object:
    """The owner reference of what manages the object, as its controller; empty for none."""
    owners = map(mapping, sequence(at(obj, "metadata", "ownerReferences")))
    return next((owner for owner in owners if owner.get("controller") is True), {})


def maker_of(pod: Object) -> str:
    """The controller that would make another Pod if this one were deleted, as Kind/name; empty for none.

    A static Pod belongs to its node, and no controller would.
    """
    owner = controller_of(pod)
    return f"{text(owner.get('kind'))}/{text(owner.get('name'))}" if owner and owner.get("kind") != "Node" else ""


def _size(written: object) -> int:
    if not isinstance(written, str) or not written.isascii() or not written.isdigit() or len(written) > 6:
        return 0
    return int(written) if 2 <= int(written) <= _MOST else 0
