"""The checker is silent on what the arbiter does, and notices each way of doing it wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dra_gate.fairness import arbiter as fairness_arbiter
from dra_gate.fairness.arbiter import Arbiter
from dra_gate.fairness.checker import Violation, check
from dra_gate.fairness.events import (
    NEVER,
    AnyLine,
    Capacity,
    Config,
    Granted,
    Held,
    Pass,
    Revised,
    Settled,
    State,
    TenantRules,
)
from dra_gate.fairness.log import Recorder, dumps, loads
from fairness import scenes
from fairness.scene import capacity, config, models_of, pod, policy
from fairness.simulate import Run, Scene, simulate

Lines = list[AnyLine]


@pytest.fixture(scope="module")
def true_log() -> Lines:
    """Of a run in which everything happens."""
    run = simulate(scenes.chaos(3), keep=True)
    assert run.fair is not None
    return [loads(line) for line in run.fair.lines]


def found(lines: Lines) -> Counter[str]:
    """Rules violated, how often. Lines are numbered anew."""
    numbered = (dumps(replace(line, sequence=number)) for number, line in enumerate(lines, 1))
    return Counter(violation.rule for violation in check(numbered))


def first(lines: Lines, kind: type, fits: Callable[..., bool] = lambda _: True, after: int = 0) -> int:
    """Where the first line of that kind is, for which that is true."""
    return next(n for n, line in enumerate(lines) if n >= after and isinstance(line, kind) and fits(line))


# -- a true log -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_silent_when_everything_happens(seed: int) -> None:
    run = simulate(scenes.chaos(seed), seed=seed)
    assert run.fair is not None
    assert run.fair.violations == []
    assert run.fair.restarts == 6
    assert run.fair.checker.granted > 400


@pytest.mark.parametrize("scene", [scenes.flood(0, 300), scenes.crowd(0, 16, 12, 1)])
def test_silent_under_load(scene: Scene) -> None:
    run = simulate(scene)
    assert run.fair is not None
    assert run.fair.violations == []
    assert run.lost == []
    assert run.fair.checker.granted == len(scene.pods)
    if scene.name.startswith("crowd"):
        assert run.fair.checker.compared > 1_000  # so that the bound was looked at


# -- lines that were changed ------------------------------------------------------------------------------------------


def _left_out(lines: Lines) -> Lines:
    del lines[first(lines, Held)]
    return lines


def _granted_twice(lines: Lines) -> Lines:
    at = first(lines, Granted, lambda line: not line.group)
    return [*lines[: at + 1], lines[at], *lines[at + 1 :]]


def _settled_twice(lines: Lines) -> Lines:
    at = first(lines, Settled)
    return [*lines[: at + 1], lines[at], *lines[at + 1 :]]


def _settled_never(lines: Lines) -> Lines:
    """Then the devices stay charged."""
    del lines[first(lines, Settled)]
    return lines


def _other(**change: object) -> Callable[[Lines], Lines]:
    def changed(lines: Lines) -> Lines:
        at = first(lines, Granted, lambda line: not line.group and line.model)
        lines[at] = replace(lines[at], **change)
        return lines

    return changed


def _dearer(lines: Lines) -> Lines:
    at = first(lines, Granted)
    line = lines[at]
    assert isinstance(line, Granted)
    lines[at] = replace(line, after=replace(line.after, devices=line.after.devices - 1))
    return lines


def _cheaper(lines: Lines) -> Lines:
    at = first(lines, Granted, lambda line: line.finish > line.start)
    line = lines[at]
    assert isinstance(line, Granted)
    lines[at] = replace(line, finish=line.finish - 1)
    return lines


def _leased(lines: Lines) -> Lines:
    at = first(lines, Granted, lambda line: line.tier == 0 and line.model)
    lines[at] = replace(lines[at], lease=60)
    return lines


def _nothing_free(lines: Lines) -> Lines:
    at = first(lines, Granted)
    there = max(n for n, line in enumerate(lines[:at]) if isinstance(line, Capacity))
    line = lines[there]
    assert isinstance(line, Capacity)
    lines[there] = replace(line, kinds=tuple(replace(kind, free=()) for kind in line.kinds))
    return lines


def _no_quota(lines: Lines) -> Lines:
    at = first(lines, Config)
    line = lines[at]
    assert isinstance(line, Config)
    lines[at] = replace(line, tenants={name: replace(rules, devices=0) for name, rules in line.tenants.items()})
    return lines


def _half_a_group(lines: Lines) -> Lines:
    del lines[first(lines, Granted, lambda line: line.group)]
    return lines


def _half_a_group_waits(lines: Lines) -> Lines:
    group = next(line.group for line in lines if isinstance(line, Granted) and line.group)
    del lines[first(lines, Held, lambda line: line.group == group)]
    return lines


def _forgotten_in_a_new_file(lines: Lines) -> Lines:
    """A file that begins as if nothing were open."""
    at = first(lines, Granted) + 1
    known = Arbiter()
    for line in lines[:at]:
        if not isinstance(line, Pass | Granted | State):
            known.take(line)
    return [*lines[:at], replace(known.state(), open=()), *lines[at:]]


CHANGES = {
    "a Pod that nobody said waits": (_left_out, "conservation"),
    "granted twice": (_granted_twice, "conservation"),
    "settled twice": (_settled_twice, "conservation"),
    "charged on": (_settled_never, "account"),
    "another tenant": (_other(tenant="t001x"), "conservation"),
    "another size": (_other(devices=99), "conservation"),
    "younger than it is": (_other(queued=1), "conservation"),
    "at another time": (_other(at=5), "clock"),
    "no candidate of its policy": (_other(model="tpu", candidates=("tpu",)), "release"),
    "the other tier": (_other(tier=7), "tier"),
    "said to be old": (_other(aged=True), "age"),
    "a lease within the share": (_leased, "lease"),
    "an account that is lower": (_dearer, "account"),
    "more free than there was": (_other(free=10**6), "account"),
    "less spoken for than there was": (_other(open=-1), "account"),
    "a tag that is cheaper": (_cheaper, "tag"),
    "nothing was free": (_nothing_free, "release"),
    "nothing was allowed": (_no_quota, "cap"),
    "a member left behind": (_half_a_group, "group"),
    "a member that was not there": (_half_a_group_waits, "group"),
    "open grants forgotten": (_forgotten_in_a_new_file, "conservation"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_log(name: str, true_log: Lines) -> None:
    change, rule = CHANGES[name]
    assert found(list(true_log)) == {}
    assert found(change(list(true_log)))[rule] > 0


def test_what_joins_a_group_gets_its_model() -> None:
    known = Arbiter()
    lines: Lines = []
    log = Recorder(known, lambda line: lines.append(loads(line)))
    log.state()
    log.take(config({"t": TenantRules(wants=("h100", "a100"))}, {"p@1": policy("h100 a100", NEVER)}))
    log.take(capacity(h100=[4], a100=[4]))
    for number in range(2):
        log.take(pod(f"g{number}", "t", only="a100"))
    assert models_of(log.decide(1)) == {"g0": "a100", "g1": "a100"}
    assert found(lines) == {}
    told = [n for n, line in enumerate(lines) if isinstance(line, Held)]
    for n in told:
        lines[n] = replace(lines[n], only="h100")
    assert found(lines)["group"] == 2
    for n in told:
        lines[n] = replace(lines[n], only="a100")
    wider = Revised(at=1, uid="g0", candidates=("h100", "a100"), reason="leftover")
    assert found([*lines, wider]) == {"group": 1}


def test_lines_that_are_missing_or_are_none(true_log: Lines) -> None:
    lines = [dumps(line) for line in true_log[:200]]
    assert next(violation.rule for violation in check([*lines[:50], *lines[51:53]])) == "sequence"
    assert [violation.rule for violation in check([*lines[:50], b"{}"])] == ["sequence"]
    assert [violation.rule for violation in check([*lines[:50], b"\xff"])] == ["sequence"]


# -- arbiters that are wrong ------------------------------------------------------------------------------------------


class NoCaps(Arbiter):
    def _within_caps(self, *_: object) -> bool:
        return True


class CountsNoOpenGrants(Arbiter):
    def _spoken_for(self, *_: object) -> tuple[int, int]:
        return 0, 0


class CountsDevicesNotNodes(Arbiter):
    def _room(self, mask: int, model: str, total: int, size: int, pods: int, kept: int) -> bool:
        return super()._room(mask, model, total, 1, total, kept)


class LendsReserves(Arbiter):
    def _lent_not(self, *_: object) -> int:
        return 0


class NobodyAboveTheShare(Arbiter):
    def _tier(self, *_: object) -> int:
        return 0


class SaysNothingIsBorrowed(Arbiter):
    def _grant(self, tenant: object, unit: object, model: str, tier: int, **more: object) -> object:  # type: ignore[override]
        return super()._grant(tenant, unit, model, 0, **more)  # type: ignore[arg-type]


class AsksNotWhoIsBelow(Arbiter):
    def _is_below(self, *_: object) -> bool:
        return False


class KnowsNoWeights(Arbiter):
    def _price(self, tenant: object, devices: int) -> int:
        return devices * fairness_arbiter.SCALE


class FirstComeFirst(Arbiter):
    def _entry(self, *args: object) -> object:
        entry = super()._entry(*args)  # type: ignore[arg-type]
        return entry and replace(entry, start=0)


class LargestTagFirst(Arbiter):
    def _entry(self, *args: object) -> object:
        entry = super()._entry(*args)  # type: ignore[arg-type]
        return entry and replace(entry, start=-entry.start)


class KeepsNoRoom(Arbiter):
    """For old requests."""

    @property
    def _reserved(self) -> dict[str, object]:  # type: ignore[override]
        return {}

    @_reserved.setter
    def _reserved(self, _: object) -> None: ...


class WaitsForNoFallback(Arbiter):
    def _allowed(self, unit: object, now: int) -> tuple[str, ...]:
        return super()._allowed(unit, now + 10**12)  # type: ignore[arg-type]


class SplitsGroups(Arbiter):
    def _hold(self, held: Held) -> None:
        super()._hold(replace(held, group="", members=1))


WRONG: dict[type[Arbiter], str] = {
    NoCaps: "cap",
    CountsNoOpenGrants: "release",
    CountsDevicesNotNodes: "release",
    LendsReserves: "release",
    NobodyAboveTheShare: "inversion",
    SaysNothingIsBorrowed: "tier",
    AsksNotWhoIsBelow: "inversion",
    KnowsNoWeights: "bound",
    FirstComeFirst: "bound",
    LargestTagFirst: "bound",
    KeepsNoRoom: "age",
    WaitsForNoFallback: "fallback",
    SplitsGroups: "conservation",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_arbiter_that_is_wrong(wrong: type[Arbiter]) -> None:
    rule = WRONG[wrong]
    scene = scenes.crowd(0, 16, 12, 1) if rule == "bound" else scenes.chaos(4)
    assert not _violations(simulate(scene))
    assert rule in {violation.rule for violation in _violations(simulate(scene, made=wrong, until=rule))}


def _violations(run: Run) -> list[Violation]:
    assert run.fair is not None
    return run.fair.violations


def test_requests_of_as_many_devices_are_alike_however_their_claims_divide_them() -> None:
    """Of these the tenant's priority says which goes first: an old one is not overtaken before its own tenant's."""
    lines: list[bytes] = []
    recorder = Recorder(Arbiter(), lines.append)
    recorder.state()
    weights = {"t": 8, "u": 1, "w": 1}
    tenants = {
        name: TenantRules(weight=weight, wants=("h100",), reserve_after=1000) for name, weight in weights.items()
    }
    recorder.take(config(tenants, {"p@1": policy("h100")}, "h100"))
    recorder.take(capacity(h100=[2, 3]))
    recorder.take(pod("fills", "w", 2))
    recorder.decide(0)
    recorder.take(pod("old", "t", (2, 1), at=1))
    recorder.take(pod("urgent", "t", 3, at=1990, priority=1))
    recorder.take(pod("other", "u", 1, at=1990))
    assert recorder.decide(2000) != []
    assert list(check(lines)) == []
