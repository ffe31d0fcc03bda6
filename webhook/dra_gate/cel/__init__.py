"""CEL as Kubernetes' device selectors use it: parsed and type-checked once, evaluated by closures."""

from dra_gate.cel.device import Attribute, Device, device_of
from dra_gate.cel.problems import CelError, Problem
from dra_gate.cel.program import DEFAULT_STEPS, Program, check, compile, could_accept  # noqa: A004 - see compile
from dra_gate.cel.values import BudgetExceeded, EvaluationError

__all__ = [
    "DEFAULT_STEPS",
    "Attribute",
    "BudgetExceeded",
    "CelError",
    "Device",
    "EvaluationError",
    "Problem",
    "Program",
    "check",
    "compile",
    "could_accept",
    "device_of",
]
