"""Names of late claims: claims that the arbiter writes when it grants a Pod, and that the Pod has named from the
start."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping

from dra_gate.kube import pod as pods
from dra_gate.kube.raw import Object, text
from dra_gate.policy.compile import NAME_PREFIX

LATE_NAME = f"{NAME_PREFIX}late-[0-9a-f]{{32}}"  # an expression for Python and CEL
_NAME = re.compile(LATE_NAME)
_LONGEST = 32_768  # characters; anybody may write the annotation, and it is read before anybody else looks at it
_COUNTS = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?=[1-9][0-9]{0,2}")


def late_name(uid: str, entry: str) -> str:
    """The claim name for a Pod's claim entry `entry`, from the AdmissionReview's `uid`.

    A uid is used once, so nobody can name a claim before its Pod is there.
    """
    return f"{NAME_PREFIX}late-{hashlib.blake2b(f'{uid}/{entry}'.encode(), digest_size=16).hexdigest()}"


def is_late_name(name: str) -> bool:
    """Whether `name` has the form of a late claim's."""
    return _NAME.fullmatch(name) is not None


def late_entries(pod: Object) -> Iterator[tuple[str, str]]:
    """The Pod's claim entries that name a late claim and nothing else: entry and claim name."""
    for entry in pods.claim_entries(pod):
        name = text(entry.get("resourceClaimName"))
        if is_late_name(name) and not entry.get("resourceClaimTemplateName"):
            yield text(entry.get("name")), name


def counts_text(counts: Mapping[str, int]) -> str:
    """The stamp that keeps how many devices each late entry is for: `gate-0=2,gate-1=1`."""
    return ",".join(f"{entry}={count}" for entry, count in counts.items())


def counts_of(stamp: object) -> dict[str, int]:
    """What `counts_text` wrote; raises ValueError for anything else."""
    if not isinstance(stamp, str) or len(stamp) > _LONGEST:
        raise ValueError(f"it is no text of at most {_LONGEST} characters, such as gate-0=2,gate-1=1")
    parts = stamp.split(",") if stamp else []
    if not all(_COUNTS.fullmatch(part) for part in parts):
        raise ValueError(f"{stamp!r} is not such as gate-0=2,gate-1=1")
    found = {entry: int(count) for entry, _, count in (part.partition("=") for part in parts)}
    if len(found) < len(parts):
        raise ValueError(f"{stamp!r} names an entry twice")
    return found
