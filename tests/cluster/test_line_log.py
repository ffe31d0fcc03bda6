"""The decision log: bounded, whole lines, taken up again after a restart."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from dra_gate.cluster.line_log import FILES, LineLog


def test_files_rotate_and_stay_within_the_limit(tmp_path: Path) -> None:
    for number in range(3):  # as after restarts
        log = LineLog(tmp_path / "new", 1000, longest=100)
        for index in range(20):
            log.write(json.dumps({"n": number, "i": index, "x": "y" * 50}).encode())
        assert log.dropped == 0
    files = sorted((tmp_path / "new").iterdir())
    assert len(files) == FILES
    assert sum(file.stat().st_size for file in files) <= 1000
    lines = [json.loads(line) for file in files for line in file.read_bytes().splitlines()]
    assert {"n": 2, "i": 19, "x": "y" * 50} in lines
    assert len(lines) >= 9


def test_what_is_too_long_or_can_not_be_written_is_counted(tmp_path: Path) -> None:
    log = LineLog(tmp_path, 1 << 20, longest=10)
    log.write(b"0123456789")
    (tmp_path / "decisions-1.jsonl").mkdir()
    log.write(b"1")
    assert log.dropped == 2


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        LineLog(tmp_path / "file", 1)


def test_turned_by_hand_each_file_begins_where_its_writer_says(tmp_path: Path) -> None:
    log = LineLog(tmp_path, 40, "arbiter", longest=10, by_hand=True)
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


@pytest.mark.parametrize("half", [b"ha", b"h" * 200_000])
@pytest.mark.parametrize("before", [b"", b"whole\n", b"one\ntwo\n"])
def test_half_a_line_that_a_crash_left_is_not_the_last_and_spoils_no_other(
    tmp_path: Path, half: bytes, before: bytes
) -> None:
    (tmp_path / "decisions-1.jsonl").write_bytes(before + half)
    log = LineLog(tmp_path, 1 << 22)
    assert log.last() == (before.splitlines() or [b""])[-1]
    log.write(b"next")
    assert (tmp_path / "decisions-1.jsonl").read_bytes() == before + b"next\n"


def test_a_disk_that_was_full_spoils_no_other_line_and_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(io.BufferedWriter):
        def write(self, data: Any) -> int:
            super().write(data[:3])
            raise OSError(28, "No space left on device")

    log = LineLog(tmp_path, 1 << 20)
    for line, full in ((b"first", False), (b"second", True), (b"third", True), (b"fourth", False)):
        with monkeypatch.context() as patch:
            if full:
                patch.setattr(Path, "open", lambda self, _mode: Full(io.FileIO(self, "a")))
            log.write(line)
    assert (tmp_path / "decisions-1.jsonl").read_bytes() == b"first\nfourth\n"
    assert log.dropped == 2
    assert [one.getMessage() for one in caplog.records] == [
        f"{tmp_path}/decisions-1.jsonl: a line is not kept: [Errno 28] No space left on device"
    ]
