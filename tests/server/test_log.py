"""Decision lines: whole, in order, and never in the way of a verdict."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from pathlib import Path

from dra_gate.server.log import JsonFormatter, LineWriter, timestamp
from server.process import review, served


def test_lines_arrive_whole_and_in_order_and_close_writes_the_rest() -> None:
    reading, writing = os.pipe()
    received = bytearray()

    def drain() -> None:
        while part := os.read(reading, 65536):
            received.extend(part)

    reader = threading.Thread(target=drain)
    reader.start()
    writer = LineWriter(writing)
    writer.start()
    lines = [f"{number} {'x' * (number % 5000)}\n".encode() for number in range(500)]
    for line in lines:
        writer.write(line)
    writer.close()
    os.close(writing)
    reader.join(5)
    os.close(reading)
    assert bytes(received) == b"".join(lines)
    assert writer.dropped == 0


def test_a_reader_that_stands_still_costs_lines_not_time() -> None:
    reading, writing = os.pipe()
    writer = LineWriter(writing, capacity=100)
    writer.start()
    line = b"x" * 4095 + b"\n"
    began = time.perf_counter()
    for _ in range(1000):
        writer.write(line)
    writer.close(timeout=0.2)
    assert time.perf_counter() - began < 5
    assert writer.dropped >= 1000 - 100 - 64  # the pipe itself takes 64 KiB
    os.close(reading)
    os.close(writing)


def test_a_reader_that_is_gone_costs_lines_not_the_thread() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = LineWriter(writing)
    writer.start()
    writer.write(b"one\n")
    deadline = time.monotonic() + 10
    while not writer.dropped:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    writer.write(b"two\n")
    writer.close()
    assert writer.dropped == 2
    os.close(writing)


def test_records_become_one_line_of_json_each() -> None:
    formatter = JsonFormatter()
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.getLogger("a.b").makeRecord(
            "a.b", logging.ERROR, __file__, 1, "it %s", ("broke\n",), sys.exc_info()
        )
    text = formatter.format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert (line["level"], line["logger"], line["msg"]) == ("error", "a.b", "it broke\n")
    assert "ValueError: two\nlines" in line["error"]


def test_timestamps_are_rfc_3339_in_utc() -> None:
    assert timestamp(0.0) == "1970-01-01T00:00:00.000Z"
    assert timestamp(1_764_460_800.0625) == "2025-11-30T00:00:00.062Z"


SECRET = "hunter2"


def test_nothing_that_is_in_a_pod_reaches_log_metrics_or_pages(tmp_path: Path) -> None:
    question = json.loads(review("u-1"))
    pod = question["request"]["object"]
    pod["metadata"] |= {"labels": {"l": SECRET}, "annotations": {SECRET: SECRET}}
    pod["spec"] |= {"imagePullSecrets": [{"name": SECRET}], "nodeName": SECRET}
    container = pod["spec"]["containers"][0]
    container |= {"image": SECRET, "args": [SECRET], "env": [{"name": "TOKEN", "value": SECRET}, {"name": SECRET}]}
    question["request"]["userInfo"]["extra"] = {"token": [SECRET]}
    question["request"]["oldObject"] = pod
    good = json.dumps(question).encode()
    wrong = [
        json.dumps(question | {"kind": SECRET}).encode(),
        json.dumps(question | {"apiVersion": {SECRET: SECRET}}).encode(),
        good[:-2],
        good + SECRET.encode(),
        SECRET.encode(),
    ]
    with served(tmp_path) as one:
        for route in ("/mutate", "/validate", f"/mutate?timeout={SECRET}", f"/validate?token={SECRET}", f"/{SECRET}"):
            for body in (good, *wrong):
                one.call("POST", route, body)
            one.call("POST", route, good, SECRET)
        pages = [one.page(path)[1] for path in ("/metrics", "/verdicts", "/", "/tenants/lilac", "/readyz")]
        assert one.terminate() == 0
        lines = one.lines()
        log = one.log.read_text()
    assert sum(line["msg"] == "decision" for line in lines) == 4
    assert sum(line["msg"] == "refused" for line in lines) == 24
    assert SECRET not in log
    assert not any(SECRET in page for page in pages)
