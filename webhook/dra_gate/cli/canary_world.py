"""The cluster as the commands of `dra-gate canary` see it: namespaces and their lanes, whose they are, the plan.

The lane label is the truth, and each write of it is conditional on the version it was decided from. The plan of waves
is one ConfigMap.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

import click

from dra_gate.admission.configurations import CONTROLLER
from dra_gate.admission.guards import CANARY_PLAN
from dra_gate.admission.stamp import POLICY, POLICY_VERSION, stamp_on
from dra_gate.cli.failure import Failure
from dra_gate.cli.gate_change import asked, user_of
from dra_gate.cli.options import connect, load_policies
from dra_gate.cli.text import plain
from dra_gate.cluster import lanes
from dra_gate.cluster.client import ApiError, Client, ClusterError, Conflict, NotFound
from dra_gate.cluster.gate import GATE_PATH, Gate, read_gate
from dra_gate.cluster.policy_map import MAPS_PATH, NAMESPACE, RefusedError, name_of, read_policy_map
from dra_gate.cluster.shapes import Pod
from dra_gate.kube.pod import resource_requests
from dra_gate.kube.raw import Object, at, sequence, text
from dra_gate.migration.waves import Move, Plan, PlanError, Space
from dra_gate.policy.model import NEVER_GATED, PolicySet
from dra_gate.policy.switch import DRA, PLUGIN
from dra_gate.policy.words import listed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Policies:
    """Whose tenants count: those of the active set, or of a folder."""

    folder: str | None

    def read(self, client: Client) -> PolicySet:
        return load_policies(self.folder) if self.folder else _active_set(client)


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods with devices that have not ended, by namespace: by how they get them, and by the policy that their stamp
    names, as name@version.
    """

    by_lane: dict[str, Counter[str]] = field(default_factory=dict)
    by_policy: dict[str, Counter[str]] = field(default_factory=dict)


class RefusedFailure(Failure):
    """The API server refuses a namespace: it may refuse the others, too, for lack of rights, or only this one."""


@dataclass(slots=True)
class World:
    """The cluster as one command sees it: all namespaces that may be gated, and whose they are.

    `found` are the objects by name, as they were when the command began; `seed` is what a new plan gets: made from the
    cluster, so that a dry run tells what the real one does.
    """

    client: Client
    policy_set: PolicySet | None
    who: str
    now: int
    found: dict[str, Object] = field(default_factory=dict)
    seed: str = ""

    @classmethod
    def read(cls, kubeconfig: str | None, context: str | None, policies: Policies | None = None) -> World:
        """Reads namespaces, policies, and who asks. Ends the command with exit code 2 where that fails."""
        client = connect(kubeconfig, context)
        policy_set = policies.read(client) if policies is not None else None
        world = cls(client, policy_set, asked(lambda: user_of(client)), _now())
        # One answer, not pages: only that has managedFields, which say who wrote the label and when.
        for obj in sequence(asked(lambda: client.get(lanes.NAMESPACES_PATH)).get("items")):
            name = _name(obj)
            if name == "kube-system":
                world.seed = text(at(obj, "metadata", "uid"))[:8]
            if name not in NEVER_GATED:
                world.found[name] = obj
        return world

    def clock(self) -> int:
        """The time now; `now` is when the command began."""
        return _now()

    def space(self, obj: Object) -> Space:
        """What the waves need of a namespace."""
        tenant = self.policy_set.tenant_of(_name(obj)) if self.policy_set is not None else None
        space = lanes.space_of(obj, tenant.name if tenant is not None else "")
        return replace(space, lane=plain(space.lane), labelled_by=plain(space.labelled_by))

    @property
    def tenants(self) -> Collection[str]:
        """The tenants that the policies know."""
        return self.policy_set.tenants if self.policy_set is not None else ()

    @property
    def spaces(self) -> list[Space]:
        """Those that are gated or a tenant's."""
        return [space for space in map(self.space, self.found.values()) if space.lane or space.tenant]

    def named(self, names: Iterable[str]) -> list[Space]:
        """Those that somebody named, each once; one that can't be gated or is not there ends the command."""
        names = tuple(dict.fromkeys(names))
        never = [name for name in names if name in NEVER_GATED]
        if never:
            raise Failure(f"{listed(never)}: never gated, whatever its labels. Nothing was moved")
        missing = [name for name in names if name not in self.found]
        if missing:
            meant = next((f" (a share is written {name}%)" for name in missing if name.isdecimal()), "")
            raise Failure(f"there is no namespace {listed(missing, 'or')}{meant}. Nothing was moved")
        return [self.space(self.found[name]) for name in names]

    def plan(self) -> Plan:
        """The plan; an empty one where there is none yet."""
        try:
            _, plan = lanes.read_stored(self.client)
        except PlanError as error:
            raise _spoilt(error) from None
        except ClusterError as error:
            raise Failure(f"the plan can't be read: {error}") from None
        return plan if plan is not None else Plan(self.seed)

    def replan(self, change: Callable[[Plan], tuple[Plan, T]], *, dry_run: bool) -> tuple[Plan, Plan, T]:
        """Write what `change` makes of the plan: the plan before and after, and what else `change` gives.

        `change` is asked again when somebody else was faster.
        """

        def changed(plan: Plan) -> tuple[Plan, T]:
            try:
                return change(plan)
            except PlanError as error:
                raise Failure(str(error)) from None

        try:
            return lanes.replan(self.client, changed, self.seed, dry_run=dry_run)
        except PlanError as error:
            raise _spoilt(error) from None
        except Conflict as error:
            raise Failure(error.message) from None
        except ClusterError as error:
            raise Failure(f"the cluster can't be asked: {error}") from None

    def move(self, space: Space, move: Move, *, dry_run: bool) -> str:
        """Write lane and record, if the lane still is what was decided from; else why not.

        Raises RefusedFailure when the API server refuses it, Failure when it can't be asked.
        """
        try:
            lanes.move(self.client, self.found[space.name], move, dry_run=dry_run)
        except lanes.NotMovedError as error:
            return str(error)
        except ApiError as error:
            raise RefusedFailure(f"{space.name}: {_refused(error)}") from None
        except ClusterError as error:
            raise Failure(f"{space.name}: the cluster can't be asked: {error}") from None
        return ""

    def controller_may_move(self) -> bool | None:
        """Whether the gate's controller may patch namespaces; None where that can't be asked."""
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": CONTROLLER,
                "groups": ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"],
                "resourceAttributes": {"verb": "patch", "resource": "namespaces"},
            },
        }
        try:
            answer = self.client.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        except ClusterError:
            return None
        return at(answer, "status", "allowed") is True

    def tell(self, space: Space, move: Move) -> None:
        """An Event in the namespace. One that can't be written is a warning: the lane is what it is."""
        try:
            lanes.tell(self.client, self.found[space.name], move)
        except ClusterError as error:
            click.echo(f"warning: {space.name}: no Event was written: {error}", err=True)

    def pods(self) -> Pods:
        """Those of the cluster now."""
        policies = self.policy_set.policies.values() if self.policy_set is not None else ()
        served = {name for policy in policies for name in policy.serves}
        found = Pods()
        try:
            for pod in self.client.list("/api/v1/pods", shape=Pod):
                lane = _way(pod, served)
                if lane and at(pod, "status", "phase") not in ("Succeeded", "Failed"):
                    namespace = text(at(pod, "metadata", "namespace"))
                    found.by_lane.setdefault(namespace, Counter())[lane] += 1
                    found.by_policy.setdefault(namespace, Counter()).update(_stamped(pod))
        except ClusterError as error:
            raise Failure(f"the cluster can't be asked: {error}") from None
        return found


def _way(pod: Object, served: Collection[str]) -> str:
    """How the Pod gets its devices; empty for one without."""
    if sequence(at(pod, "spec", "resourceClaims")):
        return DRA
    return PLUGIN if any(resource_requests(pod, served.__contains__)) else ""


def _stamped(pod: Object) -> Iterator[str]:
    """The policy that the stamp names; nothing without a stamp."""
    stamp = stamp_on(pod)
    if POLICY in stamp and POLICY_VERSION in stamp:
        yield plain(f"{stamp[POLICY]}@{stamp[POLICY_VERSION]}")


def _active_set(client: Client) -> PolicySet:
    try:
        gate = read_gate(client.get(GATE_PATH))
        return read_policy_map(client.get(f"{MAPS_PATH}/{name_of(gate.active)}"))
    except NotFound:
        raise Failure(
            "the cluster has no active policy set, which says whose the namespaces are: dra-gate policy activate, or "
            "give --policies DIR where the gate has its policies from a folder"
        ) from None
    except RefusedError as error:
        raise Failure(f"the active policy set can't be used ({error.refusal.code}): {error.refusal.message}") from None
    except ClusterError as error:
        raise Failure(f"the cluster can't be asked: {error}") from None


def gate_of(client: Client) -> Gate | None:
    """The Gate, whose switch goes before the labels; None where there is none."""
    try:
        return read_gate(client.get(GATE_PATH))
    except NotFound:
        return None
    except ClusterError as error:
        raise Failure(f"the cluster can't be asked: {error}") from None


def _refused(error: ApiError) -> str:
    """What the API server said to a change of lane, and what to do about it."""
    remedy = "" if "guardian" in error.message or error.status != 403 else (
        ". Moving namespaces takes the right to patch namespaces and the verb guard on gates.dra-gate.io "
        "(ClusterRole dra-gate-guardian)"
    )  # fmt: skip
    return f"the lane was not changed: {error.message}{remedy}"


def _name(obj: Object) -> str:
    return text(at(obj, "metadata", "name"))


def _spoilt(error: PlanError) -> Failure:
    return Failure(
        f"ConfigMap {NAMESPACE}/{CANARY_PLAN}, {lanes.PLAN_KEY}: {error}. Mend it, or delete the ConfigMap to begin a "
        "new plan; no namespace is moved before"
    )


def _now() -> int:
    return int(dt.datetime.now(dt.UTC).timestamp())
