"""Building and finding the programs, without compiling anything."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from controlplane import build

UPSTREAM = """module k8s.io/kubernetes

go 1.25.7

require (
	k8s.io/api v0.0.0
	k8s.io/utils v0.0.0-20260108192941-914a6e750570
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/client-go => ./staging/src/k8s.io/client-go
)
"""


def fill(folder: Path, names: tuple[str, ...] = build.PROGRAMS) -> None:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch(mode=0o755)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("DRA_GATE_CONTROLPLANE_BIN", "DRA_GATE_KUBERNETES_VERSION"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "dra-gate" / "controlplane"


def test_versions_come_from_the_modules_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.Versions.wanted() == build.Versions("1.37.2", "3.7.3")
    monkeypatch.setenv("DRA_GATE_KUBERNETES_VERSION", "v1.36.4")
    assert build.Versions.wanted() == build.Versions("1.36.4", "3.7.3")


def test_another_version_is_pinned_from_its_own_module_file() -> None:
    text = build.repinned(UPSTREAM, "1.36.4")
    assert "\ngo 1.25.7\n" in text
    assert "\nrequire k8s.io/kubernetes v1.36.4\n" in text
    assert "\tk8s.io/api => k8s.io/api v0.36.4\n\tk8s.io/client-go => k8s.io/client-go v0.36.4\n)" in text
    assert "k8s.io/utils" not in text  # not of the tree: resolved by Go
    assert text.count("k8s.io/kubernetes/cmd/") == 4


@pytest.mark.parametrize(("upstream", "version"), [(UPSTREAM, "1.36"), (UPSTREAM, "2.0.0"), ("module m\n", "1.36.4")])
def test_what_cannot_be_pinned_is_refused(upstream: str, version: str) -> None:
    with pytest.raises(build.BuildError, match="three numbers"):
        build.repinned(upstream, version)


def test_ready_made_programs_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "mine")
    monkeypatch.setenv("DRA_GATE_CONTROLPLANE_BIN", str(tmp_path / "mine"))
    assert build.ensure_programs() == tmp_path / "mine"
    (tmp_path / "mine" / "etcd").chmod(0o644)
    (tmp_path / "mine" / "kubectl").unlink()
    with pytest.raises(build.BuildError, match="no executable kubectl, etcd"):
        build.ensure_programs()


def test_two_runs_build_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    first_is_in, second_waits, may_finish = threading.Event(), threading.Event(), threading.Event()

    def say(text: str, *, quiet: bool) -> None:
        if "waiting for it" in text:
            second_waits.set()

    def slow(programs: Sequence[str], versions: build.Versions, home: Path, *, quiet: bool) -> None:
        built.append(versions)
        first_is_in.set()
        assert may_finish.wait(10)
        fill(home / "bin")

    monkeypatch.setattr(build, "_build", slow)
    monkeypatch.setattr(build, "_say", say)
    found: list[Path] = []
    runs = [threading.Thread(target=lambda: found.append(build.ensure_programs())) for _ in range(2)]
    runs[0].start()
    assert first_is_in.wait(10)
    runs[1].start()
    assert second_waits.wait(10)
    may_finish.set()
    for run in runs:
        run.join(10)
    assert len(built) == 1
    assert found == [cache / "1.37.2-3.7.3-{}-{}".format(*build._platform()) / "bin"] * 2


def test_only_what_is_missing_is_built(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def record(command: list[str], what: str, folder: Path, *others: object, quiet: bool) -> None:
        built.append(command[-1])
        Path(command[command.index("-o") + 1]).touch(mode=0o755)

    monkeypatch.setattr(build, "_run", record)
    monkeypatch.setattr(build, "_find_go", lambda *, quiet: Path("/usr/bin/go"))
    folder = cache / "1.37.2-3.7.3-{}-{}".format(*build._platform()) / "bin"
    fill(folder)
    kept = {path.name: path.stat().st_ino for path in folder.iterdir()}
    assert build.ensure_allocate(quiet=True) == folder / build.allocate_program()
    assert built == ["./allocate"]
    assert {name: (folder / name).stat().st_ino for name in kept} == kept
    (folder / "etcd").unlink()
    build.ensure_programs(quiet=True)
    assert built == ["./allocate", "go.etcd.io/etcd/server/v3"]


def test_kueue_is_built_when_asked_for_and_its_manifests_stand_beside_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Sequence[str]] = []

    def record(command: list[str], what: str, folder: Path, *others: object, quiet: bool) -> None:
        built.append((folder.name, command[-1]))
        Path(command[command.index("-o") + 1]).touch(mode=0o755)

    monkeypatch.setattr(build, "_run", record)
    monkeypatch.setattr(build, "_find_go", lambda *, quiet: Path("/usr/bin/go"))
    monkeypatch.setattr(build, "_kueue_manifests", lambda *words: f"rendered by {words[2].name}")
    build.ensure_programs(quiet=True)
    assert not [package for _, package in built if "kueue" in package]
    program, manifests = build.ensure_kueue(quiet=True)
    assert built[-1] == ("kueue", "sigs.k8s.io/kueue/cmd/kueue")
    assert program == manifests.with_suffix("") == cache.joinpath(program.parent.parent.name, "bin", "kueue-0.17.0")
    assert manifests.read_text() == "rendered by kubectl"


def test_a_failed_build_leaves_nothing_that_looks_finished(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake_go(folder: Path) -> Path:
        go = folder / "go"
        go.write_text(
            "#!/bin/sh\n"
            "case $1 in version) echo go version go1.26.0 fake/fake;;\n"
            "*) case $* in *kube-scheduler*) echo no room left; exit 3;; esac\n"
            "while [ $# -gt 1 ]; do [ $1 = -o ] && { echo x > $2; chmod +x $2; }; shift; done;; esac\n"
        )
        go.chmod(0o755)
        return go

    folder = cache.parent / "path"
    folder.mkdir(parents=True)
    fake_go(folder)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    with pytest.raises(build.BuildError, match=r"kube-scheduler .* failed(.|\n)*no room left"):
        build.ensure_programs(quiet=True)
    home = next(cache.iterdir())
    assert sorted(path.name for path in home.iterdir()) == ["build.log", "lock"]


def test_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The build ends once progress was told, however long that takes here, or after twenty seconds without."""
    say = build._say

    def and_end(text: str, *, quiet: bool) -> None:
        say(text, quiet=quiet)
        if "so far" in text:
            (tmp_path / "told").touch()

    monkeypatch.setattr(build, "_PROGRESS_SECONDS", 0.3)
    monkeypatch.setattr(build, "_say", and_end)
    until_told = "for _ in $(seq 200); do [ -e told ] && exit; sleep 0.1; done"
    build._run(["sh", "-c", until_told], "etcd (5 of 5)", tmp_path, {"PATH": "/bin:/usr/bin"},
               tmp_path / "log", quiet=False)  # fmt: skip
    said = capsys.readouterr().err
    assert re.search(r"building etcd \(5 of 5\), \d+ s so far", said)
    assert re.search(r"built etcd \(5 of 5\) in \d+ s", said)
