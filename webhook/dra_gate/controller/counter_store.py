"""The counts in their ConfigMaps: read whole, written whole, and never over what somebody else has written."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from dra_gate.cluster.client import Client, ClusterError, Conflict, NotFound
from dra_gate.cluster.cohort_maps import SELECTOR, cohort_maps, newest
from dra_gate.cluster.policy_map import MAPS_PATH
from dra_gate.kube.raw import at, mapping, text

_PATIENCE = 10.0  # seconds: a leader that stops gives its Lease up after the last write


class Store:
    """`outcomes` counts writes of everything by what came of them: done, stale or error."""

    def __init__(self, client: Client, leading: Callable[[], bool]) -> None:
        self.outcomes = Counter[str]()
        self._client = client
        self._leading = leading
        self._lock = threading.Lock()
        self._generation = 0
        self._versions: dict[str, str] = {}

    def load(self) -> tuple[bool, bytes | None]:
        """Whether there is anything, and the newest that is whole. Raises ClusterError."""
        with self._lock:
            maps = list(self._client.list(MAPS_PATH, params={"labelSelector": SELECTOR}))
            self._generation, data = newest(maps)
            self._versions = {
                text(at(one, "metadata", "name")): text(at(one, "metadata", "resourceVersion")) for one in maps
            }
        return bool(maps), data

    def save(self, data: bytes) -> int:
        """Write `data`; in how many ConfigMaps. Raises Conflict when somebody else wrote since `load`, or leads; other
        ClusterErrors; TooLargeError.
        """
        with self._lock:
            try:
                maps = cohort_maps(data, self._generation + 1)
                for one in maps:
                    self._write(one)
            except Conflict:
                self.outcomes["stale"] += 1
                raise
            except (ClusterError, ValueError):
                self.outcomes["error"] += 1
                raise
            self._generation += 1
            self.outcomes["done"] += 1
            return len(maps)

    def _write(self, one: dict[str, Any]) -> None:
        if not self._leading():
            raise Conflict(409, "Conflict", "another replica leads")
        name = text(at(one, "metadata", "name"))
        version = self._versions.pop(name, None)
        try:
            if version is None:
                written = self._client.create(MAPS_PATH, one, timeout=_PATIENCE)
            else:
                metadata = {**mapping(one["metadata"]), "resourceVersion": version}
                written = self._client.replace(f"{MAPS_PATH}/{name}", {**one, "metadata": metadata}, timeout=_PATIENCE)
        except NotFound:
            written = self._client.create(MAPS_PATH, one, timeout=_PATIENCE)  # somebody deleted it
        except Conflict:
            raise
        except ClusterError:
            if version is not None:
                self._versions[name] = version
            raise
        self._versions[name] = text(at(written, "metadata", "resourceVersion"))
