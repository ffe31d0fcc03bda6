"""What an alternative of a claim wants, in the words of the policy that it was compiled from. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dra_gate.kube.claim import Alternative, Request
from dra_gate.kube.raw import Object, at, mapping, text
from dra_gate.policy.compile import DOMAIN, REQUEST, companion_words, words
from dra_gate.policy.drivers import DRIVERS
from dra_gate.policy.model import Constraints, DevicePolicy, PolicyRef, PolicySet

_SHOWN = 80  # characters of an expression


@dataclass(frozen=True, slots=True)
class Wanted:
    """The policy word behind each selector of an alternative, the selector's position its own; for a claim that is not
    the gate's, selectors stand for themselves.
    """

    name: str
    words: tuple[str, ...]
    selectors: tuple[str, ...]
    constraints: Constraints

    def is_identity(self, position: int) -> bool:
        """Whether that selector says what the model is, so that a device that fails it is of another model."""
        return self.words[position] in ("model", "driver")

    def turned_away(self, position: int, device: Object, driver: str) -> tuple[str, str]:
        """The word that a device does not meet, and what it publishes against what is asked."""
        word = self.words[position]
        table = DRIVERS.get(driver)
        constraints = self.constraints
        match word:
            case "memory" if table is not None:
                has = text(at(_entry(device, "capacity", driver, table.memory), "value"))
                return word, _told(word, has, f"at least {constraints.memory_min}")
            case "driverVersion" if table is not None:
                has = text(at(_entry(device, "attributes", driver, table.driver_version), "version"))
                return word, _told(word, has, f"at least {constraints.driver_min}")
            case "architectures" if table is not None:
                has = text(at(_entry(device, "attributes", driver, table.architecture), "string"))
                return word, _told(word, has, " or ".join(constraints.architectures))
            case "wholeDevice":
                return word, "a part of a device, or one that several use"
            case "cel":
                return word, f"own condition not met: {_cut(self.selectors[position])}"
        return word, f"{word} not met: {_cut(self.selectors[position])}"


def policy_of(
    claim: Object | None, pod: Object, sets: Mapping[str, PolicySet], active: str
) -> tuple[DevicePolicy | None, PolicySet | None]:
    """The policy that a claim says to be of, from the set that the Pod is stamped with or else any that has it."""
    labels = mapping(at(claim, "metadata", "labels"))
    name, version = text(labels.get(f"{DOMAIN}/policy")), text(labels.get(f"{DOMAIN}/policy-version"))
    if not name or not version.isdecimal():
        return None, None
    ref = PolicyRef(name, int(version))
    stamped = text(at(pod, "metadata", "annotations", f"{DOMAIN}/policy-set"))
    digests = dict.fromkeys((stamped, active, *sets))
    digest = text(at(claim, "metadata", "annotations", f"{DOMAIN}/policy-digest"))
    found = [(sets[one].policies[ref], sets[one]) for one in digests if one in sets and ref in sets[one].policies]
    same = [pair for pair in found if pair[0].digest == digest]
    return next(iter(same or found), (None, None))


def wanted(
    request: Request, alternative: Alternative, policy: DevicePolicy | None, policy_set: PolicySet | None
) -> Wanted:
    """The words of an alternative. They are the policy's only if it compiles to the very selectors."""
    compiled: list[tuple[str, str]] = []
    if policy is not None and policy_set is not None:
        companion = next((one for one in policy.companions if one.name == request.name), None)
        model = policy_set.models.get(alternative.name)
        if companion is not None:
            compiled = companion_words(companion)
        elif request.name == REQUEST and model is not None:
            compiled = words(model, policy.constraints)
    name = alternative.name or alternative.device_class
    if compiled and tuple(selector for _, selector in compiled) == alternative.selectors and policy is not None:
        return Wanted(name, tuple(word for word, _ in compiled), alternative.selectors, policy.constraints)
    numbered = tuple(f"selector #{index}" for index in range(len(alternative.selectors)))
    return Wanted(name, numbered, alternative.selectors, Constraints())


def _entry(device: Object, kind: str, driver: str, name: str | None) -> Object:
    entries = mapping(device.get(kind))
    return mapping(entries.get(text(name)) or entries.get(f"{driver}/{name}"))


def _told(what: str, has: str, asked: str) -> str:
    return f"{what} {has or 'not published'}, {asked} wanted"


def _cut(expression: str) -> str:
    return expression if len(expression) <= _SHOWN else f"{expression[: _SHOWN - 1]}…"
