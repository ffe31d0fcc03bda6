"""The table of failures as it is looked up: `table.yaml`, checked and compiled when this module is imported."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import re2
import yaml

Stage = Literal["refused", "held", "claimless", "scheduling", "binding", "bound", "running", "ended", "leaving"]
"""How far a Pod has come; what `table.yaml` says of each."""
Class = Literal["waiting", "retryable", "terminal", "operator", "infrastructure", "unknown"]
Action = Literal[
    "wait",  # nothing: the control plane goes on by itself
    "explain",  # find and tell the true cause, which the text hides
    "stop",  # no further attempt; the Pod says why
    "alert",  # a person has to act
    "make-template",  # the template controller's turn
    "write-claim",  # the late claim is owed
    "touch-pod",  # change a label of the Pod, so that its claim is looked at again
    "recreate-pod",  # delete it, if a controller makes another
    "wake-class",  # take the extended resource's name off its class and put it back
    "keep-charge",  # count its devices as taken until the Pod object is gone
    "requeue",  # whoever replaces it keeps its place in the queue
]
Told = Literal["submitter", "reviewer", "operator"]
"""Who hears of it: by the Pod's condition and Event; with the policy's findings; by metric and alert."""
Fact = Literal[
    "fleet_can_match",
    "pool_incomplete",
    "pool_with_extra_slices",
    "fits_without_bad_device",
    "class_serves",
    "plugin_serves",
    "quota_has_room",
    "node_ready",
]
"""What a row may ask of the caller: the fields of `classify.Facts` that are true, false or not known."""
Version = tuple[int, int]  # of Kubernetes, major and minor


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping of the table with no key but its fields."""


class Pattern(_Strict, frozen=True):
    """Reason and message of something that carries both. An empty field asks for nothing."""

    reason: str | tuple[str, ...] = ()
    message: str = ""
    type: str = "PodScheduled"  # of conditions only

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons that it takes; none: any."""
        return (self.reason,) if isinstance(self.reason, str) else self.reason

    @property
    def clauses(self) -> int:
        """How much it asks for."""
        return bool(self.reasons) + bool(self.message)


class When(_Strict, frozen=True):
    """Clauses that hold together. What they mean is told at the top of `table.yaml`."""

    stages: tuple[Stage, ...]
    condition: Pattern | None = None
    event: Pattern | None = None
    container: Pattern | None = None
    pod: Pattern | None = None
    claims: tuple[Literal["unmade", "gone", "missing", "deleting"], ...] = ()
    health: tuple[Literal["Unhealthy", "Unknown"], ...] = ()
    taint: str = ""
    facts: Mapping[Fact, bool] = {}
    silent: bool = False
    after: float = 0
    since: str = ""
    until: str = ""

    @property
    def weight(self) -> int:
        """How many clauses there are, stages and versions aside."""
        texts = sum(part.clauses for part in (self.condition, self.event, self.container, self.pod) if part)
        others = (self.claims, self.health, self.taint, self.silent, self.after)
        return texts + sum(map(bool, others)) + len(self.facts)

    def of_version(self, version: Version) -> bool:
        """Whether that version of Kubernetes shows it so."""
        return (not self.since or parse_version(self.since) <= version) and (
            not self.until or version <= parse_version(self.until)
        )


class Row(_Strict, frozen=True, rename={"klass": "class"}):
    """One way in which a Pod does not come to its devices. `advice` is for people, `source` is where the text is from.

    `signal` is its number in the list that the table began with; 0: found later.
    """

    id: str
    title: str
    when: tuple[When, ...]
    klass: Class
    action: Action
    told: tuple[Told, ...]
    advice: str
    source: str
    signal: int = 0


class Plan(_Strict, frozen=True):
    """How often we try again what failed so, in seconds; never where `cap` is 0."""

    name: Class
    means: str
    first: float = 0
    cap: float = 0


class _Table(_Strict, frozen=True):
    classes: tuple[Plan, ...]
    rows: tuple[Row, ...]


def parse_version(text: str) -> Version:
    """Major and minor of `v1.37.2`, `1.37` or `v1.36.4-gke.100`. Raises ValueError for anything else."""
    major, minor, *_ = (*text.removeprefix("v").split("."), "")
    if not (major.isdecimal() and minor.rstrip("+").isdecimal()):
        message = f"{text!r} is no Kubernetes version"
        raise ValueError(message)
    return int(major), int(minor.rstrip("+"))


def load(text: str) -> tuple[Mapping[Class, Plan], Sequence[Row]]:
    """Classes and rows of a table. Raises ValueError, saying where, for one that is not sound."""
    table = msgspec.convert(yaml.load(text, yaml.CSafeLoader), _Table)
    for row in table.rows:
        for when in row.when:
            if not when.stages:
                message = f"row {row.id}: no stages"
                raise ValueError(message)
            for bound in filter(None, (when.since, when.until)):
                parse_version(bound)
            for pattern in patterns(when):
                compiled(pattern)
    ids = [row.id for row in table.rows]
    if len(set(ids)) != len(ids):
        message = f"ids stand twice: {sorted({one for one in ids if ids.count(one) > 1})}"
        raise ValueError(message)
    return {plan.name: plan for plan in table.classes}, table.rows


def patterns(when: When) -> list[str]:
    """Every regular expression of the clauses."""
    texts = [part.message for part in (when.condition, when.event, when.container, when.pod) if part]
    return [text for text in (*texts, when.taint) if text]


_compiled: dict[str, Any] = {}


def compiled(pattern: str) -> Any:
    """The RE2 program of a pattern of the table. Raises ValueError for one that RE2 refuses."""
    if pattern not in _compiled:
        options = re2.Options()
        options.log_errors = False
        try:
            _compiled[pattern] = re2.compile(pattern, options)
        except re2.error as problem:
            message = f"{pattern!r} is no regular expression: {problem}"
            raise ValueError(message) from None
    return _compiled[pattern]


CLASSES, ROWS = load(importlib.resources.files(__package__).joinpath("table.yaml").read_text(encoding="utf-8"))
