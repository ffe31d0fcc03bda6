"""Every published device and what is known of it whoever asks: its pool's state, its taints, who holds it. Pure.

The allocator says what happens on one node; this says what there is in all, so that each device can be counted once,
under the first thing that keeps it from a request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dra_gate.allocation.node_selector import node_matches
from dra_gate.allocation.snapshot import Snapshot
from dra_gate.cel import BudgetExceeded, CelError, Device, EvaluationError, Program, compile, device_of  # noqa: A004
from dra_gate.cel.device import Known
from dra_gate.kube.raw import Object, at, mapping, sequence, text
from dra_gate.kube.resource_slice import devices_of, generation_of
from dra_gate.kube.taint import BLOCKING

DeviceId = tuple[str, str, str]  # driver, pool, device


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a device: the claim, the Pods that it is reserved for (namespace, name), and since when."""

    uid: str
    claim: tuple[str, str]
    pods: tuple[tuple[str, str], ...]
    since: str


@dataclass(frozen=True, slots=True, eq=False)
class Published:
    """One published device. `problem` is what its pool's state does to it, as code and text; empty codes: nothing.

    `nodes` are the nodes that reach it; `node` is the one that its slice names, empty for a device of several.
    """

    id: DeviceId
    node: str
    nodes: tuple[str, ...]
    problem: tuple[str, str]
    taints: tuple[Object, ...]
    device: Device | None
    raw: Object

    def __str__(self) -> str:
        return f"{self.id[1]}/{self.id[2]}"


class Fleet:
    """All devices of a snapshot, and who holds them. Claims whose UID is in `ignore` hold nothing."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._known: Known = {}
        self._nodes = {text(at(node, "metadata", "name")): node for node in snapshot.nodes}
        self.devices = tuple(self._published(snapshot))
        self.holders = _holders(snapshot.claims)

    def held(self, device: Published, ignore: frozenset[str] = frozenset()) -> tuple[Holder, ...]:
        """Who holds `device`, claims of these UIDs aside."""
        return tuple(one for one in self.holders.get(device.id, ()) if one.uid not in ignore)

    def _published(self, snapshot: Snapshot) -> Iterable[Published]:
        rules = [
            mapping(rule.get("spec"))
            for rule in snapshot.taint_rules
            if isinstance(at(rule, "spec", "deviceSelector"), dict)  # without one a rule selects nothing
        ]
        pools: dict[tuple[str, str], list[Object]] = {}
        for one in snapshot.slices:
            spec = mapping(one.get("spec"))
            pools.setdefault((text(spec.get("driver")), text(at(spec, "pool", "name"))), []).append(one)
        for key, members in sorted(pools.items()):
            concerned = [rule for rule in rules if _is(rule, "driver", key[0]) and _is(rule, "pool", key[1])]
            yield from self._of_pool(key, members, concerned)

    def _of_pool(self, key: tuple[str, str], members: list[Object], rules: list[Object]) -> Iterable[Published]:
        here: dict[str, list[Object]] = {}
        for one in members:
            here.setdefault(text(at(one, "spec", "nodeName")), []).append(one)
        for node, listed in sorted(here.items()):
            # What a node sees of a pool: the slices that name it, and those that name none.
            seen = listed if not node else [*listed, *here.get("", ())]
            newest = max(map(generation_of, seen))
            current = [one for one in seen if generation_of(one) == newest]
            problem = _pool_problem(key[1], current, members)
            names = {text(raw.get("name")) for one in current for raw in devices_of(one)}
            for one in sorted(listed, key=_name):
                stale = generation_of(one) != newest
                for raw in devices_of(one):
                    name = text(raw.get("name"))
                    if stale and name in names:
                        continue  # the newest generation publishes it again: that one counts
                    old = f"only in generation {generation_of(one)} of pool {key[1]}: generation {newest} is the newest"
                    taints = [mapping(rule.get("taint")) for rule in rules if _is(rule, "device", name)]
                    yield Published(
                        (*key, name),
                        node or text(raw.get("nodeName")),
                        self._reach(mapping(one.get("spec")), raw),
                        ("old-generation", old) if stale else problem,
                        tuple(
                            t
                            for t in (*map(mapping, sequence(raw.get("taints"))), *taints)
                            if at(t, "effect") in BLOCKING
                        ),
                        _device(key[0], raw, self._known),
                        raw,
                    )

    def _reach(self, spec: Object, raw: Object) -> tuple[str, ...]:
        source = raw if spec.get("perDeviceNodeSelection") is True else spec
        name = text(source.get("nodeName"))
        if name:
            return (name,) if name in self._nodes else ()
        everywhere, selector = source.get("allNodes") is True, source.get("nodeSelector")
        return tuple(name for name, node in self._nodes.items() if node_matches(node, "", everywhere, selector))


class Selectors:
    """CEL expressions against devices; each is compiled once."""

    def __init__(self) -> None:
        self._programs: dict[str, Program | str] = {}

    def first_failing(self, expressions: Iterable[str], device: Published) -> tuple[int, str]:
        """The position of the first expression that does not hold, -1 if all do; with the error if it is one."""
        if device.device is None:
            return 0, "its attributes are not readable"
        for index, expression in enumerate(expressions):
            program = self._programs.get(expression)
            if program is None:
                program = self._programs[expression] = _compiled(expression)
            if isinstance(program, str):
                return index, program
            try:
                if not program.evaluate(device.device):
                    return index, ""
            except (EvaluationError, BudgetExceeded) as error:
                return index, str(error) or "it takes too long"
        return -1, ""


def _compiled(expression: str) -> Program | str:
    try:
        return compile(expression)
    except CelError as error:
        return f"it does not compile: {error}"


def _device(driver: str, raw: Object, known: Known) -> Device | None:
    try:
        return device_of(driver, raw, known)
    except ValueError:
        return None


def _holders(claims: Iterable[Object]) -> Mapping[DeviceId, tuple[Holder, ...]]:
    found: dict[DeviceId, list[Holder]] = {}
    for claim in claims:
        allocation = at(claim, "status", "allocation")
        if not isinstance(allocation, dict):
            continue
        namespace = text(at(claim, "metadata", "namespace"))
        pods = (text(one.get("name")) for one in map(mapping, sequence(at(claim, "status", "reservedFor"))))
        holder = Holder(
            text(at(claim, "metadata", "uid")),
            (namespace, text(at(claim, "metadata", "name"))),
            tuple((namespace, pod) for pod in pods),
            text(allocation.get("allocationTimestamp")),
        )
        for result in map(mapping, sequence(at(allocation, "devices", "results"))):
            # Shares of a device, and devices given for admin access, leave it to others.
            if result.get("adminAccess") is not True and not result.get("shareID"):
                key = (text(result.get("driver")), text(result.get("pool")), text(result.get("device")))
                found.setdefault(key, []).append(holder)
    return {key: tuple(holders) for key, holders in found.items()}


def _pool_problem(pool: str, current: list[Object], members: list[Object]) -> tuple[str, str]:
    generation = generation_of(current[0])
    published = [one for one in members if generation_of(one) == generation]
    counts = {at(one, "spec", "pool", "resourceSliceCount") for one in current}
    if not counts & {len(current), len(published)}:
        wanted = " or ".join(sorted(str(count) for count in counts))
        if all(isinstance(count, int) and count < len(current) for count in counts):
            there = f"generation {generation} has {len(published)} slices and says that it has {wanted}"
            return "incomplete-pool", f"pool {pool} has more slices than it declares: {there}"
        told = f"pool {pool} is incomplete: {len(published)} of {wanted} slices of its generation {generation}"
        return "incomplete-pool", told
    names = Counter(text(raw.get("name")) for one in current for raw in devices_of(one))
    twice = sorted(name for name, count in names.items() if count > 1)
    return ("invalid-pool", f"pool {pool} publishes {twice[0]} twice") if twice else ("", "")


def _is(rule: Object, key: str, value: str) -> bool:
    return at(rule, "deviceSelector", key) in (None, value)


def _name(one: Object) -> str:
    return text(at(one, "metadata", "name"))
