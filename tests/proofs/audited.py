"""What a tenant held at each instant, from the API server's audit log alone; knows nothing of the gate's code.

The log needs whole answers of every write to Pods, claims, claim templates and TenantLedgers (`AUDITED`). One etcd
counts revisions over all kinds, so that the resourceVersion in an answer says when a write took effect; the log's own
order is that in which answers went out.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from controlplane.api import Object
from controlplane.control_plane import AUDIT_POLICY, ControlPlane

GATE = "dra-gate.io/grant"
CONTROLLER = "system:serviceaccount:dra-gate:dra-gate-controller"
RESOURCE = "nvidia.com/gpu"
_WHOLE = {
    "level": "RequestResponse",
    "verbs": ["create", "update", "patch", "delete"],
    "resources": [
        {"group": "", "resources": ["pods", "pods/status", "pods/binding"]},
        {"group": "resource.k8s.io", "resources": ["resourceclaims", "resourceclaims/*", "resourceclaimtemplates"]},
        {"group": "dra-gate.io", "resources": ["tenantledgers", "tenantledgers/*"]},
    ],
}
AUDITED: Mapping[str, Any] = AUDIT_POLICY | {"rules": [_WHOLE, *AUDIT_POLICY["rules"]]}
MEGABYTES = 4096  # of an audit log before the API server begins another file


def audited_plane(folder: Path) -> ControlPlane:
    """A control plane whose audit log has all of that, in one file; `folder` gets the policy."""
    policy = folder / "audit.yaml"
    policy.write_text(yaml.safe_dump(dict(AUDITED)))
    return ControlPlane(api_server_flags=[f"--audit-policy-file={policy}", f"--audit-log-maxsize={MEGABYTES}"])


_KINDS = {"pods": "Pod", "resourceclaims": "ResourceClaim", "resourceclaimtemplates": "ResourceClaimTemplate",
          "tenantledgers": "TenantLedger"}  # fmt: skip
_METADATA = "PartialObjectMetadata"  # what the garbage collector asks for when it takes a finalizer away
FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Write:
    """A write that took effect: the object as it then was, `gone` if the write took it away."""

    revision: int
    at: float  # seconds since 1970, when it was answered
    verb: str
    user: str
    kind: str
    obj: Object
    gone: bool


def writes(events: Iterable[Object]) -> Iterator[Write]:
    """The writes of the log in the order in which they took effect."""
    found = []
    latest = 0
    for number, event in enumerate(events):
        write = _write(event)
        if write is not None:
            latest = max(latest, write.revision)
            found.append((write.revision or latest, number, write))
    whole: dict[str, Object] = {}
    for _, _, write in sorted(found, key=lambda one: one[:2]):
        metadata, obj = write.obj["metadata"], write.obj
        if obj["kind"] == _METADATA:
            if metadata["uid"] not in whole:
                raise ValueError(f"{named(write)} was changed by {write.user} and is not in the log before")
            obj = whole[metadata["uid"]] | {"metadata": metadata}
        whole[metadata.get("uid", "")] = obj
        yield replace(write, obj=obj)


def _write(event: Object) -> Write | None:
    reference, answer = event.get("objectRef") or {}, event.get("responseObject") or {}
    kind = _KINDS.get(reference.get("resource", ""))
    code = event.get("responseStatus", {}).get("code", 0)
    if (
        kind is None
        or event["stage"] != "ResponseComplete"
        or not 200 <= code < 300
        or "dryRun=" in event["requestURI"]
    ):
        return None
    if reference.get("subresource") in ("binding", "eviction") or event["verb"] == "deletecollection":
        # The first is answered by a Status, and what follows from it is in the claims. What the others took away is not
        # told: it goes on counting, so that this can only be wrong on the strict side.
        return None
    metadata = answer.get("metadata", {})
    if answer.get("kind") not in (kind, _METADATA):
        raise ValueError(f"{event['verb']} {event['requestURI']} is not in the log with the object that it left")
    ends = "deletionTimestamp" in metadata and not metadata.get("finalizers")
    grace = metadata.get("deletionGracePeriodSeconds") or 0
    # Without grace and finalizers a delete takes effect at once; else the write does that takes the last one away.
    gone = (ends and grace == 0) or (event["verb"] == "delete" and "deletionTimestamp" not in metadata)
    return Write(
        # A delete that somebody's change overtook has none: it took effect about when it was answered.
        int(metadata["resourceVersion"] if event["verb"] != "delete" else metadata.get("resourceVersion", 0)),
        dt.datetime.fromisoformat(event["stageTimestamp"]).timestamp(),
        event["verb"],
        event["user"]["username"],
        kind,
        answer,
        gone,
    )


def unanswered(events: Iterable[Object]) -> set[tuple[str, str, str]]:
    """Namespace, name and user of changes to Pods and ledgers (which have no namespace) that ended without a word, such
    as by a connection that was cut: the API server stores some of them all the same, and no event shows what they left.
    """
    return {
        (event["objectRef"].get("namespace", ""), event["objectRef"]["name"], event["user"]["username"])
        for event in events
        if event["objectRef"].get("resource") in ("pods", "tenantledgers")
        and event["verb"] in ("update", "patch")
        and event.get("responseStatus", {}).get("code", 0) >= 500
    }


# -- what is held ------------------------------------------------------------------------------------------------------


@dataclass
class Caps:
    """A tenant: its namespaces, and how much it may hold; None and absence mean no limit."""

    namespaces: frozenset[str]
    devices: int | None = None
    models: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Charge:
    """Devices in all and by model. `allocated`: named in a claim's status. `plugin`: asked of device plugins."""

    devices: int
    allocated: int
    models: Mapping[str, int]
    plugin: int = 0


@dataclass
class Account:
    """One tenant's at the last write seen, and the most that there ever was."""

    caps: Caps
    instants: int = 0
    most: int = 0
    most_allocated: int = 0
    most_models: Counter[str] = field(default_factory=Counter)
    most_both: int = 0  # while it held some by claim and some by device plugin
    violations: list[str] = field(default_factory=list)
    over: bool = False  # right now


class Judge:
    """Is told every write and says what each tenant held right after it.

    Held are, at their worst case until allocated: the claims of Pods that may go (an open grant in the tenant's ledger,
    or nothing of ours holds them) and have not finished; every allocated claim of the tenant's namespaces, whoever is
    left of its Pod; and what Pods that have not finished ask a device plugin for, by the model of their node (`nodes`),
    or as each model until it is seen where they are.
    """

    def __init__(self, tenants: Mapping[str, Caps], nodes: Mapping[str, str] | None = None) -> None:
        self._nodes = nodes or {}
        self.accounts = {name: Account(caps) for name, caps in tenants.items()}
        self.created: set[str] = set()  # UIDs of Pods that were ever stored with our gate
        self.let_go: dict[str, float] = {}  # UID -> when our gate was taken away
        self.born: dict[str, float] = {}
        self.allocated_at: dict[str, float] = {}  # UID of the Pod
        self.faults: list[str] = []  # what must not be, whatever the numbers
        self.unanswered: set[tuple[str, str, str]] = set()  # see `unanswered`
        self._tenant_of = {one: name for name, caps in tenants.items() for one in caps.namespaces}
        self._pods: dict[str, dict[str, Object]] = {name: {} for name in tenants}  # by UID
        self._claims: dict[str, dict[tuple[str, str], Object]] = {name: {} for name in tenants}
        self._templates: dict[tuple[str, str], Object] = {}
        self._grants: dict[str, dict[str, Object]] = {name: {} for name in tenants}
        self._ever: set[str] = set()  # UIDs that were in a ledger
        self._given: dict[tuple[str, str], tuple[str, str]] = {}  # (pool, device) -> claim that has it

    def run(self, log: Iterable[Write]) -> None:
        """All of it."""
        for write in log:
            self.take(write)

    def take(self, write: Write) -> None:
        """One write, in their order."""
        metadata = write.obj["metadata"]
        namespace = metadata.get("namespace", "")
        tenant = metadata["name"] if write.kind == "TenantLedger" else self._tenant_of.get(namespace)
        if write.kind == "ResourceClaim":
            self._give(write)
        if tenant not in self.accounts:
            return
        if write.kind == "Pod":
            self._pod(tenant, write)
        elif write.kind == "ResourceClaim":
            _put(self._claims[tenant], (namespace, metadata["name"]), write)
        elif write.kind == "ResourceClaimTemplate":
            _put(self._templates, (namespace, metadata["name"]), write)
        else:
            grants = [] if write.gone else write.obj.get("spec", {}).get("grants", [])
            self._grants[tenant] = {one["uid"]: one for one in grants}
            self._ever |= self._grants[tenant].keys()
        self._judge(tenant, write)

    def charge(self, tenant: str) -> Charge:
        """What the tenant holds now."""
        models: Counter[str] = Counter()
        devices = allocated = plugin = 0
        by_owner: dict[tuple[str, str], Object] = {}
        for claim in self._claims[tenant].values():
            for owner in claim["metadata"].get("ownerReferences", []):
                entry = claim["metadata"].get("annotations", {}).get("resource.kubernetes.io/pod-claim-name", "")
                by_owner[owner["uid"], entry] = claim
            held = _results(claim)
            allocated += held.total()
            models += held
        for uid, pod in self._pods[tenant].items():
            if pod.get("status", {}).get("phase") in FINISHED or (is_held(pod) and uid not in self._grants[tenant]):
                continue
            for entry in pod["spec"].get("resourceClaims", []):
                worst = self._worst(tenant, pod, entry, by_owner)
                devices += max(worst.values(), default=0)
                models += worst
            asked = asks(pod)
            plugin += asked
            model = self._nodes.get(pod["spec"].get("nodeName", ""))
            models += Counter(dict.fromkeys(self.accounts[tenant].caps.models if model is None else [model], asked))
        return Charge(devices + allocated + plugin, allocated, models, plugin)

    def _worst(
        self, tenant: str, pod: Object, entry: Object, by_owner: Mapping[tuple[str, str], Object]
    ) -> Counter[str]:
        """By model the most that this entry's claim may get; nothing once it is allocated."""
        metadata = pod["metadata"]
        template = entry.get("resourceClaimTemplateName")
        if template:
            claim = by_owner.get((metadata["uid"], entry["name"]))
        else:
            claim = self._claims[tenant].get((metadata["namespace"], entry["resourceClaimName"]))
            owners = [] if claim is None else claim["metadata"].get("ownerReferences", [])
            if not any(owner["uid"] == metadata["uid"] for owner in owners):
                claim = None  # somebody else's: it counts by itself
        if claim is not None:
            return Counter() if _results(claim) else _alternatives(claim["spec"])
        if template:
            found = self._templates.get((metadata["namespace"], template))
            return Counter() if found is None else _alternatives(found["spec"]["spec"])
        grant = self._grants[tenant].get(metadata["uid"], {})
        counts = [one["count"] for one in grant.get("claims", []) if one["entry"] == entry["name"]]
        return Counter({model: sum(counts) for model in grant.get("candidates", [])})

    def _pod(self, tenant: str, write: Write) -> None:
        uid = write.obj["metadata"]["uid"]
        held = is_held(write.obj)
        self.born.setdefault(uid, write.at)
        if held:
            self.created.add(uid)
        elif uid in self.created and uid not in self.let_go:
            self.let_go[uid] = write.at
            if uid not in self._ever and ("", tenant, CONTROLLER) not in self.unanswered:
                self.faults.append(f"{named(write)} was let go and was never in a ledger")
            pod = write.obj["metadata"]["namespace"], write.obj["metadata"]["name"]
            if write.user != CONTROLLER and (*pod, CONTROLLER) not in self.unanswered:
                self.faults.append(f"{named(write)} was let go by {write.user}")
        _put(self._pods[tenant], uid, write)

    def _give(self, write: Write) -> None:
        """No device is anybody's twice."""
        name = write.obj["metadata"]["namespace"], write.obj["metadata"]["name"]
        allocation = {} if write.gone else write.obj.get("status", {}).get("allocation") or {}
        devices = {(one["pool"], one["device"]) for one in allocation.get("devices", {}).get("results", [])}
        for device in [one for one, claim in self._given.items() if claim == name and one not in devices]:
            del self._given[device]
        for device in devices:
            other = self._given.setdefault(device, name)
            if other != name:
                self.faults.append(f"{'/'.join(device)} was given to {'/'.join(name)} while {'/'.join(other)} had it")
        if devices:
            for owner in write.obj["metadata"].get("ownerReferences", []):
                self.allocated_at.setdefault(owner["uid"], write.at)

    def _judge(self, tenant: str, write: Write) -> None:
        account, now = self.accounts[tenant], self.charge(tenant)
        caps = account.caps
        account.instants += 1
        account.most = max(account.most, now.devices)
        account.most_allocated = max(account.most_allocated, now.allocated)
        account.most_models |= now.models
        if now.plugin and now.devices > now.plugin:
            account.most_both = max(account.most_both, now.devices)
        over = [f"{now.devices} devices"] if caps.devices is not None and now.devices > caps.devices else []
        over += [f"{now.models[one]} {one}" for one, cap in caps.models.items() if now.models.get(one, 0) > cap]
        if over and not account.over:
            account.violations.append(f"{tenant} held {' and '.join(over)} at revision {write.revision} after "
                                      f"{write.verb} of {named(write)} by {write.user}")  # fmt: skip
        account.over = bool(over)


def _put(into: dict[Any, Object], key: Any, write: Write) -> None:
    if write.gone:
        into.pop(key, None)
    else:
        into[key] = write.obj


def asks(pod: Object) -> int:
    """Devices that the Pod asks a device plugin for."""
    limits = (one.get("resources", {}).get("limits", {}) for one in pod["spec"].get("containers", []))
    return sum(int(one.get(RESOURCE, 0)) for one in limits)


def is_held(pod: Object) -> bool:
    """Our gate is on it."""
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates", []))


def named(write: Write) -> str:
    """Kind, namespace and name of what was written."""
    metadata = write.obj["metadata"]
    return f"{write.kind} {metadata.get('namespace', '')}/{metadata['name']}".replace(" /", " ")


def _results(claim: Object) -> Counter[str]:
    """Devices by the alternative's name, which is the model's, if the claim is allocated."""
    allocation = claim.get("status", {}).get("allocation") or {}
    names = (result["request"] for result in allocation.get("devices", {}).get("results", []))
    return Counter(found[1] for name in names if (found := re.fullmatch("gpu/(.+)", name)))


def _alternatives(spec: Object) -> Counter[str]:
    most: Counter[str] = Counter()
    for request in spec["devices"]["requests"]:
        most |= Counter({one["name"]: one.get("count", 1) for one in request.get("firstAvailable", [])})
    return most
