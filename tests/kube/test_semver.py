"""Versions: strict and normalised forms, refusals, and precedence as semver 2.0.0 section 11 gives it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_gate.kube.semver import Semver, SemverError

# Each is lower than the next: the example of semver.org section 11, with the traps around it.
ASCENDING = [
    "0.0.0-0",
    "0.0.0",
    "0.9.10",
    "1.0.0-1",
    "1.0.0-2",
    "1.0.0-10",
    "1.0.0--",
    "1.0.0-A",
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-beta",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0-rc.1",
    "1.0.0",
    "2.0.0",
    "2.1.0",
    "2.1.1",
    "535.129.3",
    "550.54.15",
    "550.127.8",
    "18446744073709551615.0.0",
]

REFUSED = [
    "",
    "1",
    "1.2",
    "v1.2.3",
    " 1.2.3",
    "1.2.3 ",
    "1.2.3.4",
    "01.2.3",
    "1.02.3",
    "550.127.08",
    "1.2.3-",
    "1.2.3+",
    "1.2.3-01",
    "1.2.3-a..b",
    "1.2.3+a..b",
    "1.2.3-é",
    "1.2.3+a_b",
    "1.2.3+a+b",
    "-1.2.3",
    "+1.2.3",
    "18446744073709551616.0.0",
    "1.2.x",
    "١.2.3",
]

NORMALISED = {
    "v550": "550.0.0",
    "550": "550.0.0",
    "550.54": "550.54.0",
    "550.127.08": "550.127.8",
    "v1.02.003": "1.2.3",
    "00.0.0": "0.0.0",
    "1.2.03-rc.1+b": "1.2.3-rc.1+b",
    "580.126.20": "580.126.20",
}

versions = st.builds(
    Semver,
    st.integers(0, 2**64 - 1),
    st.integers(0, 20),
    st.integers(0, 20),
    st.lists(st.integers(0, 11) | st.sampled_from(["a", "rc", "-", "0a"]), max_size=3).map(tuple),
    st.lists(st.sampled_from(["b", "01", "-"]), max_size=2).map(tuple),
)


@pytest.mark.parametrize(("lower", "higher"), list(pairwise(ASCENDING)))
def test_precedence(lower: str, higher: str) -> None:
    one, two = Semver.parse(lower), Semver.parse(higher)
    assert one < two
    assert two > one
    assert one != two


def test_build_metadata_never_counts() -> None:
    one, two = Semver.parse("1.2.3-rc.1+a.01"), Semver.parse("1.2.3-rc.1")
    assert one == two
    assert hash(one) == hash(two)
    assert not one < two
    assert (one.pre, one.build) == (("rc", 1), ("a", "01"))


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text: str) -> None:
    with pytest.raises(SemverError):
        Semver.parse(text)


@pytest.mark.parametrize(("text", "strict"), NORMALISED.items())
def test_normalised(text: str, strict: str) -> None:
    assert str(Semver.normalise(text)) == strict


@pytest.mark.parametrize(
    "text", ["", "v", "vv1", "V1.2.3", " 1.2.3", "1.2-rc", "1+b", "1..2", "1.2.3.4", "latest", "1.2.٣"]
)
def test_not_even_normalised(text: str) -> None:
    with pytest.raises(SemverError):
        Semver.normalise(text)


@given(versions)
def test_text_and_value_are_one(version: Semver) -> None:
    again = Semver.parse(str(version))
    assert (again, again.pre, again.build) == (version, version.pre, version.build)
    assert Semver.normalise(f"v{version}") == version


@given(versions, versions, versions)
def test_order_is_total(one: Semver, two: Semver, three: Semver) -> None:
    assert (one < two) + (one == two) + (one > two) == 1
    assert not (one <= two <= three) or one <= three
