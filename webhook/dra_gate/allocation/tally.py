"""How many devices of one candidate there are, and each counted once under the first thing against it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from dra_gate.allocation.explanation import DeviceLine, Reason
from dra_gate.allocation.fleet import Holder, Published

Against = tuple[str, str]  # code and text

# What makes a device unhealthy, whoever asks.
_ILL = frozenset(
    {"old-generation", "incomplete-pool", "invalid-pool", "node-gone", "taint", "node-not-ready", "cordoned"}
)
# What is told once for all nodes, in the words of the first.
_BY_NODE = frozenset(
    {
        "cordoned",
        "node-taint",
        "node-pool",
        "node-selector",
        "node-affinity",
        "node-resources",
        "node-not-ready",
        "claim-elsewhere",
    }
)


_LAST_FIRST = {"node-resources": 0, "in-use": 1}  # what stands against a device that passed everything before


@dataclass(slots=True)
class _Group:
    text: str
    devices: int = 0
    in_use: int = 0  # of them, though that is not what they are counted under
    nodes: dict[str, None] = field(default_factory=dict)
    holders: list[Holder] = field(default_factory=list)


class Tally:
    """Counts of one candidate's devices. `fits` says whether a node takes the Pod, devices aside; `listed` whether
    `lines` are wanted.
    """

    def __init__(self, fits: Callable[[str], bool], *, listed: bool) -> None:
        self.published = self.healthy = self.matching = self.free = 0
        self.free_on = Counter[str]()  # nodes that take the Pod -> free devices
        self.lines: list[DeviceLine] = []
        self._fits = fits
        self._listed = listed
        self._found: dict[Against, _Group] = {}

    def add(self, device: Published, word: Against | None, against: Sequence[Against], held: Sequence[Holder]) -> None:
        """One device of the model; `word` is what of the policy it does not meet, `against` the rest, holders aside."""
        ill = any(code in _ILL for code, _ in against)
        self.published += 1
        self.healthy += not ill
        self.matching += word is None
        self.free += word is None and not ill and not held
        # A device that somebody holds would not be had for more CPU on its node: that comes last.
        early = (found for found in against if found[0] != "node-resources")
        late = (found for found in against if found[0] == "node-resources")
        in_use: Against | None = ("in-use", "in use") if held else None
        first = word or next(early, None) or in_use or next(late, None)
        if first is None:
            self.free_on.update(node for node in device.nodes if self._fits(node))
        else:
            group = self._count(first, device, held if first is in_use else ())
            group.in_use += bool(held) and first is not in_use and first is not word
        if self._listed:
            self.lines.append(DeviceLine(str(device), device.node, *(first or ("", "could be given"))))

    def wrong(self, device: Published, error: str) -> None:
        """A device that a selector fails on: the scheduler stops at it, whatever else there is."""
        self._count(("cel-error", f"a selector fails on {device}: {error}"), device, ())

    def no_class(self, name: str) -> None:
        """There are no devices to count, since their class is missing."""
        self._found["class-missing", ""] = _Group(f"device class {name} does not exist")

    def reasons(self, name: Callable[[Holder], str]) -> Iterator[Reason]:
        """What the devices were counted under, most devices first; of as many, those that came nearest."""
        ordered = sorted(self._found.items(), key=lambda item: (-item[1].devices, _LAST_FIRST.get(item[0][0], 2)))
        for (code, _), group in ordered:
            holders = Counter(map(name, group.holders))
            most = tuple(sorted(holders.items(), key=lambda pair: (-pair[1], pair[0])))
            beside = f" ({group.in_use} of them in use)" if group.in_use else ""
            told = f"{group.text}{beside}"
            yield Reason(code, told, group.devices, tuple(node for node in group.nodes if node), most)
        if not self.published and not self._found:
            yield Reason("none-published", "no such device is published")

    def _count(self, first: Against, device: Published, held: Sequence[Holder]) -> _Group:
        code, told = first
        group = self._found.setdefault((code, "" if code in _BY_NODE else told), _Group(told))
        group.devices += 1
        group.nodes[device.node] = None
        group.holders += held
        return group
