"""Policy diff and its loader with one thing wrong at a time: who notices? `python -m closed.mutants` prints the table.

Wrong means: a comparison turned round, a condition negated, `and` for `or`, an effect or a flag swapped, something
found that is not told. A mutant that no test notices is a survivor; those that mean the same as the original are
named below with the reason.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from closed import changed

PROOF = Path(__file__).parents[2] / "docs" / "proofs" / "diff.md"
MODULES = {
    "dra_gate.policy.diff": ("policy/test_diff.py", "policy/test_explain.py"),
    "dra_gate.policy.meaning": (
        "policy/test_errors.py",
        "policy/test_load.py",
        "policy/test_explain.py",
        "policy/test_diff.py",
        "policy/test_compile.py",
        "admission/test_exceptions.py",
    ),
}
_LITERAL = 'Effect = Literal["loosens", "tightens", "changes"]'
_DATACLASS = "@dataclass(frozen=True, slots=True)"
# Mutants that nobody can notice, by the line they stand in and what is done to it, with the reason.
SAME: dict[tuple[str, str], str] = {
    (_LITERAL, "loosens said tightens"): "a type, which mypy holds",
    (_LITERAL, "tightens said loosens"): "a type, which mypy holds",
    (_LITERAL, "changes said loosens"): "a type, which mypy holds",
    (_DATACLASS, "flag turned round"): "nobody writes to these values, which mypy holds",
    ("@dataclass(slots=True)", "flag turned round"): "saves memory",
}

_TURNED = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_SWAPPED = {"loosens": "tightens", "tightens": "loosens", "changes": "loosens"}


@dataclass(frozen=True)
class Mutant:
    """A module with one thing wrong: in which line of the original, and what."""

    module: str
    line: int
    original: str
    what: str
    text: str


def mutants(module: str) -> Iterator[Mutant]:
    """Every mutant of a module."""
    text = changed.source(module)
    for number, node in enumerate(ast.walk(ast.parse(text))):
        if not _spoil(node):
            continue
        tree = ast.parse(text)
        spoiled = next(islice(ast.walk(tree), number, None))
        what = _spoil(spoiled)
        line = (spoiled.target if isinstance(spoiled, ast.comprehension) else spoiled).lineno  # type: ignore[attr-defined]
        yield Mutant(module, line, text.splitlines()[line - 1].strip(), what, ast.unparse(tree))


def _spoil(node: ast.AST) -> str:
    """Makes one thing wrong with the node and says what; nothing where there is none."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _TURNED:
            node.ops = [_TURNED[type(op)]()]  # type: ignore[attr-defined]
            return "comparison turned round"
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()  # type: ignore[attr-defined]
            return "and and or swapped"
        case ((ast.If(test=test) | ast.IfExp(test=test)), 0) if not isinstance(test, ast.Compare | ast.BoolOp):
            node.test = ast.UnaryOp(ast.Not(), test)  # type: ignore[attr-defined]
            return "condition negated"
        case ast.Constant(value=str(word)) if word in _SWAPPED:
            node.value = _SWAPPED[word]  # type: ignore[attr-defined]
            return f"{word} said {_SWAPPED[word]}"
        case ast.Constant(value=bool(flag)):
            node.value = not flag  # type: ignore[attr-defined]
            return "flag turned round"
        case ast.Expr(value=ast.Yield() | ast.YieldFrom()):
            node.value = ast.YieldFrom(ast.Tuple([], ast.Load()))  # type: ignore[attr-defined]
            return "not told"
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="error" | "warn"))):
            node.value = ast.Constant(None)  # type: ignore[attr-defined]
            return "not found"
        case ast.comprehension(ifs=[_, *_]):
            node.ifs = []  # type: ignore[attr-defined]
            return "filter left out"
    return ""


def _noticed(one: Mutant) -> str:
    return changed.noticed(one.module, one.text, MODULES[one.module])


def main() -> int:
    """Print what became of each; 1 when one survives that is not named."""
    parser = argparse.ArgumentParser(prog="python -m closed.mutants", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write docs/proofs/{PROOF.name} too")
    options = parser.parse_args()
    began = time.monotonic()
    made = [mutant for module in MODULES for mutant in mutants(module)]
    for module, tests in MODULES.items():
        if said := changed.noticed(module, changed.source(module), tests):
            sys.exit(f"{said} fails without any change")
    # Each run forks, which a process with threads should not.
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        said_of = []
        for one, said in zip(made, pool.map(_noticed, made), strict=True):
            said_of.append(said)
            if not said and (one.original, one.what) not in SAME:
                print(f"survives: {one.module}:{one.line}: {one.what}: {one.original}", flush=True)
    alive = [one for one, said in zip(made, said_of, strict=True) if not said]
    survivors = [one for one in alive if (one.original, one.what) not in SAME]
    lines = ["| module | mutants | noticed | mean the same | survivors |", "|---|---:|---:|---:|---:|"]
    for module in MODULES:
        all_of, alive_of, left = ([one for one in some if one.module == module] for some in (made, alive, survivors))
        same = len(alive_of) - len(left)
        lines.append(
            f"| {module.rpartition('.')[2]}.py | {len(all_of)} | {len(all_of) - len(alive_of)} | {same} | {len(left)} |"
        )
    print("\n".join(lines))
    print(f"{time.monotonic() - began:.0f} s")
    if options.write:
        head = ["# What a wrong policy diff would be noticed by", "", f"Made by `make prove-diff`. {_ABOUT}", ""]
        same_lines = [f"- `{line}`, {what}: {why}" for (line, what), why in SAME.items()]
        tail = ["", "Mutants that mean the same as the original:", "", *same_lines] if SAME else []
        PROOF.write_text("\n".join([*head, *lines, *tail, ""]))
    return 1 if survivors else 0


_ABOUT = (
    "One thing is made wrong at a time in `policy/diff.py` and `policy/meaning.py` (a comparison turned round,\n"
    "a condition negated, `and` for `or`, an effect swapped, something found that is not told), and the tests are run."
)

if __name__ == "__main__":
    sys.exit(main())
