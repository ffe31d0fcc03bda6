"""Ordinary Pods are no business of ours: the API server asks neither webhook about nearly all of them."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from pathlib import Path

import pytest

from admission import setting
from admission.test_configurations import MUTATING, VALIDATING, selected
from cases.ordinary import Ordinary, corpus
from controlplane.api import Api, ApiError, wait_for
from controlplane.control_plane import ControlPlane
from controlplane.fixture_types import MakeNamespace
from controlplane.gate import Gate
from dra_gate.admission.configurations import mutated, reaches
from dra_gate.admission.rules import ALL
from dra_gate.policy.model import Settings

PODS = list(corpus())
TARGET = 0.95
NAMESPACE = "fern-dev"


def asked_of_the_gate(one: Ordinary) -> list[str]:
    """The webhooks whose matchConditions hold for the Pod's creation."""
    request = {"operation": "CREATE", "userInfo": {"username": one.user, "groups": ["system:authenticated"]}}
    return [hook["name"] for hook in (MUTATING[0], VALIDATING[0]) if selected(hook, one.pod, {}, request)]


def signs(one: Ordinary) -> set[str]:
    request = setting.request(one.pod, user=one.user)
    return {sign.name for sign in (*ALL.signs("", "pods", "CREATE"), *mutated(Settings())) if sign.shown(request)}


def test_the_corpus_is_what_it_says() -> None:
    assert len(PODS) >= 200
    assert len({json.dumps(one.pod, sort_keys=True) for one in PODS}) == len(PODS)
    assert not [one for one in PODS if "envFrom" in json.dumps(one.pod)]
    assert len({one.archetype for one in PODS}) >= 50


def test_the_api_server_asks_about_few_of_them() -> None:
    by_archetype = defaultdict[str, list[bool]](list)
    for one in PODS:
        by_archetype[one.archetype].append(not asked_of_the_gate(one))
    left = sum(sum(found) for found in by_archetype.values()) / len(PODS)
    print(f"{left:.1%} of {len(PODS)} Pods of {len(by_archetype)} archetypes satisfy neither webhook's conditions")
    for name, found in by_archetype.items():
        if not all(found):
            why = ", ".join(sorted({sign for one in PODS if one.archetype == name for sign in signs(one)}))
            print(f"  asked about {name}, {len(found) - sum(found)} of {len(found)}: {why}")
    assert left >= TARGET


@pytest.mark.parametrize("name", dict.fromkeys(one.archetype for one in PODS))
def test_what_is_asked_about_is_said(name: str) -> None:
    for one in PODS:
        if one.archetype == name:
            assert signs(one) == set(one.asks), one.variation
            assert (
                bool(asked_of_the_gate(one))
                is bool(one.asks)
                is reaches(setting.request(one.pod, user=one.user), setting.facts())
            )


@pytest.mark.controlplane
def test_the_real_api_server_asks_about_the_same(
    control_plane: ControlPlane, api: Api, make_namespace: MakeNamespace, tmp_path: Path
) -> None:
    """All of them in a gated namespace, each sent by its controller: the gate's log says about which it was asked."""
    (tmp_path / "policies.yaml").write_bytes((setting.WORLD / "policies.yaml").read_bytes())
    make_namespace(name=NAMESPACE, labels={"dra-gate.io/lane": "dra"})
    api.apply(
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "gvisor"}, "handler": "runsc"}
    )
    named = {f"{one.archetype}-{number}": one for number, one in enumerate(PODS)}
    with Gate(control_plane, tmp_path) as gate:

        def asked() -> set[str]:
            # Other tests' gates have written here as well, and warnings about policies are no JSON.
            written = gate.log("gate-0").read_text().splitlines(keepends=True)
            lines = [json.loads(line) for line in written if line.startswith("{") and line.endswith("}\n")]
            return {line["name"] for line in lines if line.get("namespace") == NAMESPACE}

        for name, one in named.items():
            pod = {**one.pod, "metadata": {**one.pod["metadata"], "name": name}}
            with contextlib.suppress(ApiError) if one.asks else contextlib.nullcontext():  # refused, some of them
                api.acting_as(one.user, ["system:masters"]).create(pod, NAMESPACE, dry_run=True)
        last = setting.pod(containers=[setting.asking("1")])
        api.create({**last, "metadata": {"name": "last"}}, NAMESPACE, dry_run=True)
        wait_for(lambda: "last" in asked(), 10, "the gate's log to say that it was asked about the last one")
        assert asked() == {"last", *(name for name, one in named.items() if one.asks)}
    api.delete("runtimeclasses", "gvisor")
