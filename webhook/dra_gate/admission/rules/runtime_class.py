"""No Pod chooses a runtime that hands out devices by itself."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission.rules.rule import POD_CREATE, Context, Rule
from dra_gate.admission.signs import RUNTIME_CLASS
from dra_gate.admission.verdict import Finding
from dra_gate.kube.raw import at, text


def _check(context: Context) -> Iterator[Finding]:
    name = text(at(context.object, "spec", "runtimeClassName"))
    # A class is a name for a handler. One that is not known (yet) is judged as if it bore its handler's name.
    handler = context.facts.runtime_handlers.get(name, name)
    if handler in context.facts.policy_set.settings.device_runtimes:
        yield RULE.finding(
            "spec.runtimeClassName", f"runtime class {name} has handler {handler}, which hands out devices by itself"
        )


RULE = Rule(
    id="runtime-class",
    title="No Pod chooses a device runtime",
    protects="devices that are somebody else's: a device runtime gives them without a claim",
    code="NVIDIA_RUNTIME_CLASS",
    fields=("spec.runtimeClassName",),
    remedy="Leave runtimeClassName out: a claim's devices are injected (CDI) under the default runtime",
    on=POD_CREATE,
    check=_check,
    signs=(RUNTIME_CLASS,),
    as_written=True,
)
