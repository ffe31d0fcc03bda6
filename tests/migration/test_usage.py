"""How busy devices were: in which lane it counts, and what a Prometheus is asked. It is constructed here."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cluster.conftest import kubeconfig
from cluster.fake_api import FakeApi
from dra_gate.cli.canary import command
from dra_gate.cluster import prometheus as module
from dra_gate.cluster.cohort_maps import cohort_maps
from dra_gate.cluster.gate import GATES_PATH
from dra_gate.cluster.policy_map import MAPS_PATH
from dra_gate.cluster.prometheus import PrometheusError, usage
from dra_gate.migration.cohort import HOUR, Cohorts, Key
from dra_gate.migration.compare import compare
from dra_gate.migration.counting import Facts
from dra_gate.migration.report import as_text, report
from dra_gate.migration.tally import Tally
from dra_gate.migration.usage import Used, add_usage, lane_of
from dra_gate.migration.waves import Move, Space
from policy_publish.sets import gate, made, published

START = 1_789_999_200_000  # an hour begins
S = START // 1000


def space(lane: str, at: int = 0, source: str | None = None, name: str = "lilac") -> Space:
    """`source`: moved from there by command at `at`; None: labelled by somebody at `at`."""
    move = None if source is None else Move(source, lane, at, "ada", "x")
    return Space(name, "lilac", lane, move, labelled_at=0 if source is not None else at)


@pytest.mark.parametrize(
    ("one", "lane"),
    [
        (space(""), "device-plugin"),
        (space("dra"), "dra"),
        (space("device-plugin"), "device-plugin"),
        (space("else"), ""),
        (space("dra", S, ""), "dra"),
        (space("dra", S + 1, ""), ""),
        (space("dra", S + 3600, ""), "device-plugin"),
        (space("device-plugin", S + 3600, "dra"), "dra"),
        (space("device-plugin", S + 7200, "else"), ""),
        (space("dra", S + 3600), ""),  # who labelled it says not what it was
        (space("dra", S), "dra"),
    ],
)
def test_the_lane_of_an_hour(one: Space, lane: str) -> None:
    assert lane_of(one, START, START + HOUR) == lane


def used(pod: str, hour: int, measured: float, busy: float, namespace: str = "lilac") -> Used:
    since = START + hour * HOUR
    return Used(namespace, pod, since, since + HOUR, measured, busy)


def test_it_counts_in_the_lane_that_the_pod_began_in_and_in_the_hour_of_use() -> None:
    cohorts = Cohorts()
    spaces = {"lilac": space("dra", S + 3600, ""), "mint": space("dra", S + 1800, "", "mint")}
    found = [
        used("old", 0, 3600, 1800),
        used("old", 1, 3600, 900),
        used("new", 1, 100, 90),
        used("unclear", 0, 50, 50, "mint"),
        used("exporter", 0, 7, 0, "monitoring"),
    ]
    assert add_usage(cohorts, found, spaces) == 50
    cells = {
        (hour, key.lane, key.tenant): (cell.measured, cell.busy) for hour, key, cell in cohorts.between(0, 1 << 60)
    }
    assert cells == {
        (START, "device-plugin", "lilac"): (3600, 1800),
        (START + HOUR, "device-plugin", "lilac"): (3600, 900),
        (START + HOUR, "dra", "lilac"): (100, 90),
    }
    held = compare(cohorts, START, START + 2 * HOUR).held
    assert (held["dra"].busy, held["device-plugin"].measured, held["device-plugin"].busy) == (0.9, 2, 0.375)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 10_000)), max_size=20))
def test_nothing_measured_is_lost(found: list[tuple[str, int, int]]) -> None:
    cohorts = Cohorts()
    all_used = [used(pod, hour, measured, measured / 2) for pod, hour, measured in found]
    left = add_usage(cohorts, all_used, {"lilac": space("dra", S + 5400, "")})
    counted = sum(cell.measured for _, _, cell in cohorts.between(0, 1 << 60))
    assert counted + left == sum(one.measured for one in all_used)


def test_the_report_says_so() -> None:
    cohorts = Cohorts()
    for lane in ("dra", "device-plugin"):
        cell = cohorts.cell(START, Key(lane, "lilac", 1, "h100"))  # type: ignore[arg-type]
        cell.submitted = cell.started = 5
        cell.held = 7200
        cell.bind(1000)
    add_usage(cohorts, [used("p", 0, 3600, 1800)], {"lilac": space("dra")})
    told = as_text(report(cohorts, START, START + HOUR, 0.05))
    assert "2.0 device-hours held; of 1.0 measured 50 % busy" in told
    assert "others" not in told


# -- asking -----------------------------------------------------------------------------------------------------------

Answer = tuple[int, bytes]


class Fake:
    """Answers /api/v1/query_range as Prometheus documents it."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.answer: Callable[[dict[str, str]], Answer] = lambda _: matrix()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                pass

            def do_GET(self) -> None:
                split = urlsplit(self.path)
                if split.path != "/prefix/api/v1/query_range":
                    self.send_error(404)
                    return
                fields = {key: values[0] for key, values in parse_qs(split.query).items()}
                outer.asked.append(fields)
                code, body = outer.answer(fields)
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/prefix/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def matrix(*series: tuple[dict[str, str], list[tuple[int, str]]]) -> Answer:
    result = [{"metric": labels, "values": [[at, value] for at, value in values]} for labels, values in series]
    return 200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()


@pytest.fixture
def fake() -> Iterator[Fake]:
    found = Fake()
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_whole_hours_and_the_one_that_is_not_over(fake: Fake) -> None:
    mine = {"namespace": "lilac", "pod": "p"}
    relabelled = {"namespace": "gpu-operator", "pod": "dcgm", "exported_namespace": "mint", "exported_pod": "q"}

    def answer(fields: dict[str, str]) -> Answer:
        counts = "count_over_time" in fields["query"]
        if fields["start"] == fields["end"]:
            return matrix((mine, [(int(fields["end"]), "20" if counts else "5")]))
        return matrix(
            (mine, [(S + 3600, "60" if counts else "30"), (S + 7200, "60" if counts else "NaN")]),
            (relabelled, [(S + 7200, "120" if counts else "12")]),
        )

    fake.answer = answer
    now = START + 2 * HOUR + 20 * 60_000 + 30_000
    found = sorted(usage(fake.url, START, START + 3 * HOUR, now), key=lambda one: (one.since, one.namespace))
    assert found == [
        Used("lilac", "p", START, START + HOUR, 3600, 1800),
        Used("mint", "q", START + HOUR, START + 2 * HOUR, 7200, 720),
        Used("lilac", "p", START + 2 * HOUR, START + 2 * HOUR + 1_200_000, 1200, 300),
    ]
    whole, rest = fake.asked[0], fake.asked[2]
    assert (whole["start"], whole["end"], whole["step"]) == (str(S + 3600), str(S + 7200), "3600")
    assert rest["start"] == rest["end"] == str(S + 7200 + 1200)
    assert "[3600s:60s]" in whole["query"]
    assert "[1200s:60s]" in rest["query"]
    assert 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{pod!=""} or DCGM_FI_DEV_GPU_UTIL{pod!=""} / 100' in whole["query"]


def test_the_past_takes_no_question_about_now(fake: Fake) -> None:
    assert list(usage(fake.url, START, START + HOUR, START + 9 * HOUR)) == []
    assert len(fake.asked) == 2


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((503, json.dumps({"status": "error", "errorType": "timeout", "error": "query timed out"}).encode()),
         "503 timeout: query timed out"),
        ((200, b"<html>sign in"), "200, and no JSON; is it a Prometheus? <html>sign in"),
        ((302, b""), "302, and no JSON"),
        ((200, b'{"status":"success","data":{"resultType":"vector","result":[]}}'), "no matrix"),
        (matrix(({"namespace": "a", "pod": "b"}, [(S, "x")])), "a sample is no time and value"),
        ((200, b" " * 2000), "longer than"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_told(fake: Fake, monkeypatch: pytest.MonkeyPatch, answer: Answer, says: str) -> None:
    monkeypatch.setattr(module, "_MOST", 1000)
    fake.answer = lambda _: answer
    with pytest.raises(PrometheusError) as caught:
        list(usage(fake.url, START, START + HOUR, START + 9 * HOUR))
    assert says in str(caught.value)
    assert fake.url in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "ftp://example.com", "http://[", ""])
def test_who_does_not_answer_is_told(url: str) -> None:
    with pytest.raises(PrometheusError):
        list(usage(url, START, START + HOUR, START + 9 * HOUR))


# -- by command -------------------------------------------------------------------------------------------------------


def counted(api: FakeApi) -> None:
    """A cluster in which Pods of both lanes were counted in the last whole hour."""
    hour = time.time_ns() // 1_000_000 // HOUR * HOUR - HOUR
    tally = Tally(1)
    for number, lane in enumerate(("dra", "device-plugin")):
        facts = Facts(hour + 1000, bound=hour + 2000, started=hour + 3000, ended=hour + HOUR, version=number + 1)
        tally.see(f"u{number}", Key(lane, "maple", 1, "h100"), facts, hour + HOUR)  # type: ignore[arg-type]
    for one in cohort_maps(tally.dumps(time.time_ns() // 1_000_000, 9), 1):
        api.put(MAPS_PATH, one)
    api.put(MAPS_PATH, published(1, namespaces=("maple-a", "maple-b")))
    api.put(GATES_PATH, gate(made(1, namespaces=("maple-a", "maple-b")).digest))
    for name, lane in (("maple-a", "dra"), ("maple-b", "device-plugin"), ("kube-system", "")):
        api.put(
            "/api/v1/namespaces", {"metadata": {"name": name, "labels": {"dra-gate.io/lane": lane} if lane else {}}}
        )
    review = {"status": {"userInfo": {"username": "ada"}}}
    api.fault = lambda one: (201, review, {}) if one.path.endswith("/selfsubjectreviews") else None


def test_the_command(fake: Fake, tmp_path: Path) -> None:
    def answer(fields: dict[str, str]) -> Answer:
        if fields["start"] == fields["end"] and "[3600s" not in fields["query"]:
            return matrix()
        value = "60" if "count_over" in fields["query"] else "45"
        return matrix(*(({"namespace": name, "pod": "p"}, [(int(fields["end"]), value)]) for name in ("maple-a", "x")))

    fake.answer = answer
    api = FakeApi()
    try:
        counted(api)
        config = str(kubeconfig(tmp_path / "config", api.url))
        words = ["report", "--kubeconfig", config, "--prometheus"]
        told = CliRunner().invoke(command, [*words, fake.url])
        assert (told.exit_code, told.stderr) == (0, "")
        assert "dra: 1 Pods" in told.stdout
        assert "device-hours held; of 1.0 measured 75 % busy" in told.stdout
        assert told.stdout.count("busy") == 1
        told = CliRunner().invoke(command, [*words, "http://127.0.0.1:1"])
        assert (told.exit_code, "how busy devices were can't be asked" in told.stderr) == (2, True)
    finally:
        api.stop()
    told = CliRunner().invoke(command, ["report", "--cohorts", "x", "--prometheus", fake.url])
    assert (told.exit_code, "leave --cohorts out" in told.stderr) == (2, True)
    told = CliRunner().invoke(command, ["report", "--policies", "x"])
    assert (told.exit_code, "give both" in told.stderr) == (2, True)
