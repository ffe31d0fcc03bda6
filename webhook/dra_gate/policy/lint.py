"""Policies against what a cluster publishes: what matches nothing, only broken devices, or one device twice. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dra_gate import cel
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.compile import words
from dra_gate.policy.drivers import DRIVERS
from dra_gate.policy.model import Constraints, DevicePolicy, Model, Place, PolicySet
from dra_gate.policy.published import Published, published_devices

SOON_DAYS = 14  # so long before its end an exception is warned about
_SHOWN = 4  # names that one message lists


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `severity` is `error` (it does not work), `warning` (probably not meant) or `note`.

    `code` is stable. `place` is where the policy file says it, None for something that no file says.
    """

    severity: str
    code: str
    place: Place | None
    message: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """The objects that lint reads, raw. A kind that is None is not known: what depends on it is not judged."""

    slices: tuple[Object, ...]
    classes: tuple[Object, ...] | None = None
    nodes: tuple[Object, ...] | None = None
    taint_rules: tuple[Object, ...] = ()


def cluster_of(objects: Iterable[Object]) -> Cluster:
    """A `Cluster` from mixed objects by their kind; kinds of which there is none count as not known."""
    kinds: dict[str, list[Object]] = {}
    for obj in objects:
        kinds.setdefault(text(obj.get("kind")), []).append(obj)
    classes, nodes = kinds.get("DeviceClass"), kinds.get("Node")
    return Cluster(
        slices=tuple(kinds.get("ResourceSlice", ())),
        classes=None if classes is None else tuple(classes),
        nodes=None if nodes is None else tuple(nodes),
        taint_rules=tuple(kinds.get("DeviceTaintRule", ())),
    )


def lint_exceptions(policy_set: PolicySet, day: int) -> list[Finding]:
    """Exceptions that have ended by `day` (days since 1970-01-01 UTC), as errors, and that end soon, as warnings.

    A set that is in the cluster already stays good: its exceptions just count no more.
    """
    found = []
    for one in policy_set.exceptions:
        left = one.expires - day
        if left < 0:
            message = f"exception {one.name} ({one.ticket}) has ended: take it out, or have it approved again"
            found.append(Finding("error", "EXCEPTION_ENDED", one.place, message))
        elif left <= SOON_DAYS:
            message = f"exception {one.name} ({one.ticket}) ends in {left} days: from then on its Pods are refused"
            found.append(Finding("warning", "EXCEPTION_ENDS", one.place, message))
    return found


def lint(policy_set: PolicySet, cluster: Cluster) -> list[Finding]:
    """Evaluates every model and candidate against every published device, as the scheduler would."""
    return _Lint(policy_set, cluster).run()


def offered(policy_set: PolicySet, policy: DevicePolicy, cluster: Cluster) -> list[tuple[str, Published, str]]:
    """The published devices of each candidate's model, in order of preference: model, device, and the first word of the
    policy that turns the device away, empty where it may be given.
    """
    return _Lint(policy_set, cluster).offered(policy)


class _Lint:
    def __init__(self, policy_set: PolicySet, cluster: Cluster) -> None:
        self._set = policy_set
        self._cluster = cluster
        self._nodes = None if cluster.nodes is None else {_name(node): node for node in cluster.nodes}
        self._devices, self._problems = published_devices(cluster.slices, self._nodes, cluster.taint_rules)
        self._programs: dict[str, cel.Program] = {}
        self._findings: list[Finding] = []
        self._failures: set[tuple[str, str]] = set()

    def run(self) -> list[Finding]:
        for problem in self._problems:
            self._add("warning", "POOL", None, problem)
        if self._nodes is None and self._devices:
            self._add("note", "NO_NODES", None, "no Node is given: node health and node labels are not judged")
        by_class = {name: self._of_class(name) for name in {m.device_class for m in self._set.models.values()}}
        by_model = {
            model.name: [d for d in by_class[model.device_class] if self._holds_all(model, Constraints(), d)]
            for model in self._set.models.values()
        }
        for model in self._set.models.values():
            self._model(model, by_model[model.name])
        self._overlaps(by_model)
        self._uncovered(by_model)
        for policy in self._set.policies.values():
            self._policy(policy, by_model)
        return self._findings

    def offered(self, policy: DevicePolicy) -> list[tuple[str, Published, str]]:
        return [
            (name, device, self._word(policy, model, device) or "")
            for name in policy.candidates
            for model in (self._set.models[name],)
            for device in self._of_class(model.device_class)
            if self._holds_all(model, Constraints(), device)
        ]

    def _add(self, severity: str, code: str, place: Place | None, message: str) -> None:
        self._findings.append(Finding(severity, code, place, message))

    def _of_class(self, name: str) -> list[Published]:
        """The devices that the DeviceClass accepts; all of them when classes are not known."""
        if self._cluster.classes is None:
            return self._devices
        place = next(model.place for model in self._set.models.values() if model.device_class == name)
        found = next((one for one in self._cluster.classes if _name(one) == name), None)
        if found is None:
            why = "a claim that names it waits for ever, even with a free device of an earlier candidate"
            self._add("error", "CLASS_MISSING", place, f"there is no DeviceClass {name}: {why}")
            return []
        expressions = [text(at(selector, "cel", "expression")) for selector in sequence(at(found, "spec", "selectors"))]
        return [d for d in self._devices if all(self._holds(e, d, place, f"DeviceClass {name}") for e in expressions)]

    def _holds_all(self, model: Model, constraints: Constraints, device: Published) -> bool:
        return self._turned_away(model, constraints, device) is None

    def _turned_away(self, model: Model, constraints: Constraints, device: Published) -> str | None:
        """The first word that turns the device away, or None."""
        for word, expression in words(model, constraints):
            if not self._holds(expression, device, model.place, f"model {model.name}"):
                return word
        return None

    def _holds(self, expression: str, device: Published, place: Place, whose: str) -> bool:
        try:
            if expression not in self._programs:
                self._programs[expression] = cel.compile(expression)
            return self._programs[expression].evaluate(device.device)
        except cel.CelError as error:
            self._fails(place, whose, expression, f"cannot be evaluated here: {error}")
        except (cel.EvaluationError, cel.BudgetExceeded) as error:
            why = "the scheduler then gives up on all nodes"
            self._fails(place, whose, expression, f"fails on device {device} ({error}): {why}")
        return False

    def _fails(self, place: Place, whose: str, expression: str, message: str) -> None:
        # One device is enough: a fleet would repeat the same finding hundreds of times.
        if (whose, expression) not in self._failures:
            self._failures.add((whose, expression))
            self._add("error", "SELECTOR_FAILS", place, f"{whose}: selector {expression} {message}")

    def _model(self, model: Model, devices: list[Published]) -> None:
        if not devices:
            count = len([d for d in self._devices if d.driver == model.driver])
            message = f"model {model.name} matches none of the {_many(count, 'device')} that {model.driver} publishes"
            self._add("warning", "MODEL_MATCHES_NOTHING", model.place, message)
            return
        if all(device.unhealthy for device in devices):
            message = f"model {model.name} matches only unhealthy devices: {_reasons(devices)}"
            self._add("warning", "MODEL_UNHEALTHY", model.place, message)
        self._declared(model, devices)
        self._labels(model, devices)

    def _declared(self, model: Model, devices: list[Published]) -> None:
        driver = DRIVERS.get(model.driver)
        if driver is None:
            return
        if model.memory is not None and driver.memory is not None:
            sizes = [d.device.capacity.get(model.driver, {}).get(driver.memory) for d in devices]
            other = Counter("none" if size is None else str(size) for size in sizes if size != model.memory)
            if other:
                message = f"model {model.name} declares memory {model.memory}; devices publish {_counts(other)}"
                self._add("warning", "DECLARED_MEMORY", model.place, message)
        if model.architecture is not None and driver.architecture is not None:
            found = [d.device.attributes.get(model.driver, {}).get(driver.architecture) for d in devices]
            other = Counter("none" if value is None else str(value) for value in found if value != model.architecture)
            if other:
                message = f"model {model.name} declares {model.architecture}; devices publish {_counts(other)}"
                self._add("warning", "DECLARED_ARCHITECTURE", model.place, message)

    def _labels(self, model: Model, devices: list[Published]) -> None:
        if not model.node_labels:
            cost = "the order of candidates then holds within a node, and only softly across nodes"
            self._add("note", "NO_NODE_LABELS", model.place, f"model {model.name} has no nodeLabels: {cost}")
            return
        if self._nodes is None:
            return
        missed: dict[str, str] = {}
        for name in dict.fromkeys(d.node for d in devices if d.node in self._nodes):
            labels = mapping(at(self._nodes[name], "metadata", "labels"))
            for label, values in model.node_labels.items():
                if labels.get(label) not in values:
                    has = f"{label}={labels[label]}" if label in labels else f"no label {label}"
                    missed[name] = f"{name} has {has}"
        if missed:
            shown = "; ".join(list(missed.values())[:_SHOWN])
            message = f"nodeLabels of model {model.name} miss {_many(len(missed), 'node')} that publish it: {shown}"
            self._add("warning", "NODE_LABELS", model.place, message)

    def _overlaps(self, by_model: Mapping[str, list[Published]]) -> None:
        owners: dict[Published, list[str]] = {}
        for name, devices in by_model.items():
            for device in devices:
                owners.setdefault(device, []).append(name)
        shared: dict[tuple[str, ...], list[Published]] = {}
        for device, owning in owners.items():
            if len(owning) > 1:
                shared.setdefault(tuple(owning), []).append(device)
        for names, both in shared.items():
            shown = ", ".join(str(device) for device in both[:_SHOWN])
            message = f"models {' and '.join(names)} share {_many(len(both), 'device')}: {shown}"
            self._add("error", "MODELS_OVERLAP", self._set.models[names[-1]].place, message)

    def _uncovered(self, by_model: Mapping[str, list[Published]]) -> None:
        covered = {device for devices in by_model.values() for device in devices}
        drivers = {model.driver for model in self._set.models.values()}
        left: Counter[tuple[str, str]] = Counter()
        for device in self._devices:
            if device.driver in drivers and device not in covered:
                attributes = device.device.attributes.get(device.driver, {})
                table = DRIVERS.get(device.driver)
                product = attributes.get(table.product, "without product name") if table else "?"
                kind = attributes.get("type")
                left[device.driver, f"{product}{f' (type {kind})' if kind else ''}"] += 1
        for (driver, product), count in sorted(left.items()):
            message = f"no model covers {_many(count, 'device')} of {driver}: {product}"
            self._add("warning", "DEVICES_UNCOVERED", None, message)

    def _policy(self, policy: DevicePolicy, by_model: Mapping[str, list[Published]]) -> None:
        usable = 0
        for name in policy.candidates:
            model, devices = self._set.models[name], by_model[name]
            if not devices:
                continue  # said once, of the model
            turned_away = Counter(self._word(policy, model, device) or "" for device in devices)
            kept = [d for d in devices if self._word(policy, model, d) is None]
            usable += len(kept)
            if not kept:
                message = (
                    f"candidate {name} of {policy.ref} matches none of its {_many(len(devices), 'device')}: "
                    f"turned away by {_counts(turned_away)}"
                )
                self._add("warning", "CANDIDATE_MATCHES_NOTHING", policy.place, message)
            elif all(d.unhealthy for d in kept) and not all(d.unhealthy for d in devices):
                message = f"candidate {name} of {policy.ref} matches only unhealthy devices: {_reasons(kept)}"
                self._add("warning", "CANDIDATE_UNHEALTHY", policy.place, message)
            for attribute in policy.constraints.same_attribute:
                domain, _, identifier = attribute.partition("/")
                lacking = [d for d in kept if identifier not in d.device.attributes.get(domain, {})]
                if lacking:
                    message = (
                        f"candidate {name} of {policy.ref}: {attribute} is missing on {len(lacking)} of "
                        f"{_many(len(kept), 'device')}, which requests for several devices never get"
                    )
                    self._add("warning", "ATTRIBUTE_MISSING", policy.place, message)
        if not usable and self._devices:
            self._add("error", "POLICY_MATCHES_NOTHING", policy.place, f"no published device meets {policy.ref}")

    def _word(self, policy: DevicePolicy, model: Model, device: Published) -> str | None:
        word = self._turned_away(model, policy.constraints, device)
        if word is not None or not policy.constraints.nodes or self._nodes is None or not device.node:
            return word
        labels = mapping(at(self._nodes.get(device.node), "metadata", "labels"))
        return None if policy.constraints.nodes.items() <= labels.items() else "nodes"


def _name(obj: Object) -> str:
    return text(at(obj, "metadata", "name"))


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{what} ({count})" for what, count in counter.most_common(_SHOWN))


def _reasons(devices: list[Published]) -> str:
    return _counts(Counter(device.unhealthy for device in devices))
