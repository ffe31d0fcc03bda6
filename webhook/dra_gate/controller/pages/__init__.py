"""The pages that people look at: the fleet, the latest decisions, who waits, how the lanes compare.

Nothing on them changes anything.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dra_gate import __version__
from dra_gate.allocation.capacity import DeviceId, Key, ModelCapacity
from dra_gate.allocation.record import DecisionRecord, chain
from dra_gate.fairness.view import QueueView, ago
from dra_gate.migration.compare import FAILURES
from dra_gate.migration.report import Report, as_body

if TYPE_CHECKING:
    from jinja2 import Environment


_FOLDER = Path(__file__).parent
_STYLE = _FOLDER.parents[1] / "server" / "pages" / "style.css"  # one look for both consoles
_ROWS = 500  # Pods that wait on one page
_HOURS = 24  # that are compared


@dataclass(frozen=True)
class Seen:
    """What there is to show. `ready`: all of it is known."""

    ready: bool
    models: Mapping[str, ModelCapacity]
    doubled: Mapping[DeviceId, tuple[Key, ...]]
    recent: Sequence[DecisionRecord]


class Pages:
    """The pages by path, each as content type and body; `seen`, `queue` and `compared` (of so many hours, and with what
    rate of failures as the limit) and `stops` (what was done about a hard stop) are asked when somebody looks.
    """

    def __init__(
        self,
        seen: Callable[[], Seen],
        queue: Callable[[], QueueView],
        compared: Callable[[int, float], Report | None],
        stops: Callable[[], Iterable[str]],
    ) -> None:
        self._seen = seen
        self._queue_view = queue
        self._compared = compared
        self._stops = stops
        self._lock = threading.Lock()
        self._environment: Environment | None = None

    def paths(self) -> Mapping[str, Callable[[], tuple[str, bytes]]]:
        """What to serve."""
        return {
            "/fleet": self._fleet,
            "/queue": self._queue,
            "/canary": self._canary,
            "/style.css": lambda: ("text/css; charset=utf-8", _STYLE.read_bytes()),
        }

    def _fleet(self) -> tuple[str, bytes]:
        seen = self._seen()
        return self._page(
            "fleet",
            ready=seen.ready,
            models=seen.models,
            doubled=seen.doubled,
            recent=[{"record": one, "chain": chain(one)} for one in reversed(seen.recent)],
        )

    def _queue(self) -> tuple[str, bytes]:
        view = self._queue_view()
        waiting, unshown, left = [], 0, _ROWS
        for tenant in sorted((one for one in view.tenants if one.pods), key=lambda one: -(one.oldest or 0)):
            if left:
                pods = tenant.waiting[:left]
                waiting.append({"tenant": tenant, "pods": pods})
                left -= len(pods)
            else:
                unshown += tenant.pods
        return self._page("queue", view=view, waiting=waiting, unshown=unshown)

    def _canary(self) -> tuple[str, bytes]:
        found = self._compared(_HOURS, FAILURES)
        return self._page(
            "canary", hours=_HOURS, stops=list(self._stops()), body="" if found is None else as_body(found)
        )

    def _page(self, name: str, **shown: object) -> tuple[str, bytes]:
        page = self._loaded().get_template(f"{name}.html").render(page=f"/{name}", version=__version__, **shown)
        return "text/html; charset=utf-8", page.encode()

    def _loaded(self) -> Environment:
        """The templates, read when they are first asked for: a controller without visitors does without."""
        with self._lock:
            if self._environment is None:
                from jinja2 import Environment, FileSystemLoader  # noqa: PLC0415

                self._environment = Environment(
                    loader=FileSystemLoader(_FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True
                )
                self._environment.filters.update(ago=ago, when=_when)
            return self._environment


def _when(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
