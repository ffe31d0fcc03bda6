"""Policies against what a cluster publishes: what matches nothing, only broken devices, or one device twice. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dra_gate import cel
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.policy.compile import companion_words, words
from dra_gate.policy.drivers import DRIVERS
from dra_gate.policy.model import Companion, Constraints, DevicePolicy, Model, Place, PolicySet, Tenant
from dra_gate.policy.published import Published, published_devices
from dra_gate.policy.words import companion_word

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
        self._by_class: dict[str, list[Published]] = {}
        self._programs: dict[str, cel.Program] = {}
        self._findings: list[Finding] = []
        self._failures: set[tuple[str, str]] = set()

    def run(self) -> list[Finding]:
        for problem in self._problems:
            self._add("warning", "POOL", None, problem)
        if self._nodes is None and self._devices:
            self._add("note", "NO_NODES", None, "no Node is given: node health and node labels are not judged")
        by_model = {
            model.name: [d for d in self._of_class(model) if self._holds_all(model, Constraints(), d)]
            for model in self._set.models.values()
        }
        for model in self._set.models.values():
            self._model(model, by_model[model.name])
        self._overlaps(by_model)
        self._uncovered(by_model)
        for policy in self._set.policies.values():
            self._policy(policy, by_model)
        for tenant in self._set.tenants.values():
            self._reserve(tenant, by_model)
        return self._findings

    def offered(self, policy: DevicePolicy) -> list[tuple[str, Published, str]]:
        beside = [
            (one, [device for device in self._of_companion(one) if not device.unhealthy]) for one in policy.companions
        ]
        return [
            (name, device, self._word(policy, model, device, beside) or "")
            for name in policy.candidates
            for model in (self._set.models[name],)
            for device in self._of_class(model)
            if self._holds_all(model, Constraints(), device)
        ]

    def _add(self, severity: str, code: str, place: Place | None, message: str) -> None:
        self._findings.append(Finding(severity, code, place, message))

    def _of_class(self, whose: Model | Companion) -> list[Published]:
        """The devices that its DeviceClass accepts; all of them when classes are not known."""
        if self._cluster.classes is None:
            return self._devices
        name, place = whose.device_class, whose.place
        if name not in self._by_class:
            self._by_class[name] = self._accepted(name, place)
        return self._by_class[name]

    def _accepted(self, name: str, place: Place) -> list[Published]:
        found = next((one for one in self._cluster.classes or () if _name(one) == name), None)
        if found is None:
            why = "a claim that names it waits for ever, even with a free device of an earlier candidate"
            self._add("error", "CLASS_MISSING", place, f"there is no DeviceClass {name}: {why}")
            return []
        expressions = [text(at(selector, "cel", "expression")) for selector in sequence(at(found, "spec", "selectors"))]
        return [d for d in self._devices if all(self._holds(e, d, place, f"DeviceClass {name}") for e in expressions)]

    def _of_companion(self, companion: Companion) -> list[Published]:
        """The devices that may be given as it, wherever they are."""
        return [device for device in self._of_class(companion) if self._against(companion, device) is None]

    def _against(self, companion: Companion, device: Published) -> str | None:
        """The first word of the companion that turns the device away, or None."""
        for word, expression in companion_words(companion):
            if not self._holds(expression, device, companion.place, f"companion {companion.name}"):
                return word
        return None

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
        beside = [(companion, self._of_companion(companion)) for companion in policy.companions]
        for companion, fitting in beside:
            self._companion(policy, companion, fitting)
        for name in policy.candidates:
            model, devices = self._set.models[name], by_model[name]
            if not devices:
                continue  # said once, of the model
            words_against = [(device, self._word(policy, model, device, beside)) for device in devices]
            turned_away = Counter(word or "" for _, word in words_against)
            kept = [device for device, word in words_against if word is None]
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
            whose = f"candidate {name} of {policy.ref}"
            for attribute in policy.constraints.same_attribute:
                never = "which requests for several devices never get"
                self._attribute(attribute, kept, whose, policy.place, never)
            own = [
                device for device, _ in words_against if self._turned_away(model, policy.constraints, device) is None
            ]
            for companion in policy.companions:
                for attribute in companion.same_attribute:
                    self._attribute(attribute, own, whose, companion.place, f"which never get {companion.name}")
        if not usable and self._devices:
            self._add("error", "POLICY_MATCHES_NOTHING", policy.place, f"no published device meets {policy.ref}")

    def _reserve(self, tenant: Tenant, by_model: Mapping[str, list[Published]]) -> None:
        for model, count in tenant.reserve.items():
            weights = self._set.weights(model)
            healthy = sum(not device.unhealthy for device in by_model[model])
            if not by_model[model] or tenant.name not in weights:
                continue  # said of the model, or of the file
            if count > (share := healthy * weights[tenant.name] // sum(weights.values())):
                message = (
                    f"tenant {tenant.name} reserves {count} of {model}, and its share of "
                    f"{_many(healthy, 'healthy device')} is {share}: what is above it is kept from others all the same"
                )
                self._add("warning", "RESERVE_ABOVE_SHARE", tenant.place, message)

    def _companion(self, policy: DevicePolicy, companion: Companion, fitting: list[Published]) -> None:
        whose = f"companion {companion.name} of {policy.ref}"
        if not fitting:
            devices = [device for device in self._of_class(companion) if device.driver == companion.driver]
            against = Counter(self._against(companion, device) or "" for device in devices)
            reasons = f": turned away by {_counts(against)}" if against else f" that {companion.driver} publishes"
            message = (
                f"{whose} matches none of the {_many(len(devices), 'device')} of {companion.device_class}{reasons}"
            )
            self._add("warning", "COMPANION_MATCHES_NOTHING", companion.place, message)
        elif all(device.unhealthy for device in fitting):
            message = f"{whose} matches only unhealthy devices: {_reasons(fitting)}"
            self._add("warning", "COMPANION_UNHEALTHY", companion.place, message)
        for attribute in companion.same_attribute:
            self._attribute(attribute, fitting, whose, companion.place, "which are never given")

    def _attribute(self, attribute: str, devices: list[Published], whose: str, place: Place, cost: str) -> None:
        lacking = [device for device in devices if _value(attribute, device) is None]
        if lacking:
            missing = f"{attribute} is missing on {len(lacking)} of {_many(len(devices), 'device')}"
            self._add("warning", "ATTRIBUTE_MISSING", place, f"{whose}: {missing}, {cost}")

    def _word(
        self,
        policy: DevicePolicy,
        model: Model,
        device: Published,
        beside: Sequence[tuple[Companion, list[Published]]],
    ) -> str | None:
        """The first word of the policy that turns the device away; `beside` are the devices that each companion takes.

        Companions come last. What several accelerators of one container must agree on is not looked at.
        """
        word = self._turned_away(model, policy.constraints, device)
        if word is None and policy.constraints.nodes and self._nodes is not None and device.node:
            labels = mapping(at(self._nodes.get(device.node), "metadata", "labels"))
            word = None if policy.constraints.nodes.items() <= labels.items() else "nodes"
        if word is not None:
            return word
        for companion, fitting in beside:
            if sum(_agree(companion, device, other) for other in fitting) < companion.count:
                return companion_word(companion)
        return None


def _agree(companion: Companion, device: Published, other: Published) -> bool:
    """Whether `other` can come as the companion of `device`: both on one node, and with what must be equal on both."""
    if device.node and other.node and device.node != other.node:
        return False
    return all(
        (value := _value(attribute, device)) is not None and value == _value(attribute, other)
        for attribute in companion.same_attribute
    )


def _value(attribute: str, device: Published) -> object:
    domain, _, identifier = attribute.partition("/")
    return device.device.attributes.get(domain, {}).get(identifier)


def _name(obj: Object) -> str:
    return text(at(obj, "metadata", "name"))


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{what} ({count})" for what, count in counter.most_common(_SHOWN))


def _reasons(devices: list[Published]) -> str:
    return _counts(Counter(device.unhealthy for device in devices))
