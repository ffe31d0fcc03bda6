"""What tenants hold, counted the slow way: from all objects, device by device, whenever it is asked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from dra_gate.fairness.charge import Charge

Object = dict[str, Any]
Key = tuple[str, str]
OWNERS = {"m1": "maple", "m2": "maple", "b1": "birch"}
WEIGHTS = {"t1": {"h100": 1, "a100": 1}, "t4": {"a100": 4}}  # worst case of templates and of hand-made claims
GRACE = 60_000


def pod(
    name: str,
    namespace: str = "m1",
    *,
    uid: str = "",
    templates: dict[str, str] | None = None,
    late: dict[str, str] | None = None,
    counts: str = "",
    gpus: int = 0,
    node: str = "",
    phase: str = "",
    gates: tuple[str, ...] = (),
    tenant: str = "",
    deleted: str = "",
    grace: int = 30,
) -> Object:
    metadata: Object = {"name": name, "namespace": namespace, "uid": uid or f"uid-{namespace}-{name}"}
    if deleted:
        metadata |= {"deletionTimestamp": deleted, "deletionGracePeriodSeconds": grace}
    stamp = {"dra-gate.io/tenant": tenant, "dra-gate.io/policy": "train"} if tenant else {}
    if counts:
        stamp |= {"dra-gate.io/claims": counts, "dra-gate.io/candidates": "h100,a100"}
    entries = [{"name": entry, "resourceClaimTemplateName": one} for entry, one in (templates or {}).items()]
    entries += [{"name": entry, "resourceClaimName": one} for entry, one in (late or {}).items()]
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}
    return {
        "metadata": {**metadata, "annotations": stamp},
        "spec": {
            "nodeName": node,
            "resourceClaims": entries,
            "containers": [{"name": "c", **limits}],
            "schedulingGates": [{"name": gate} for gate in gates],
        },
        "status": {"phase": phase},
    }


def claim(
    name: str,
    namespace: str = "m1",
    *,
    uid: str = "",
    owner: str = "",
    entry: str = "",
    given: tuple[tuple[str, str], ...] | None = None,
    extended: bool = False,
    tenant: str = "",
    weight: str = "",
) -> Object:
    """`given`: device name and model; a device without an alternative's name has model ""."""
    annotations: Object = {"resource.kubernetes.io/pod-claim-name": entry} if entry else {}
    if extended:
        annotations["resource.kubernetes.io/extended-resource-claim"] = "true"
    found: Object = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{namespace}-{name}",
            "annotations": annotations,
            "labels": {"dra-gate.io/tenant": tenant, "dra-gate.io/policy": "train"} if tenant else {},
            "ownerReferences": [{"kind": "Pod", "uid": owner}] if owner else [],
        },
        "spec": {"weight": weight},
    }
    if given is not None:
        results = [
            {
                "driver": "gpu.nvidia.com",
                "pool": "n1",
                "device": device,
                "request": f"gpu/{model}" if model else "container-0-request-0",
            }
            for device, model in given
        ]
        found["status"] = {"allocation": {"devices": {"results": results}}}
    return found


@dataclass
class Slow:
    """The objects as they are, and the little of what was that counts still."""

    owners: dict[str, str] = field(default_factory=lambda: dict(OWNERS))
    pods: dict[Key, Object] = field(default_factory=dict)
    claims: dict[Key, Object] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    granted: set[Key] = field(default_factory=set)  # namespace and UID
    were: dict[tuple[str, str, str], Object] = field(default_factory=dict)  # namespace, name, UID -> as last allocated
    back: dict[Key, dict[str, Any]] = field(default_factory=dict)  # namespace and UID -> what is held back

    # -- events --

    def set_pod(self, key: Key, obj: Object, now: int) -> None:
        there = self.pods.get(key)
        if there is not None and there["metadata"]["uid"] != obj["metadata"]["uid"]:
            self.drop_pod(key, now)
        self.back.pop((key[0], obj["metadata"]["uid"]), None)
        if obj["status"]["phase"] in ("Succeeded", "Failed"):
            self.over(key)
        else:
            self.pods[key] = obj

    def drop_pod(self, key: Key, now: int) -> None:
        there = self.pods.get(key)
        meta = there["metadata"] if there is not None else {}
        graceful = meta.get("deletionGracePeriodSeconds") and ENDS[meta["deletionTimestamp"]] <= now
        forced = not graceful
        if there is not None and forced and there["spec"]["nodeName"] in self.nodes:
            mine = key[0], there["metadata"]["uid"]
            rows = self.of_pod(there) + [row for one in self.effective() if owner(one) == mine for row in self.of(one)]
            devices = {r["device"] for one in self.effective() if owner(one) == mine for r in results(one) or ()}
            if rows:
                tenant = self.tenant(key[0], there["metadata"]["annotations"])
                self.back[mine] = {
                    "rows": rows,
                    "devices": devices,
                    "tenant": tenant,
                    "node": there["spec"]["nodeName"],
                    "until": now + GRACE,
                }
        self.over(key)

    def over(self, key: Key) -> None:
        there = self.pods.pop(key, None)
        if there is not None:
            mine = key[0], there["metadata"]["uid"]
            self.were = {at: one for at, one in self.were.items() if owner(one) != mine}

    def set_claim(self, key: Key, obj: Object) -> None:
        there = self.claims.get(key)
        if there is not None and there["metadata"]["uid"] != obj["metadata"]["uid"]:
            self.drop_claim(key)
        self.remember(key, obj["metadata"]["uid"], gone=results(obj) is None)
        self.claims[key] = obj

    def drop_claim(self, key: Key) -> None:
        if key in self.claims:
            self.remember(key, self.claims[key]["metadata"]["uid"], gone=True)
            del self.claims[key]

    def remember(self, key: Key, uid: str, *, gone: bool) -> None:
        before = self.were.pop((*key, uid), None) or self.claims.get(key)
        if gone and before is not None and results(before) is not None:
            whose = self.whose(before)
            if whose is not None and whose["spec"]["nodeName"]:
                self.were[*key, uid] = before

    # -- what is asked --

    def used(self) -> dict[str, Charge]:
        """A row is a device: the models that it may be."""
        rows: dict[str, list[frozenset[str]]] = {}
        for one in self.pods.values():
            if (one["metadata"]["namespace"], one["metadata"]["uid"]) not in self.granted:
                tenant = self.tenant(one["metadata"]["namespace"], one["metadata"]["annotations"])
                rows.setdefault(tenant, []).extend(self.of_pod(one))
        for one in self.effective():
            if owner(one) not in self.granted:
                whose, namespace = self.whose(one), one["metadata"]["namespace"]
                marks = one["metadata"]["labels"] if owner(one) else {}
                if not marks and whose is not None:
                    marks = whose["metadata"]["annotations"]
                rows.setdefault(self.tenant(namespace, marks), []).extend(self.of(one))
        found = {tenant: charge(listed) for tenant, listed in rows.items()}
        for mine, held in self.back.items():
            if mine not in self.granted:
                now = charge([row for one in self.effective() if owner(one) == mine for row in self.of(one)])
                then = charge(held["rows"])
                left = Charge(
                    max(0, then.devices - now.devices),
                    {m: n - now.models.get(m, 0) for m, n in then.models.items() if n > now.models.get(m, 0)},
                )
                found[held["tenant"]] = found.get(held["tenant"], Charge()) + left
        found.pop("", None)
        return {tenant: total for tenant, total in found.items() if total != Charge()}

    def tenant(self, namespace: str, marks: Object) -> str:
        stamped = marks.get("dra-gate.io/tenant", "")
        return stamped if stamped in ("maple", "birch") else self.owners.get(namespace, "")

    def effective(self) -> list[Object]:
        """The claims that are there, or were when it counted."""
        there = [self.were.get((*key, one["metadata"]["uid"]), one) for key, one in self.claims.items()]
        present = {(*key, one["metadata"]["uid"]) for key, one in self.claims.items()}
        return there + [one for at, one in self.were.items() if at not in present]

    def whose(self, one: Object) -> Object | None:
        return next(
            (p for p in self.pods.values() if (p["metadata"]["namespace"], p["metadata"]["uid"]) == owner(one)), None
        )

    def of_pod(self, one: Object) -> list[frozenset[str]]:
        if one["spec"]["schedulingGates"]:
            return []
        mine = one["metadata"]["namespace"], one["metadata"]["uid"]
        claims = [c for c in self.effective() if owner(c) == mine]
        rows = []
        counts = one["metadata"]["annotations"].get("dra-gate.io/claims", "").split(",")
        counted = {c.partition("=")[0] for c in counts}
        named = {e["name"]: e["resourceClaimName"] for e in one["spec"]["resourceClaims"] if "resourceClaimName" in e}
        late = {name for entry, name in named.items() if entry in counted}
        if late and not one["spec"]["nodeName"] and not late & {c["metadata"]["name"] for c in claims}:
            return []  # withdrawn
        for entry in one["spec"]["resourceClaims"]:
            its = [c for c in claims if c["metadata"]["annotations"].get(ENTRY) == entry["name"]]
            template = entry.get("resourceClaimTemplateName")
            if template and (not its or any(results(c) is None for c in its)):
                rows += weight(template)
            elif not template and entry["resourceClaimName"] not in [c["metadata"]["name"] for c in claims]:
                count = next((int(c.partition("=")[2]) for c in counts if c.startswith(entry["name"] + "=")), 0)
                rows += [frozenset({"h100", "a100"})] * count
        limits = one["spec"]["containers"][0].get("resources", {}).get("limits", {})
        raw = int(limits.get("nvidia.com/gpu", 0))
        model = self.nodes.get(one["spec"]["nodeName"], "")
        extended = [c for c in claims if EXTENDED in c["metadata"]["annotations"]]
        served = sum(len(results(c) or ()) for c in extended)
        named = sum(r["request"] == f"gpu/{model}" for c in extended for r in results(c) or ())
        # Devices that a claim stands for already count there; their models as far as it says them.
        rows += [frozenset()] * max(0, raw - served)
        if model:
            rows += [frozenset({model, "-"})] * max(0, raw - named)
        return rows

    def of(self, one: Object) -> list[frozenset[str]]:
        given = results(one)
        if given is not None:
            if not owner(one) and not one["spec"]["weight"]:
                return []
            return [frozenset({r["request"].partition("/")[2]} - {""}) for r in given]
        if not owner(one):
            return weight(one["spec"]["weight"])
        whose = self.whose(one)
        annotations = one["metadata"]["annotations"]
        if whose is None or whose["spec"]["schedulingGates"] or EXTENDED in annotations:
            return []
        entries = [e["name"] for e in whose["spec"]["resourceClaims"] if "resourceClaimTemplateName" in e]
        return [] if annotations.get(ENTRY) in entries else weight(one["spec"]["weight"])


ENDS = {"1970-01-01T00:00:30Z": 30_000, "1970-01-01T00:10:00Z": 600_000}
ENTRY = "resource.kubernetes.io/pod-claim-name"
EXTENDED = "resource.kubernetes.io/extended-resource-claim"


def owner(one: Object) -> Key | None:
    found = one["metadata"]["ownerReferences"]
    return (one["metadata"]["namespace"], found[0]["uid"]) if found else None


def results(one: Object) -> list[Object] | None:
    return one["status"]["allocation"]["devices"]["results"] if "status" in one else None


def weight(name: str) -> list[frozenset[str]]:
    models = WEIGHTS.get(name, {})
    return [frozenset(models)] * max(models.values(), default=0)


def charge(rows: list[frozenset[str]]) -> Charge:
    """Rows with "-" are the model of a device that counts elsewhere."""
    models = Counter(model for row in rows for model in row if model != "-")
    return Charge(sum("-" not in row for row in rows), dict(models))
