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
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import Phase

TESTS = Path(__file__).parents[1]
_LIBRARIES = ("jsonschema", "yaml", "click.testing", "msgspec", "cel_expr_python", "kubernetes.client")
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
        sys.meta_path.insert(0, _Finder(module, text))
        # The same examples each time, and none made small: that something fails is enough.
        hypothesis.settings.register_profile("noticed", phases=(Phase.explicit, Phase.generate), derandomize=True)
        hypothesis.settings.load_profile("noticed")
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


class _Loader(SourceFileLoader):
    """Loads the changed text in the place of the file's."""

    def __init__(self, module: str, text: str) -> None:
        super().__init__(module, str(_file(module)))
        self._text = text

    def get_code(self, fullname: str) -> types.CodeType:
        """The code of the text; nothing is cached."""
        return self.source_to_code(self._text.encode(), self.path)


class _Finder(MetaPathFinder):
    """Finds the changed module, before anybody has imported it."""

    def __init__(self, module: str, text: str) -> None:
        self._module, self._text = module, text

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """The changed module's spec; None for all others."""
        if fullname != self._module:
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(self._module, self._text))


@contextmanager
def _silent() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
        with suppress(SystemExit):
            yield
