"""`dra-gate replay` on the arbiter's log: the same again, what differs, and what can't be read, each in clear words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dra_gate.cli.main import root
from dra_gate.fairness.arbiter import Arbiter
from dra_gate.fairness.events import TenantRules
from dra_gate.fairness.log import Recorder
from fairness.scene import capacity, config, pod
from fairness.test_log import history


def run(*args: object) -> Result:
    return CliRunner().invoke(root, ["replay", *map(str, args)])


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    return history(6)


def _write(file: Path, lines: list[bytes]) -> Path:
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    return file


def test_the_same_again(lines: list[bytes], tmp_path: Path) -> None:
    decisions = sum(b'"granted"' in line or b'"revised"' in line for line in lines)
    done = run(_write(tmp_path / "log.jsonl", lines))
    assert (done.exit_code, done.stdout) == (0, f"the same {decisions} decisions, from {len(lines)} lines\n")


def test_a_folder_is_read_by_number(lines: list[bytes], tmp_path: Path) -> None:
    """As files are rotated; each begins with a state line, which is checked, too."""
    starts = [index for index, line in enumerate(lines) if b'"kind":"state"' in line]
    assert len(starts) > 1
    parts = [lines[begin:end] for begin, end in zip(starts, [*starts[1:], len(lines)], strict=True)]
    for number, part in enumerate(parts, 10 - len(parts) // 2):  # 9 comes before 10
        _write(tmp_path / f"arbiter-{number}.jsonl", part)
    assert run(tmp_path).exit_code == 0
    _write(tmp_path / "arbiter-9.jsonl", parts[0][:-1])
    done = run(tmp_path)
    assert done.exit_code == 2
    assert "1 lines are missing" in done.stdout
    assert "differ" not in done.stdout


def test_what_differs_is_shown(lines: list[bytes], tmp_path: Path) -> None:
    number = next(index for index, line in enumerate(lines) if b'"granted"' in line)
    altered = lines[number].replace(b'"aged":false', b'"aged":true')
    log = _write(tmp_path / "log.jsonl", [*lines[:number], altered, *lines[number + 1 :]])
    done = run(log)
    assert done.exit_code == 1
    assert f"log.jsonl:{number + 1}: line {number + 8} differs" in done.stdout
    assert f"written: {altered.decode()}\n  now:     {lines[number].decode()}" in done.stdout
    assert "1 of " in done.stdout.splitlines()[-1]
    (found,) = json.loads(run(log, "-o", "json").stdout)["differences"]
    assert (found["sequence"], found["wrote"], found["decided"]) == (
        number + 8,
        altered.decode(),
        lines[number].decode(),
    )


def test_of_a_long_line_only_what_differs_is_shown(lines: list[bytes], tmp_path: Path) -> None:
    number = next(index for index, line in enumerate(lines) if b'"kind":"state"' in line and len(line) > 2000)
    altered = lines[number].replace(b'"tags":[', b'"tags":[{"tenant":"x","tags":{}},')
    done = run(_write(tmp_path / "log.jsonl", [*lines[:number], altered, *lines[number + 1 :]]))
    written = next(line for line in done.stdout.splitlines() if line.startswith("  written: "))
    assert '"tags":[{"tenant":"x"' in written
    assert len(written) < 1000


def test_a_crash_is_told_and_is_no_fault(lines: list[bytes], tmp_path: Path) -> None:
    """Half a last line, and a pass of which not everything was written."""
    number = next(index for index, line in enumerate(lines) if b'"granted"' in line)
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\n".join([*lines[:number], lines[number][:40]]))
    done = run(log)
    assert done.exit_code == 0
    assert f"note: {log}:{number + 1}: half a line: the controller was stopped as it wrote it" in done.stdout
    assert f"note: {log}:{number}: the last pass there made" in done.stdout
    told = json.loads(run(log, "-o", "json").stdout)
    assert (told["differences"], told["faults"], len(told["notes"])) == ([], [], 2)


def test_garbage_is_told_and_what_follows_goes_on_at_the_next_state(lines: list[bytes], tmp_path: Path) -> None:
    done = run(_write(tmp_path / "log.jsonl", [*lines[:5], b"garbage", *lines[5:]]))
    assert done.exit_code == 2
    assert done.stdout.count("log.jsonl:6: no line of an arbiter's log") == 1
    states = [index for index, line in enumerate(lines) if b'"kind":"state"' in line and index > 5]
    assert f"from {5 + len(lines) - states[0]} lines" in done.stdout
    done = run(_write(tmp_path / "log.jsonl", lines[1:]))
    assert done.exit_code == 2
    assert "log.jsonl:1: it does not begin with a state line" in done.stdout


def test_a_new_term_may_begin_anew(tmp_path: Path) -> None:
    """Another controller led in between, or the last number is not known any more."""
    written: list[bytes] = []
    for sequence in (40, 0):
        recorder = Recorder(Arbiter(), written.append, sequence)
        recorder.state()
        recorder.take(config({"t": TenantRules(wants=("h100",))}))
        recorder.take(capacity(h100=[4]))
        recorder.take(pod("a", "t"))
        recorder.decide(1)
    done = run(_write(tmp_path / "log.jsonl", written))
    assert done.exit_code == 0
    assert "log.jsonl:7: a controller begins to lead" in done.stdout
    assert "the same 2 decisions, from 12 lines" in done.stdout


def test_promises_are_checked(lines: list[bytes], tmp_path: Path) -> None:
    """By the checker, which knows nothing of how decisions are made."""
    log = _write(tmp_path / "log.jsonl", lines)
    done = run(log, "--check")
    assert done.exit_code == 0
    assert done.stdout.endswith("; every promise kept\n")
    number = next(index for index, line in enumerate(lines) if b'"granted"' in line and b'"tier":0' in line)
    _write(log, [*lines[:number], lines[number].replace(b'"tier":0', b'"tier":1'), *lines[number + 1 :]])
    done = run(log, "--check")
    assert done.exit_code == 1
    assert f"log.jsonl:{number + 1}: line {number + 8} breaks tier: " in done.stdout
    assert json.loads(run(log, "--check", "-o", "json").stdout)["violations"][0]["rule"] == "tier"
    assert "violations" not in json.loads(run(log, "-o", "json").stdout)


def test_what_it_is_no_log_of(tmp_path: Path, lines: list[bytes]) -> None:
    log = _write(tmp_path / "log.jsonl", lines)
    assert "is no arbiter's log, and decision records need --snapshot" in run(_write(tmp_path / "x", [b"{}"])).stderr
    assert "are for decision records" in run(log, "--pod", "a/b").stderr
    assert run(tmp_path / "none").exit_code == 2
    (tmp_path / "empty").mkdir()
    assert "no file *.jsonl in it" in run(tmp_path / "empty").stderr
