"""The arbiter's log: written as it is told things and decides, and read again to see that it decides the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from dra_gate.fairness.arbiter import Arbiter
from dra_gate.fairness.events import AnyLine, Decision, Event, Granted, Pass, Revised, State

_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(AnyLine)


def dumps(line: AnyLine) -> bytes:
    """One line, without its end: the same value always gives the same bytes."""
    return _ENCODER.encode(line)


def loads(line: bytes) -> AnyLine:
    """The value of a line. Raises msgspec.ValidationError or msgspec.DecodeError for anything else."""
    return _DECODER.decode(line)


class Recorder:
    """An arbiter that writes down what it is told and what it decides, numbered.

    `write` gets one line, without its end; `sequence` is the number of the last line before.
    """

    def __init__(self, arbiter: Arbiter, write: Callable[[bytes], None], sequence: int = 0) -> None:
        self.arbiter = arbiter
        self.sequence = sequence
        self._write = write

    def state(self) -> None:
        """Write down everything that is known: a file begins with it."""
        self._say(self.arbiter.state())

    def take(self, event: Event) -> None:
        """Tell the arbiter."""
        self._say(event)
        self.arbiter.take(event)

    def decide(self, now: int, limit: int = 256) -> list[Decision]:
        """Ask it. A pass that decides nothing leaves no trace: it changes nothing."""
        decisions = self.arbiter.decide(now, limit)
        if decisions:
            self._say(Pass(at=now, limit=limit))
        return [replace(decision, sequence=self._say(decision)) for decision in decisions]

    def _say(self, line: AnyLine) -> int:
        self.sequence += 1
        self._write(dumps(replace(line, sequence=self.sequence)))
        return self.sequence


@dataclass(frozen=True, slots=True)
class Difference:
    """What a replay found at a line: what the log says and what is decided now. `wrote` or `decided` may be absent."""

    sequence: int
    wrote: str
    decided: str


def replay(lines: Iterable[bytes]) -> Iterator[Difference]:
    """Tell a fresh arbiter what the log says it was told, and compare what it decides, byte for byte.

    The first line has to be a State line; each later one is checked against what is known by then. Raises ValueError
    for what is no log.
    """
    arbiter: Arbiter | None = None
    expected: list[Decision] = []
    last = 0
    for raw in lines:
        line = loads(raw)
        if arbiter is None and not isinstance(line, State):
            raise ValueError("the log does not begin with a state line")
        if last and line.sequence != last + 1:
            raise ValueError(f"line {line.sequence} follows line {last}: lines are missing")
        last = line.sequence
        if isinstance(line, Granted | Revised):
            decided = expected.pop(0) if expected else None
            mine = b"" if decided is None else dumps(replace(decided, sequence=line.sequence))
            if mine != raw.strip():
                yield Difference(line.sequence, raw.decode().strip(), mine.decode())
            continue
        for left in expected:
            yield Difference(last, "", dumps(left).decode())
        expected = []
        if isinstance(line, State):
            mine = b"" if arbiter is None else dumps(replace(arbiter.state(), sequence=line.sequence))
            if arbiter is not None and mine != raw.strip():
                yield Difference(line.sequence, raw.decode().strip(), mine.decode())
            arbiter = Arbiter()
            arbiter.take(line)
        elif isinstance(line, Pass):
            expected = arbiter.decide(line.at, line.limit) if arbiter is not None else []
        elif arbiter is not None:
            arbiter.take(replace(line, sequence=0))
    for left in expected:
        yield Difference(last, "", dumps(left).decode())
