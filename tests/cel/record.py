"""Records again what Kubernetes makes of the selectors in selectors.yaml and the quantities in ../kube/quantities.yaml.

    python tests/cel/record.py [EXPRESSION…]

Expressions given are added. Needs Go and the modules of the control-plane kit (tests/controlplane/go/kubernetes, which
says which version is asked). Run it when that version moves, and read the difference.
"""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
MODULE = HERE.parent / "controlplane" / "go" / "kubernetes"
SELECTORS, QUANTITIES = HERE / "selectors.yaml", HERE.parent / "kube" / "quantities.yaml"
DRIVER = "d"


def ask(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The recorder's answers, in order."""
    command = ["go", "run", str(HERE / "recorder" / "main.go")]
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    done = subprocess.run(command, cwd=MODULE, input=lines, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def quoted(text: str) -> str:
    """`text` as a YAML scalar on one line."""
    return "'" + text.replace("'", "''") + "'" if text.isprintable() else json.dumps(text)


def heading(path: Path) -> str:
    """The comment at the top of a file, which is kept."""
    lines = path.read_text("utf-8").splitlines(keepends=True)
    return "".join(lines[: next(number for number, line in enumerate(lines) if not line.startswith("#"))])


def record_selectors(more: list[str]) -> None:
    """Writes selectors.yaml anew."""
    old = yaml.safe_load(SELECTORS.read_text("utf-8"))
    expressions = list(dict.fromkeys([*(case["expression"] for case in old["selectors"]), *more]))
    answers = ask([{"Expression": text, "Driver": DRIVER, "Devices": old["devices"]} for text in expressions])
    rows = []
    for text, answer in zip(expressions, answers, strict=True):
        new = "refused" if "refused" in answer else answer["cost"]
        outcomes = answer["stored"]
        stored = "refused" if outcomes is None else f"[{', '.join(map(outcome, outcomes))}]"
        rows.append(f"- {{expression: {quoted(text)}, new: {new}, stored: {stored}}}\n")
    devices = "".join(f"- {json.dumps(device)}\n" for device in old["devices"])
    SELECTORS.write_text(f"{heading(SELECTORS)}devices:\n{devices}selectors:\n{''.join(rows)}", "utf-8")


def outcome(answer: dict[str, Any]) -> str:
    """true, false or the error's text."""
    return quoted(answer["error"]) if "error" in answer else json.dumps(answer["result"])


def record_quantities() -> None:
    """Writes quantities.yaml anew."""
    texts = [row[0] for row in yaml.safe_load(QUANTITIES.read_text("utf-8"))]
    rows = []
    for text, answer in zip(texts, ask([{"Quantity": text} for text in texts]), strict=True):
        value = "refused" if "refused" in answer else f"'{Decimal(answer['value']).normalize():f}'"
        rows.append(f"- [{quoted(text)}, {value}{', int64' if answer.get('int64') else ''}]\n")
    QUANTITIES.write_text(heading(QUANTITIES) + "".join(rows), "utf-8")


if __name__ == "__main__":
    record_selectors(sys.argv[1:])
    record_quantities()
