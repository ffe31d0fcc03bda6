"""What a check is, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from dra_gate.migration.preflight.cluster import Cluster
from dra_gate.policy.words import some

Verdict = Literal["ok", "unknown", "warn", "block"]

_ORDER: Final[tuple[Verdict, ...]] = ("ok", "unknown", "warn", "block")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or that cannot be told (`unknown`), with the objects that it is about."""

    verdict: Verdict
    text: str
    subjects: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{some(self.subjects)}: {self.text}" if self.subjects else self.text


@dataclass(frozen=True, slots=True)
class Result:
    """What a check says of a cluster: the gravest of its findings, ok without any."""

    id: str
    title: str
    verdict: Verdict
    blocks: bool
    findings: tuple[Finding, ...]
    remedy: str


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `title` says what is so when all is well.

    `severity` is the verdict of what it finds, if the finding says nothing else. `reads` are the kinds without which
    nothing can be said; `PolicySet` is the active one. Then its verdict is unknown, and `check` is not asked.
    """

    id: str
    title: str
    severity: Literal["warn", "block"]
    remedy: str
    reads: tuple[str, ...]
    check: Callable[[Cluster], Iterable[Finding]]

    def result(self, cluster: Cluster) -> Result:
        """What it says of `cluster`."""
        unread = [kind for kind in self.reads if not cluster.knows(kind)]
        if unread:
            findings = tuple(Finding("unknown", _UNREAD.get(kind, f"{kind}s could not be read")) for kind in unread)
        else:
            findings = tuple(self.check(cluster))
        verdict = max((one.verdict for one in findings), key=_ORDER.index, default=_ORDER[0])
        return Result(self.id, self.title, verdict, self.severity == "block", findings, self.remedy)


_UNREAD = {
    "PolicySet": "there is no active policy set: publish and activate one, or give --policies",
    "Tool": "which programs Pods run is not in this file",
}


class Registry:
    """All checks. Raises ValueError for two of one id."""

    def __init__(self, checks: Iterable[Check]) -> None:
        self._checks = tuple(checks)
        ids = [one.id for one in self._checks]
        if len(set(ids)) != len(ids):
            raise ValueError(f"two checks of one id: {ids}")

    def __iter__(self) -> Iterator[Check]:
        return iter(self._checks)

    def results(self, cluster: Cluster) -> tuple[Result, ...]:
        """What every check says of `cluster`, in the registry's order."""
        return tuple(one.result(cluster) for one in self._checks)


def verdict_of(results: Iterable[Result]) -> Literal["ready", "blocked", "unknown"]:
    """Whether to go on: not if anything blocks, and nobody can tell if what could block is not known."""
    listed = list(results)
    if any(one.verdict == "block" for one in listed):
        return "blocked"
    # A warning may cover what is not known beside it.
    unsure = any(one.blocks and any(finding.verdict == "unknown" for finding in one.findings) for one in listed)
    return "unknown" if unsure else "ready"
