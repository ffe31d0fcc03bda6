"""What the gate stands on in the API server, and whether it is as this version writes it.

That is both webhook configurations, the guards, and the backstop where it is wanted. Compared is everything that
decides whether the gate is asked and what is refused; not the caBundle, which is put in at run time, and metadata.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_gate.admission import backstop, guards
from dra_gate.admission.configurations import GATE_WRITERS, configurations
from dra_gate.kube.raw import Object, mapping, text
from dra_gate.policy.model import Settings

MISSING = "missing"
# What the API server adds where nothing is said (admissionregistration.k8s.io/v1).
_DEFAULTS: Mapping[str, Any] = {
    "matchPolicy": "Equivalent",
    "namespaceSelector": {},
    "objectSelector": {},
    "scope": "*",
}
_URL = re.compile(r"https://(\[[^\]]+\]|[^:/\[]+)(?::\d+)?/(\w+)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """An object that has to be there, as one of `forms`."""

    kind: str
    name: str
    forms: tuple[Object, ...]

    def differences(self, found: Object | None, called: Collection[str] = ()) -> tuple[str, ...]:
        """The fields in which `found` differs from the form that it is nearest to; `MISSING` where there is none.

        `called` are the hosts that a webhook may call; empty: they are not known, and not compared.
        """
        if found is None:
            return (MISSING,)
        part = "webhooks" if "webhooks" in self.forms[0] else "spec"
        each = (tuple(sorted(_differ(form[part], found.get(part), part, called))) for form in self.forms)
        return min(each, key=len)


def wanted(settings: Iterable[Settings], *, with_backstop: bool) -> list[Wanted]:
    """What has to be there for policy sets with these settings.

    Configurations that ask about more Pods than the settings need are right, since they are written before such a set
    is activated; so are those that ask about no custom workloads.
    """
    needs = set(settings)
    voids = {one.visible_devices_void for one in needs} | {"withoutClaim"}
    if any(one.visible_devices_void == "withoutClaim" for one in needs):
        voids = {"withoutClaim"}
    forms = dict.fromkeys(
        Settings(visible_devices_void=void, workloads=workloads)
        for void in sorted(voids)
        for workloads in ((), *(one.workloads for one in needs))
    )
    made = [
        configurations(service=("namespace", "name", 443), ca_bundle=b"", writers=GATE_WRITERS, settings=one)
        for one in forms
    ]
    found = [_wanted(one) for one in zip(*made, strict=True)]
    policies = [*guards.manifests(), *(backstop.manifests() if with_backstop else ())]
    return found + [_wanted([one]) for one in policies]


def _wanted(forms: Sequence[Object]) -> Wanted:
    return Wanted(text(forms[0]["kind"]), text(mapping(forms[0]["metadata"])["name"]), tuple(forms))


def _differ(want: object, found: object, at: str, called: Collection[str]) -> Iterator[str]:
    if isinstance(want, Mapping) and isinstance(found, Mapping):
        for key in sorted({*want, *found}):
            default = _DEFAULTS.get(key)
            field = f"{at}.{key}"
            if key == "clientConfig":
                if not _calls_us(mapping(found.get(key)), mapping(want.get(key)), called):
                    yield field
            else:
                yield from _differ(want.get(key, default), found.get(key, default), field, called)
    elif isinstance(want, list) and isinstance(found, list):
        if _named(want) and _named(found):  # as the API server merges them
            names, others = ({one["name"]: one for one in each} for each in (want, found))
            for name in sorted({*names, *others}):
                yield from _differ(names.get(name), others.get(name), f"{at}[{name}]", called)
        elif len(want) != len(found):
            yield at
        else:
            for index, (one, other) in enumerate(zip(want, found, strict=True)):
                yield from _differ(one, other, f"{at}[{index}]", called)
    elif want != found:
        yield at


def _named(items: list[Any]) -> bool:
    return all(isinstance(one, Mapping) and "name" in one for one in items)


def _calls_us(found: Object, want: Object, called: Collection[str]) -> bool:
    """A route of ours, at a host that is one of `called`."""
    service = mapping(found.get("service"))
    if service:
        host, path = f"{text(service.get('name'))}.{text(service.get('namespace'))}.svc", text(service.get("path"))
    else:
        parts = _URL.fullmatch(text(found.get("url")))
        host, path = (parts[1].strip("[]"), f"/{parts[2]}") if parts else ("", "")
    return path == mapping(want.get("service")).get("path") and (not called or host in called)
