"""Grants that the scheduler can't use are taken back, and their Pods rest before they wait again (decision 40). Pure.

Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from dra_gate.kube.times import rfc3339

FIRST_REST = 60_000
LONGEST_REST = 3_600_000
MOST_RESTS = 500  # of a tenant: its ledger has to stay small
MOST_WHY = 160  # characters


class Rest(Struct, frozen=True, omit_defaults=True):
    """A Pod whose grant was taken back `times` times, the last time since `why`; it waits again from `until` on.

    It is kept until the Pod gets devices or goes, so that each rest is longer than the one before.
    """

    uid: str
    times: int
    until: int
    why: str = ""

    def lasts(self, now: int) -> bool:
        """The Pod is not to be granted anything yet; no longer than the longest, though a clock was turned back."""
        return now < self.until <= now + LONGEST_REST

    @property
    def text(self) -> str:
        """What its Pod is told."""
        return (
            f"its grant was taken back, as it could not be scheduled: {self.why}. It waits again from "
            f"{rfc3339(self.until, whole=True)} on"
        )


def rest_after(before: Rest | None, uid: str, now: int, why: str) -> Rest:
    """The rest of a Pod whose grant is taken back at `now`: a minute, each time twice as long, an hour at most."""
    times = 1 if before is None else before.times + 1
    length = min(FIRST_REST << min(times - 1, 10), LONGEST_REST)
    return Rest(uid, times, now + length, why[:MOST_WHY])


def kept(rests: Iterable[Rest]) -> tuple[Rest, ...]:
    """Those that a ledger has room for, by UID: of too many the ones that end last."""
    last = sorted(rests, key=lambda one: (-one.until, one.uid))[:MOST_RESTS]
    return tuple(sorted(last, key=lambda one: one.uid))


def idle_because(gates: tuple[str, ...], unplaced: str, *, granted: int, now: int, timeout: int) -> str:
    """Why a grant whose claims are not allocated is of no use to its Pod; empty while it may be.

    `gates` are scheduling gates of others that hold the Pod, `unplaced` what the scheduler said when it last found no
    node for it. Without either it has not looked yet, however long that takes. A `timeout` of 0 is never over.
    """
    if not timeout or now - granted < timeout:
        return ""
    if gates:
        return f"scheduling gate {gates[0]} holds it"
    return unplaced
