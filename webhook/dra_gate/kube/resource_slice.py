"""What a ResourceSlice says, of what several readers need."""

from __future__ import annotations

from dra_gate.kube.raw import Object, at, mapping, sequence


def generation_of(published: Object) -> int:
    """The generation of its pool that it belongs to; 0 where it names none."""
    value = at(published, "spec", "pool", "generation")
    return value if isinstance(value, int) else 0


def devices_of(published: Object) -> list[Object]:
    """Its devices, in its order."""
    return [mapping(raw) for raw in sequence(at(published, "spec", "devices"))]
