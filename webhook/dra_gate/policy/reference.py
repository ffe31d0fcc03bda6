"""The reference page of policy files, made from the schemas and the driver tables.

`python -m dra_gate.policy.reference > docs/reference/policy.md`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from dra_gate.policy.drivers import DRIVERS, Driver
from dra_gate.policy.model import MAX_CANDIDATES, MAX_DEVICES
from dra_gate.policy.schemas import ALL_KINDS, schema

_HEAD = """# Policy files

<!-- Made by `python -m dra_gate.policy.reference` from webhook/dra_gate/policy/schema/. Do not edit. -->

A policy folder holds `*.yaml` and `*.yml` files, each with one or more documents of the kinds below. They are loaded
together into one policy set with one digest: all valid, or none used. Hidden files, sub-folders and a folder `tests/`,
where PolicyTest stands, are not read. Comments, file names and the order of documents do not change the digest.

The YAML is plain: no anchors and aliases, no tags, no duplicate keys, and quotes around words that YAML readers
disagree on (`on`, `no`, `017`, `1:30`, `550.10`). `dra-gate policy lint DIR` reports everything that is wrong at once,
as `file:line:column what is wrong; what to write instead`.
"""

_RELEASED = """## RELEASED

A text file beside the policies with one line for each released version: `training@7 sha256:<digest>`. The digest is
over the policy document as written (canonical JSON, so comments and layout are free). A version that stands there and
has another digest is refused: write the next version instead. `dra-gate policy release DIR` adds the lines of new
versions. Lines that start with `#` are comments.
"""


def page() -> str:
    """The reference page as Markdown."""
    return "\n".join([_HEAD, *(line for kind in ALL_KINDS for line in _kind(schema(kind))), _RELEASED, *_drivers()])


def _kind(root: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {root['title']}\n\n{root['description']}\n"
    yield "| field | value | |"
    yield "|---|---|---|"
    for path, spec, required in _fields(root, root, ""):
        yield f"| `{path}` | {_value(spec)}{'' if required else ', optional'} | {spec.get('description', '')} |"
    yield ""


def _fields(
    root: Mapping[str, Any], spec: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    for name, raw in spec.get("properties", {}).items():
        field = _resolve(root, raw)
        path = f"{prefix}{name}"
        yield path, field, name in spec.get("required", ())
        yield from _fields(root, field, f"{path}.")
        if field.get("type") == "array":
            yield from _fields(root, _resolve(root, field["items"]), f"{path}[].")


def _resolve(root: Mapping[str, Any], spec: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in spec:
        return spec
    target: Mapping[str, Any] = root["$defs"][spec["$ref"].rpartition("/")[2]]
    return {**target, **spec}


def _value(spec: Mapping[str, Any]) -> str:
    match spec:
        case {"const": True}:
            return "`true`"
        case {"const": value}:
            return f"`{value}`"
        case {"enum": values}:
            return " or ".join(f"`{value}`" for value in values)
        case {"type": ["string", "integer"]}:
            return "quantity"
        case {"type": "array"}:
            return "list"
        case {"type": "object", "additionalProperties": False}:
            return "fields below"
        case {"type": "object"}:
            return "mapping"
        case {"type": "integer"}:
            low, high = spec.get("minimum"), spec.get("maximum")
            return f"whole number {low} to {high}"
        case _:
            return "text"


def _drivers() -> Iterator[str]:
    yield "## What the words read\n"
    yield "A word that the driver of any candidate cannot express is refused when the folder is loaded.\n"
    yield "| | " + " | ".join(f"`{name}`" for name in DRIVERS) + " |"
    yield "|---|" + "---|" * len(DRIVERS)
    rows: dict[str, list[str]] = {
        "DeviceClasses": [", ".join(f"`{name}`" for name in driver.classes) for driver in DRIVERS.values()],
        "products": [_attribute(driver.product) for driver in DRIVERS.values()],
        "memory": [_capacity(driver) for driver in DRIVERS.values()],
        "driverVersion": [_attribute(driver.driver_version) for driver in DRIVERS.values()],
        "architectures": [_attribute(driver.architecture) for driver in DRIVERS.values()],
        "wholeDevice": [f"`{driver.whole}`" if driver.whole else "not published" for driver in DRIVERS.values()],
        "sameAttribute": [
            ", ".join([*(f"`{name}`" for name in sorted(driver.standard)), f"`{driver.name}/…`"])
            for driver in DRIVERS.values()
        ],
    }
    for word, cells in rows.items():
        yield f"| {word} | " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""
    yield (
        f"A claim has at most {MAX_CANDIDATES} candidates and {MAX_DEVICES} devices, companions among them "
        "(resource.k8s.io/v1). DeviceClasses of other drivers need `driver:` and `selector:` in the model; constraints "
        "then are `cel`, `sameAttribute` and `nodes`.\n"
    )


def _attribute(name: str | None) -> str:
    return f"attribute `{name}`" if name else "not published"


def _capacity(driver: Driver) -> str:
    return f"capacity `{driver.memory}`" if driver.memory else "not published"


if __name__ == "__main__":
    sys.stdout.write(page())
