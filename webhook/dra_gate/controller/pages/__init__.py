"""The page that people look at: the fleet by model, and the latest decisions. Nothing on it changes anything."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dra_gate import __version__
from dra_gate.allocation.capacity import DeviceId, Key, ModelCapacity
from dra_gate.allocation.record import DecisionRecord, chain

if TYPE_CHECKING:
    from jinja2 import Template

_FOLDER = Path(__file__).parent
_STYLE = _FOLDER.parents[1] / "server" / "pages" / "style.css"  # one look for both consoles


@dataclass(frozen=True)
class Seen:
    """What there is to show. `ready`: all of it is known."""

    ready: bool
    models: Mapping[str, ModelCapacity]
    doubled: Mapping[DeviceId, tuple[Key, ...]]
    recent: Sequence[DecisionRecord]


class Pages:
    """The pages by path, each as content type and body; `seen` is asked when somebody looks."""

    def __init__(self, seen: Callable[[], Seen]) -> None:
        self._seen = seen
        self._lock = threading.Lock()
        self._template: Template | None = None

    def paths(self) -> Mapping[str, Callable[[], tuple[str, bytes]]]:
        """What to serve."""
        return {"/fleet": self._fleet, "/style.css": lambda: ("text/css; charset=utf-8", _STYLE.read_bytes())}

    def _fleet(self) -> tuple[str, bytes]:
        seen = self._seen()
        page = self._loaded().render(
            ready=seen.ready,
            models=seen.models,
            doubled=seen.doubled,
            recent=[{"record": one, "chain": chain(one)} for one in reversed(seen.recent)],
            version=__version__,
        )
        return "text/html; charset=utf-8", page.encode()

    def _loaded(self) -> Template:
        """The template, read when it is first asked for: a controller without visitors does without."""
        with self._lock:
            if self._template is None:
                from jinja2 import Environment, FileSystemLoader  # noqa: PLC0415

                environment = Environment(
                    loader=FileSystemLoader(_FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True
                )
                environment.filters.update(ago=_ago, when=_when)
                self._template = environment.get_template("fleet.html")
            return self._template


def _when(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _ago(seconds: float) -> str:
    """A span in one unit: `12 s`, `3 min`, `5 h`, `9 d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
