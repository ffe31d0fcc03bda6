"""Evidence of a failure: the Pod, its claims and the events as the API server has them, and the row that they come to.

With DRA_GATE_RECORD_FAILURES=1 what was collected is written to `recorded/`, one file a row; `test_recorded.py` holds
the table to it without a control plane.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from controlplane.api import Api, Object, wait_for
from dra_gate.allocation.failures import Facts, Failure, classify

RECORDED = Path(__file__).parent / "recorded"
T = TypeVar("T", bound=Callable[..., Any])


def rows(*ids: str) -> Callable[[T], T]:
    """Names the rows of the table that a test holds."""

    def mark(test: T) -> T:
        test.rows = ids  # type: ignore[attr-defined]
        return test

    return mark


class Hold:
    """Asserts which row holds for a Pod, or for what its owner tried; remembers the rows that did."""

    def __init__(self, api: Api, how: str) -> None:
        self._api = api
        self._how = how
        self._version = str(api.request("GET", "/version").body["gitVersion"])
        self.held: list[str] = []

    def __call__(
        self,
        row: str,
        klass: str,
        action: str,
        namespace: str,
        name: str,
        facts: Facts | None = None,
        *,
        owner: bool = False,
        timeout: float = 20.0,
    ) -> Failure:
        """Waits until the row holds for the Pod `name`, or for the Pods that the owner `name` tries to make."""
        known = facts or Facts()
        last: tuple[Failure | None, Object] | None = None

        def look() -> Failure | None:
            nonlocal last
            evidence = self._collect(namespace, name, owner)
            failure = classify(evidence["pod"], evidence["claims"], evidence["events"], self._version, known)
            last = failure, evidence
            return failure if failure is not None and failure.row == row else None

        try:
            failure = wait_for(look, timeout, row)
        except TimeoutError as problem:
            raise AssertionError(f"{problem}: {json.dumps(last, default=str)[:6000]}") from None
        assert (failure.klass, failure.action) == (klass, action)
        self.held.append(row)
        if os.environ.get("DRA_GATE_RECORD_FAILURES"):
            assert last is not None
            self._record(failure, last[1], known)
        return failure

    def _collect(self, namespace: str, name: str, owner: bool) -> Object:
        events = [e for e in self._api.list("events", namespace) if e["involvedObject"]["name"] == name]
        pod = None if owner else self._api.find("pods", name, namespace)
        assert owner or pod is not None, f"no Pod {name}"
        return {"pod": pod, "claims": self._api.list("resourceclaims", namespace), "events": events}

    def _record(self, failure: Failure, evidence: Object, facts: Facts) -> None:
        known = {k: v for k, v in dataclasses.asdict(facts).items() if isinstance(v, bool)}
        if facts.seconds:
            known["seconds"] = facts.seconds
        if facts.taints:
            known["taints"] = sorted(facts.taints)
        content = {
            "row": failure.row,
            "class": failure.klass,
            "action": failure.action,
            "how": self._how,
            "version": self._version,
            "facts": known,
            "text": failure.text,
            "pod": evidence["pod"] and _pod(evidence["pod"]),
            "claims": [_claim(claim) for claim in evidence["claims"]],
            "events": [_event(event) for event in evidence["events"]],
        }
        RECORDED.mkdir(exist_ok=True)
        (RECORDED / f"{failure.row}.json").write_text(json.dumps(content, indent=1) + "\n")


def _kept(source: Object, *names: str) -> Object:
    return {name: source[name] for name in names if name in source}


def _pod(pod: Object) -> Object:
    return {
        "metadata": _kept(pod["metadata"], "namespace", "name", "uid", "deletionTimestamp"),
        "spec": _kept(pod["spec"], "nodeName", "schedulingGates", "resourceClaims"),
        "status": pod["status"],
    }


def _claim(claim: Object) -> Object:
    metadata = _kept(claim["metadata"], "namespace", "name", "uid", "deletionTimestamp")
    return {"metadata": metadata, "status": claim.get("status", {})}


def _event(event: Object) -> Object:
    return _kept(event, "type", "reason", "message", "lastTimestamp", "eventTime", "series")
