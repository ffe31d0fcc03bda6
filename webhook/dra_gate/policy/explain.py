"""A policy set in plain English: who may get what, in which order, what never happens, what happens at which limit.

For people who approve policies and know no Kubernetes. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from dra_gate.policy.diff import Difference, against, said
from dra_gate.policy.meaning import contradiction
from dra_gate.policy.model import MAX_DEVICES, DevicePolicy, PolicyRef, PolicySet, Settings, Tenant
from dra_gate.policy.plugin_lane import placement
from dra_gate.policy.report import Heading, Items, Listing, Paragraph, Part, Report, Table
from dra_gate.policy.words import (
    later_choices,
    limits,
    listed,
    many,
    model_facts,
    own_conditions,
    promises,
    rollback,
    turns,
    unhealthy,
)

_DIGITS = 12  # of the digest, as the other verbs show it
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def explain(policy_set: PolicySet) -> Report:
    """The whole set: an overview by model, what can never happen, each tenant, and the cluster's settings."""
    return Report(
        "Who may get which device",
        (
            Paragraph(
                f"Policy set {policy_set.digest[:_DIGITS]}: {many(len(policy_set.tenants), 'tenant')}, "
                f"{many(len(policy_set.models), 'model')} of device. A tenant is a team that shares an allowance; a "
                "namespace is a named area of the cluster in which its programs run; a model is a kind of device; "
                "name@7 is version 7 of a policy. What a change means is another page: dra-gate policy diff OLD NEW."
            ),
            *_overview(policy_set),
            *_never(policy_set),
            *chain.from_iterable(_tenant(tenant, policy_set) for tenant in policy_set.tenants.values()),
            *_exceptions(policy_set),
            *_settings(policy_set.settings),
        ),
    )


# -- all tenants ------------------------------------------------------------------------------------------------------


def _overview(policy_set: PolicySet) -> Iterator[Part]:
    yield Heading(2, "Who may get what")
    rows = []
    for name, model in policy_set.models.items():
        getting = [found for tenant in policy_set.tenants.values() if (found := _gets(tenant, name, policy_set))]
        rows.append((name, model_facts(model), "; ".join(getting) or "nobody"))
    yield Table(("Model", "What it is", "Who may get it"), tuple(rows))
    yield Paragraph(
        "The order is a preference: the first choice is looked for first, a later one is taken when no earlier one is "
        "to be had, or only after some time where the tenant's part below says so. The list is a limit: what is not in "
        "it is never given. The conditions of each tenant are checked on every single device."
    )


def _gets(tenant: Tenant, model: str, policy_set: PolicySet) -> str:
    """`research (first choice)`; where policies of the tenant differ, each says so."""
    ranks: dict[str, list[str]] = {}
    for ref, namespaces in _policies(tenant).items():
        policy = policy_set.policies[ref]
        if model in policy.candidates:
            rank = f"{_ORDINALS[policy.candidates.index(model)]} choice"
            if contradiction(policy_set.models[model], policy.constraints) is not None:
                rank += ", but going by the catalogue never given"
            ranks.setdefault(rank, []).extend(namespaces)
    everywhere = len(ranks) == 1 and set(*ranks.values()) == set(tenant.namespaces)
    said = [rank if everywhere else f"{rank} in {listed(dict.fromkeys(where))}" for rank, where in ranks.items()]
    return f"{tenant.name} ({', '.join(said)})" if said else ""


def _policies(tenant: Tenant) -> dict[PolicyRef, list[str]]:
    """Every policy that the tenant's programs may run under, and in which namespaces."""
    found: dict[PolicyRef, list[str]] = {}
    for namespace in tenant.namespaces:
        for ref in tenant.valid_refs(namespace):
            found.setdefault(ref, []).append(namespace)
    return found


def _never(policy_set: PolicySet) -> Iterator[Part]:
    yield Heading(2, "What can never happen")
    yield Paragraph(
        "None of this happens in a namespace that the cluster's operators have put under the gate in mode enforce. "
        "Which ones those are is a mark on the namespace and stands in no policy file: ask the operators for the list. "
        "The end of this page says which exceptions there are, who is not judged, and what is known of programs that "
        "hold no device."
    )
    owned = len(policy_set.tenant_by_namespace)
    items = [
        f"A namespace other than the {owned} named below gets a device. What belongs to no tenant is refused.",
        "A program gets a model that is not in its tenant's list, even when nothing else is free. It waits instead.",
        "A later choice breaks a condition. Conditions hold for every choice, the last one included; a device that "
        "does not say what a condition asks for counts as breaking it.",
        f"One program (container) gets devices of two models, or more than {MAX_DEVICES}.",
        "A request goes around the policy: for a part of a device, for a device by another name, or with a claim that "
        "somebody wrote by hand. It is refused, with the reason and what to do instead.",
    ]
    yield Items(tuple(items))
    rows = []
    for tenant in policy_set.tenants.values():
        refs = _policies(tenant)
        said: dict[str, list[PolicyRef]] = {}
        for ref in refs:
            for _, sentence in promises(policy_set.policies[ref]):
                said.setdefault(sentence, []).append(ref)
        shown = [
            sentence if len(under) == len(refs) else f"Under {listed(map(str, under))} only: {sentence}"
            for sentence, under in said.items()
        ]
        if tenant.quota.devices is not None:
            shown.append(f"Never more than {many(tenant.quota.devices, 'device')} at once.")
        shown += [f"Never more than {count} of {model} at once." for model, count in tenant.quota.models.items()]
        rows.append((tenant.name, " ".join(shown) or "No condition and no limit is written down."))
    yield Table(("Tenant", "Never, whatever is free"), tuple(rows))


# -- one tenant -------------------------------------------------------------------------------------------------------


def _tenant(tenant: Tenant, policy_set: PolicySet) -> Iterator[Part]:
    policy = policy_set.policies[tenant.policy]
    yield Heading(2, f"Tenant {tenant.name}")
    canary = tenant.canary
    usual = [name for name in tenant.namespaces if canary is None or name not in canary.namespaces]
    yield Paragraph(
        f"Its programs run in {many(len(tenant.namespaces), 'namespace')}: {listed(tenant.namespaces)}. They ask for "
        f"{listed(policy.serves, 'or')}, and policy {policy.ref} decides which device that is"
        + (f" in {listed(usual, nothing='no namespace')}." if canary is not None else ".")
    )
    yield Table(("Order", "Model", "What it is"), tuple(_choices(policy, policy_set)))
    yield Paragraph(
        f"{later_choices(policy)} When none of these can be had, the program waits. Nothing else is given. "
        f"{unhealthy(policy)} {rollback(policy)}"
    )
    yield Heading(3, "Never given up")
    yield from _conditions(policy)
    yield Heading(3, "Limits")
    yield Items(tuple(_limits(tenant, policy)))
    if policy_set.settings.device_plugin_nodes:
        yield Heading(3, "Where devices still come by device plugin")
        yield Items(tuple(_by_plugin(policy, policy_set)))
    if said := tuple(turns(tenant, policy_set.policies_of(tenant))):
        yield Heading(3, "Whose turn it is")
        yield Items(said)
    others: Mapping[PolicyRef, list[str]] = {
        ref: where for ref, where in _policies(tenant).items() if ref != tenant.policy
    }
    if others:
        yield Heading(3, "Other versions in use")
        yield Items(tuple(_version(ref, where, tenant, policy_set) for ref, where in others.items()))
        for ref in others:
            yield from map(Listing, own_conditions(policy_set.policies[ref]))


def _choices(policy: DevicePolicy, policy_set: PolicySet) -> Iterator[tuple[str, str, str]]:
    for rank, name in zip(_ORDINALS, policy.candidates, strict=False):
        why = contradiction(policy_set.models[name], policy.constraints)
        never_given = f" (never given, going by the catalogue: {why})" if why else ""
        yield f"{rank} choice", name, model_facts(policy_set.models[name]) + never_given


def _conditions(policy: DevicePolicy) -> Iterator[Part]:
    said = tuple(sentence for _, sentence in promises(policy))
    yield Items(said) if said else Paragraph("No condition: any device of these models may be given.")
    yield from map(Listing, own_conditions(policy))


def _limits(tenant: Tenant, policy: DevicePolicy) -> Iterator[str]:
    yield from limits(tenant.quota)
    if tenant.quota.devices is not None or tenant.quota.models:
        yield (
            "What would go above is refused at once, and the answer says how many are left."
            if tenant.over_quota == "reject"
            else "What would go above waits until there is room. What could never fit is refused at once."
        )
        yield "A program that may get one of several models counts as what it asked for until it has its devices."
    if policy.companions:
        beside = listed(one.name for one in policy.companions)
        yield f"At most {many(policy.max_devices, 'device')} for one program; {beside} beside them count as none."


def _by_plugin(policy: DevicePolicy, policy_set: PolicySet) -> Iterator[str]:
    """What becomes of the policy in namespaces that the operators have put in lane device-plugin."""
    found = placement(policy, policy_set.models)
    broken = found.unkept if policy.strict_plugin_lane else {}
    if not found.models or broken:
        why = (*(f"{word} cannot be kept ({reason})" for word, reason in broken.items()), *found.left_out.values())
        yield f"No program of {policy.ref} is let in there: {listed(why)}."
        return
    yield f"Only machines of {listed(found.models, 'or')} are used there, as their marks (node labels) tell them."
    for name, reason in found.left_out.items():
        yield f"{name} is not given there: {reason}."
    for word, reason in found.unkept.items():
        yield f"{word} does not hold there: {reason}. Each program is told when it is sent."
    yield "Nothing waits for its turn there: what would go above a limit is refused at once, and shares do not count."


def _version(ref: PolicyRef, namespaces: list[str], tenant: Tenant, policy_set: PolicySet) -> str:
    canary = tenant.canary
    if canary is not None and ref == canary.policy:
        how = f"On trial in {listed(namespaces)}: policy {ref} is used there, and {tenant.policy} may still be named."
    else:
        how = f"Kept: programs that name policy {ref} still get what it says."
    differences = against(policy_set, tenant.policy, ref)
    if not differences:
        return f"{how} It gives the same as {tenant.policy}."
    return f"{how} {' '.join(_against(tenant.policy, ref, policy_set, differences))}"


def _against(usual: PolicyRef, ref: PolicyRef, policy_set: PolicySet, found: Iterable[Difference]) -> Iterator[str]:
    """What `ref` says otherwise than `usual`: conditions in the words of this page, the rest by its files' word."""
    old, new = ([said for _, said in promises(policy_set.policies[one])] for one in (usual, ref))
    if more := [said for said in new if said not in old]:
        yield f"It adds: {' '.join(more)}"
    if less := [said for said in old if said not in new]:
        yield f"It does not say: {' '.join(less)}"
    for sentence in (later_choices, unhealthy, rollback):
        if sentence(policy_set.policies[ref]) != sentence(policy_set.policies[usual]):
            yield sentence(policy_set.policies[ref])
    for one in found:
        if label := _WORDS.get(one.what):
            yield f"{label}: {one.before} → {one.after} ({one.why})."


_WORDS = {"serves": "Requests that are answered", "candidates": "Models", "cel": "Conditions of its own"}


# -- exceptions -------------------------------------------------------------------------------------------------------


def _exceptions(policy_set: PolicySet) -> Iterator[Part]:
    yield Heading(2, "Exceptions")
    if not policy_set.exceptions:
        yield Paragraph("There are none: every rule holds for every tenant.")
        return
    yield Paragraph(
        "What a rule refuses stands in docs/reference/reasons.md. After its last day an exception counts no more."
    )
    rows = tuple((one.name, said(one), one.reason, one.ticket, one.approver) for one in policy_set.exceptions)
    yield Table(("Exception", "What does not hold, where, until when", "Why", "Asked for in", "Approved by"), rows)


# -- settings ---------------------------------------------------------------------------------------------------------


def _settings(settings: Settings) -> Iterator[Part]:
    yield Heading(2, "What holds for the whole cluster")
    void = {
        "envFrom": "A program without devices that loads settings from elsewhere (envFrom) sees none, whatever those "
        "settings say. What its image itself says is not overruled.",
        "withoutClaim": "A program without devices sees none, whatever its settings or its image say.",
        "off": "Nothing is set on programs without devices: what their settings or image say may show them devices, "
        "unless the machines are set up to prevent it.",
    }[settings.visible_devices_void]
    yield Table(
        ("Question", "Answer"),
        (
            ("Whose programs are not judged?", _names(sorted(settings.exempt_users), "Only the cluster's own parts.")),
            (
                "Which ways of starting a program hand out devices without asking, and are refused?",
                _names(settings.device_runtimes, "None is named."),
            ),
            (
                "By which marks are machines with devices told, so that nobody may pick one by hand?",
                _names(settings.device_node_labels, "None but those in the catalogue."),
            ),
            ("What do programs see that hold no device?", void),
            (
                "What happens to a plan (job, deployment) whose programs would be refused?",
                "Its author is warned; the programs are refused when they start."
                if settings.workload_verdict == "warn"
                else "It is refused at once.",
            ),
            (
                "Which further kinds of plan are looked at?",
                _names((f"{one.resource} ({one.group})" for one in settings.workloads), "None but Kubernetes' own."),
            ),
            (
                "Where does another queue (Kueue) say whose turn it is?",
                _names(settings.kueue_namespaces, "Nowhere, except for programs that carry its mark."),
            ),
            (
                "By which marks are machines told whose devices still come by device plugin?",
                _names([f"{key}={value}" for key, value in settings.device_plugin_nodes.items()], "None is named."),
            ),
        ),
    )


def _names(names: Iterator[str] | tuple[str, ...] | list[str], nothing: str) -> str:
    return ", ".join(names) or nothing
