"""Does `dra-gate explain` name the cause of a prepared situation, first, and nothing that is not true beside it?"""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner

from allocation.situation import POD, Cause, Situation
from controlplane.control_plane import ControlPlane
from dra_gate.cli.main import root


def run(control_plane: ControlPlane, *arguments: str) -> str:
    """What a command of ours prints about the live cluster; in this process, since starting one costs a second."""
    done = CliRunner().invoke(root, [*arguments, "--kubeconfig", str(control_plane.kubeconfig_for())])
    assert done.exit_code == 0, done.output
    return done.stdout


def check(control_plane: ControlPlane, situation: Situation) -> None:
    """Asserts it by the live command, for people and for programs."""
    pod = f"{situation.name}/{POD}"
    said = run(control_plane, "explain", "pod", pod)
    programs = run(control_plane, "explain", "pod", pod, "-o", "json", "--devices")
    cause = situation.cause
    codes = _codes(json.loads(programs), cause)
    assert codes[:1] == [cause.code], said
    assert set(codes) <= {cause.code, *cause.beside}, said
    assert not _lacking(said, cause.says), said
    assert not _lacking(programs, cause.shows), programs


def _codes(explanation: Any, cause: Cause) -> list[str]:
    """What holds all of it up, then what keeps the candidate away, in the order told."""
    found = [one["code"] for one in explanation["causes"]]
    for claim in explanation["claims"]:
        for request in claim["requests"]:
            wanted = [one for one in request["candidates"] if one["model"] == cause.candidate and one["reasons"]]
            if wanted:
                return found + [reason["code"] for reason in wanted[0]["reasons"]]
    return found


def _lacking(text: str, words: tuple[str | list[str], ...]) -> list[str | list[str]]:
    either = [(word, [word] if isinstance(word, str) else word) for word in words]
    return [word for word, forms in either if not any(form in text for form in forms)]
