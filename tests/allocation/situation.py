"""Prepared worlds in which a Pod does not get an H100: what they are made of, what is true in them, how it is shown.

Each folder of `situations/` is one, written without a look at the code that explains: `policies.yaml` (a tenant in the
namespace that is called after the folder) and `situation.yaml`:

    title: …                    # what is the matter, in words
    fleet: {nodes: …}           # as in controlplane/fleet.py
    setup: [step, …]            # what has happened before the Pod comes
    pod: {containers: …}        # its spec, as its author wrote it
    expected: {got: [gpu/a100 ampere/gpu-0]} or {waits: REASON of its condition, message: …}
              or {held: REASON of an event on the Pod, message: …}     # no claim, so the scheduler does not look at it
    cause:
      code: in-use              # in this module's words (CAUSES)
      candidate: h100           # whose absence it explains
      words: …
      beside: [taint]           # what else is true of some devices, the decoy perhaps, and may be named behind it
      says: [word, [either, or]]  # what an explanation for people must contain
      shows: […]                # what one for programs must contain
    decoy: {words: …, add: [step, …], remove: [step, …]}   # another plausible cause; removing it changes nothing
    remedy: {words: …, steps: […], pod: {…}, gets: [gpu/h100 hopper/gpu-0]}   # removes the cause, leaves the decoy

A step is one of: `apply: OBJECT`, `delete` and `patch: {resource, name, namespace, patch}`, `pod: {name, namespace,
gpus, cpu, spec}` (which is waited for until it is bound), `taint`, `untaint`, `cordon`, `uncordon` and `republish:
{node, devices, attributes, capacity}`, which changes what the devices publish (all of them if none is named).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from controlplane import fleet as fleets
from controlplane.api import Api, Object, wait_for
from controlplane.fleet import LABEL, Fleet
from controlplane.gate import NAMESPACE as GATE
from controlplane.gate import policy_namespaces
from e2e import scene

HERE = Path(__file__).parent / "situations"
POD = "asker"
CAUSES = frozenset(
    (
        "in-use", "taint", "memory", "driverVersion", "node-pool", "topology", "quota", "cel-error", "incomplete-pool",
        "old-generation", "node-resources", "cordoned", "class-missing", "policy-version", "backtracking",
    )
)  # fmt: skip
# What may bear on a Pod's devices; secrets and the like have no place in a dump.
DUMPED = (
    "namespaces", "nodes", "resourceslices", "deviceclasses", "devicetaintrules", "resourceclaims",
    "resourceclaimtemplates", "resourcequotas", "pods", "events", "configmaps", "gates",
)  # fmt: skip
_SETTLE = 0.3  # seconds; the scheduler hears of slices, nodes and Pods by watches of their own, in no common order
_DECIDES = 30.0

Step = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Expected:
    """What becomes of the Pod: alternatives and devices that it got, or the reason that is given for its waiting."""

    got: tuple[str, ...] = ()
    waits: str = ""
    held: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why the Pod did not get the candidate, and what an explanation of it cannot leave out."""

    code: str
    candidate: str
    words: str
    says: tuple[str | list[str], ...]
    shows: tuple[str | list[str], ...]
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decoy:
    """Another plausible cause, in force whenever the Pod is asked about, which is not the true one."""

    words: str
    add: tuple[Step, ...]
    remove: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Remedy:
    """What removes the cause alone: steps, or another way to ask; and what the Pod then gets."""

    words: str
    gets: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    pod: Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Situation:
    """One folder of `situations/`."""

    name: str
    title: str
    fleet: Object
    setup: tuple[Step, ...]
    pod: Object
    expected: Expected
    cause: Cause
    decoy: Decoy
    remedy: Remedy

    @classmethod
    def load(cls, folder: Path) -> Situation:
        """Reads the folder. Raises TypeError for a part that is missing or unknown."""
        parts = yaml.safe_load((folder / "situation.yaml").read_text())
        kinds = {"expected": Expected, "cause": Cause, "decoy": Decoy, "remedy": Remedy}
        made = {name: kind(**_tuples(parts.pop(name))) for name, kind in kinds.items()}
        return cls(name=folder.name, **_tuples({"setup": []} | parts), **made)


def situations() -> list[Situation]:
    """All of them, in order."""
    return [Situation.load(path.parent) for path in sorted(HERE.glob("*/situation.yaml"))]


def policies(target: Path) -> Path:
    """Writes the policies of all situations into one folder, for one gate, and returns it."""
    target.mkdir(parents=True, exist_ok=True)
    for path in (HERE / "policies.yaml", *sorted(HERE.glob("*/policies.yaml"))):
        name = "policies" if path.parent == HERE else path.parent.name
        (target / f"{name}.yaml").write_text(path.read_text())
    return target


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the Pod, by the real control plane."""

    got: tuple[str, ...] = ()  # alternative and device, in the order of the Pod's claim entries
    reason: str = ""  # of the condition PodScheduled, or of the event that says why there is no claim
    message: str = ""

    def is_as(self, expected: Expected) -> bool:
        """Whether this is what the situation says."""
        if expected.got:
            return self.got == expected.got
        return not self.got and self.reason == (expected.waits or expected.held) and expected.message in self.message


class Stage:
    """The cluster as one situation says, decoy included, from `build` to `clear`. The gate must serve `policies()`."""

    def __init__(self, api: Api, situation: Situation) -> None:
        self._api = api
        self._situation = situation
        self._fleet = Fleet.of(situation.name, situation.fleet)
        self._namespaces: set[str] = set()
        self._gated = set(policy_namespaces(HERE))

    @property
    def namespace(self) -> str:
        """Where the Pod is asked for."""
        return self._situation.name

    def build(self) -> None:
        """Makes everything but the Pod."""
        self._fleet.install(self._api)
        self._namespace(self.namespace)
        self.run(self._situation.setup)
        self.run(self._situation.decoy.add)

    def clear(self) -> None:
        """Takes everything away again, and waits until it is gone."""
        for name in self._namespaces:
            self._api.delete_all("resourcequotas", name)
        scene.clear(self._api, *self._namespaces)
        self._fleet.remove(self._api)

    def run(self, steps: Iterable[Step]) -> None:
        """Takes the steps in order, and lets the scheduler hear of them."""
        for step in steps:
            ((verb, what),) = step.items()
            getattr(self, f"_{verb}")(**(what if verb != "apply" else {"obj": what}))
        time.sleep(_SETTLE)

    def ask(self, spec: Object) -> Outcome:
        """Creates the Pod anew and waits until the control plane has decided about it."""
        self._delete("pods", POD, self.namespace)
        made = scene.pod(POD)
        made["spec"] = {"restartPolicy": "Never"} | self._with_templates(spec)
        uid = self._api.create(made, self.namespace)["metadata"]["uid"]
        return wait_for(lambda: self._outcome(uid), _DECIDES, f"{self.namespace}/{POD} to be decided about")

    def dump(self) -> dict[str, list[Object]]:
        """The raw objects that bear on the Pod's devices, by resource; who wrote which field is left out."""
        here = {None, GATE, *self._namespaces}
        found = {}
        for resource in filter(self._api.serves, DUMPED):
            objects = [one for one in self._api.list(resource) if one["metadata"].get("namespace") in here]
            for one in objects:
                one["metadata"].pop("managedFields", None)
            found[resource] = objects
        return found

    # -- steps --------------------------------------------------------------------------------------------------------

    def _apply(self, obj: Object) -> None:
        if "namespace" in obj["metadata"]:
            self._namespace(obj["metadata"]["namespace"])
        labels = {LABEL: self._fleet.name}  # so that it goes with the fleet
        self._api.apply(obj | {"metadata": obj["metadata"] | {"labels": labels}})

    def _delete(self, resource: str, name: str, namespace: str | None = None) -> None:
        """A Pod is gone when its claims are."""
        grace = 0 if resource == "pods" else None
        self._api.delete(resource, name, namespace, grace=grace, missing_ok=True)

        def gone() -> bool:
            claims = self._api.list("resourceclaims", namespace) if resource == "pods" else []
            return self._api.find(resource, name, namespace) is None and not any(
                owner["name"] == name for claim in claims for owner in claim["metadata"].get("ownerReferences", [])
            )

        wait_for(gone, 30, f"{resource} {name} to go")

    def _patch(self, resource: str, name: str, patch: Object, namespace: str | None = None) -> None:
        self._api.patch(resource, name, patch, namespace)

    def _pod(
        self, name: str, namespace: str, gpus: int = 0, cpu: str = "", spec: Mapping[str, Any] | None = None
    ) -> None:
        self._namespace(namespace)
        more = {"cpu": cpu} if cpu else {}
        self._api.create(scene.pod(name, scene.container(gpus=gpus, **more), **(spec or {})), namespace)
        scene.bound(self._api, namespace, name)

    def _taint(self, node: str, device: str, key: str, value: str, effect: str) -> None:
        fleets.taint_device(self._api, node, device, key, value, effect)

    def _untaint(self, node: str, device: str, key: str) -> None:
        fleets.untaint_device(self._api, node, device, key)

    def _cordon(self, node: str) -> None:
        fleets.cordon(self._api, node)

    def _uncordon(self, node: str) -> None:
        fleets.cordon(self._api, node, on=False)

    def _republish(
        self,
        node: str,
        devices: Sequence[str] = (),
        attributes: Mapping[str, Any] | None = None,
        capacity: Mapping[str, Any] | None = None,
    ) -> None:
        def changed(device: Object) -> Object:
            if devices and device["name"] not in devices:
                return device
            parts = {"attributes": attributes or {}, "capacity": capacity or {}}
            return device | {name: device.get(name, {}) | dict(values) for name, values in parts.items()}

        fleets.republish(self._api, node, lambda published: [changed(device) for device in published])

    # -- inside -------------------------------------------------------------------------------------------------------

    def _namespace(self, name: str) -> None:
        if name not in self._namespaces:
            scene.namespace(self._api, name, scene.LANE if name in self._gated else {"team": name})
            self._namespaces.add(name)

    def _with_templates(self, spec: Object) -> Object:
        """The spec with the name of the tenant's template for `template of version V for N`, which no author can know
        before the controller has made it.
        """
        return spec | {"resourceClaims": list(self._claims(spec))} if "resourceClaims" in spec else spec

    def _claims(self, spec: Object) -> Iterator[Object]:
        for entry in spec["resourceClaims"]:
            *_, version, _, count = entry["resourceClaimTemplateName"].split()

            def named(version: str = version, count: str = count) -> str:
                found = self._api.list("resourceclaimtemplates", self.namespace, labels=f"{_VERSION}={version}")
                names = (t["metadata"]["name"] for t in found if t["metadata"]["annotations"][_DEVICES] == count)
                return next(names, "")

            yield entry | {"resourceClaimTemplateName": wait_for(named, 30, f"the template of version {version}")}

    def _outcome(self, uid: str) -> Outcome | None:
        pod = self._api.get("pods", POD, self.namespace)
        if "nodeName" in pod["spec"]:
            return Outcome(tuple(f"{g.alternative} {g.pool}/{g.device}" for g in scene.given(self._api, pod)))
        for condition in pod["status"].get("conditions", []):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return Outcome(reason=condition["reason"], message=condition.get("message", ""))
        for event in self._api.list("events", self.namespace):
            if event["involvedObject"].get("uid") == uid and event["reason"] == "FailedResourceClaimCreation":
                return Outcome(reason=event["reason"], message=event.get("message", ""))
        return None


_VERSION, _DEVICES = "dra-gate.io/policy-version", "dra-gate.io/devices"


def _tuples(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in parts.items()}
