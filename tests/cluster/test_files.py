"""What files may hold: YAML as kubectl reads it, JSON, lists; and what is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dra_gate.cluster.files import InputError, load_manifests, read_documents, read_manifests


def read(tmp_path: Path, content: str | bytes, name: str = "f.yaml") -> list[Any]:
    file = tmp_path / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return [document.value for document in read_documents(str(file))]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{when: 2024-01-01, at: 2001-12-14t21:59:43Z}", {"when": "2024-01-01", "at": "2001-12-14t21:59:43Z"}),
        ("{1: a, on: b, 1.5: c}", {"1": "a", "true": "b", "1.5": "c"}),
        ("{a: 1:30, b: 1:30.5, c: =, d: 010, e: 0b11}", {"a": "1:30", "b": "1:30.5", "c": "=", "d": 8, "e": 3}),
        ("{a: 0xffffffffffffffffffff}", {"a": float(2**80 - 1)}),
        ("a: &x [1]\nb: *x\n<<: {c: 2}", {"a": [1], "b": [1], "c": 2}),
        ('{"a": "\\ud83d\\ude00", "b": 1e3}', {"a": "😀", "b": 1000.0}),
        ("\ufeff{a: 1}", {"a": 1}),
    ],
)
def test_values_are_the_json_that_kubectl_sends(text: str, value: Any, tmp_path: Path) -> None:
    assert read(tmp_path, text) == [value]


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    "text",
    [
        "a: .nan",
        "a: -.inf",
        "a: 0x" + "f" * 9000,
        "a: " + "9" * 9000,
        "a: !!binary aGk=",
        "a: !!set {b}",
        "a: !!timestamp 2024-01-01",
        "{~: a}",
        "{[a]: b}",
        "&a {self: *a}",
        "a: " + "[" * 900 + "]" * 900,
        '{"a": ' + "[" * 900 + "]" * 900 + "}",
        BOMB,
        b"a: \x00",
        b"\xff\xfe\xff",
        "a: [",
    ],
    ids=lambda text: str(text)[:20],
)
def test_what_is_no_json_is_refused_with_the_files_name(text: str | bytes, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"f\.yaml: not YAML or JSON: "):
        read(tmp_path, text)


def test_documents_and_lists(tmp_path: Path) -> None:
    typed = {"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "p"}}, 4]}
    (tmp_path / "a.yaml").write_text(
        f"{{kind: A}}\n---\n---\n[1]\n---\n{{kind: List, items: [{{kind: B}}, 3]}}\n---\n{typed}"
    )
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    found = [document.value for document in read_manifests([str(tmp_path)])]
    assert found == [{"kind": "A"}, [1], {"kind": "B"}, 3, pod, 4]
    assert load_manifests([str(tmp_path)]) == [{"kind": "A"}, {"kind": "B"}, pod]
