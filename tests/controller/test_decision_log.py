"""The decision log: bounded, whole lines, taken up again after a restart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dra_gate.controller import decision_log
from dra_gate.controller.decision_log import FILES, DecisionLog


def test_files_rotate_and_stay_within_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "LINE_LIMIT", 100)
    for number in range(3):  # as after restarts
        log = DecisionLog(tmp_path / "new", 1000)
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
    log = DecisionLog(tmp_path, 1 << 20)
    monkeypatch.setattr(decision_log, "LINE_LIMIT", 10)
    log.write(b"0123456789")
    (tmp_path / "decisions-1.jsonl").mkdir()
    log.write(b"1")
    assert log.dropped == 2


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        DecisionLog(tmp_path / "file", 1)
