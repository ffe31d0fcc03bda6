"""Keeps the gate's own certificates: reads two Secrets and both webhook configurations, asks `plan`, writes.

Everything is looked at anew every few seconds, so nothing has to be remembered, and what somebody deletes or edits
comes right by itself. The caBundle of our configurations is ours: what others add is taken out again, unless it signed
the certificate that is served. Two controllers at once do no harm: every write depends on what it was decided on.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dra_gate.admission.guards import NAME as CONFIGURATION
from dra_gate.cluster.client import JSON_PATCH, Client, ClusterError, Conflict, NotFound
from dra_gate.cluster.events import event, write_event
from dra_gate.controller import certificate_plan, x509
from dra_gate.controller.certificate_plan import Action, Cert, NewAuthority, NewServing, Publish, Settings, Show, Store
from dra_gate.controller.rounds import Rounds
from dra_gate.kube.raw import Object, at, mapping, sequence, text

AUTHORITY_SECRET = "dra-gate-ca"  # noqa: S105 - a name
SERVING_SECRET = "dra-gate-tls"  # noqa: S105 - a name
EARLIER = "earlier.crt"  # in the serving Secret: certificates before the present one that haven't ended
LOOK_SECONDS = 10.0
COMPLAIN_SECONDS = 3600.0  # between two Events about a certificate that isn't renewed
PASSES = 8  # writes in a row without a pause; a change of CA needs five

_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
_CONFIGURATIONS = tuple(
    f"{_WEBHOOKS}/{kind}webhookconfigurations/{CONFIGURATION}" for kind in ("mutating", "validating")
)
_CLOCK = "/apis/authentication.k8s.io/v1/selfsubjectreviews"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _World:
    """What was read in one round: the plan's view, and the objects behind it."""

    seen: certificate_plan.Seen
    certificates: Mapping[str, x509.Certificate]
    authority: x509.Pair | None
    secrets: Mapping[str, Object | None]
    configurations: Mapping[str, Object]


class CertificateController(Rounds):
    """Keeps Secrets dra-gate-ca and dra-gate-tls in `namespace`, and the caBundle of both configurations.

    The API server's clock decides, not ours: it is the one that will check. Works only while `leading()`. A Prometheus
    collector: register it where the metrics are served.
    """

    def __init__(
        self, client: Client, namespace: str, settings: Settings, *, identity: str, leading: Callable[[], bool]
    ) -> None:
        super().__init__("certificates", min(LOOK_SECONDS, settings.settle.total_seconds() / 2))
        self.failures = 0
        self.issued = {"authority": 0, "serving": 0}
        self._client = client
        self._namespace = namespace
        self._settings = settings
        self._identity = identity
        self._leading = leading
        self._trusted_since: tuple[str, float] | None = None  # id of the CA, time.monotonic() when all trusted it
        self._ends: dict[str, float] = {}  # seconds since the epoch, of what was last seen
        self._certs: tuple[Cert | None, ...] = ()
        self._complained = -math.inf

    def collect(self) -> Iterable[Metric]:
        """When what was last seen ends; what was issued; rounds that failed."""
        ends = GaugeMetricFamily(
            "dra_gate_own_certificate_not_after_timestamp_seconds",
            "When the certificate ends, in seconds since the epoch; only the replica that leads says so.",
            labels=["certificate"],
        )
        for name, when in self._ends.items() if self._leading() else ():
            ends.add_metric([name], when)
        issued = CounterMetricFamily(
            "dra_gate_own_certificates_issued", "Certificates made by this replica.", labels=["certificate"]
        )
        for name, count in self.issued.items():
            issued.add_metric([name], count)
        yield from (
            ends,
            issued,
            CounterMetricFamily(
                "dra_gate_own_certificate_failures", "Looks at the certificates that failed.", value=self.failures
            ),
        )

    def turn(self) -> None:
        """Look while we lead."""
        if self._leading():
            self.look()

    # -- one round ----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Read, plan and write until nothing is left to do. Logs and counts what fails; the next look tries again."""
        try:
            now = self._clock()
            try:
                for _ in range(PASSES):
                    if not self._pass(now):
                        break
            finally:
                self._complain(now)
        except (Conflict, NotFound) as error:
            _log.info("certificates: somebody was faster: %s", error)
        except ClusterError as error:
            self.failures += 1
            _log.warning("certificates: %s", error)
        except Exception:  # noqa: BLE001 - a dead loop would let the certificate end
            self.failures += 1
            _log.exception("certificates")

    def _clock(self) -> dt.datetime:
        """The API server's time: the creation of a SelfSubjectReview, which everybody may make and nobody stores."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        made = text(at(self._client.create(_CLOCK, review), "metadata", "creationTimestamp"))
        return dt.datetime.fromisoformat(made)

    def _pass(self, now: dt.datetime) -> bool:
        """One reading and the writes that it leads to; whether there were any."""
        world = self._read()
        actions = certificate_plan.plan(now, world.seen, self._settings)
        for action in actions:
            if not self._leading():
                return False
            self._write(action, world, now)
            if isinstance(action, NewAuthority | Store | NewServing | Show):
                break  # a Secret has a new version now: read again
        return bool(actions)

    def _read(self) -> _World:
        secrets = {name: self._find(self._secret(name)) for name in (AUTHORITY_SECRET, SERVING_SECRET)}
        found = {path: self._find(path) for path in _CONFIGURATIONS}
        configurations = {path: obj for path, obj in found.items() if obj is not None}
        reader = _Reader()
        stored = reader.bundle(_value(secrets[AUTHORITY_SECRET], "ca.crt"))
        shown = reader.bundle(_value(secrets[SERVING_SECRET], "ca.crt"))
        bundles = {
            path: tuple(reader.bundle(_decoded(at(hook, "clientConfig", "caBundle"))) for hook in _hooks(obj))
            for path, obj in configurations.items()
        }
        authority = _authority(secrets[AUTHORITY_SECRET])
        chain = _chain(secrets[SERVING_SECRET])
        known = tuple(reader.certificates.values())
        own = None if authority is None else reader.cert([authority.certificate], ())
        seen = certificate_plan.Seen(
            authority=own,
            known=tuple(reader.cert([certificate], ()) for certificate in known),
            stored=stored or (),
            shown=shown or (),
            serving=reader.cert(chain, known) if chain else None,
            earlier=tuple(reader.cert([one], known) for one in _certificates(_value(secrets[SERVING_SECRET], EARLIER))),
            bundles=bundles,
            published=self._published(own, bundles.values()),
        )
        self._certs = (seen.authority, seen.serving)
        self._ends = {
            name: cert.ends.timestamp()
            for name, cert in (("authority", seen.authority), ("serving", seen.serving))
            if cert is not None
        }
        return _World(seen, reader.certificates, authority, secrets, configurations)

    def _published(
        self, authority: Cert | None, bundles: Iterable[tuple[tuple[str, ...] | None, ...]]
    ) -> dt.timedelta | None:
        """How long we have seen every webhook trust `authority`; a new leader sees it anew."""
        if authority is None or any(authority.id not in (ids or ()) for bundle in bundles for ids in bundle):
            self._trusted_since = None
            return None
        now = time.monotonic()
        if self._trusted_since is None or self._trusted_since[0] != authority.id:
            self._trusted_since = authority.id, now
        return dt.timedelta(seconds=now - self._trusted_since[1])

    # -- writing ------------------------------------------------------------------------------------------------------

    def _write(self, action: Action, world: _World, now: dt.datetime) -> None:
        settings = self._settings
        match action:
            case NewAuthority(reason, keep):
                made = x509.new_authority(now, settings.authority_life)
                bundle = made.certificate_pem + _pem(world, keep)
                self._put(AUTHORITY_SECRET, world, "Opaque", {"ca.crt": bundle, "ca.key": made.key_pem})
                self.issued["authority"] += 1
                _log.info("new CA, until %s: %s", made.certificate.not_valid_after_utc, reason)
            case Store(trust):
                self._put(AUTHORITY_SECRET, world, "Opaque", {"ca.crt": _pem(world, trust)})
                _log.info("%d CAs are trusted", len(trust))
            case Publish(path, trust):
                self._publish(path, world.configurations[path], _pem(world, trust))
                _log.info("%s: %d CAs in the caBundle", path, len(trust))
            case NewServing(reason, earlier, trust):
                assert world.authority is not None  # noqa: S101 - the plan needs one for this
                leaf = x509.new_serving(world.authority, sorted(settings.names), now, settings.serving_life)
                data = {
                    "tls.crt": leaf.certificate_pem,
                    "tls.key": leaf.key_pem,
                    "ca.crt": _pem(world, trust),
                    EARLIER: _pem(world, earlier),
                }
                self._put(SERVING_SECRET, world, "kubernetes.io/tls", data)
                self.issued["serving"] += 1
                _log.info("new serving certificate, until %s: %s", leaf.certificate.not_valid_after_utc, reason)
            case Show(trust):
                self._put(SERVING_SECRET, world, "kubernetes.io/tls", {"ca.crt": _pem(world, trust)})

    def _put(self, name: str, world: _World, kind: str, data: Mapping[str, bytes]) -> None:
        """Create the Secret, or set these keys in the one that was read. Conflict if it isn't that one any more."""
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        old = world.secrets[name]
        if old is None:
            labels = {"app.kubernetes.io/part-of": "dra-gate", "app.kubernetes.io/managed-by": "dra-gate"}
            metadata = {"name": name, "namespace": self._namespace, "labels": labels}
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": encoded}
            self._client.create(self._secret(), secret)
        else:
            self._client.replace(self._secret(name), {**old, "data": {**mapping(old.get("data")), **encoded}})

    def _publish(self, path: str, configuration: Object, bundle: bytes) -> None:
        encoded = base64.b64encode(bundle).decode()
        version = at(configuration, "metadata", "resourceVersion")
        # Named in a patch the version is a precondition: 409 if somebody wrote in between and the indices are others.
        patch: list[dict[str, object]] = [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}]
        patch += [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": encoded}
            for index, _ in enumerate(_hooks(configuration))
        ]
        self._client.patch(path, patch, JSON_PATCH)

    def _complain(self, now: dt.datetime) -> None:
        """Tell people when a certificate should have been renewed long ago."""
        late = certificate_plan.ending(now, self._certs)
        if not late or time.monotonic() - self._complained < COMPLAIN_SECONDS:
            return
        self._complained = time.monotonic()
        when = min(cert.ends for cert in late)
        _log.error("the gate's certificate ends on %s and could not be renewed", when)
        about = {"apiVersion": "v1", "kind": "Secret", "namespace": self._namespace, "name": SERVING_SECRET}
        note = (
            f"The gate's certificate ends on {when:%Y-%m-%d %H:%M:%S} UTC and its renewal fails: see the log of the "
            "controller. When it has ended, device Pods in gated namespaces are refused."
        )
        try:
            write_event(self._client, event(about, "CertificateNotRenewed", "Renew", note, identity=self._identity))
        except ClusterError as error:
            _log.warning("certificates: no Event: %s", error)

    def _secret(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self._namespace}/secrets{name and '/'}{name}"

    def _find(self, path: str) -> Object | None:
        try:
            return self._client.get(path)
        except NotFound:
            return None


class _Reader:
    """Turns PEM into the plan's view, and remembers every certificate that it met by its id."""

    def __init__(self) -> None:
        self.certificates: dict[str, x509.Certificate] = {}

    def bundle(self, content: bytes) -> tuple[str, ...] | None:
        """The ids in a bundle; None if it is no PEM."""
        found = _certificates(content)
        for certificate in found:
            self.certificates.setdefault(x509.fingerprint(certificate), certificate)
        return tuple(x509.fingerprint(certificate) for certificate in found) or None

    def cert(self, chain: list[x509.Certificate], authorities: Iterable[x509.Certificate]) -> Cert:
        """The first of the chain, signed by those of `authorities` that signed it or another one of the chain."""
        leaf = chain[0]
        id_ = x509.fingerprint(leaf)
        self.certificates[id_] = leaf
        signers = {x509.fingerprint(ca) for ca in authorities for one in chain if x509.issued(one, ca)}
        return Cert(id_, leaf.not_valid_before_utc, leaf.not_valid_after_utc, frozenset(signers), x509.names_of(leaf))


def _pem(world: _World, ids: Iterable[str]) -> bytes:
    return x509.pem(world.certificates[id_] for id_ in ids)


def _hooks(configuration: Object) -> list[Object]:
    return [mapping(hook) for hook in sequence(configuration.get("webhooks"))]


def _value(secret: Object | None, key: str) -> bytes:
    return _decoded(at(secret, "data", key))


def _decoded(value: object) -> bytes:
    try:
        return base64.b64decode(text(value), validate=True)
    except binascii.Error:
        return b""


def _certificates(content: bytes) -> list[x509.Certificate]:
    try:
        return x509.read_certificates(content)
    except ValueError:
        return []


def _authority(secret: Object | None) -> x509.Pair | None:
    """The CA of Secret dra-gate-ca; None if it holds no key with a CA certificate of its own."""
    try:
        pair = x509.read_pair(_value(secret, "ca.crt"), _value(secret, "ca.key"))
    except ValueError:
        return None
    return pair if x509.is_authority(pair.certificate) else None


def _chain(secret: Object | None) -> list[x509.Certificate]:
    """The certificates of Secret dra-gate-tls, the serving one first; empty if the key is not that one's."""
    chain = _certificates(_value(secret, "tls.crt"))
    return chain if chain and x509.belongs(_value(secret, "tls.key"), chain[0]) else []
