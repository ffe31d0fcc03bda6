"""Kueue beside the gate (docs/operations/kueue.md)."""

from __future__ import annotations

from collections.abc import Iterable

from dra_gate.kube.raw import mapping, sequence
from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster, name_of
from dra_gate.migration.preflight.selectors import asks_about_pods, may_select, service_of
from dra_gate.policy.model import GATE_NAMESPACE


def _check(cluster: Cluster) -> Iterable[Finding]:
    webhooks = [
        webhook
        for configuration in cluster.around("MutatingWebhookConfiguration")
        for webhook in map(mapping, sequence(configuration.get("webhooks")))
        if asks_about_pods(webhook) and "kueue" in f"{name_of(configuration)} {service_of(webhook)}"
    ]
    if any(may_select(webhook, GATE_NAMESPACE) for webhook in webhooks):
        text = "its webhook for Pods covers it and fails closed: the gate cannot start while Kueue is away"
        yield Finding("warn", text, (f"namespace {GATE_NAMESPACE}",))
    listed = [
        name
        for name, tenant in cluster.tenants()
        if not tenant.kueue_exactly and any(may_select(webhook, name) for webhook in webhooks)
    ]
    if listed:
        yield Finding(
            "warn",
            "Pods that Kueue manages one by one are inadmissible for it or uncounted once they hold a claim with "
            "several candidates; Jobs that it suspends go on being counted by nvidia.com/gpu",
            tuple(sorted(listed)),
        )


CHECK = Check(
    id="kueue",
    title="Kueue counts what the gate gives, and does not stand in its way",
    severity="warn",
    remedy="leave the namespaces out of Kueue's Pod webhook, or say kueue: exactly for their tenants "
    "(docs/operations/kueue.md)",
    reads=("MutatingWebhookConfiguration", "PolicySet"),
    check=_check,
)
