"""Published sets: what is made of a folder, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dra_gate.cluster.policy_map import (
    MAX_BYTES,
    RefusedError,
    UnpublishableError,
    digest_of,
    name_of,
    policy_map,
    read_policy_map,
)
from dra_gate.policy.load import RELEASED
from policy_publish.sets import files, made, published

SET = made(1)
RELEASE = next(iter(SET.policies.values()))


def test_round_trip() -> None:
    obj = published(1)
    assert read_policy_map(obj) == SET
    assert obj["metadata"]["name"] == f"policy-set-{SET.digest}"
    assert obj["immutable"] is True
    with_releases = files(1) | {RELEASED: f"{RELEASE.ref} sha256:{RELEASE.digest}\n".encode()}
    assert read_policy_map(policy_map(SET.digest, with_releases, {})).digest == SET.digest


def edit(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    obj = published(1)
    change(obj)
    return obj


@pytest.mark.parametrize(
    ("obj", "code", "words"),
    [
        (edit(lambda o: o.pop("immutable")), "NotImmutable", "immutable: true"),
        (edit(lambda o: o.update(immutable=False)), "NotImmutable", ""),
        (edit(lambda o: o.update(immutable="true")), "NotImmutable", ""),
        (edit(lambda o: o["metadata"].update(name="mine")), "BadName", "policy-set-<digest"),
        (edit(lambda o: o["metadata"].update(name=o["metadata"]["name"].upper())), "BadName", ""),
        (edit(lambda o: o.update(binaryData={"x.yaml": "AAAA"})), "BinaryData", ""),
        (edit(lambda o: o.update(data=published(2)["data"])), "OtherContent", made(2).digest),
        (edit(lambda o: o["metadata"].update(name=name_of("0" * 64))), "OtherContent", SET.digest),
        (edit(lambda o: o["data"].pop("catalog.yaml")), "Invalid", "no DeviceCatalog"),
        (edit(lambda o: o["data"].update({"bad.yaml": "a: [b"})), "Invalid", "bad.yaml:2:1"),
        (edit(lambda o: o.pop("data")), "Invalid", ""),
        (edit(lambda o: o.update(data={"x.yaml": 5})), "Invalid", ""),
        (edit(lambda o: o["data"].update(RELEASED=f"train@1 sha256:{'0' * 64}\n")), "Invalid", "released"),
        (edit(lambda o: o["data"].update({"z.yaml": "#" * MAX_BYTES})), "TooLarge", "at most 900"),
    ],
)
def test_refused(obj: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(RefusedError) as caught:
        read_policy_map({**obj, "metadata": {**obj["metadata"], "uid": "u-1"}})
    refusal = caught.value.refusal
    assert (refusal.code, refusal.uid, refusal.name) == (code, "u-1", obj["metadata"]["name"])
    assert words in refusal.message


def test_the_limit_counts_names_and_contents() -> None:
    comment = MAX_BYTES - sum(len(key) + len(value) for key, value in files(1).items()) - len("z.yaml")
    full = files(1) | {"z.yaml": b"#" * comment}
    assert read_policy_map(policy_map(SET.digest, full, {})).digest == SET.digest
    with pytest.raises(UnpublishableError, match="900"):
        policy_map(SET.digest, full | {"z.yaml": b"#" * (comment + 1)}, {})


@pytest.mark.parametrize("name", ["a b.yaml", "ä.yaml", "a/b.yaml"])
def test_names_that_no_config_map_takes(name: str) -> None:
    with pytest.raises(UnpublishableError, match="file names"):
        policy_map(SET.digest, {name: b""}, {})


def test_what_is_not_text() -> None:
    with pytest.raises(UnpublishableError, match="UTF-8"):
        policy_map(SET.digest, {"a.yaml": b"\xff"}, {})


def test_names() -> None:
    assert digest_of(name_of(SET.digest)) == SET.digest
    assert [digest_of(name) for name in ("", "policy-set-", SET.digest, f"policy-set-{SET.digest}0")] == [""] * 4
