"""The switch between lanes: what overrides the lane labels of gated namespaces, for all tenants or for some. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from dra_gate.policy.words import listed, some

DRA: Final = "dra"  # the lanes
PLUGIN: Final = "device-plugin"
Lane = Literal["dra", "device-plugin"]


@dataclass(frozen=True, slots=True)
class Switch:
    """The lane of every gated namespace (`override`), and of some tenants' (`tenants`), which goes before it.

    An empty text means "as labelled": a tenant with one keeps its labels whatever `override` says. `drain_by` and, for
    tenants with a lane of their own, `drains` say until when Pods that run under DRA may stay where the switch says
    device-plugin (RFC 3339; empty, or not there: until they end).
    """

    override: str = ""
    tenants: Mapping[str, str] = field(default_factory=dict)
    drain_by: str = ""
    drains: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """For people: `every tenant as labelled, but lilac and mint in lane device-plugin`."""
        lanes: dict[str, list[str]] = {}
        for name, lane in sorted(self.tenants.items()):
            lanes.setdefault(lane, []).append(name)
        but = [f"{some(names)} {_in(lane)}" for lane, names in lanes.items()]
        return f"every tenant {_in(self.override)}" + (f", but {listed(but)}" if but else "")

    def lane_of(self, tenant: str, label: str) -> str:
        """The lane of a gated namespace with this label that belongs to `tenant`; empty for a namespace of nobody."""
        return self.tenants.get(tenant, self.override) or label

    def drain_of(self, tenant: str) -> str:
        """Until when the tenant's Pods may run under DRA in lane device-plugin; empty: until they end."""
        return self.drains.get(tenant, "") if tenant in self.tenants else self.drain_by

    def same_lanes(self, other: Switch) -> bool:
        """Whether it gives every namespace the lane that `other` gives it, for the same reason."""
        return (self.override, self.tenants) == (other.override, other.tenants)

    def back(self, tenants: Collection[str] = (), drain_by: str | None = None) -> Switch:
        """With these tenants, or without names everybody, in lane device-plugin.

        `drain_by` None leaves what was said of those who are there already.
        """
        if not tenants:
            there = {name: lane for name, lane in self.tenants.items() if lane == PLUGIN}
            until = (self.drain_by if self.override == PLUGIN else "") if drain_by is None else drain_by
            drains = self.drains if drain_by is None else dict.fromkeys(there, drain_by)
            return Switch(PLUGIN, there, until, {name: drains[name] for name in there if drains.get(name)})
        # Who is there by what holds for everybody needs no entry of its own, but for a time of its own.
        moved = [name for name in tenants if drain_by is not None or self.lane_of(name, "") != PLUGIN]
        drains = {**self.drains, **dict.fromkeys(moved, drain_by or "")}
        return replace(
            self,
            tenants={**self.tenants, **dict.fromkeys(moved, PLUGIN)},
            drains={name: until for name, until in drains.items() if until},
        )

    def forward(self, tenants: Collection[str] = ()) -> Switch:
        """With these tenants, or without names everybody, in the lanes of their labels again."""
        if not tenants:
            return NO_SWITCH
        rest = {name: lane for name, lane in self.tenants.items() if name not in tenants}
        return replace(
            self,
            tenants={**rest, **dict.fromkeys(tenants, "")} if self.override else rest,
            drains={name: until for name, until in self.drains.items() if name not in tenants},
        )


def _in(lane: str) -> str:
    return f"in lane {lane}" if lane else "as labelled"


NO_SWITCH = Switch()  # every namespace is in the lane of its label
