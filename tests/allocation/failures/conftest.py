"""`hold`: what the tests on the control plane say of a Pod, checked against the rows that they name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from allocation.failures.evidence import Hold
from controlplane.api import Api


@pytest.fixture
def hold(request: pytest.FixtureRequest, api: Api) -> Iterator[Hold]:
    """Collects what is said of a Pod until a row holds. At the end: exactly the rows that `@rows` names were held."""
    how = request.module.HOW
    made = Hold(api, how)
    yield made
    assert sorted(made.held) == sorted(request.function.rows)
