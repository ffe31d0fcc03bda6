"""An explanation as text that a person reads in ten seconds: what is so, why, then each candidate in order. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.allocation.explanation import UNGRANTED, Candidate, ClaimExplained, Explanation, Reason, RequestExplained
from dra_gate.policy.words import listed, many, some

_STATES = {
    "bound": "is on {node}",
    "waiting": "waits",
    "held": "is held",
    "finished": "has ended",
    "deleted": "is being deleted",
}


def text_of(explanation: Explanation) -> str:
    """The chain, several lines."""
    return "\n".join(_lines(explanation))


def reason_text(reason: Reason) -> str:
    """One reason as a part of a line."""
    if not reason.devices:
        return reason.text
    if reason.holders:
        one = len(reason.holders) == 1
        who = [name if one else f"{name} ({count})" for name, count in reason.holders]
        return f"{reason.devices} {reason.text} by {some(who)}"
    where = f" on {some(reason.nodes)}" if reason.nodes else ""
    return f"{reason.devices}{where}: {reason.text}"


def verdict(explanation: Explanation) -> str:
    """What was given in all, or what is waited for, in one line."""
    given = [
        f"{request.candidates[request.rank - 1].model} ({_rank(claim, request)}): {', '.join(request.given)}"
        if request.rank
        else ", ".join(request.given)
        for claim in explanation.claims
        for request in claim.requests
        if request.given
    ]
    if given:
        return f"got {'; '.join(given)}"
    if explanation.causes:
        return explanation.causes[0].text
    if not explanation.claims:
        return "it asks for no claims"
    if any(one.fate in ("possible", "not judged") for one in _candidates(explanation)):
        return "nothing that is judged here stands against it"
    return "none of its candidates can be had now"


def _lines(explanation: Explanation) -> Iterator[str]:
    state = _STATES[explanation.state].format(node=explanation.node)
    told = [f"tenant {explanation.tenant}"] if explanation.tenant else ["no tenant's namespace"]
    told += [f"policy {explanation.policy}"] if explanation.policy else []
    yield f"Pod {explanation.namespace}/{explanation.pod} {state}: {verdict(explanation)}  ({', '.join(told)})"
    for cause in explanation.causes[0 if _has_given(explanation) else 1 :]:
        yield f"  also: {cause.text}"
    for claim in explanation.claims:
        yield from _claim(claim)
    for note in explanation.notes:
        yield f"  note: {note}"


def _claim(claim: ClaimExplained) -> Iterator[str]:
    source = f"template {claim.template}" if claim.template else f"claim {claim.claim}"
    users = f" for {listed(claim.containers)}" if claim.containers else ""
    for request in claim.requests:
        counts = dict.fromkeys(one.count for one in request.candidates if one.rank)
        devices = " or ".join(many(count, "device") for count in counts)
        order = " > ".join(one.model for one in request.candidates if one.rank)
        policy = f", {claim.policy}" if claim.policy else ""
        yield f"  asked{users}: {devices} of {order}  ({source}, request {request.request}{policy})"
        width = max((len(one.model) for one in request.candidates), default=0)
        for candidate in request.candidates:
            yield from _candidate(candidate, width)


def _candidate(candidate: Candidate, width: int) -> Iterator[str]:
    if not candidate.rank:
        yield f"    -  {candidate.model:{width}}  {candidate.reasons[0].text}"
        return
    counts = (
        f"{candidate.published:3} published {candidate.healthy:3} healthy "
        f"{candidate.matching:3} matching {candidate.free:3} free"
    )
    where = some(candidate.possible)
    marks = {
        "given": "  <- given",
        "possible": f"  possible on {where}",
        "not judged": f"  on {where} if what is not judged allows it",
    }
    yield f"    {candidate.rank}  {candidate.model:{width}}  {counts}{marks.get(candidate.fate, '')}"
    for reason in candidate.reasons:
        yield f"       {'':{width}}  {reason_text(reason)}"
    for line in candidate.devices:
        yield f"       {'':{width}}  · {line.device}{f' ({line.node})' if line.node else ''}: {line.text}"


def _candidates(explanation: Explanation) -> Iterator[Candidate]:
    return (one for claim in explanation.claims for request in claim.requests for one in request.candidates)


def _has_given(explanation: Explanation) -> bool:
    return any(request.given for claim in explanation.claims for request in claim.requests)


def _rank(claim: ClaimExplained, request: RequestExplained) -> str:
    told = f"choice {request.rank} of {sum(1 for one in request.candidates if one.rank)}"
    left = [one.model for one in request.candidates if not one.rank and one.reasons[0].code == UNGRANTED]
    told += f" in its grant, which leaves out {listed(left)}" if left else ""
    without = [one.model for one in request.candidates if not one.rank and one.model not in left]
    return f"{told} in {claim.policy}, which does not have {listed(without, 'or')}" if without else told
