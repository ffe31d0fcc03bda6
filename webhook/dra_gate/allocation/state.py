"""What explanations are made from: a snapshot and what is around it, as one file that people hand around. Pure.

Nothing personal or secret is in it: objects come through the snapshot's own projections, other Pods keep only what they
take up, finished ones without claims are left out. The policy files stand in it as they were published.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from dra_gate.allocation.around import Around, Gathering
from dra_gate.allocation.failures import ROWS
from dra_gate.allocation.plugin_pod import in_plugin_lane
from dra_gate.allocation.snapshot import Snapshot, SnapshotError, snapshot_of
from dra_gate.allocation.snapshot import dumps as dumps_snapshot
from dra_gate.allocation.snapshot import loads as loads_snapshot
from dra_gate.kube.group import GROUPS
from dra_gate.kube.pod import claim_entries, is_finished
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.load import RELEASED, PolicyErrors, load_documents
from dra_gate.policy.model import PolicySet

_WHEN: Final = [when for row in ROWS for when in row.when]
# Conditions and Events that are signs of a failure, or say why a Pod is not made; what else is said of it is left out.
_CONDITIONS: Final = frozenset(
    {"PodScheduled", "dra-gate.io/Granted", *(when.condition.type for when in _WHEN if when.condition)}
)
_EVENTS: Final = frozenset({"FailedCreate", *(one for when in _WHEN if when.event for one in when.event.reasons)})
_DOMAIN: Final = "dra-gate.io/"


@dataclass(frozen=True, slots=True)
class State:
    """A snapshot with what explains it: labels of namespaces, templates, quotas, Events, tenants' ledgers, and the
    policy sets.

    `policies` holds the files of each published set by its digest; `active` is the digest that new Pods get, empty
    where there is none.
    """

    snapshot: Snapshot
    namespaces: tuple[Object, ...] = ()
    templates: tuple[Object, ...] = ()
    quotas: tuple[Object, ...] = ()
    events: tuple[Object, ...] = ()
    ledgers: tuple[Object, ...] = ()
    policies: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    active: str = ""
    around: Around = field(default_factory=dict)

    def policy_sets(self) -> dict[str, PolicySet]:
        """The sets by digest, the active one first. Raises SnapshotError for one that does not load any more."""
        loaded = {}
        for digest in sorted(self.policies, key=lambda digest: (digest != self.active, digest)):
            files = {name: content.encode() for name, content in self.policies[digest].items()}
            released = files.pop(RELEASED, None)
            try:
                loaded[digest] = load_documents(files, released)
            except PolicyErrors as errors:
                raise SnapshotError(f"policy set {digest[:12]} does not load: {errors.errors[0]}") from None
        return loaded


def state_of(
    objects: Iterable[Object],
    *,
    version: str,
    policies: Mapping[str, Mapping[str, str]],
    active: str,
    namespace: str = "",
    around: Iterable[str] = (),
) -> State:
    """The state of a cluster's objects, told apart by kind. With `namespace`, Pods and claims of others are kept only
    as far as they take something away from its own. `around` are the kinds of what stands around that were read.
    """
    gathering = Gathering(around)
    listed = [one for one in map(gathering.see, objects) if _needed(one, namespace)]
    found: dict[str, list[Object]] = {name: [] for name, _ in _KINDS.values()}
    for one in listed:
        name, projection = _KINDS.get(text(one.get("kind")), ("", None))
        if projection is not None and (not namespace or _own(one, namespace)):
            found[name].append(projection(one))
    kinds = {name: tuple(sorted(group, key=_order)) for name, group in found.items()}
    snapshot = snapshot_of(listed, version=version)
    pods = tuple(
        _pod(pod) if _asks(pod) and (not namespace or _own(pod, namespace)) else _load(pod) for pod in snapshot.pods
    )
    claims = tuple(claim if not namespace or _own(claim, namespace) else _held(claim) for claim in snapshot.claims)
    return State(
        replace(snapshot, pods=pods, claims=claims),
        **kinds,
        policies=policies,
        active=active,
        around=gathering.around(),
    )


def dumps(state: State) -> bytes:
    """The one canonical JSON: keys sorted, with the digest of everything else in it."""
    body = _body(state)
    return msgspec.json.encode(body | {"digest": _digest(body)}, order="sorted") + b"\n"


def digest_of(state: State) -> str:
    """What tells that two states are the same: SHA-256 (hex) of the canonical JSON."""
    return _digest(_body(state))


def loads(data: bytes) -> State:
    """What `dumps` wrote. Raises SnapshotError for anything else, and where the digest does not fit."""
    snapshot = loads_snapshot(data)
    body = mapping(msgspec.json.decode(data))
    kinds: dict[str, Any] = {name: tuple(map(mapping, sequence(body.get(name)))) for name, _ in _KINDS.values()}
    policies = {
        digest: {name: text(content) for name, content in mapping(files).items()}
        for digest, files in mapping(body.get("policies")).items()
    }
    around = {kind: tuple(map(mapping, sequence(listed))) for kind, listed in mapping(body.get("around")).items()}
    state = State(snapshot, **kinds, policies=policies, active=text(body.get("active")), around=around)
    written = text(body.get("digest"))
    # As it was written the digest is over the very bytes; who has only laid it out anew has changed nothing either.
    bare = data.rstrip().replace(f'"digest":"{written}",'.encode(), b"", 1)
    if hashlib.sha256(bare).hexdigest() != written and digest_of(state) != written:
        raise SnapshotError("it was changed after it was written: its digest does not fit")
    return state


def _body(state: State) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(dumps_snapshot(state.snapshot))
    body |= {name: getattr(state, name) for name, _ in _KINDS.values()}
    if not state.ledgers:
        del body["ledgers"]  # states from before there were any keep their digest
    if state.around:
        body["around"] = state.around
    return body | {"policies": state.policies, "active": state.active}


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()


def _own(item: Object, namespace: str) -> bool:
    kept = text(at(item, "metadata", "namespace"))
    return kept == namespace or (not kept and text(at(item, "metadata", "name")) == namespace)


def _asks(pod: Object) -> bool:
    return bool(claim_entries(pod)) or in_plugin_lane(pod)


def _needed(item: Object, namespace: str) -> bool:
    """Whether it takes something up, or somebody may ask about it."""
    match item.get("kind"):
        case "Pod":
            on_node = bool(at(item, "spec", "nodeName")) and not is_finished(item)
            return on_node or (_asks(item) and (not namespace or _own(item, namespace)))
        case "ResourceClaim":
            return not namespace or _own(item, namespace) or at(item, "status", "allocation") is not None
        case "Event":
            return text(item.get("reason")) in _EVENTS
    return True


def _order(item: Object) -> tuple[str, str]:
    return text(at(item, "metadata", "namespace")), text(at(item, "metadata", "name"))


def _some(source: object, *names: str) -> dict[str, Any]:
    return {name: value for name, value in mapping(source).items() if name in names}


def _pod(pod: Object) -> Object:
    """A Pod that asks for claims; of its conditions those that are about placing it."""
    conditions = [one for one in sequence(at(pod, "status", "conditions")) if at(one, "type") in _CONDITIONS]
    kept = {key: value for key, value in mapping(pod.get("status")).items() if key != "conditions"}
    status = kept | ({"conditions": conditions} if conditions else {})
    # Affinity to other Pods is not judged here, so but for groups nothing is told by labels, in which people write who
    # they are.
    metadata = {key: value for key, value in mapping(pod.get("metadata")).items() if key != "labels"}
    labels = {key: value for key, value in mapping(at(pod, "metadata", "labels")).items() if key.startswith(GROUPS)}
    if labels:
        metadata["labels"] = labels
    return {**pod, "metadata": metadata, "status": status}


def _load(pod: Object) -> Object:
    """A Pod as a load on its node."""
    spec = _some(pod.get("spec"), "nodeName", "overhead", "resources", "resourceClaims")
    for kind in ("containers", "initContainers"):
        listed = [_some(one, "resources", "restartPolicy") for one in sequence(at(pod, "spec", kind))]
        if listed:
            spec[kind] = listed
    scheduled = [one for one in sequence(at(pod, "status", "conditions")) if at(one, "type") == "PodScheduled"]
    status = _some(pod.get("status"), "phase") | ({"conditions": scheduled} if scheduled else {})
    return {"metadata": _some(pod.get("metadata"), "name", "namespace", "uid"), "spec": spec, "status": status}


def _held(claim: Object) -> Object:
    """A claim as far as it holds devices."""
    status = _some(claim.get("status"), "allocation", "reservedFor")
    metadata = _some(claim.get("metadata"), "name", "namespace", "uid")
    return {"metadata": metadata, "spec": claim.get("spec", {}), "status": status}


def _namespace(item: Object) -> Object:
    labels = mapping(at(item, "metadata", "labels"))
    kept = {key: value for key, value in labels.items() if key.startswith(_DOMAIN)}
    return {"metadata": _some(item.get("metadata"), "name") | {"labels": kept}}


def _template(item: Object) -> Object:
    metadata = _some(item.get("metadata"), "name", "namespace", "labels")
    return {"metadata": metadata, "spec": _some(item.get("spec"), "metadata", "spec")}


def _quota(item: Object) -> Object:
    return {
        "metadata": _some(item.get("metadata"), "name", "namespace"),
        "spec": _some(item.get("spec"), "hard"),
        "status": _some(item.get("status"), "used"),
    }


def _event(item: Object) -> Object:
    about = _some(item.get("involvedObject"), "kind", "name", "namespace", "uid")
    seen = _some(item, "type", "reason", "message", "count", "lastTimestamp", "eventTime", "series")
    return {"metadata": _some(item.get("metadata"), "name", "namespace"), "involvedObject": about, **seen}


def _ledger(item: Object) -> Object:
    return {"metadata": _some(item.get("metadata"), "name"), "spec": mapping(item.get("spec"))}


_KINDS: Final[dict[str, tuple[str, Callable[[Object], Object]]]] = {
    "Namespace": ("namespaces", _namespace),
    "ResourceClaimTemplate": ("templates", _template),
    "ResourceQuota": ("quotas", _quota),
    "Event": ("events", _event),
    "TenantLedger": ("ledgers", _ledger),
}
