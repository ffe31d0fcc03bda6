"""What the gate reads of each kind. Everything else of an object is never decoded: most of a Pod says nothing here.

msgspec types for `Client.list` and `Client.watch`. Who reads another field adds it here, or reads nothing.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

_Items = list[Any] | None  # Go writes null for an empty list


class _Metadata(Struct, omit_defaults=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - field names are the API's
    deletionTimestamp: str | None = None  # noqa: N815


class _LabelledMetadata(_Metadata, omit_defaults=True):
    labels: dict[str, str] | None = None


class _OwnedMetadata(_Metadata, omit_defaults=True):
    annotations: dict[str, str] | None = None
    ownerReferences: _Items = None  # noqa: N815


class _PodMetadata(_Metadata, omit_defaults=True):
    annotations: dict[str, str] | None = None
    deletionGracePeriodSeconds: int | None = None  # noqa: N815


class _ClaimMetadata(_OwnedMetadata, omit_defaults=True):
    labels: dict[str, str] | None = None


class _Phase(Struct, omit_defaults=True):
    phase: str | None = None


class _NamespaceMetadata(_LabelledMetadata, omit_defaults=True):
    annotations: dict[str, str] | None = None


class Namespace(Struct, omit_defaults=True):
    """Its labels, who moved it between lanes, and whether it is being deleted."""

    metadata: _NamespaceMetadata
    status: _Phase | None = None


class _NodeStatus(Struct, omit_defaults=True):
    allocatable: dict[str, str] | None = None


class Node(Struct, omit_defaults=True):
    """Its labels, and what its device plugins offer."""

    metadata: _LabelledMetadata
    status: _NodeStatus | None = None


class RuntimeClass(Struct, omit_defaults=True):
    """Its handler."""

    metadata: _Metadata
    handler: str = ""


class Spec(Struct, omit_defaults=True):
    """A kind that is judged by its whole spec: classes, slices, templates."""

    metadata: _Metadata
    spec: Any = None


class _Results(Struct, omit_defaults=True):
    results: _Items = None


class _Allocation(Struct, omit_defaults=True):
    devices: _Results | None = None


class _ClaimStatus(Struct, omit_defaults=True):
    allocation: _Allocation | None = None


class ResourceClaim(Struct, omit_defaults=True):
    """Its spec, whose it is, and which devices it was given."""

    metadata: _ClaimMetadata
    spec: Any = None
    status: _ClaimStatus | None = None


class _Container(Struct, omit_defaults=True):
    resources: Any = None
    restartPolicy: str | None = None  # noqa: N815


class _Nothing(Struct):
    """That something is there."""


class _PodSpec(Struct, omit_defaults=True):
    nodeName: str = ""  # noqa: N815
    resourceClaims: _Items = None  # noqa: N815
    schedulingGates: _Items = None  # noqa: N815
    containers: list[_Container] | None = None
    initContainers: list[_Container] | None = None  # noqa: N815


class _PodStatus(Struct, omit_defaults=True):
    phase: str | None = None
    resourceClaimStatuses: _Items = None  # noqa: N815


class Pod(Struct, omit_defaults=True):
    """The devices it asks for, the claims it names, its stamp, where it is, and whether it waits or has ended."""

    metadata: _PodMetadata
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


class _LedgerStatus(Struct, omit_defaults=True):
    devices: int = 0
    models: dict[str, int] | None = None
    waiting: int = 0
    largest: dict[str, int] | None = None


class TenantLedger(Struct, omit_defaults=True):
    """A tenant's account, and what waits for more."""

    metadata: _Metadata
    status: _LedgerStatus | None = None


class _DatedMetadata(_ClaimMetadata, omit_defaults=True):
    creationTimestamp: str = ""  # noqa: N815
    deletionGracePeriodSeconds: int | None = None  # noqa: N815


class _FullNodeSpec(Struct, omit_defaults=True):
    unschedulable: bool = False
    taints: _Items = None


class _FullNodeStatus(_NodeStatus, omit_defaults=True):
    conditions: _Items = None


class FullNode(Struct, omit_defaults=True):
    """All that says which Pods fit on it."""

    metadata: _LabelledMetadata
    spec: _FullNodeSpec | None = None
    status: _FullNodeStatus | None = None


class _ReservedStatus(_ClaimStatus, omit_defaults=True):
    reservedFor: _Items = None  # noqa: N815


class LabelledClaim(Struct, omit_defaults=True):
    """A claim with its labels, which say which policy it is of, and who has it reserved."""

    metadata: _DatedMetadata
    spec: Any = None
    status: _ReservedStatus | None = None


class _Port(Struct, omit_defaults=True):
    hostPort: int = 0  # noqa: N815


class _PlacedContainer(_Container, omit_defaults=True):
    ports: list[_Port] | None = None


class _Volume(Struct, omit_defaults=True):
    """Only of what kind it is, of those that can bind a Pod to nodes."""

    persistentVolumeClaim: _Nothing | None = None  # noqa: N815
    ephemeral: _Nothing | None = None
    csi: _Nothing | None = None
    iscsi: _Nothing | None = None
    rbd: _Nothing | None = None
    gcePersistentDisk: _Nothing | None = None  # noqa: N815
    awsElasticBlockStore: _Nothing | None = None  # noqa: N815


class _PlacedPodSpec(_PodSpec, omit_defaults=True):
    containers: list[_PlacedContainer] | None = None  # type: ignore[assignment]
    initContainers: list[_PlacedContainer] | None = None  # type: ignore[assignment]  # noqa: N815
    volumes: list[_Volume] | None = None
    topologySpreadConstraints: _Items = None  # noqa: N815
    nodeSelector: dict[str, str] | None = None  # noqa: N815
    affinity: Any = None
    tolerations: _Items = None
    priority: int = 0
    activeDeadlineSeconds: int | None = None  # noqa: N815


class _ContainerStatus(Struct, omit_defaults=True):
    state: Any = None
    lastState: Any = None  # noqa: N815
    restartCount: int = 0  # noqa: N815
    allocatedResourcesStatus: _Items = None  # noqa: N815


class _ToldPodStatus(_PodStatus, omit_defaults=True):
    conditions: _Items = None
    reason: str | None = None
    message: str | None = None
    containerStatuses: list[_ContainerStatus] | None = None  # noqa: N815
    initContainerStatuses: list[_ContainerStatus] | None = None  # noqa: N815


class PlacedPod(Struct, omit_defaults=True):
    """A Pod, what says where it fits, and what is said of it."""

    metadata: _DatedMetadata
    spec: _PlacedPodSpec | None = None
    status: _ToldPodStatus | None = None


class _Begun(Struct, omit_defaults=True):
    state: dict[str, Any] | None = None
    restartCount: int = 0  # noqa: N815


class _BegunPodStatus(_PodStatus, omit_defaults=True):
    containerStatuses: list[_Begun] | None = None  # noqa: N815
    initContainerStatuses: list[_Begun] | None = None  # noqa: N815


class _ClaimingPodSpec(Struct, omit_defaults=True):
    resourceClaims: _Items = None  # noqa: N815


class BegunPod(Struct, omit_defaults=True):
    """A Pod's claims, whose it is, and whether a container of it has started."""

    metadata: _OwnedMetadata
    spec: _ClaimingPodSpec | None = None
    status: _BegunPodStatus | None = None


class _Regarding(Struct, omit_defaults=True):
    apiVersion: str = ""  # noqa: N815
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class _Series(Struct, omit_defaults=True):
    lastObservedTime: str | None = None  # noqa: N815


class Event(Struct, omit_defaults=True):
    """What it is about, why, what it says, and when it last came."""

    metadata: _DatedMetadata
    involvedObject: _Regarding | None = None  # noqa: N815
    reason: str = ""
    message: str = ""
    lastTimestamp: str | None = None  # noqa: N815
    eventTime: str | None = None  # noqa: N815
    series: _Series | None = None
