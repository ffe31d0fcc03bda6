"""Asks kube-scheduler's own allocator (tests/controlplane/go/kubernetes/allocate) about a question of plain objects."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from controlplane.build import ensure_allocate

Object = dict[str, Any]
FIELDS = {
    "Node": "nodes",
    "ResourceSlice": "slices",
    "DeviceClass": "classes",
    "DeviceTaintRule": "taintRules",
    "ResourceClaim": "claims",
}


@dataclass(frozen=True, slots=True)
class Question:
    """What the scheduler has before it: the cluster's objects, and the claims of one Pod in the Pod's order."""

    objects: tuple[Object, ...]
    allocate: tuple[str, ...]  # namespace/name of claims among the objects
    gates: Mapping[str, bool] = field(default_factory=dict)  # that differ from the version's defaults

    @property
    def claims(self) -> list[Object]:
        """The claims to allocate, in order."""
        found = {f"{o['metadata']['namespace']}/{o['metadata']['name']}": o for o in self.of("ResourceClaim")}
        return [found[name] for name in self.allocate]

    def of(self, kind: str) -> list[Object]:
        """The objects of a kind, in order."""
        return [one for one in self.objects if one["kind"] == kind]

    def line(self) -> str:
        """The question as the program reads it."""
        document: dict[str, Any] = {name: self.of(kind) for kind, name in FIELDS.items()}
        return json.dumps(document | {"allocate": self.allocate, "gates": self.gates}, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the scheduler's allocator says about one node."""

    node: str
    results: list[Object] | None  # status.allocation of each claim
    error: str
    on_node: bool  # the error ends this node only, not the attempt
    steps: int  # calls of its search
    microseconds: int

    @property
    def kind(self) -> str:
        """The word of allocator.Outcome for it."""
        if self.results is not None:
            return "allocated"
        if self.error:
            return "invalid-pools" if self.on_node else "failed"
        return "impossible"


class Oracle:
    """The program, running; a context manager. Not for several threads at once."""

    def __enter__(self) -> Oracle:
        self._process = subprocess.Popen(
            [str(ensure_allocate())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def ask(self, question: Question) -> list[Verdict]:
        """A verdict a node, in the order of the nodes. Raises RuntimeError when the program ended (it said why)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(question.line() + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the oracle ended with code {self._process.wait(10)}")
        answer = json.loads(line)
        if answer.get("refused"):  # before any node is looked at, so on all of them
            return [Verdict(v["node"], None, answer["refused"], False, 0, v["microseconds"]) for v in answer["nodes"]]
        return [
            Verdict(v["node"], v["results"], v.get("error", ""), v.get("onNode", False), v["steps"], v["microseconds"])
            for v in answer["nodes"]
        ]
