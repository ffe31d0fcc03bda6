"""Problems that the checks find, and the errors that carry them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["length", "syntax", "type", "unguarded", "cost", "unsupported"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an expression. `line` and `column` count from 1; `message` says what to write instead.

    Kinds: `length`, `syntax` and `type` are refused by the API server too, `cost` by our estimate of its limit;
    `unguarded` is accepted there and stops scheduling as soon as a device lacks the key; `unsupported` may be good CEL
    in Kubernetes, but cannot be judged here.
    """

    kind: Kind
    message: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.message}"


class CelError(ValueError):
    """The expression cannot be compiled. `problems` holds all reasons, in source order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)))
