"""Why the outcome for a node is what it is: pools, devices and choices.

Every device is judged as if nothing of the Pod were allocated. Where enough devices fit one by one and still no set of
them does, they are judged beside those that the scheduler would pick first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from dra_gate.allocation.asked import Alternative, Claim, Request
from dra_gate.allocation.held import Held
from dra_gate.allocation.outcome import DeviceCheck, Examination, Outcome, PoolState, RequestExamination
from dra_gate.allocation.pools import Device, DeviceId, Pool, View
from dra_gate.allocation.problems import CannotEvaluate, Failed
from dra_gate.allocation.search import Search, untolerated
from dra_gate.kube.raw import text

Start = Callable[[View, Sequence[Claim], int], Search]
_MAX_QUESTIONS: Final = 64  # searches that looking for who forced a choice may cost
_STEPS: Final = 10_000  # of each of them: what takes longer stays without its sentence


def examined(
    outcome: Outcome, view: View, passed: Iterable[Pool], claims: tuple[Claim, ...], held: Held, start: Start
) -> Examination:
    """The examination of one node. `start` begins a search of some claims, of so many steps at most."""
    given = {(one.driver, one.pool, one.device): one.request for claim in outcome.claims for one in claim.results}
    examiner, untouched = _Examiner(view, claims, held, start, given), start(view, claims, _STEPS)
    requests = tuple(
        examiner.examined(index, request, alternative, untouched)
        for index, claim in enumerate(claims)
        for request in claim.requests
        for alternative in request.alternatives
    )
    backtracked = tuple(_Choices(view, claims, start, outcome).sentences()) if outcome.kind == "allocated" else ()
    return Examination(outcome, tuple(_pool_states(view, passed)), requests, backtracked)


def _pool_states(view: View, passed: Iterable[Pool]) -> Iterator[PoolState]:
    order = 0
    for pool in view.pools:
        used = pool.state == "used"
        yield PoolState(*pool.id, pool.generation, pool.state, pool.reason, order if used else -1)
        order += used
    for pool in passed:
        yield PoolState(*pool.id, pool.generation, pool.state, pool.reason)


@dataclass(frozen=True, slots=True)
class _Examiner:
    view: View
    claims: tuple[Claim, ...]
    held: Held
    start: Start
    given: dict[DeviceId, str]

    def examined(self, index: int, request: Request, alternative: Alternative, untouched: Search) -> RequestExamination:
        """One alternative against all devices; `untouched` has picked nothing and stays so."""
        checks = [self._check(untouched, index, alternative, device, pool) for device, pool in self.view.devices]
        count = alternative.count
        if alternative.every:
            count = self._how_many(index, request, alternative)
        elif count > 1:
            fitting = [number for number, check in enumerate(checks) if not check.check]
            if count <= len(fitting) and not self._satisfied(index, request, alternative):
                self._side_by_side(index, alternative, checks, fitting)
        return RequestExamination(index, request.name, alternative.name if request.listed else "", count, tuple(checks))

    def _side_by_side(
        self, index: int, alternative: Alternative, checks: list[DeviceCheck], fitting: Iterable[int]
    ) -> None:
        """Judges the devices that fit again, each beside those before it that fit together."""
        search = self.start(self.view, self.claims, _STEPS)
        for number in fitting:
            device, pool = self.view.devices[number]
            checks[number] = self._check(search, index, alternative, device, pool)
            if not checks[number].check:
                search.pick(index, alternative, device, pool)

    def _how_many(self, index: int, request: Request, alternative: Alternative) -> int:
        """How many devices mode All means; 0 where the scheduler does not get so far as to count them."""
        search = self._alone(index, request, alternative)
        try:
            search.prepare()
        except (Failed, CannotEvaluate):
            return 0
        return len(search.every[alternative])

    def _satisfied(self, index: int, request: Request, alternative: Alternative) -> bool:
        search = self._alone(index, request, alternative)
        try:
            search.prepare()
            return search.run()
        except (Failed, CannotEvaluate):
            return True  # not for want of a set of devices: there is nothing to add

    def _alone(self, index: int, request: Request, alternative: Alternative) -> Search:
        """A search for nothing but one alternative."""
        only = replace(request, alternatives=(alternative,))
        return self.start(self.view, (replace(self.claims[index], requests=(only,)),), _STEPS)

    def _check(self, search: Search, index: int, alternative: Alternative, device: Device, pool: Pool) -> DeviceCheck:
        given, matches = self.given.get(device.id, ""), False
        with suppress(Failed, CannotEvaluate):
            matches = not search.unselected(index, alternative, device)
        try:
            check = search.objection(index, alternative, device, pool)
        except CannotEvaluate as error:
            return DeviceCheck(*device.id, "selector", str(error), (), matches, given)
        except Failed as error:
            verdict = search.verdict(alternative, device)
            if verdict.error:
                return DeviceCheck(*device.id, verdict.check, f"{verdict.number}: {verdict.error}", (), matches, given)
            return DeviceCheck(*device.id, "capacity", str(error), (), matches, given)
        detail, holders = "", tuple[str, ...]()
        match check:
            case "in-use":
                holders = self.held.holders(device.id)
            case "class-selector" | "selector":
                detail = str(search.verdict(alternative, device).number)
            case "capacity":
                detail, holders = search.short_of(alternative, device), self.held.holders(device.id)
            case "counters":
                detail = search.counters(pool).lacking(device)
                holders = tuple(self._sharers(pool, device))
            case "taint":
                taint = untolerated(alternative, device) or {}
                value = text(taint.get("value"))
                detail = f"{text(taint.get('key'))}{'=' if value else ''}{value}:{text(taint.get('effect'))}"
            case "constraint":
                number, words = search.refusing(index, alternative, device)
                detail = f"{number}: {words}"
        return DeviceCheck(*device.id, check, detail, holders, matches, given)

    def _sharers(self, pool: Pool, device: Device) -> list[str]:
        """Who holds devices that draw on the same counter sets."""
        sets = {name for name, _ in device.consumes}
        return sorted(
            {
                holder
                for found in (*pool.slices, *pool.others)
                for other in found.devices
                if sets.intersection(name for name, _ in other.consumes)
                for holder in self.held.holders(other.id)
            }
        )


@dataclass(frozen=True, slots=True)
class _Choices:
    """Which later (or earlier) request forced a lower alternative: found by asking again without it."""

    view: View
    claims: tuple[Claim, ...]
    start: Start
    outcome: Outcome

    def sentences(self) -> Iterator[str]:
        """A sentence for each request that got a lower alternative than it would have got by itself."""
        places = [(index, request) for index, claim in enumerate(self.claims) for request in claim.requests]
        if len(places) < 2:
            return
        questions = 0
        for number, place in enumerate(places):
            now = self._got(*place)
            if not now or questions + len(places) > _MAX_QUESTIONS:
                continue
            questions += len(places)
            best = self._asked([place], place)
            if best >= now:
                continue
            culprit = next(
                (
                    (other, with_out)
                    for other, left_out in enumerate(places)
                    if left_out is not place
                    and (with_out := self._asked([kept for kept in places if kept is not left_out], place)) < now
                ),
                None,
            )
            yield self._sentence(place, now, best, number, places, culprit)

    def _got(self, index: int, request: Request) -> int:
        """The alternative that a request has got, 0 if it has no list of them."""
        names = {result.request for result in self.outcome.claims[index].results}
        return next((one.index for one in request.alternatives if one.full_name in names), 0)

    def _sentence(
        self,
        place: tuple[int, Request],
        now: int,
        best: int,
        number: int,
        places: Sequence[tuple[int, Request]],
        culprit: tuple[int, int] | None,
    ) -> str:
        names = [alternative.full_name for alternative in place[1].alternatives]
        if culprit is None:
            return (
                f"{self._named(place)}: {names[now]}, not {names[best]}: the other requests need what that would take"
            )
        other, instead = culprit
        named = self._named(places[other])
        if other < number:
            return f"{self._named(place)}: {names[now]}, not {names[instead]}: {named} comes first and takes it"
        return f"{self._named(place)}: {names[now]}, not {names[instead]}: {named} would get nothing beside that"

    def _named(self, place: tuple[int, Request]) -> str:
        return f"request {place[1].name} of claim {self.claims[place[0]].name}"

    def _asked(self, kept: Sequence[tuple[int, Request]], place: tuple[int, Request]) -> int:
        """The alternative that `place` gets when only `kept` are asked for; past the last if it gets none."""
        claims = tuple(
            replace(claim, requests=tuple(request for owner, request in kept if owner == index))
            for index, claim in enumerate(self.claims)
        )
        search = self.start(self.view, claims, _STEPS)
        try:
            search.prepare()
            picks = search.picked[place[0]] if search.run() else []
        except (Failed, CannotEvaluate):
            picks = []
        wanted = set(place[1].alternatives)
        return next((pick.alternative.index for pick in picks if pick.alternative in wanted), len(wanted))
