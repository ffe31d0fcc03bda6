"""What the loader has to say about policy files."""

from __future__ import annotations

from dataclasses import dataclass

from dra_gate.policy.model import Place


@dataclass(frozen=True, slots=True)
class PolicyError:
    """One thing that is wrong: where, what, and what to write instead (`remedy`, may be empty)."""

    place: Place
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.place} {self.message}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, slots=True)
class PolicyWarning(PolicyError):
    """Valid, but probably not what was meant."""


class PolicyErrors(ValueError):
    """A policy folder that cannot be used. `errors` holds all of them, by file, line and column; never empty."""

    def __init__(self, errors: tuple[PolicyError, ...]) -> None:
        self.errors = errors
        super().__init__("\n".join(str(error) for error in errors))
