"""The decision log: bounded, whole lines, taken up again after a restart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dra_gate.controller import line_log
from dra_gate.controller.line_log import FILES, LineLog


def test_files_rotate_and_stay_within_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_log, "LINE_LIMIT", 100)
    for number in range(3):  # as after restarts
        log = LineLog(tmp_path / "new", 1000)
        for index in range(20):
            log.write(json.dumps({"n": number, "i": index, "x": "y" * 50}).encode())
        assert log.dropped == 0
    files = sorted((tmp_path / "new").iterdir())
    assert len(files) == FILES
    assert sum(file.stat().st_size for file in files) <= 1000
    lines = [json.loads(line) for file in files for line in file.read_bytes().splitlines()]
    assert {"n": 2, "i": 19, "x": "y" * 50} in lines
    assert len(lines) >= 9


def test_what_is_too_long_or_can_not_be_written_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LineLog(tmp_path, 1 << 20)
    monkeypatch.setattr(line_log, "LINE_LIMIT", 10)
    log.write(b"0123456789")
    (tmp_path / "decisions-1.jsonl").mkdir()
    log.write(b"1")
    assert log.dropped == 2


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        LineLog(tmp_path / "file", 1)


def test_turned_by_hand_each_file_begins_where_its_writer_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_log, "LINE_LIMIT", 10)
    log = LineLog(tmp_path, 40, "arbiter", by_hand=True)
    assert (log.last(), log.full()) == (b"", False)
    log.turn()  # nothing is there: nothing to turn
    log.write(b"a line longer than a share")
    assert log.full()
    log.write(b"and one more")
    assert (len(list(tmp_path.iterdir())), log.dropped) == (1, 0)
    for number in range(FILES + 1):
        log.turn()
        assert not log.full()
        log.write(b"%d" % number)
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"arbiter-{n}.jsonl" for n in range(3, 3 + FILES)]
    again = LineLog(tmp_path, 40, "arbiter", by_hand=True)
    assert again.last() == b"%d" % FILES
    LineLog(tmp_path, 40).write(b"x")
    assert again.last() == b"%d" % FILES, "another log's files in the folder are not ours"


def test_half_a_line_that_a_crash_left_is_not_the_last(tmp_path: Path) -> None:
    LineLog(tmp_path, 1 << 20).write(b"whole")
    (newest,) = tmp_path.iterdir()
    newest.write_bytes(newest.read_bytes() + b"ha")
    assert LineLog(tmp_path, 1 << 20).last() == b"whole"
