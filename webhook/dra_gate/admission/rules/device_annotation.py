"""No annotation asks a runtime or one of its plugins for gated devices."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dra_gate.admission.facts import Facts
from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import CDI_ANNOTATIONS, DEVICE_ANNOTATION, DEVICE_LIST_ANNOTATIONS
from dra_gate.admission.verdict import Finding
from dra_gate.kube.raw import at, mapping

# CDI specification: vendor/class=name. Lists are comma-separated in containerd's annotations, YAML in those of NRI.
_CDI_NAME = re.compile(r"([A-Za-z0-9.-]+)/[\w.-]+=[\w.:-]+", re.ASCII)
_CDI_BETWEEN = re.compile(r"[\s,\[\]\"']+")
# An item of a device list that says a path and nothing else: `- path: /dev/fuse`, CRI-O's `/dev/fuse:/dev/fuse:rwm`.
_DEVICE = re.compile(r"(?:-\s*path:\s*)?([\"']?)(/dev/[\w./-]+)(?::/dev/[\w./-]+)?(?::[rwm]{1,3})?\1", re.ASCII)
_DEVICE_BETWEEN = re.compile(r"[\n,]")
# A device may be listed by its numbers and under any name: only these paths, with nothing beside them, are let through.
_NO_GATED_DEVICE = re.compile(r"/dev/(?:infiniband/[\w-]+|fuse|net/tun)", re.ASCII)
_LONGEST = 8192  # characters in all such annotations of a Pod: a node's worth of devices has a tenth
_ANY = (*CDI_ANNOTATIONS, *DEVICE_LIST_ANNOTATIONS)


def _check(context: Context) -> Iterator[Finding]:
    read, gated = 0, _gated_domains(context.facts)
    annotations = mapping(at(context.object, "metadata", "annotations"))
    for key in [key for key in annotations if key.startswith(_ANY)]:
        value = annotations[key]
        if not isinstance(value, str):
            continue
        read += len(value) + 1
        if read > _LONGEST:
            yield RULE.finding(
                f"metadata.annotations[{key}]", f"annotations of devices have over {_LONGEST} characters"
            )
            return
        problem = _cdi(value, gated) if key.startswith(CDI_ANNOTATIONS) else _listed(value)
        if problem is not None:
            yield RULE.finding(f"metadata.annotations[{key}]", f"it asks the runtime for {problem[:80]!r}")


def _cdi(value: str, gated: tuple[str, ...]) -> str | None:
    """The first name that is not plainly of another vendor than the `gated` ones."""
    for name in _CDI_BETWEEN.split(value):
        if name in ("", "-"):
            continue
        found = _CDI_NAME.fullmatch(name)
        vendor = "" if found is None else f".{found[1].lower()}"
        if not vendor or vendor.endswith(gated):
            return name
    return None


def _gated_domains(facts: Facts) -> tuple[str, ...]:
    """The vendors of gated devices, a dot before each: domains of served names, the models' drivers and, of
    `gpu.nvidia.com`, the `nvidia.com` that it stands under.
    """
    drivers = {model.driver for model in facts.policy_set.models.values()}
    vendors = {parent for driver in drivers if "." in (parent := driver.partition(".")[2])}
    return tuple(f".{domain}" for domain in {*facts.served_domains, *drivers, *vendors})


def _listed(value: str) -> str | None:
    for item in map(str.strip, _DEVICE_BETWEEN.split(value)):
        found = _DEVICE.fullmatch(item)
        if item and (found is None or not _NO_GATED_DEVICE.fullmatch(found[2])):
            return item
    return None


RULE = Rule(
    id="device-annotation",
    title="No annotation asks for devices",
    protects="devices that are somebody else's: runtimes and their plugins inject what these annotations name",
    code="DEVICE_ANNOTATION",
    fields=("metadata.annotations",),
    remedy="Leave the annotation out: devices come by claim",
    on=POD_CREATE,
    check=_check,
    signs=(DEVICE_ANNOTATION,),
    as_written=True,
)
