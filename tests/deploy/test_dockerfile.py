"""What can be said about the image without an engine that builds it."""

from __future__ import annotations

import re
import shlex

import pytest

from deploy.kubectl import DEPLOY

ROOT = DEPLOY.parent
LINES = re.sub(r"\\\n(\s*#.*\n)*", " ", (ROOT / "Dockerfile").read_text()).splitlines()
STEPS = [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in LINES if line and not line.startswith("#")]


def of(instruction: str) -> list[str]:
    return [rest for word, rest in STEPS if word == instruction]


def copied() -> list[str]:
    """Sources from the build context."""
    words = [shlex.split(rest) for rest in of("COPY") if "--from=" not in rest]
    return [source for copy in words for source in copy[:-1]]


@pytest.mark.parametrize("source", copied())
def test_what_is_copied_exists_and_reaches_the_builder(source: str) -> None:
    assert (ROOT / source).exists()
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignore
    assert f"!{source}" in ignore


def test_nothing_else_reaches_the_builder() -> None:
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(let_in) == sorted(copied())


def test_every_package_comes_by_hash() -> None:
    installs = [command for rest in of("RUN") for command in rest.split("&&") if " install " in command]
    assert len(installs) == 3
    for command in installs:
        assert "--require-hashes" in command or "--no-index" in command
    pinned = (ROOT / "requirements" / "build.txt").read_text()
    assert re.search(r"^hatchling==1\.", pinned, re.MULTILINE), "as [build-system] in pyproject.toml asks"


def test_it_runs_as_the_user_of_the_manifests() -> None:
    assert of("USER") == ["65532:65532"]
    assert of("ENTRYPOINT") == ['["dra-gate"]']
    assert len(of("FROM")) == 2
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert f"VERSION={version[1]}" in of("ARG")
    assert f"newTag: {version[1]}" in (DEPLOY / "base" / "kustomization.yaml").read_text()
