"""What was counted of both lanes' Pods, in ConfigMaps: to and from the objects; pure.

Two sets of maps take turns, so that there is always a whole one: a set that is being written, or was left half-written,
is known by its parts and its digest.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Iterable
from typing import Any

from dra_gate.admission.guards import COHORTS_PREFIX as PREFIX
from dra_gate.cluster.policy_map import NAMESPACE
from dra_gate.kube.raw import Object, at, mapping, text

LABEL = "dra-gate.io/cohorts"
SELECTOR = f"{LABEL}=true"
PART_BYTES = 900 * 1000  # of one map: etcd and the API server take 1 MiB with everything around it
PARTS = 8  # of one set, at most
_MOST = 64 << 20  # bytes when unpacked
_HEAD, _PART = "head.json", "part"


class TooLargeError(ValueError):
    """More than all maps of a set hold."""


def name_of(part: int, generation: int) -> str:
    """The map that holds that part: of an even generation others than of an odd one."""
    return f"{PREFIX}{2 * part + generation % 2}"


def cohort_maps(data: bytes, generation: int) -> list[dict[str, Any]]:
    """The ConfigMaps that hold `data`. Raises TooLargeError."""
    packed = zlib.compress(data, 6)
    parts = [packed[start : start + PART_BYTES] for start in range(0, len(packed), PART_BYTES)]
    if len(parts) > PARTS:
        raise TooLargeError(f"{len(packed):,} bytes, and {PARTS} ConfigMaps hold {PARTS * PART_BYTES:,}")
    digest = hashlib.sha256(packed).hexdigest()
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name_of(number, generation),
                "namespace": NAMESPACE,
                "labels": {LABEL: "true", "app.kubernetes.io/part-of": "dra-gate"},
            },
            "data": {
                _HEAD: json.dumps(
                    {"generation": generation, "part": number, "parts": len(parts), "digest": digest}, sort_keys=True
                )
            },
            "binaryData": {_PART: base64.b64encode(part).decode()},
        }
        for number, part in enumerate(parts)
    ]


def newest(maps: Iterable[Object]) -> tuple[int, bytes | None]:
    """The data of the newest set that is whole, None where none is, and the generation after which the next one takes
    no map of it: the newest that any map is of, or one more where a set was left half-written.
    """
    highest, sets = 0, dict[tuple[int, str, int], dict[int, bytes]]()
    for one in maps:
        try:
            head = mapping(json.loads(text(at(one, "data", _HEAD))))
            part = base64.b64decode(text(at(one, "binaryData", _PART)), validate=True)
        except (ValueError, RecursionError, binascii.Error):
            continue
        said = [head.get(word) for word in ("generation", "part", "parts")]
        if not all(type(number) is int and 0 <= number < 1 << 53 for number in said):
            continue
        generation, number, parts = (number for number in said if isinstance(number, int))
        highest = max(highest, generation)
        sets.setdefault((generation, text(head.get("digest")), parts), {})[number] = part
    for (generation, digest, parts), found in sorted(sets.items(), reverse=True):
        data = _whole(found, parts, digest)
        if data is not None:
            return highest + (highest - generation) % 2, data
    return highest, None


def _whole(found: dict[int, bytes], parts: int, digest: str) -> bytes | None:
    if not 0 < parts <= PARTS or set(found) != set(range(parts)):
        return None
    packed = b"".join(found[number] for number in range(parts))
    if hashlib.sha256(packed).hexdigest() != digest:
        return None
    unpacking = zlib.decompressobj()
    try:
        data = unpacking.decompress(packed, _MOST)
    except zlib.error:
        return None
    return data if unpacking.eof else None
