"""Why devices that are free cannot be given to a Pod all the same: found by asking the allocator for less. Pure.

The allocator is asked for all of the Pod's claims with one alternative and no other; where it says no, parts are left
out until it says yes: what was left out last is the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_gate.allocation.allocator import Allocator
from dra_gate.allocation.constraints import NOT_PUBLISHED
from dra_gate.allocation.explanation import Reason
from dra_gate.allocation.outcome import Outcome
from dra_gate.allocation.podclaims import PodClaim, count_of
from dra_gate.allocation.wanted import Wanted
from dra_gate.kube.claim import Alternative, Request, requests
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.words import listed, many

_CHECKS = {
    "node": "the device is not for the node",
    "capacity": "too little of a shared device is left",
    "counters": "other parts of the same device take up what it needs",
    "taint": "the device is tainted",
    "constraint": "a constraint cannot be met",
}
_KNOWN = frozenset({"", "in-use", "class-selector", "selector"})  # counted device by device already


@dataclass(frozen=True, slots=True)
class Asked:
    """One alternative as it is asked for: `claims` are all of the Pod that are known, `claim` is the one it is in.
    `users` are the containers by claim entry.
    """

    claims: Sequence[PodClaim]
    claim: PodClaim
    request: Request
    alternative: Alternative
    wanted: Wanted
    rank: int
    users: Mapping[str, tuple[str, ...]]

    def only(self, without: PodClaim | None = None) -> list[Object]:
        """The Pod's claims as they were before allocation, with this alternative and no other for its request."""
        kept = (claim for claim in self.claims if claim is not without)
        return [self.alone() if claim is self.claim else unallocated(claim.obj) for claim in kept]

    def alone(self, *, constraints: bool = True, others: bool = True) -> Object:
        """This claim with this alternative only; without its constraints, or without its other requests, if asked."""
        listed = [self._narrowed(raw) for raw in self._requests() if others or raw.get("name") == self.request.name]
        devices = {"requests": listed, "constraints": [*self._constraints(listed)] if constraints else []}
        return {**unallocated(self.claim.obj), "spec": {"devices": devices}}

    def other(self, name: str) -> Object:
        """This claim with its request of that name and nothing else."""
        listed = [raw for raw in self._requests() if raw.get("name") == name]
        return {**unallocated(self.claim.obj), "spec": {"devices": {"requests": listed}}}

    def agreed(self) -> str:
        """The attributes that the claim's devices have to agree on, or differ in."""
        listed = map(mapping, sequence(at(self.claim.obj, "spec", "devices", "constraints")))
        return ", ".join(
            dict.fromkeys(text(one.get("matchAttribute")) or text(one.get("distinctAttribute")) for one in listed)
        )

    def _requests(self) -> list[Object]:
        return [mapping(raw) for raw in sequence(at(self.claim.obj, "spec", "devices", "requests"))]

    def _narrowed(self, raw: Object) -> Object:
        if raw.get("name") != self.request.name or not self.alternative.name:
            return raw
        kept = [sub for sub in sequence(raw.get("firstAvailable")) if at(sub, "name") == self.alternative.name]
        return {**raw, "firstAvailable": kept}

    def _constraints(self, listed: Sequence[Object]) -> Iterator[Object]:
        """The constraints, as far as they are about `listed`: a name that is not there would be an error."""
        known = set[Any]()
        for raw in listed:
            known.add(raw.get("name"))
            known |= {f"{raw.get('name')}/{at(sub, 'name')}" for sub in sequence(raw.get("firstAvailable"))}
        for one in map(mapping, sequence(at(self.claim.obj, "spec", "devices", "constraints"))):
            named = sequence(one.get("requests"))
            kept = [name for name in named if name in known]
            if kept or not named:
                yield {**one, "requests": kept} if named else one


def against(asked: Asked, node: str, answer: Outcome, allocator: Allocator) -> Iterator[Reason]:
    """Why `node`, which has enough free devices of the candidate, cannot give them; `answer` is what it said to all."""
    if answer.kind in ("failed", "cannot-evaluate", "invalid-pools"):
        code = "allocator" if answer.kind == "failed" else answer.kind
        yield Reason(code, answer.message)
        return

    def could(*claims: Object) -> bool:
        return allocator.allocate(node, claims).kind == "allocated"

    if not could(asked.alone(constraints=False, others=False)):
        yield from _examined(asked, node, allocator)
    elif could(asked.alone()):
        yield _other_claim(asked, node, allocator)
    elif could(asked.alone(constraints=False)):
        missing = _not_published(asked, node, allocator)
        why = listed(missing) if missing else "nothing free on one node does"
        yield Reason("topology", f"what the claim is given has to agree on {asked.agreed()}, and {why}")
    else:
        for other in requests(mapping(at(asked.claim.obj, "spec"))):
            if other.name != asked.request.name:
                what = f"request {other.name} of the claim"
                yield _beside(asked, f"{what} asks for {_asks(other)} and", what, could(asked.other(other.name)))
                return


def _other_claim(asked: Asked, node: str, allocator: Allocator) -> Reason:
    for claim in asked.claims:
        if claim is not asked.claim and allocator.allocate(node, asked.only(claim)).kind == "allocated":
            single = allocator.allocate(node, [unallocated(claim.obj)])
            users = asked.users.get(claim.entry, ())
            what = f"claim {claim.entry} of the Pod"
            who = f"container {listed(users)} ({what})" if users else what
            asks = listed([_asks(one) for one in requests(mapping(at(claim.obj, "spec")))])
            return _beside(asked, f"{who} asks for {asks} and", who, single.kind == "allocated")
    return Reason(
        "backtracking", f"the Pod's {len(asked.claims)} claims cannot all be had with {asked.wanted.name} here"
    )


def _beside(asked: Asked, asks: str, what: str, possible: bool) -> Reason:
    """`what` could be had by itself, so it is after the same device; or it could not, whatever is given here."""
    if possible:
        users = asked.users.get(asked.claim.entry, ())
        here = f" for {listed(users)}" if users else ""
        taken = f"with {many(count_of(asked.alternative), asked.wanted.name, asked.wanted.name)}{here}"
        return Reason(
            "backtracking", f"{asks} can only have that if this device is left to it: {taken} it gets nothing"
        )
    return Reason("companion", f"{what} has to be had beside it, and cannot be")


def _asks(request: Request) -> str:
    """What a request asks for: `2 devices of h100 or a100`."""
    counts = dict.fromkeys(map(count_of, request.alternatives))
    models = listed([one.name or one.device_class for one in request.alternatives], "or")
    return f"{' or '.join(many(count, 'device') for count in counts)} of {models}"


def _not_published(asked: Asked, node: str, allocator: Allocator) -> list[str]:
    """The attributes to agree on that devices which would do otherwise do not publish, in words."""
    examined = allocator.examine(node, [asked.alone()]).requests
    checks = (check for request in examined for check in request.devices if check.check == "constraint")
    details = (check.detail.partition(": ")[2] for check in checks)  # behind the number of the constraint
    return [*dict.fromkeys(detail for detail in details if detail.endswith(NOT_PUBLISHED))]


def _examined(asked: Asked, node: str, allocator: Allocator) -> Iterator[Reason]:
    """The first failing checks of the devices on a node, by the allocator."""
    examination = allocator.examine(node, [asked.alone(constraints=False, others=False)])
    found: dict[str, str] = {}
    for request in examination.requests:
        for check in request.devices:
            if check.check not in _KNOWN:
                found.setdefault(check.check, check.detail)
    for code, detail in found.items():
        yield Reason(code, f"{_CHECKS.get(code, code)}{': ' + detail if detail else ''}")
    if not found:
        yield Reason("impossible", "the allocator finds no way to give them")


def unallocated(claim: Object | None) -> Object:
    """The claim as it was before it was allocated."""
    return {key: value for key, value in mapping(claim).items() if key != "status"}
