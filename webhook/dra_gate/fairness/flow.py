"""What came free and who went before whom, of late: the history that estimates are made from. Bounded."""

from __future__ import annotations

from collections import deque

from dra_gate.fairness.events import Granted, Used

WINDOW = 3_600_000  # milliseconds that are looked back upon
_BIN = 60_000
_MOST = 10_000  # grants of a model that are kept


class Flow:
    """Told each Granted and each Used line as the arbiter's loop has it. One thread at a time.

    `since` is when it began to listen, in milliseconds since 1970, as all times here.
    """

    def __init__(self, since: int) -> None:
        self.since = since
        self._used: dict[str, Used] = {}
        self._freed: dict[tuple[str, str], deque[list[int]]] = {}  # tenant or "", model or "" -> (bin, devices)
        self._grants: dict[str, deque[int]] = {}  # model -> since when those had waited that were granted

    def granted(self, line: Granted) -> None:
        """A Pod was granted."""
        if line.model:
            self._grants.setdefault(line.model, deque(maxlen=_MOST)).append(line.queued)

    def used(self, line: Used, at: int) -> None:
        """A tenant holds something else beside its open grants than before.

        What it holds less is free. By model only so many count as it holds less in all: a worst case that gives way to
        the truth frees nothing.
        """
        before = self._used.get(line.tenant)
        self._used[line.tenant] = line
        less = 0 if before is None else before.devices - line.devices
        if before is None or less <= 0:
            return
        self._came(line.tenant, "", less, at)
        for model, count in before.models.items():
            freed = min(less, count - line.models.get(model, 0))
            if freed > 0:
                self._came(line.tenant, model, freed, at)
                self._came("", model, freed, at)

    def freed(self, now: int, *, model: str = "", tenant: str = "") -> int:
        """Devices that came free within the window before `now`: of a model, of a tenant, or of a tenant's model."""
        return sum(count for start, count in self._freed.get((tenant, model), ()) if start * _BIN > now - WINDOW)

    def span(self, now: int) -> int:
        """How much of the window was listened to."""
        return max(0, min(WINDOW, now - self.since))

    def grants(self, model: str) -> list[int]:
        """Since when those had waited that were granted the model, the oldest first; of the last ones only."""
        return sorted(self._grants.get(model, ()))

    def _came(self, tenant: str, model: str, devices: int, at: int) -> None:
        bins = self._freed.setdefault((tenant, model), deque(maxlen=WINDOW // _BIN + 1))
        if bins and bins[-1][0] == at // _BIN:
            bins[-1][1] += devices
        else:
            bins.append([at // _BIN, devices])
