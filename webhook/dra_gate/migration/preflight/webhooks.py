"""The gate's webhooks are there, and called after those that add containers or read device requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dra_gate.kube.raw import Object, mapping, sequence, text
from dra_gate.migration.preflight.check import Check, Finding
from dra_gate.migration.preflight.cluster import Cluster, name_of
from dra_gate.migration.preflight.selectors import asks_about_pods, may_select, service_of

_MUTATE: Final = "mutate.dra-gate.io"
_VALIDATE: Final = "validate.dra-gate.io"


@dataclass(frozen=True, slots=True)
class Reader:
    """Somebody's webhook that looks for the raw device request: told by a word in its own name, its configuration's or
    its Service's. `harm` is what comes of being called when the gate has taken the request away.
    """

    word: str
    harm: str
    source: str


# A new one is one more entry.
READERS: Final = (
    Reader(
        "nvsentinel",
        "it takes the Pod for one without GPU, and adds no health checks",
        "https://github.com/NVIDIA/NVSentinel/issues/1867",
    ),
    Reader(
        "hami.io",
        "it takes the Pod for one without GPU; where it is called first it hands the Pod to its own scheduler, and the "
        "two give the same devices: keep it off gated namespaces (label hami.io/webhook: ignore)",
        "https://github.com/Project-HAMi/HAMi (pkg/scheduler/webhook.go)",
    ),
)


def _check(cluster: Cluster) -> Iterable[Finding]:
    mutating = {name_of(one): _webhooks(one) for one in cluster.around("MutatingWebhookConfiguration")}
    own = max((name for name, webhooks in mutating.items() if _MUTATE in webhooks), default="")
    if not own:
        yield Finding("block", f"no configuration has the webhook {_MUTATE}: labels on namespaces mean nothing")
    if not any(_VALIDATE in _webhooks(one) for one in cluster.around("ValidatingWebhookConfiguration")):
        yield Finding("block", f"no configuration has the webhook {_VALIDATE}: nothing is refused")
    if not own:
        return
    if mutating[own][_MUTATE].get("reinvocationPolicy") != "IfNeeded":
        yield Finding("block", f"{_MUTATE} is not called again (reinvocationPolicy) when a later webhook changes a Pod")
    gated = [name for name, lane in cluster.namespaces.items() if lane] or [name for name, _ in cluster.tenants()]
    for configuration, webhooks in sorted(mutating.items()):
        for name, webhook in sorted(webhooks.items()):
            if configuration == own or not asks_about_pods(webhook) or not _selects(webhook, gated):
                continue
            reader = _reader(configuration, name, webhook)
            after = configuration > own
            if reader is not None and (after or reader.word == "hami.io"):
                when = "is called after the gate" if after else "is called for Pods of gated namespaces"
                yield Finding("block" if after else "warn", f"{when}: {reader.harm} ({reader.source})", (name,))
            elif after:
                text = (
                    f"sorts after {own}: what it adds that asks for devices is refused, and it sees claims, no requests"
                )
                yield Finding("warn", text, (name,))


def _webhooks(configuration: Object) -> Mapping[str, Object]:
    return {text(one.get("name")): one for one in map(mapping, sequence(configuration.get("webhooks")))}


def _selects(webhook: Object, namespaces: list[str]) -> bool:
    return not namespaces or any(may_select(webhook, name) for name in namespaces)


def _reader(configuration: str, name: str, webhook: Object) -> Reader | None:
    said = " ".join((configuration, name, service_of(webhook))).lower()
    return next((one for one in READERS if one.word in said), None)


CHECK = Check(
    id="webhooks",
    title="the gate's webhooks are there, and the last to be called",
    severity="block",
    remedy="apply the gate's webhook configurations; give the other configuration a name that sorts before "
    "zz-dra-gate, or keep it off gated namespaces by its namespaceSelector",
    reads=("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
    check=_check,
)
