"""What has to happen to the gate's own certificates, as a function of what is there. No I/O, no clock, no keys.

Two rules keep every call of the API server working while things change:

- a serving certificate is put in place only when both webhook configurations have trusted its CA for a while;
- a CA is trusted until no certificate that it signed can be served any more: neither the present one nor an earlier one
  that hasn't ended, which a replica may still hold.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

KEPT = 8  # earlier serving certificates remembered; more than one is there only after forced changes


@dataclass(frozen=True, slots=True)
class Cert:
    """A certificate as far as the plan reads it.

    `id` is its fingerprint; `signers` the ids of the known CAs that signed it or a certificate of its chain; `names`
    its DNS names and addresses.
    """

    id: str
    begins: dt.datetime
    ends: dt.datetime
    signers: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()

    def valid(self, now: dt.datetime) -> bool:
        """Whether `now` is in its life."""
        return self.begins <= now < self.ends

    def renewal(self) -> dt.datetime:
        """When two thirds of its life are over."""
        return self.begins + (self.ends - self.begins) * 2 / 3

    def late(self, now: dt.datetime) -> bool:
        """Whether less than a sixth of its life remains: its renewal, due since another sixth, has failed."""
        return self.ends - now < (self.ends - self.begins) / 6


@dataclass(frozen=True, slots=True)
class Settings:
    """What is wanted: `names` of the serving certificate, lives, and how long a CA is trusted before it serves.

    Raises ValueError when a CA would end before the last certificate that it signed had a full life.
    """

    names: frozenset[str]
    authority_life: dt.timedelta
    serving_life: dt.timedelta
    settle: dt.timedelta

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError("a serving certificate needs a name")
        if self.serving_life <= dt.timedelta(0) or self.authority_life < 3 * self.serving_life:
            raise ValueError("a CA must live at least three times as long as a certificate, which must live")


@dataclass(frozen=True, slots=True)
class Seen:
    """What is there.

    `authority`: the CA whose key Secret dra-gate-ca holds; None if there is no usable one. `known`: every CA
    certificate that was found in the two Secrets and in the configurations. `stored`: ids in that Secret's ca.crt,
    `shown` in the ca.crt of dra-gate-tls. `serving`: the certificate of Secret dra-gate-tls, None if it and its key are
    no usable pair; `earlier`: those before it. `bundles`: for each of our webhook configurations, what each webhook
    trusts (ids; None for what is no PEM). `published`: how long every webhook has been seen to trust `authority`; None
    while not all do.
    """

    authority: Cert | None
    known: tuple[Cert, ...]
    stored: tuple[str, ...]
    shown: tuple[str, ...]
    serving: Cert | None
    earlier: tuple[Cert, ...]
    bundles: Mapping[str, tuple[tuple[str, ...] | None, ...]]
    published: dt.timedelta | None


@dataclass(frozen=True, slots=True)
class NewAuthority:
    """Make a CA and store it in Secret dra-gate-ca, with the certificates `keep` after it."""

    reason: str
    keep: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """Write the CA certificates `trust` into ca.crt of Secret dra-gate-ca."""

    trust: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Publish:
    """Make every webhook of `configuration` trust exactly `trust`."""

    configuration: str
    trust: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NewServing:
    """Make a serving certificate and store it in Secret dra-gate-tls, with `earlier` remembered and `trust` shown."""

    reason: str
    earlier: tuple[str, ...]
    trust: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Show:
    """Write `trust` into ca.crt of Secret dra-gate-tls, where other readers find what to trust."""

    trust: tuple[str, ...]


Action = NewAuthority | Store | Publish | NewServing | Show


def plan(now: dt.datetime, seen: Seen, settings: Settings) -> list[Action]:
    """What to do now, in order; empty when everything is as it should be or has to wait. Look again after each pass."""
    authority = seen.authority
    kept = _needed(now, seen, authority)
    reason = _authority_reason(now, authority)
    if authority is None or reason:
        return [NewAuthority(reason, kept)]
    trust = (authority.id, *kept)
    actions: list[Action] = []
    if seen.stored != trust:
        actions.append(Store(trust))
    actions += [Publish(name, trust) for name, found in sorted(seen.bundles.items()) if any(b != trust for b in found)]
    reason = _serving_reason(now, seen.serving, authority, settings)
    if reason and _may_serve(now, seen, settings):
        actions.append(NewServing(reason, _remembered(now, seen), trust))
    elif seen.serving is not None and seen.shown != trust:
        actions.append(Show(trust))
    return actions


def _authority_reason(now: dt.datetime, authority: Cert | None) -> str:
    if authority is None:
        return "there is no usable CA"
    if now < authority.begins:
        return "the clock was set back before the CA began"
    if now >= authority.ends:
        return "the CA has ended"
    return "two thirds of the CA's life are over" if now >= authority.renewal() else ""


def _serving_reason(now: dt.datetime, serving: Cert | None, authority: Cert, settings: Settings) -> str:
    if serving is None:
        return "there is no usable certificate"
    if now < serving.begins:
        return "the clock was set back before the certificate began"
    if now >= serving.ends:
        return "the certificate has ended"
    if serving.names != settings.names:
        return f"the names are now {', '.join(sorted(settings.names))}"
    if authority.id not in serving.signers:
        return "the CA has changed"
    return "two thirds of the certificate's life are over" if now >= serving.renewal() else ""


def _may_serve(now: dt.datetime, seen: Seen, settings: Settings) -> bool:
    """Whether a certificate of the present CA may be put in place: API servers trust it, or nothing can get worse."""
    if seen.published is not None and seen.published >= settings.settle:
        return True
    trusted = {id_ for bundle in seen.bundles.values() for ids in bundle for id_ in ids or ()}
    works = (
        seen.serving is not None and seen.serving.valid(now) and (not seen.bundles or seen.serving.signers & trusted)
    )
    return not works


def _needed(now: dt.datetime, seen: Seen, authority: Cert | None) -> tuple[str, ...]:
    """CAs beside the present one that must stay trusted, newest first."""
    served = [cert for cert in (seen.serving, *seen.earlier) if cert is not None and now < cert.ends]
    signers = frozenset[str]().union(*(cert.signers for cert in served))
    own = None if authority is None else authority.id
    # Once a CA is to be replaced it is one of the others, and stays if it signed what may be served.
    own = None if _authority_reason(now, authority) else own
    kept = {cert.id: cert for cert in seen.known if cert.id in signers and cert.id != own and now < cert.ends}
    return tuple(cert.id for cert in sorted(kept.values(), key=lambda cert: (cert.begins, cert.id), reverse=True))


def _remembered(now: dt.datetime, seen: Seen) -> tuple[str, ...]:
    certs = [cert for cert in (seen.serving, *seen.earlier) if cert is not None and now < cert.ends]
    return tuple(cert.id for cert in certs[:KEPT])


def ending(now: dt.datetime, certs: Iterable[Cert | None]) -> list[Cert]:
    """Those whose renewal has failed for so long that a person should look: a sixth of their life remains."""
    return [cert for cert in certs if cert is not None and cert.late(now)]
