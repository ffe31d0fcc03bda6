"""The Gate as commands read and change it: each write holds only for the version that it was decided from."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from dra_gate.cli.failure import Failure
from dra_gate.cli.text import plain
from dra_gate.cluster.client import ApiError, Client, ClusterError, Conflict, NotFound
from dra_gate.cluster.gate import GATE, GATE_PATH, GATES_PATH, Switched
from dra_gate.fairness.view import ago
from dra_gate.kube.raw import Object, at, text
from dra_gate.migration.waves import seconds
from dra_gate.policy.switch import Switch

# Seconds for a write of a Gate that others write, too, with pauses that grow. A rollback must not lose to somebody who
# writes without rest.
_PATIENCE = 15.0
_LONGEST_PAUSE = 0.5
_REFUSALS = (403, 422)  # what was sent is refused, by rights, guard or schema
T = TypeVar("T")


def asked(ask: Callable[[], T]) -> T:
    """What the cluster answers. Conflict goes on to who asked; any other failure ends the command."""
    try:
        return ask()
    except Conflict:
        raise
    except ApiError as error:
        verb = "refuses it" if error.status in _REFUSALS else "can't answer"
        raise Failure(f"the API server {verb}: {error}") from None
    except ClusterError as error:
        raise Failure(f"the cluster can't be asked: {error}") from None


def stored_gate(client: Client) -> Object | None:
    """The Gate; None where there is none."""
    try:
        return client.get(GATE_PATH)
    except NotFound as error:
        if error.details.get("name") == GATE:
            return None
        raise Failure("the cluster does not know Gates: apply deploy/base/crds/gate.yaml") from None


def user_of(client: Client) -> str:
    """Who the API server takes us for."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}
    answer = client.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    return text(at(answer, "status", "userInfo", "username"))[:256]


def rewrite(
    client: Client, change: Callable[[Object | None], dict[str, Any] | None], *, dry_run: bool = False
) -> tuple[Object, Object | None]:
    """Write what `change` makes of the stored Gate: the Gate before, and after it, None where nothing was to change.

    `change` is asked again when somebody else was faster, for up to 15 seconds. `dry_run`: the API server checks a
    change, and keeps nothing.
    """
    params = {"dryRun": "All"} if dry_run else None
    ends, pause = time.monotonic() + _PATIENCE, 0.02
    while time.monotonic() < ends:
        stored = asked(lambda: stored_gate(client))
        wanted = change(stored)
        if wanted is None:
            return stored or {}, None
        try:
            if stored is None:
                return {}, asked(lambda wanted=wanted: client.create(GATES_PATH, wanted, params=params))  # type: ignore[misc]
            return stored, asked(lambda wanted=wanted: client.replace(GATE_PATH, wanted, params=params))  # type: ignore[misc]
        except Conflict:  # look at what they wrote
            time.sleep(random.uniform(0, pause))  # noqa: S311 - so that two commands don't keep in step
            pause = min(2 * pause, _LONGEST_PAUSE)
    raise Failure("others keep changing the Gate: try again")


def switch_body(switch: Switch) -> dict[str, Any]:
    """The switch for programs; what is not said is null."""
    return {
        "says": str(switch),
        "override": switch.override or None,
        "drainBy": switch.drain_by or None,
        "tenants": [
            {"name": name, "lane": lane or None, "drainBy": switch.drains.get(name)}
            for name, lane in switch.tenants.items()
        ],
    }


def last_change(change: Switched, now: int) -> str:
    """Who changed the switch last, when and why, as far as that was said; empty where it was not."""
    if not change.by and not change.reason:
        return ""
    try:
        since = f" {ago(max(now - seconds(change.at), 0))} ago"
    except ValueError:
        since = ""
    return plain(f"by {change.by or 'somebody'}{since}{': ' if change.reason else ''}{change.reason}")
