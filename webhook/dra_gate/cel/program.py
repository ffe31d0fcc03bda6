"""Compiled selectors."""

from __future__ import annotations

from typing import Final

from dra_gate.cel.check import parse
from dra_gate.cel.closures import FIELDS, Closure
from dra_gate.cel.cost import MAX_COST, UNLIMITED, max_cost
from dra_gate.cel.device import Device
from dra_gate.cel.environment import NEW, STORED
from dra_gate.cel.evaluate import UnsupportedError, closure_of
from dra_gate.cel.guards import unguarded
from dra_gate.cel.library import Budget
from dra_gate.cel.problems import CelError, Problem
from dra_gate.cel.reads import Read, reads
from dra_gate.cel.tree import Node
from dra_gate.cel.values import KINDS, BudgetExceeded, EvaluationError

DEFAULT_STEPS: Final = 1_000_000


class Program:
    """A compiled selector. It holds no state: one program serves any number of devices, from any thread.

    `reads` are the attributes and capacities that its result depends on, beside the driver and whether the device may
    be shared; None if it may be any.
    """

    __slots__ = ("_closure", "_spare", "expression", "reads")

    def __init__(self, expression: str, closure: Closure, slots: int, reads: frozenset[Read] | None = None) -> None:
        self.expression = expression
        self.reads = reads
        self._closure = closure
        self._spare = [None] * (slots - len(FIELDS) - 1)

    def evaluate(self, device: Device, steps: int = DEFAULT_STEPS) -> bool:
        """Whether the selector accepts `device`, as the scheduler would have it.

        Raises EvaluationError where the scheduler's evaluation fails (with its text for missing keys) or gives no bool,
        and BudgetExceeded after about `steps` steps; a step is cheaper than a unit of Kubernetes' run-time cost, so an
        expression within Kubernetes' limit of 1,000,000 seldom meets ours.
        """
        frame = [
            device.attributes,
            device.capacity,
            device.driver,
            device.allow_multiple_allocations,
            Budget(steps),
            *self._spare,
        ]
        result = self._closure(frame)
        if result is True or result is False:
            return bool(result)
        kind = KINDS.get(type(result), "unknown")
        raise EvaluationError(f"CEL result of type {kind} could not be converted to bool")


def compile(expression: str) -> Program:  # noqa: A001 - what it is called everywhere in CEL
    """Compiles a selector as the scheduler compiles one that is stored in the cluster.

    Raises CelError for problems of the kinds length, syntax, type and unsupported. Unguarded and costly expressions
    compile: those of other people have to be evaluated too, with their run-time errors.
    """
    tree, problems = parse(expression, STORED)
    if tree is None or problems:
        raise CelError(problems)
    try:
        return Program(expression, *closure_of(tree), reads(tree))
    except UnsupportedError as error:
        raise CelError([_unsupported(error)]) from error


_ALL_BUT_DRIVER: Final = frozenset(FIELDS) - {"device.driver"}


def could_accept(expression: str, driver: str, steps: int = DEFAULT_STEPS) -> bool:
    """Whether a selector could accept some device of `driver`, whatever its attributes and capacity.

    False only for a selector that compiles and is false for every such device. What depends on anything but the driver,
    or takes more than about `steps` steps, could be true.
    """
    tree, problems = parse(expression, STORED)
    if tree is None or problems:
        return True
    try:
        program = Program(expression, *closure_of(tree, _ALL_BUT_DRIVER))
        return program.evaluate(Device(driver), steps)
    except (UnsupportedError, EvaluationError, BudgetExceeded):
        return True


def check(expression: str, label: str | None = None) -> list[Problem]:
    """All problems of a selector that somebody wants to write, in source order; none means that it is good.

    Judged as a new expression, by the rules of Kubernetes 1.37 with its default feature gates. `label` names the
    expression in the messages, for those who check many.
    """
    tree, problems = parse(expression, NEW)
    if tree is not None:
        problems += unguarded(tree)
        problems += _unsupported_in(tree)
        cost = max_cost(tree)
        if cost > MAX_COST:
            problems.append(Problem("cost", _too_costly(cost), tree.line, tree.column))
    if label is not None:
        problems = [Problem(p.kind, f"{label}: {p.message}", p.line, p.column) for p in problems]
    return sorted(problems, key=lambda problem: (problem.line, problem.column))


def _unsupported(error: UnsupportedError) -> Problem:
    return Problem("unsupported", f"{error}: say it without", error.node.line, error.node.column)


def _unsupported_in(tree: Node) -> list[Problem]:
    try:
        closure_of(tree)
    except UnsupportedError as error:
        return [_unsupported(error)]
    except EvaluationError:
        return []  # a constant that cannot be converted, which the type check has reported
    return []


def _too_costly(cost: int) -> str:
    text = "without a bound" if cost > UNLIMITED // 2**16 else f"{cost:,}"
    return (
        f"the API server would refuse this: its estimated cost is {text}, the limit {MAX_COST:,}. Text from orValue() "
        "or a join has no known size: write has(x) && x.contains(…) instead of x.orValue('').contains(…)"
    )
