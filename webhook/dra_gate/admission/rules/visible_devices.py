"""No container asks its runtime for devices, by a variable or by where it mounts something."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import CONTAINERS, DEVICE_MOUNTS, DEVICE_VARIABLES, VISIBLE_DEVICES
from dra_gate.admission.verdict import Finding
from dra_gate.kube import pod as pods
from dra_gate.kube.raw import Object, sequence, text

_NO_DEVICE = ("void", "none", "", None)


def asked_of_the_runtime(container: Object) -> Iterator[tuple[str, str]]:
    """What the container asks its runtime for: the field below the container, and what is wrong with it."""
    env = sequence(container.get("env"))
    last = {  # of several definitions the last one counts
        item["name"]: number
        for number, item in enumerate(env)
        if isinstance(item, dict) and item.get("name") in DEVICE_VARIABLES
    }
    for name, number in last.items():
        value = env[number].get("value")
        if env[number].get("valueFrom") is not None:
            yield f"env[{number}].valueFrom", f"{name} comes from elsewhere: its value cannot be known"
        elif isinstance(value, str) and "$(" in value:
            yield f"env[{number}].value", f"{name} is put together by $(…): its value cannot be known"
        elif value not in _NO_DEVICE:
            yield f"env[{number}].value", f"{name} asks the runtime for {text(value)[:80]!r}"
    for number, mount in enumerate(sequence(container.get("volumeMounts"))):
        if isinstance(mount, dict) and DEVICE_MOUNTS in text(mount.get("mountPath")):
            yield (
                f"volumeMounts[{number}].mountPath",
                f"a mount under {DEVICE_MOUNTS} asks the runtime for the device of that name",
            )


def _check(context: Context) -> Iterator[Finding]:
    for kind, index, raw in pods.containers_with(context.object, "env", "volumeMounts"):
        for field, problem in asked_of_the_runtime(raw):
            yield RULE.finding(f"spec.{kind}[{index}].{field}", problem)


# A variable that is defined more than once counts where every definition asks: CEL has no word for the last one. The
# list of one gives the definitions a name.
_ASKS = "(has(d.valueFrom) || (has(d.value) && !(d.value in ['void', 'none', ''])))"
_TWIN = (
    f"{CONTAINERS}.exists(c, (has(c.env) && [c.env.filter(e, e.name in {list(DEVICE_VARIABLES)})].exists(defined, "
    f"defined.exists(e, defined.all(d, d.name != e.name || {_ASKS})))) || "
    f"(has(c.volumeMounts) && c.volumeMounts.exists(m, m.mountPath.contains('{DEVICE_MOUNTS}'))))"
)


RULE = Rule(
    id="visible-devices",
    title="No container asks its runtime for devices",
    protects="devices that are somebody else's: the runtimes of NVIDIA, AMD and Habana give what a variable names",
    code="VISIBLE_DEVICES",
    fields=("spec.containers[].env", "spec.containers[].volumeMounts", "spec.initContainers[]…"),
    remedy="Leave the variable (or the mount) out, or set the variable to void: a claim brings its devices into the "
    "container by itself",
    on=POD_CREATE,
    check=_check,
    signs=(VISIBLE_DEVICES,),
    as_written=True,
    twin=_TWIN,
)
