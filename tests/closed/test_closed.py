"""A tenth of `make prove-closed`, and the oracle's own eyes."""

from __future__ import annotations

from typing import Any

import pytest

from closed.disabled import rows_of, without
from closed.oracle import reached
from closed.prove import plugin_site, prove, site
from dra_gate.admission import rules
from dra_gate.admission.validate import validate

VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def test_nothing_gets_through() -> None:
    result = prove(2000, seed=7)
    assert not result.through, result.through[0]
    assert result.reaching > 800, "the generator makes Pods that reach devices"
    assert result.admitted > 500, "and Pods that are honest"


def test_nothing_gets_through_in_lane_device_plugin() -> None:
    result = prove(2000, seed=7, lane="device-plugin")
    assert not result.through, result.through[0]
    assert result.reaching > 800
    assert result.admitted > 400


def test_the_oracle_sees_where_a_request_may_land() -> None:
    asks = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    told = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-H100-80GB-HBM3"]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [told]}]}}
    kept = asks | {"nodeSelector": {"pool.example/devices": "plugin"}, "affinity": {"nodeAffinity": required}}
    assert reached({"spec": kept}, plugin_site()) == []
    for less in ("nodeSelector", "affinity"):
        spec = {key: value for key, value in kept.items() if key != less}
        assert len(reached({"spec": spec}, plugin_site())) == 1


@pytest.mark.parametrize(
    ("spec", "sees"),
    [
        ({"containers": [{"name": "c"}]}, False),
        ({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, True),
        ({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 0}}}]}, False),
        ({"containers": [{"name": "c", "securityContext": {"privileged": True}}]}, True),
        ({"containers": [{"name": "c", "env": [VOID]}]}, False),
        ({"containers": [{"name": "c", "envFrom": [{}]}]}, True),
        ({"containers": [{"name": "c", "envFrom": [{}], "env": [VOID]}]}, False),
        ({"containers": [], "volumes": [{"name": "v", "hostPath": {"path": "/./dev//"}}]}, True),
        ({"containers": [], "volumes": [{"name": "v", "hostPath": {"path": "/var"}}]}, True),
        ({"containers": [], "volumes": [{"name": "v", "hostPath": {"path": "/var/log"}}]}, False),
        ({"containers": [], "resourceClaims": [{"name": "g", "resourceClaimName": "a-gpu"}]}, True),
        ({"containers": [], "resourceClaims": [{"name": "g", "resourceClaimName": "a-nic"}]}, False),
        ({"containers": [], "runtimeClassName": "renamed"}, True),
    ],
)  # fmt: skip
def test_what_the_oracle_sees(spec: dict[str, Any], sees: bool) -> None:
    assert bool(reached({"spec": spec}, site())) is sees


@pytest.mark.parametrize("rule", list(rules.ALL), ids=lambda rule: rule.id)
def test_no_rule_can_be_switched_off_unnoticed(rule: rules.Rule) -> None:
    """By the whole gate's verdict on the rows of its table; `python -m closed.disabled` prints who else notices."""
    noticed = 0
    for request, facts in rows_of(rule):
        before = {finding.rule for finding in validate(request, facts).findings}
        with without(rule):
            noticed += before != {finding.rule for finding in validate(request, facts).findings}
    assert noticed
