"""Case files say in comments what is wrong with them: `#! column message` on its line, or `# want place message`.

The loader must report exactly that: no error less, none more, each at its line and column.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dra_gate.policy.load import PolicyErrors, load_documents

HERE = Path(__file__).parent
BASE = (HERE / "base.yaml").read_bytes()
BAD = sorted((HERE / "bad").glob("*.yaml"))
CATALOGUES = sorted((HERE / "bad-catalogues").glob("*.yaml"))


def wanted(text: str) -> list[tuple[str, str]]:
    """Pairs of place and message fragment, from the comments of a case."""
    pairs = []
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"# want (\S+) ?(.*)", line):
            place = header[1] if header[1].count(":") == 2 else f"case.yaml:{header[1]}"
            pairs.append((place, header[2]))
        for column, message in re.findall(r"#! (\d+) (.+?)(?= #! |$)", line):
            pairs.append((f"case.yaml:{number}:{column}", message))
    return pairs


def check(case: Path, files: dict[str, bytes]) -> None:
    with pytest.raises(PolicyErrors) as caught:
        load_documents(files)
    left = [str(error) for error in caught.value.errors]
    assert wanted(case.read_text()), "a case says what it expects"
    for place, message in wanted(case.read_text()):
        found = next((error for error in left if error.startswith(f"{place} ") and message in error), None)
        assert found is not None, f"{place} {message}\nis not among\n" + "\n".join(left)
        left.remove(found)
    assert left == []
    for error in caught.value.errors:  # problems of CEL carry their remedy in the message
        assert error.remedy or error.message.startswith("CEL"), "every error says what to write instead"


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.stem)
def test_bad_beside_a_sound_base(case: Path) -> None:
    check(case, {"a-base.yaml": BASE, "case.yaml": case.read_bytes()})


@pytest.mark.parametrize("case", CATALOGUES, ids=lambda case: case.stem)
def test_bad_catalogue(case: Path) -> None:
    check(case, {"case.yaml": case.read_bytes()})


def test_base_is_sound() -> None:
    assert load_documents({"base.yaml": BASE}).tenants["base"].namespaces == ("base-train",)
