"""The rules that validate judges by, one a file, and the registry that holds them.

A rule is a value: an id, what it protects, the code and remedy of its findings, and a pure check. Adding one is adding
a file and naming it in `ALL`; the registry refuses two rules of one id.
"""

from __future__ import annotations

from dra_gate.admission.rules import (
    admin_access,
    claim_annotation,
    device_annotation,
    ephemeral_container,
    foreign_claim,
    grant_gate,
    grant_gate_edit,
    group_claim,
    handmade_claim,
    held,
    host_device,
    late_claim,
    model_affinity,
    no_tenant,
    node_pinning,
    node_pool,
    plugin_lane,
    privileged,
    quota,
    raw_device_request,
    reserved_name,
    resize,
    runtime_class,
    stamp,
    stamp_edit,
    third_party_allocator,
    unknown_lane,
    visible_devices,
    visible_devices_void,
)
from dra_gate.admission.rules.rule import Context, Registry, Rule

ALL = Registry(
    (
        reserved_name.RULE,
        unknown_lane.RULE,
        no_tenant.RULE,
        raw_device_request.RULE,
        plugin_lane.RULE,
        foreign_claim.RULE,
        late_claim.RULE,
        privileged.RULE,
        host_device.RULE,
        visible_devices.RULE,
        visible_devices_void.RULE,
        runtime_class.RULE,
        device_annotation.RULE,
        third_party_allocator.RULE,
        handmade_claim.RULE,
        admin_access.RULE,
        claim_annotation.RULE,
        group_claim.RULE,
        node_pinning.RULE,
        node_pool.RULE,
        model_affinity.RULE,
        stamp.RULE,
        stamp_edit.RULE,
        held.RULE,
        grant_gate.RULE,
        grant_gate_edit.RULE,
        ephemeral_container.RULE,
        resize.RULE,
        quota.RULE,
    )
)

__all__ = ["ALL", "Context", "Registry", "Rule"]
