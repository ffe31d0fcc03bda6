"""Policy tests judged: what a case expected and what came out, and what of the policies no case touches. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dra_gate.admission.guards import GUARDS
from dra_gate.admission.replay import Replay
from dra_gate.admission.rules import ALL
from dra_gate.policy.cases import Case
from dra_gate.policy.lint import Cluster, offered
from dra_gate.policy.model import PolicyRef, PolicySet
from dra_gate.policy.words import promises


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A word of the expectation that does not hold."""

    word: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Result:
    """One case with what came out. `offers` are the facts' devices by policy: model, device, the word against it."""

    case: Case
    replay: Replay
    offers: Mapping[PolicyRef, tuple[tuple[str, str, str], ...]]
    mismatches: tuple[Mismatch, ...]


def examine(case: Case, found: Replay, policy_set: PolicySet, cluster: Cluster) -> Result:
    """Holds `found` against what `case` expects; `cluster` are the devices among its facts."""
    offers = {
        ref: tuple(
            (model, f"{device.pool}/{device.name}", word or ("unhealthy" if device.unhealthy else ""))
            for model, device, word in offered(policy_set, policy_set.policies[ref], cluster)
        )
        for ref in (found.policies if cluster.slices else ())
    }
    owned = policy_set.tenant_of(_namespace(case)) is not None
    return Result(case, found, offers, tuple(_mismatches(case, found, offers, owned=owned)))


def _mismatches(
    case: Case, found: Replay, offers: Mapping[PolicyRef, tuple[tuple[str, str, str], ...]], *, owned: bool
) -> Iterator[Mismatch]:
    expected = case.expected
    if found.verdict != expected.verdict:
        why = f" ({', '.join(found.reasons)})" if found.reasons else ""
        if found.verdict == "ignore" and not owned:
            why = f" (no tenant has namespace {_namespace(case)})"
        yield Mismatch("verdict", expected.verdict, found.verdict + why)
    reasons = expected.reasons
    if reasons is not None and (not set(reasons) <= set(found.reasons) or (not reasons and found.reasons)):
        codes = {code for rule in ALL for code in rule.codes} | {guard.code for guard in GUARDS}
        told = (reason if reason in codes else f"{reason} (there is no such code)" for reason in reasons)
        yield Mismatch("reasons", _shown(told), _shown(found.reasons))
    fits = dict.fromkeys(device for devices in offers.values() for _, device, word in devices if not word)
    for name, wanted, came in (
        ("claims", expected.claims, found.claims),
        ("candidates", expected.candidates, found.candidates),
        ("fits", expected.fits, tuple(fits)),
    ):
        if wanted is not None and wanted != came:
            yield Mismatch(name, _shown(wanted), _shown(came))


def _shown(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"


# -- coverage ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Coverage:
    """What no case touches, of what there is: each a list of names out of a number."""

    untouched: Mapping[str, tuple[str, ...]]
    total: Mapping[str, int]


def coverage(policy_set: PolicySet, results: Iterable[Result]) -> Coverage:
    """What `results` leave untouched of the policies that tenants honour.

    A tenant is touched by a case in one of its namespaces. A candidate is touched where a case expects it, or a device
    of it fits. A constraint is touched where a device is turned away by it, `sameAttribute` by a claim for several
    devices, `nodes` by any claim. A rule is touched where it finds something.
    """
    done: dict[str, set[str]] = {kind: set() for kind in _KINDS}
    for result in results:
        done["rules"].update(result.replay.rules)
        namespace = _namespace(result.case)
        if (tenant := policy_set.tenant_of(namespace)) is not None:
            done["tenants"].add(tenant.name)
        expected = result.case.expected.candidates or ()
        for template in result.replay.templates:
            ref = template.policy
            done["candidates"].update(f"{ref} {model}" for model in template.candidates if model in expected)
            done["constraints"].add(f"{ref} nodes")
            if template.count > 1:
                done["constraints"].add(f"{ref} sameAttribute")
        for ref, devices in result.offers.items():
            done["candidates"].update(f"{ref} {model}" for model, _, word in devices if not word)
            done["constraints"].update(f"{ref} {word}" for _, _, word in devices if word)
    there = _there(policy_set)
    return Coverage(
        {kind: tuple(name for name in names if name not in done[kind]) for kind, names in there.items()},
        {kind: len(names) for kind, names in there.items()},
    )


_KINDS = ("tenants", "candidates", "constraints", "rules")


def _there(policy_set: PolicySet) -> dict[str, tuple[str, ...]]:
    refs = dict.fromkeys(
        ref
        for tenant in policy_set.tenants.values()
        for namespace in tenant.namespaces
        for ref in tenant.valid_refs(namespace)
    )
    policies = [policy_set.policies[ref] for ref in refs]
    words = (f"{policy.ref} {word}" for policy in policies for word, _ in promises(policy))
    return {
        "tenants": tuple(policy_set.tenants),
        "candidates": tuple(f"{policy.ref} {model}" for policy in policies for model in policy.candidates),
        "constraints": tuple(dict.fromkeys(words)),
        "rules": tuple(rule.id for rule in ALL),
    }


def _namespace(case: Case) -> str:
    where = case.document.get("request" if case.document.get("kind") == "AdmissionReview" else "metadata")
    named = where.get("namespace") if isinstance(where, Mapping) else None
    return named if isinstance(named, str) else case.namespace
