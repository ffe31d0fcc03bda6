"""Whether a webhook is asked about Pods of a namespace."""

from __future__ import annotations

from dra_gate.kube.raw import Object, at, mapping, sequence, text

NAME_LABEL = "kubernetes.io/metadata.name"


def asks_about_pods(webhook: Object) -> bool:
    """Some rule of it is about Pods that are created."""
    return any(
        {"*", "CREATE"} & set(sequence(rule.get("operations")))
        and {"*", ""} & set(sequence(rule.get("apiGroups")))
        and {"*", "*/*", "pods"} & set(sequence(rule.get("resources")))
        for rule in map(mapping, sequence(webhook.get("rules")))
    )


def may_select(webhook: Object, namespace: str) -> bool:
    """Whether its namespaceSelector may mean the namespace. Only names are judged: by other labels it may."""
    selector = mapping(webhook.get("namespaceSelector"))
    wanted = mapping(selector.get("matchLabels")).get(NAME_LABEL, namespace)
    for expression in map(mapping, sequence(selector.get("matchExpressions"))):
        if expression.get("key") != NAME_LABEL:
            continue
        values = sequence(expression.get("values"))
        match expression.get("operator"):
            case "In" if namespace not in values:
                return False
            case "NotIn" if namespace in values:
                return False
            case "DoesNotExist":
                return False
    return text(wanted) == namespace


def service_of(webhook: Object) -> str:
    """`namespace/name` of the Service that it calls, empty for one by URL."""
    service = mapping(at(webhook, "service"))
    return f"{text(service.get('namespace'))}/{text(service.get('name'))}" if service else ""
