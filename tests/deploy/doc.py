"""Commands of a document: the `sh` blocks, by heading, one command an entry; and a shell that runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from controlplane.control_plane import ControlPlane

# What a machine without a container engine can't do, and what has been done already where tests run.
NOT_RUN = ("make setup", "docker build", "docker push")
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HERE = re.compile(r"<<'(\w+)'")


class CommandError(AssertionError):
    """A command of a document failed; the message is the command and what it said."""


def sections(document: Path) -> dict[str, list[str]]:
    """Headings of the second level, in order, with the commands below each."""
    parts = re.split(r"^## (.+)$", document.read_text(), flags=re.MULTILINE)[1:]
    return {
        title: [command for block in _BLOCK.findall(body) for command in commands(block)]
        for title, body in zip(parts[::2], parts[1::2], strict=True)
    }


def commands(block: str) -> list[str]:
    """The commands of a block: lines, joined where a quote or a here-document is open or a backslash ends the line."""
    found: list[str] = []
    open_until: str | None = None
    for line in block.splitlines():
        open_quote = bool(found) and open_until is None and "<<" not in found[-1] and found[-1].count("'") % 2 == 1
        if open_until is not None or open_quote or (found and found[-1].endswith("\\")):
            found[-1] += f"\n{line}"
            open_until = None if line == open_until else open_until
        elif line.strip() and not line.startswith("#"):
            found.append(line)
            here = _HERE.search(line)
            open_until = here[1] if here else None
    return found


class Shell:
    """Runs commands one after the other in one folder as cluster admin; exported variables stay."""

    def __init__(self, folder: Path, plane: ControlPlane) -> None:
        self.api = plane.api()
        self.plane = plane
        self.folder = folder
        self.output = ""
        clean = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        path = os.pathsep.join([str(plane.kubectl.parent), str(Path(sys.executable).parent), clean["PATH"]])
        self._environment = clean | {"KUBECONFIG": str(plane.kubeconfig_for()), "PATH": path}

    def run(self, command: str) -> str:
        """What it printed. Raises CommandError when it fails or takes longer than two minutes."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        self.output = done.stdout + done.stderr
        if done.returncode != 0:
            raise CommandError(f"{command}\n{self.output}")
        return self.output
