"""Tests run against a changed module: who notices?

Each run is a fork of a process that has loaded the libraries and none of dra-gate, so that it costs little and every
import of the changed module, by whomever, gets the changed one.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
_LIBRARIES = ("hypothesis", "jsonschema", "yaml", "click.testing", "msgspec", "cel_expr_python", "kubernetes.client")
_SECONDS = 300  # no run takes that long unless the change makes it loop
CRASH = "no test: the run ended by itself"


def source(module: str) -> str:
    """The text of a module of dra_gate."""
    return _file(module).read_text(encoding="utf-8")


def noticed(module: str, text: str, tests: Sequence[str]) -> str:
    """The first of `tests` (pytest's words, paths below tests/) that fails while `text` is the module; empty: none."""
    for library in _LIBRARIES:
        importlib.import_module(library)
    assert not any(name.startswith("dra_gate.") for name in sys.modules), "loaded before the change"
    mine, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_run, args=(theirs, module, text, tests))
    child.start()
    theirs.close()
    try:
        said: str = mine.recv() if mine.poll(_SECONDS) else "no test: it takes for ever"
    except EOFError:
        said = CRASH
    child.kill()
    child.join()
    return said


def _run(answer: Connection, module: str, text: str, tests: Sequence[str]) -> None:
    first = _First()
    with _silent():
        try:
            _put(module, text)
        except BaseException:  # noqa: BLE001 - whatever it is, nobody could load such a module
            answer.send("no test: it does not load")
            os._exit(0)
        os.chdir(TESTS.parent)
        words = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not controlplane"]
        files = [str(TESTS / one) if one.endswith(".py") else one for one in tests]
        code = pytest.main([*words, *files], plugins=[first])
    answer.send(first.name or ("" if code == 0 else f"pytest ended with {code}"))
    os._exit(0)


class _First:
    """Remembers the first test that fails, or file that can't be read."""

    name = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid.partition("/")[2] or report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid


def _file(module: str) -> Path:
    return TESTS.parent / "webhook" / Path(*module.split(".")).with_suffix(".py")


def _put(module: str, text: str) -> None:
    package, _, name = module.rpartition(".")
    parent = importlib.import_module(package)
    if module in sys.modules:  # its package has loaded it
        exec(compile(text, str(_file(module)), "exec"), sys.modules[module].__dict__)
        return
    made = types.ModuleType(module)
    made.__file__, made.__package__ = str(_file(module)), package
    made.__spec__ = importlib.util.spec_from_file_location(module, _file(module))
    sys.modules[module] = made
    exec(compile(text, str(_file(module)), "exec"), made.__dict__)
    setattr(parent, name, made)


@contextmanager
def _silent() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
        with suppress(SystemExit):
            yield
