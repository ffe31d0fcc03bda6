"""Semantic versions 2.0.0 as Kubernetes reads device attributes of kind `version` (github.com/blang/semver)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Self

_UINT64_MAX = 2**64 - 1
_IDENTIFIER = re.compile(r"[0-9A-Za-z-]+", re.ASCII)
_DIGITS = re.compile(r"[0-9]+", re.ASCII)


class SemverError(ValueError):
    """The text is no version. The message names the text and the part that is wrong."""


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """A version. Order, equality and hash follow semver 2.0.0: `build` never counts, a pre-release comes first.

    `pre` holds numbers as int and words as str, in order.
    """

    major: int
    minor: int
    patch: int
    pre: tuple[int | str, ...] = ()
    build: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `1.2.3-rc.1+build` strictly.

        Raises SemverError for missing parts, leading zeroes, numbers over 64 bits and every other form.
        """
        parts = text.split(".", 2)
        if len(parts) != 3:
            raise SemverError(f"{text[:80]!r} is no version: write major.minor.patch")
        rest, plus, build = parts[2].partition("+")
        patch, dash, pre = rest.partition("-")
        return cls(
            _number(parts[0], "major", text),
            _number(parts[1], "minor", text),
            _number(patch, "patch", text),
            tuple(_pre(word, text) for word in pre.split(".")) if dash else (),
            tuple(_identifier(word, "build metadata", text) for word in build.split(".")) if plus else (),
        )

    @classmethod
    def normalise(cls, text: str) -> Self:
        """Reads also `v550`, `550.54` and `550.127.08`: a leading v goes, missing parts are 0, leading zeroes are cut.

        The rules of CEL's `semver(text, true)` in Kubernetes 1.34 and later. Raises SemverError for everything else.
        """
        parts = [_cut_zeroes(part) for part in text.removeprefix("v").split(".", 2)]
        if len(parts) < 3:
            if set(parts[-1]) & {"+", "-"}:
                raise SemverError(f"{text[:80]!r}: only a version of three parts has a pre-release or build metadata")
            parts += ["0"] * (3 - len(parts))
        return cls.parse(".".join(parts))

    @property
    def _key(self) -> tuple[object, ...]:
        # A version without pre-release is above all its pre-releases; numbers are below words.
        pre = tuple((0, word, "") if isinstance(word, int) else (1, 0, word) for word in self.pre)
        return self.major, self.minor, self.patch, not pre, pre

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Semver) else NotImplemented

    def __lt__(self, other: Semver) -> bool:
        return self._key < other._key if isinstance(other, Semver) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.pre:
            text += "-" + ".".join(map(str, self.pre))
        return text + ("+" + ".".join(self.build) if self.build else "")


def _number(word: str, name: str, text: str) -> int:
    if not _DIGITS.fullmatch(word):
        raise SemverError(f"{text[:80]!r}: the {name} number is {word[:40]!r}, which is no number")
    if len(word) > 1 and word[0] == "0":
        raise SemverError(f"{text[:80]!r}: the {name} number {word[:40]!r} has a leading zero")
    if len(word) > 20 or int(word) > _UINT64_MAX:
        raise SemverError(f"{text[:80]!r}: the {name} number does not fit into 64 bits")
    return int(word)


def _pre(word: str, text: str) -> int | str:
    if _DIGITS.fullmatch(word):
        return _number(word, "pre-release", text)
    return _identifier(word, "pre-release", text)


def _identifier(word: str, name: str, text: str) -> str:
    if not _IDENTIFIER.fullmatch(word):
        raise SemverError(f"{text[:80]!r}: {word[:40]!r} in the {name} is no word of letters, digits and hyphens")
    return word


def _cut_zeroes(part: str) -> str:
    if len(part) < 2:
        return part
    cut = part.lstrip("0")
    return cut if cut[:1].isdigit() and cut[0].isascii() else "0" + cut
