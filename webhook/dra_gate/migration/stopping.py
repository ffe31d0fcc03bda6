"""What is done about hard stops, and whether it was done already. Pure.

The plan of waves says what is to be done, and is where it is written down what was. One write of it pauses the waves
and records the stop: so a stop is acted on once, whoever leads afterwards. Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dra_gate.migration.compare import Stop
from dra_gate.migration.waves import Act, Moves, Paused, Plan, Space, Stopped, rollback

SETTLED = 10  # seconds: a step that was under way when the plan was paused has moved its last namespace by then
_LONGEST = 512  # characters of the reason, as those that people give


def told(stops: Iterable[Stop]) -> str:
    """The stops with their figures, in one line; of each reason the first, of all Pods."""
    firsts: dict[str, str] = {}
    for one in stops:
        firsts.setdefault(one.reason, one.text)
    return "; ".join(f"{reason}: {text}" for reason, text in firsts.items())


def stopped_text(act: Act, *, done: bool) -> str:
    """What was done about a stop, for people."""
    if act != "rollback":
        return "the controller paused the plan"
    return "the controller paused the plan, and " + ("moved back all that commands moved" if done else "is moving back")


def act(plan: Plan, stops: Sequence[Stop], by: str, now: int) -> Plan:
    """The plan after these stops: paused, and with what is done about them; as it is where nothing is to be done.

    Nothing is where the plan only asks to be told, and while one stop stands in it: whoever ends the pause has seen it.
    That ends with the pause, also where somebody took it out by hand. A pause that somebody made stays theirs.
    """
    if plan.stopped is not None:
        return plan if plan.paused is not None else plan.resumed(now)
    rule = plan.on_stop
    if not stops or rule.act == "alert":
        return plan
    why = f"hard stop: {told(stops)}"[:_LONGEST]
    stopped = Stopped(rule.act, now, why, 0 if rule.act == "rollback" else now)
    return replace(plan, paused=plan.paused or Paused(by, now, why), stopped=stopped)


def is_under_way(plan: Plan) -> bool:
    """Namespaces are to be moved back. Not any more once somebody has ended the pause."""
    return plan.paused is not None and plan.stopped is not None and not plan.stopped.done


def rest(spaces: Iterable[Space]) -> Moves:
    """Who is moved back: all that commands moved to lane dra. Labels that others wrote are theirs."""
    return rollback(spaces, named=False)


def finished(plan: Plan, left: Moves, now: int) -> Plan:
    """The plan once nobody is left to move back."""
    stopped = plan.stopped
    if stopped is None or stopped.done or left.moves or now - stopped.at < SETTLED:
        return plan
    return replace(plan, stopped=replace(stopped, done=now))
