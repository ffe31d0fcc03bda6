"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from dra_gate.admission import convert
from dra_gate.admission.facts import Facts
from dra_gate.admission.plugin_pod import PluginPod
from dra_gate.admission.plugin_pod import read as read_plugin_pod
from dra_gate.admission.request import Request
from dra_gate.admission.scope import LANES, Scope
from dra_gate.admission.signs import DRA_GROUP, Sign
from dra_gate.admission.verdict import Finding
from dra_gate.kube.raw import Object, at
from dra_gate.policy.compile import Template
from dra_gate.policy.switch import PLUGIN
from dra_gate.policy.words import listed, many

MAX_FINDINGS = 100  # told of one object: who has a thousand mistakes in it fixes the kind, not each


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule may look at: the request, the object in it, whose namespace it is in, and the facts.

    `templates` are the tenant's own templates that the object names, by claim entry, and those of its late claims; in
    lane device-plugin none are. There `plugin` is what a Pod that asks for devices gets of its policy, and
    `plugin_findings` why it cannot be let in.
    """

    request: Request
    object: Object
    scope: Scope
    facts: Facts
    templates: Mapping[str, Template]
    plugin: PluginPod | None = None
    plugin_findings: tuple[Finding, ...] = ()

    @classmethod
    def of(cls, request: Request, obj: Object, scope: Scope, facts: Facts) -> Context:
        """The context of one judgement: what several rules look up is looked up once."""
        if scope.lane == PLUGIN:
            return cls(request, obj, scope, facts, {}, *read_plugin_pod(obj, scope, facts))
        return cls(request, obj, scope, facts, convert.tenant_templates(obj, scope, facts))

    @property
    def late(self) -> dict[str, int]:
        """Devices by claim entry of the tenant's late claims that the object names."""
        return convert.late_counts(self.object, self.templates)

    @property
    def holds_devices(self) -> bool:
        """The object, a Pod, holds a claim of the tenant, or will when mutate has seen it."""
        return bool(self.templates) or any(True for _ in convert.device_requests(self.object, self.facts))

    def or_by_companions(self, remedy: str) -> str:
        """`remedy`, and what the policy gives beside devices: many a claim of one's own is written for just that."""
        policy = self.scope.policy
        if policy is None or not policy.companions or self.scope.lane == PLUGIN:
            return remedy
        given = listed(f"{one.name} ({many(one.count, 'device')} of {one.device_class})" for one in policy.companions)
        return f"{remedy}. Policy {policy.ref} adds {given} to the claim of every container that asks for devices"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `on` are the (group, resource, operation) triples it is asked about, `fields` the paths it reads. A
    subresource is a resource of its own, such as `pods/resize`.

    `check` yields a finding for everything that is wrong; it never stops at the first. What it denies shows one of
    `signs`: the API server asks about nothing else. `as_written`: it judges what people wrote, whatever mutate does to
    it, so that mutate can say it beside its own findings.
    """

    id: str
    title: str
    protects: str
    code: str
    fields: tuple[str, ...]
    remedy: str
    on: tuple[tuple[str, str, str], ...]
    check: Callable[[Context], Iterable[Finding]]
    signs: tuple[Sign, ...]
    as_written: bool = False
    other_codes: tuple[str, ...] = ()  # that some findings have in place of `code`
    lane: str = ""  # that it is about; empty: all of them. What is no lane has the rules of all
    # CEL over `object`, `oldObject` and `domains`, those that every policy set in force serves, for when the webhook is
    # not asked (admission/backstop.py): holds for requests about Pods that are surely denied, whatever else the
    # policies say and the cluster holds. It may hold for fewer, never for one that is let pass.
    twin: str = ""

    @property
    def codes(self) -> tuple[str, ...]:
        """All codes of its findings."""
        return (self.code, *self.other_codes)

    def finding(self, field: str, message: str, *, code: str = "", remedy: str = "") -> Finding:
        """A finding of this rule."""
        return Finding(self.id, code or self.code, field, message, remedy or self.remedy)


class Registry:
    """Rules by what they are asked about. Raises ValueError for two rules of one id."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        ids = [rule.id for rule in self._rules]
        if len(set(ids)) != len(ids):
            message = f"two rules of one id: {ids}"
            raise ValueError(message)
        self._by_kind: dict[tuple[str, str, str], list[Rule]] = {}
        for rule in self._rules:
            for kind in rule.on:
                self._by_kind.setdefault(kind, []).append(rule)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)

    def judges(self, request: Request) -> bool:
        """Some rule is about this kind of request."""
        return (request.group, request.target, request.operation) in self._by_kind

    def signs(self, group: str, resource: str, operation: str) -> tuple[Sign, ...]:
        """The signs of all rules that are about this kind of request."""
        rules = self._by_kind.get((group, resource, operation), ())
        return tuple(dict.fromkeys(sign for rule in rules for sign in rule.signs))

    def findings(self, context: Context, *, as_written: bool = False) -> tuple[Finding, ...]:
        """The findings of all rules that are about this kind of request, in the registry's order: all of them, or the
        first `MAX_FINDINGS` and of each rule that comes after those its first, since those of one rule may be let pass.
        With `as_written` only those of rules that judge what people wrote.
        """
        request = context.request
        rules: Iterable[Rule] = self._by_kind.get((request.group, request.target, request.operation), ())
        if context.scope.lane in LANES:
            rules = [rule for rule in rules if rule.lane in ("", context.scope.lane)]
        if as_written:
            rules = [rule for rule in rules if rule.as_written]
        found: list[Finding] = []
        for rule in rules:
            found += islice(rule.check(context), max(MAX_FINDINGS - len(found), 1))
        return tuple(found)


CLAIM_CREATE = (
    (DRA_GROUP, "resourceclaims", "CREATE"),
    (DRA_GROUP, "resourceclaimtemplates", "CREATE"),
)


def is_going(request: Request) -> bool:
    """The object is being deleted: it is never held back, its finalizers must come off whatever else changes."""
    return at(request.old_object, "metadata", "deletionTimestamp") is not None


NOT_GOING = "!has(oldObject.metadata.deletionTimestamp)"  # of `is_going`, in CEL
POD_CREATE = (("", "pods", "CREATE"),)
POD_UPDATE = (("", "pods", "UPDATE"),)
