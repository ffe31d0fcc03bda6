"""The log says all that the arbiter decides by: told again, it decides the same, byte for byte."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from dra_gate.fairness.arbiter import Arbiter
from dra_gate.fairness.events import AnyLine, Left, Settled, TenantRules, Used
from dra_gate.fairness.log import Recorder, dumps, loads, replay
from fairness.scene import capacity, config, pod, policy


def history(seed: int) -> list[bytes]:
    """A few hundred events of all sorts, with a new file begun in the middle."""
    chance = random.Random(seed)
    lines: list[bytes] = []
    recorder = Recorder(Arbiter(), lines.append, sequence=7)
    recorder.state()
    tenants = {
        f"t{number}": TenantRules(weight=chance.randint(0, 3), devices=chance.choice([-1, 9]), wants=("h100", "a100"))
        for number in range(4)
    }
    recorder.take(config(tenants, {"p@1": policy("h100 a100"), "q@1": policy("a100 h100", 40)}))
    open_grants: dict[str, str] = {}
    for step in range(300):
        now = 10 * step
        match chance.randrange(6):
            case 0:
                recorder.take(
                    capacity(
                        h100=[chance.randint(0, 8) for _ in range(2)], a100=[chance.randint(0, 8) for _ in range(3)]
                    )
                )
            case 1 | 2:
                size = chance.choice([1, 1, 2, 8])
                group = chance.choice(["", "", f"g{step // 20}"])
                tenant = f"t{chance.randrange(4)}"
                recorder.take(
                    pod(
                        f"u{step}",
                        tenant,
                        size,
                        at=now,
                        policy=chance.choice(["p@1", "q@1"]),
                        group=group,
                        members=2 if group else 1,
                    )
                )
            case 3 if open_grants:
                uid, tenant = open_grants.popitem()
                recorder.take(Settled(uid=uid, model=chance.choice(["h100", "a100", ""])))
                recorder.take(Used(tenant=tenant, devices=chance.randint(0, 4)))
            case 4 if step % 7 == 0:
                recorder.take(Left(uid=f"u{step - 1}"))
            case 5 if step % 50 == 0:
                recorder.state()
        for decision in recorder.decide(now):
            if decision.uid not in open_grants and hasattr(decision, "tenant"):
                open_grants[decision.uid] = decision.tenant
    return lines


@pytest.mark.parametrize("seed", range(10))
def test_a_replay_decides_the_same(seed: int) -> None:
    lines = history(seed)
    assert sum(1 for line in lines if b'"granted"' in line) > 20
    assert list(replay(lines)) == []


def test_a_changed_line_is_noticed() -> None:
    lines = history(1)
    number = next(index for index, line in enumerate(lines) if b'"granted"' in line)
    lines[number] = lines[number].replace(b'"devices":', b'"devices":1', 1)
    assert next(iter(replay(lines))).sequence == loads(lines[number]).sequence


def test_missing_lines_and_a_missing_beginning_are_told() -> None:
    lines = history(2)
    with pytest.raises(ValueError, match="lines are missing"):
        list(replay(lines[:10] + lines[11:]))
    with pytest.raises(ValueError, match="state line"):
        list(replay(lines[1:]))


def test_a_decision_left_out_is_told() -> None:
    lines = history(3)
    number = next(index for index, line in enumerate(lines) if b'"granted"' in line)
    kept = [*lines[:number], *(dumps(_renumbered(line)) for line in lines[number + 1 :])]
    assert any(difference.wrote != difference.decided for difference in replay(kept))


def _renumbered(line: bytes) -> AnyLine:
    value = loads(line)
    return replace(value, sequence=value.sequence - 1)
