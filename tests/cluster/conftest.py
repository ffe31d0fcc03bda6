from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.fake_api import FakeApi
from dra_gate.cluster.client import Client


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    made = FakeApi()
    yield made
    made.stop()


def kubeconfig(path: Path, url: str, user: dict[str, object] | None = None) -> Path:
    """A kubeconfig file (JSON is YAML) for `url`."""
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": user or {"token": "secret"}}],
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    return path


@pytest.fixture
def client(fake: FakeApi, tmp_path: Path) -> Iterator[Client]:
    made = Client.connect(str(kubeconfig(tmp_path / "config", fake.url)))
    yield made
    made.close()
