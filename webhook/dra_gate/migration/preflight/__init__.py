"""Whether a cluster is ready for the next namespaces, or to go back: checks, one a file, and the registry of them.

A check is a value: an id, what is so when all is well, what to do when it is not, and a pure function over a state,
which is the same of a live cluster and of a file. Adding one is adding a file, with its faults as YAML beside it, and
naming it in `ALL`.
"""

from __future__ import annotations

from dra_gate.migration.preflight import (
    autoscaler,
    both_allocators,
    capacity,
    class_names,
    classes,
    default_runtime,
    exporters,
    kueue,
    node_labels,
    plugin_nodes,
    pool_labels,
    quotas,
    raw_resource,
    rights,
    slips_through,
    templates,
    versions,
    webhooks,
)
from dra_gate.migration.preflight.check import Check, Finding, Registry, Result, verdict_of
from dra_gate.migration.preflight.cluster import Cluster

ALL = Registry(
    (
        both_allocators.CHECK,
        pool_labels.CHECK,
        slips_through.CHECK,
        class_names.CHECK,
        classes.CHECK,
        versions.CHECK,
        rights.CHECK,
        webhooks.CHECK,
        quotas.CHECK,
        templates.CHECK,
        capacity.CHECK,
        node_labels.CHECK,
        plugin_nodes.CHECK,
        kueue.CHECK,
        raw_resource.CHECK,
        default_runtime.CHECK,
        exporters.CHECK,
        autoscaler.CHECK,
    )
)

__all__ = ["ALL", "Check", "Cluster", "Finding", "Registry", "Result", "verdict_of"]
