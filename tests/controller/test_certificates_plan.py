"""The certificate plan, state by state, and whole lives of it under an injected clock."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest

from dra_gate.controller.certificate_plan import (
    KEPT,
    Action,
    Cert,
    NewAuthority,
    NewServing,
    Publish,
    Seen,
    Settings,
    Show,
    Store,
    ending,
    plan,
)

T = TypeVar("T")
NOW = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
NAMES = frozenset({"gate.dra-gate.svc"})
SETTINGS = Settings(NAMES, 3000 * DAY, 90 * DAY, dt.timedelta(seconds=30))
SETTLED = dt.timedelta(seconds=30)


def ca(name: str, begun: float = 100, life: float = 3000) -> Cert:
    """A CA that began `begun` days ago."""
    return Cert(name, NOW - begun * DAY, NOW - begun * DAY + life * DAY, frozenset({name}))


def leaf(name: str, signer: str, begun: float = 10, life: float = 90, names: frozenset[str] = NAMES) -> Cert:
    return Cert(name, NOW - begun * DAY, NOW - begun * DAY + life * DAY, frozenset({signer}), names)


A, B, C = ca("A"), ca("B", 2500), ca("C", 2900)
GOOD = Seen(A, (A,), ("A",), ("A",), leaf("l", "A"), (), {"m": (("A",),), "v": (("A",), ("A",))}, SETTLED)
NOTHING = Seen(None, (), (), (), None, (), {}, None)


STATES: dict[str, tuple[Seen, list[Action]]] = {
    "all is well": (GOOD, []),
    "an empty cluster": (NOTHING, [NewAuthority("there is no usable CA", ())]),
    "a CA and no certificate: nothing can get worse": (
        replace(GOOD, serving=None, shown=(), bundles={"m": ((),)}, published=None),
        [Publish("m", ("A",)), NewServing("there is no usable certificate", (), ("A",))],
    ),
    "no configuration yet": (
        replace(GOOD, serving=None, bundles={}, published=dt.timedelta(0)),
        [NewServing("there is no usable certificate", (), ("A",))],
    ),
    "two thirds of the certificate": (
        replace(GOOD, serving=leaf("l", "A", 60)),
        [NewServing("two thirds of the certificate's life are over", ("l",), ("A",))],
    ),
    "a moment before two thirds": (replace(GOOD, serving=leaf("l", "A", 59.99)), []),
    "two thirds, but the bundle was emptied: the certificate still has a third of its life": (
        replace(GOOD, serving=leaf("l", "A", 60), bundles={"m": (None,)}, published=None),
        [Publish("m", ("A",)), NewServing("two thirds of the certificate's life are over", ("l",), ("A",))],
    ),
    "two thirds of the CA: its certificate may be served, so it stays": (
        replace(GOOD, authority=B, known=(B,), serving=leaf("l", "B"), stored=("B",), shown=("B",)),
        [NewAuthority("two thirds of the CA's life are over", ("B",))],
    ),
    "a new CA, not published": (
        replace(
            GOOD,
            known=(A, B),
            stored=("A", "B"),
            shown=("B",),
            serving=leaf("l", "B"),
            bundles={"m": (("B",),), "v": (("B",), ("B",))},
            published=None,
        ),
        [Publish("m", ("A", "B")), Publish("v", ("A", "B")), Show(("A", "B"))],
    ),
    "a new CA, published in one of two": (
        replace(
            GOOD,
            known=(A, B),
            stored=("A", "B"),
            shown=("A", "B"),
            serving=leaf("l", "B"),
            bundles={"m": (("A", "B"),), "v": (("A", "B"), ("B",))},
            published=None,
        ),
        [Publish("v", ("A", "B"))],
    ),
    "a new CA, published a moment ago": (
        replace(
            GOOD,
            known=(A, B),
            stored=("A", "B"),
            shown=("A", "B"),
            serving=leaf("l", "B"),
            bundles={"m": (("A", "B"),)},
            published=dt.timedelta(seconds=29),
        ),
        [],
    ),
    "a new CA that everybody trusts": (
        replace(
            GOOD,
            known=(A, B),
            stored=("A", "B"),
            shown=("A", "B"),
            serving=leaf("l", "B"),
            bundles={"m": (("A", "B"),)},
        ),
        [NewServing("the CA has changed", ("l",), ("A", "B"))],
    ),
    "a replica may still hold the old certificate": (
        replace(
            GOOD,
            known=(A, B),
            stored=("A", "B"),
            shown=("A", "B"),
            earlier=(leaf("old", "B", 89),),
            bundles={"m": (("A", "B"),)},
        ),
        [],
    ),
    "the old certificate has ended": (
        replace(
            GOOD,
            known=(A, B),
            stored=("A", "B"),
            shown=("A", "B"),
            earlier=(leaf("old", "B", 90),),
            bundles={"m": (("A", "B"),)},
        ),
        [Store(("A",)), Publish("m", ("A",)), Show(("A",))],
    ),
    "three CAs, newest first, and one that has ended": (
        replace(
            GOOD,
            known=(ca("E", 3001), C, A, B),
            stored=("A",),
            earlier=(leaf("x", "C"), leaf("y", "B"), leaf("z", "E")),
            bundles={},
        ),
        [Store(("A", "B", "C")), Show(("A", "B", "C"))],
    ),
    "somebody else's addition is taken out": (
        replace(GOOD, known=(A, C), bundles={"m": (("A", "C"),)}),
        [Publish("m", ("A",))],
    ),
    "the bundle is garbage, and calls fail until it is written": (
        replace(GOOD, bundles={"m": (None,)}, published=None),
        [Publish("m", ("A",))],
    ),
    "a brought certificate: its CA stays until ours serves and its own has ended": (
        replace(NOTHING, known=(B,), shown=("B",), serving=leaf("theirs", "B"), bundles={"m": (("B",),)}),
        [NewAuthority("there is no usable CA", ("B",))],
    ),
    "the CA's Secret was deleted: the CA in the bundle goes on being trusted": (
        replace(GOOD, authority=None, stored=(), published=None),
        [NewAuthority("there is no usable CA", ("A",))],
    ),
    "both Secrets were deleted, as after a theft: what was trusted is trusted no more": (
        replace(GOOD, authority=None, stored=(), shown=(), serving=None, published=None),
        [NewAuthority("there is no usable CA", ())],
    ),
    "another name": (
        replace(GOOD, serving=leaf("l", "A", names=frozenset({"old.svc"}))),
        [NewServing("the names are now gate.dra-gate.svc", ("l",), ("A",))],
    ),
    "the certificate has ended": (
        replace(GOOD, serving=leaf("l", "A", 90), published=None, bundles={"m": (("A",),)}),
        [NewServing("the certificate has ended", (), ("A",))],
    ),
    "the CA has ended": (
        replace(GOOD, authority=ca("A", 3000), known=(ca("A", 3000),), serving=leaf("l", "A", 90)),
        [NewAuthority("the CA has ended", ())],
    ),
    "the clock was set back before the certificate": (
        replace(GOOD, serving=leaf("l", "A", -1), published=None),
        [NewServing("the clock was set back before the certificate began", ("l",), ("A",))],
    ),
    "the clock was set back before the CA": (
        replace(GOOD, authority=ca("A", -1), known=(ca("A", -1),), serving=leaf("l", "A", -1)),
        [NewAuthority("the clock was set back before the CA began", ("A",))],
    ),
    "the clock was set forward beyond everything": (
        replace(GOOD, authority=ca("A", 9000), known=(ca("A", 9000),), serving=leaf("l", "A", 8000)),
        [NewAuthority("the CA has ended", ())],
    ),
}


@pytest.mark.parametrize(("seen", "wanted"), STATES.values(), ids=list(STATES))
def test_states(seen: Seen, wanted: list[Action]) -> None:
    assert plan(NOW, seen, SETTINGS) == wanted


def test_only_so_many_earlier_certificates_are_remembered() -> None:
    earlier = tuple(leaf(f"e{n}", "A") for n in range(20))
    (action,) = plan(NOW, replace(GOOD, serving=leaf("l", "A", 60), earlier=earlier), SETTINGS)
    assert isinstance(action, NewServing)
    assert action.earlier == ("l", *(cert.id for cert in earlier[: KEPT - 1]))


@pytest.mark.parametrize(("begun", "late"), [(59, False), (74.9, False), (75.1, True), (95, True)])
def test_a_sixth_of_the_life_is_when_people_hear_of_it(begun: float, late: bool) -> None:
    assert bool(ending(NOW, [None, leaf("l", "A", begun)])) is late


@pytest.mark.parametrize(
    "wrong",
    [
        {"names": frozenset()},
        {"serving_life": dt.timedelta(0)},
        {"authority_life": 269 * DAY},
    ],
)
def test_settings_that_cannot_work(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="certificate"):
        replace(SETTINGS, **wrong)  # type: ignore[arg-type]


# -- whole lives ------------------------------------------------------------------------------------------------------


@dataclass
class Cluster:
    """Carries out what the plan says, as the controller would, with API servers and replicas that follow late.

    `bundle_lag`: until an API server trusts what a configuration says. `leaf_lag`: until the last replica serves what
    the Secret holds. `healthy` False: no write succeeds.
    """

    settings: Settings
    bundle_lag: dt.timedelta
    leaf_lag: dt.timedelta
    now: dt.datetime = NOW  # the wall clock: may jump
    elapsed: dt.timedelta = dt.timedelta(0)  # never jumps
    healthy: bool = True
    authority: Cert | None = None
    serving: Cert | None = None
    known: dict[str, Cert] = field(default_factory=dict)
    stored: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    earlier: tuple[Cert, ...] = ()
    bundle: tuple[str, ...] = ()
    published_at: dt.timedelta | None = None
    trusts: list[tuple[dt.timedelta, tuple[str, ...]]] = field(default_factory=list)  # what a configuration said, since
    served: list[tuple[dt.timedelta, Cert]] = field(default_factory=list)  # what the Secret held, since
    names: Iterator[int] = field(default_factory=itertools.count)
    made: list[str] = field(default_factory=list)

    def wait(self, time: dt.timedelta) -> None:
        self.now += time
        self.elapsed += time

    def control(self) -> None:
        for _ in range(8):
            if not self.healthy or not self._step():
                return

    def _step(self) -> bool:
        published = None if self.published_at is None else self.elapsed - self.published_at
        seen = Seen(
            self.authority,
            tuple(self.known.values()),
            self.stored,
            self.shown,
            self.serving,
            self.earlier,
            {"m": (self.bundle,)},
            published,
        )
        actions = plan(self.now, seen, self.settings)
        for action in actions:
            self._do(action)
            if not isinstance(action, Publish):
                break
        if self.authority is None or self.authority.id not in self.bundle:
            self.published_at = None
        elif self.published_at is None:
            self.published_at = self.elapsed
        return bool(actions)

    def _do(self, action: Action) -> None:
        match action:
            case NewAuthority(_, keep):
                name = f"ca{next(self.names)}"
                self.authority = Cert(name, self.now, self.now + self.settings.authority_life, frozenset({name}))
                self.known[name] = self.authority
                self.stored = (name, *keep)
                self.published_at = None
                self.made.append(name)
            case Store(trust):
                self.stored = trust
            case Publish(_, trust):
                self.bundle = trust
                self.trusts.append((self.elapsed, trust))
            case NewServing(_, earlier, trust):
                assert self.authority is not None
                certs = {cert.id: cert for cert in (self.serving, *self.earlier) if cert is not None}
                self.earlier = tuple(certs[id_] for id_ in earlier)
                name = f"leaf{next(self.names)}"
                ends = min(self.now + self.settings.serving_life, self.authority.ends)
                self.serving = Cert(name, self.now, ends, frozenset({self.authority.id}), self.settings.names)
                self.shown = trust
                self.served.append((self.elapsed, self.serving))
                self.made.append(name)
            case Show(trust):
                self.shown = trust

    def calls_fail(self) -> str:
        """Why some API server's call to some replica fails now; empty if none does."""
        bundles = _within(self.trusts, self.elapsed, self.bundle_lag)
        for cert in _within(self.served, self.elapsed, self.leaf_lag):
            if not cert.valid(self.now):
                return f"{cert.id} is not valid"
            for trusted in bundles:
                if not cert.signers & set(trusted):
                    return f"{cert.id} of {set(cert.signers)} is not trusted by {trusted}"
        return ""


def _within(history: list[tuple[dt.timedelta, T]], now: dt.timedelta, lag: dt.timedelta) -> list[T]:
    """What may be in force: the newest entry, and every one that was in force within `lag`."""
    found = []
    for index, (_, value) in enumerate(history):
        until = history[index + 1][0] if index + 1 < len(history) else None
        if until is None or now - until < lag:
            found.append(value)
    return found


def start(**changes: object) -> Cluster:
    settings = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    cluster = Cluster(settings, bundle_lag=dt.timedelta(seconds=20), leaf_lag=dt.timedelta(minutes=3))
    cluster.control()
    cluster.wait(dt.timedelta(minutes=5))
    return cluster


def test_forty_years_without_a_failed_call() -> None:
    cluster = start()
    busy = 0  # looks at the pace of the controller after something happened, then a few a day
    while cluster.now < NOW + 40 * 365 * DAY:
        before = len(cluster.made), len(cluster.trusts)
        cluster.control()
        busy = 30 if before != (len(cluster.made), len(cluster.trusts)) else busy - 1
        assert cluster.calls_fail() == ""
        cluster.wait(dt.timedelta(seconds=10) if busy > 0 else dt.timedelta(hours=7))
    authorities = [name for name in cluster.made if name.startswith("ca")]
    assert len(authorities) == 8  # every 2000 days
    assert len(cluster.made) > 200
    assert len(cluster.bundle) <= 2


@pytest.mark.parametrize("away", [1, 20, 29])
def test_a_controller_that_is_away_for_days_costs_no_call(away: int) -> None:
    """A third of the certificate's life, 30 days, may pass without a controller."""
    cluster = start()
    for _ in range(30):
        cluster.wait((60 + away) * DAY)
        assert cluster.calls_fail() == ""
        for _ in range(60):
            cluster.control()
            assert cluster.calls_fail() == ""
            cluster.wait(dt.timedelta(seconds=10))


def test_without_a_controller_for_longer_calls_fail_until_it_is_back() -> None:
    cluster = start()
    cluster.wait(91 * DAY)
    assert "not valid" in cluster.calls_fail()
    cluster.control()
    cluster.wait(cluster.leaf_lag)
    assert cluster.calls_fail() == ""


@pytest.mark.parametrize("jump", [-400 * DAY, -DAY, dt.timedelta(minutes=-2), DAY, 400 * DAY, 40_000 * DAY])
def test_the_clock_jumps_and_jumps_back(jump: dt.timedelta) -> None:
    """Whatever the clock says, nothing is issued for a time to come, and two looks later every call works."""
    cluster = start()
    for leap in (jump, -jump):
        cluster.now += leap
        for _ in range(60):
            cluster.control()
            for cert in (cluster.authority, cluster.serving):
                assert cert is not None
                assert cert.begins <= cluster.now
            cluster.wait(dt.timedelta(seconds=10))
        assert cluster.calls_fail() == ""
