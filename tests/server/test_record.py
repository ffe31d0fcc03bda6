"""Recorded reviews: bounded, whole lines, and never in anybody's way."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from dra_gate.admission.redact import recorded
from dra_gate.cluster import line_log
from dra_gate.cluster.files import read_documents, read_manifests
from dra_gate.server import record
from dra_gate.server.record import Recorder


def line_of(_route: str, body: bytes) -> bytes | None:
    return body or None


def write(folder: Path, limit: int, bodies: list[bytes]) -> Recorder:
    recorder = Recorder(folder, limit, line_of)
    recorder.start()
    for body in bodies:
        recorder.take("mutate", body)
    recorder.close(10)
    return recorder


def test_lines_are_read_back_as_documents(tmp_path: Path) -> None:
    recorder = write(tmp_path / "new", 1 << 20, [b'{"kind":"A","n":1}', b"", b'{"kind":"A","n":2}'])
    assert recorder.dropped == 0
    assert [document.value["n"] for document in read_manifests([str(tmp_path / "new")])] == [1, 2]


def test_a_torn_line_at_the_end_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, 1 << 20, [b'{"n":1}'])
    with (tmp_path / "reviews-1.jsonl").open("ab") as file:
        file.write(b'{"n":')
    assert [document.value for document in read_documents(str(tmp_path / "reviews-1.jsonl"))] == [{"n": 1}]


def test_half_a_line_from_before_a_crash_spoils_no_other(tmp_path: Path) -> None:
    write(tmp_path, 1 << 20, [b'{"n":1}'])
    with (tmp_path / "reviews-1.jsonl").open("ab") as file:
        file.write(b'{"n":')
    write(tmp_path, 1 << 20, [b'{"n":2}', b'{"n":3}'])
    assert [document.value["n"] for document in read_manifests([str(tmp_path)])] == [1, 2, 3]


def test_half_a_line_on_a_disk_that_was_full_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BufferedWriter):
        def write(self, data: Any) -> int:
            super().write(data[:3])
            raise OSError(28, "No space left on device")

    recorder = Recorder(tmp_path, 1 << 20, line_of)
    for body, full in ((b'{"n":1}', False), (b'{"n":2}', True), (b'{"n":3}', False)):
        with monkeypatch.context() as patch:
            if full:
                patch.setattr(Path, "open", lambda self, _mode: Full(io.FileIO(self, "a")))
            recorder.take("mutate", body)
            recorder._flush()
    assert recorder.dropped == 1
    assert [document.value["n"] for document in read_manifests([str(tmp_path)])] == [1, 3]


def test_files_rotate_and_stay_within_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "REVIEW_LIMIT", 100)
    body = json.dumps({"x": "y" * 60}).encode()
    for _ in range(3):  # as after restarts
        write(tmp_path, 1000, [body] * 20)
    files = sorted(tmp_path.iterdir())
    assert len(files) == line_log.FILES
    assert sum(file.stat().st_size for file in files) <= 1000
    assert all(json.loads(line) for file in files for line in file.read_bytes().splitlines())


def test_what_is_too_large_or_too_much_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "REVIEW_LIMIT", 10)
    assert write(tmp_path, 1 << 20, [b'"0123456789"', b'"1"']).dropped == 1
    monkeypatch.setattr(record, "WAITING_LIMIT", 5)
    recorder = Recorder(tmp_path, 1 << 20, line_of)
    for _ in range(3):
        recorder.take("mutate", b'"1"')
    assert recorder.dropped == 2


def test_a_full_disk_is_counted_and_nobody_waits(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 1 << 20, line_of)
    tmp_path.joinpath("reviews-1.jsonl").mkdir()
    recorder.start()
    recorder.take("mutate", b'"1"')
    recorder.close(10)
    assert recorder.dropped == 1


def test_what_is_no_json_is_counted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 1 << 20, recorded)
    recorder.start()
    recorder.take("mutate", b"{")
    recorder.close(10)
    assert recorder.dropped == 1


def test_whatever_redaction_raises_the_next_review_is_kept(tmp_path: Path) -> None:
    def odd(_route: str, body: bytes) -> bytes:
        if body == b"odd":
            raise RecursionError
        return body

    recorder = Recorder(tmp_path, 1 << 20, odd)
    recorder.start()
    for body in (b"odd", b'"1"'):
        recorder.take("mutate", body)
    recorder.close(10)
    assert recorder.dropped == 1
    assert (tmp_path / "reviews-1.jsonl").read_bytes() == b'"1"\n'
