"""kubectl, as an operator runs it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"


class KubectlError(RuntimeError):
    """kubectl ended with another code than 0; the message is what it said."""


class Kubectl:
    """Runs kubectl against one cluster."""

    def __init__(self, program: Path, kubeconfig: Path) -> None:
        self._program = program
        self._kubeconfig = kubeconfig

    def __call__(self, *words: str | Path, text: str | None = None) -> str:
        """Its output. Raises KubectlError."""
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        done = subprocess.run(
            [self._program, *words],
            input=text,
            env=environment | {"KUBECONFIG": str(self._kubeconfig)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(map(str, words))}: {done.stderr or done.stdout}")
        return done.stdout + done.stderr

    def build(self, folder: str) -> list[dict[str, Any]]:
        """What the kustomization in `deploy/<folder>` comes to."""
        return [document for document in yaml.safe_load_all(self("kustomize", DEPLOY / folder)) if document]
