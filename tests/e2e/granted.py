"""What the tests of grants share: Pods that wait, and what they wait for."""

from __future__ import annotations

from controlplane.api import Api, Object

GATE = "dra-gate.io/grant"
CONDITION = "dra-gate.io/Granted"


def is_held(pod: Object) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates", []))


def condition(pod: Object) -> Object:
    """What the gate says of the Pod's grant; empty while it says nothing."""
    found = [one for one in pod.get("status", {}).get("conditions", []) if one["type"] == CONDITION]
    return found[0] if found else {}


def waits(api: Api, namespace: str, name: str, *reasons: str) -> Object:
    """The Pod, once the gate says that it waits, for one of the reasons if some are given."""

    def told(pod: Object) -> bool:
        said = condition(pod)
        return is_held(pod) and said.get("status") == "False" and said["reason"] in (reasons or (said["reason"],))

    return api.wait("pods", name, namespace, told, 30, f"{name} to wait for {' or '.join(reasons) or 'a reason'}")


def let_go(api: Api, namespace: str, name: str, timeout: float = 30) -> Object:
    """The Pod, once the gate holds it no more."""
    return api.wait("pods", name, namespace, lambda pod: not is_held(pod), timeout, f"{name} to be let go")


def late_name(pod: Object) -> str:
    """The claim that its only entry names."""
    (entry,) = pod["spec"]["resourceClaims"]
    return str(entry["resourceClaimName"])


def alternatives(claim: Object) -> list[str]:
    """The models that the claim may get, in order."""
    return [one["name"] for one in claim["spec"]["devices"]["requests"][0]["firstAvailable"]]


def ledger(api: Api, tenant: str) -> Object:
    """The status of the tenant's ledger."""
    found = api.find("tenantledgers", tenant) or {}
    status: Object = found.get("status", {})
    return status
