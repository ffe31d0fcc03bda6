"""Times as Kubernetes writes them, in milliseconds since 1970."""

from __future__ import annotations

import datetime as dt


def milliseconds(written: str) -> int:
    """An RFC 3339 time in milliseconds since 1970; 0 for something else, and for what was before."""
    try:
        found = dt.datetime.fromisoformat(written.upper())  # RFC 3339: t and z, too
    except ValueError:
        return 0
    return max(0, round(found.timestamp() * 1000)) if found.tzinfo is not None else 0


def rfc3339(at_ms: int, *, whole: bool = False) -> str:
    """That time in RFC 3339; `whole`: in seconds, as Kubernetes writes most times."""
    found = dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)
    return found.strftime("%Y-%m-%dT%H:%M:%SZ" if whole else f"%Y-%m-%dT%H:%M:%S.{at_ms % 1000:03d}Z")
