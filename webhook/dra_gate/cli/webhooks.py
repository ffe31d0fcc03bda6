"""`dra-gate webhooks`: both webhook configurations, ready for `kubectl apply`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import yaml

from dra_gate.admission.configurations import GATE_WRITERS, configurations
from dra_gate.cli.failure import Failure
from dra_gate.cli.options import load_policies

_LABEL = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SERVICE = re.compile(f"({_LABEL})/({_LABEL})(?::([0-9]{{1,5}}))?")


class _Dumper(yaml.SafeDumper):
    """Writes out what appears twice: kubectl reads aliases, people who review don't."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


@click.command(name="webhooks")
@click.option("--url", metavar="URL", help="Where the API server finds the gate: https://host:port.")
@click.option(
    "--service", metavar="NAMESPACE/NAME[:PORT]", help="Or the Service in front of it; port 443 if it is left out."
)
@click.option(
    "--ca-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM certificates that sign the gate's certificate; several while the CA changes. Without it the caBundle is "
    "left out, for `dra-gate controller --own-certificates` or cert-manager to put in, and applying again keeps it.",
)
@click.option(
    "--policies",
    metavar="DIR",
    help="Check first that these policies load: in front of a gate without any, every device Pod is refused. Needed "
    "where ClusterSettings say visibleDevicesVoid: withoutClaim (then every Pod in gated namespaces is asked about) or "
    "name workloads (which are then asked about).",
)
@click.option(
    "--writer",
    "writers",
    metavar="USER",
    multiple=True,
    default=GATE_WRITERS,
    show_default=True,
    help="User name of an account of the gate, which it never judges; may be repeated.",
)
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
def command(
    url: str | None,
    service: str | None,
    ca_file: Path | None,
    policies: str | None,
    writers: tuple[str, ...],
    output: str,
) -> None:
    """Print the mutating and the validating webhook configuration.

    They ask the gate about Pods with devices, or with a way around it, in namespaces that carry the label
    dra-gate.io/lane, and about nothing else; the Pod goes on unchanged when mutating can't be asked, and is refused
    when validating can't. Workloads of such Pods get warnings when they are applied, and go on when the gate can't be
    asked.

    \b
    Examples:
      dra-gate webhooks --url https://127.0.0.1:8443 --ca-file certs/local/ca.crt | kubectl apply -f -
      dra-gate webhooks --service dra-gate/dra-gate-webhook --ca-file ca.crt --policies policies -o json
    """
    if (url is None) == (service is None):
        raise click.UsageError("say where the gate is: either --url or --service")
    settings = None if policies is None else load_policies(policies).settings
    made = configurations(
        url=None if url is None else _checked_url(url),
        service=None if service is None else _checked_service(service),
        ca_bundle=b"" if ca_file is None else _checked_bundle(ca_file),
        writers=writers,
        settings=settings,
    )
    if ca_file is None:
        for hook in (hook for one in made for hook in one["webhooks"]):
            del hook["clientConfig"]["caBundle"]
    click.echo(manifests_text(made, output), nl=False)


def manifests_text(made: list[dict[str, Any]], output: str) -> str:
    """Manifests for `kubectl apply`, as YAML documents or one JSON list."""
    if output == "json":
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": made}, indent=2) + "\n"
    return yaml.dump_all(made, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=1_000_000)


def _checked_url(url: str) -> str:
    """As WebhookClientConfig.url (admissionregistration.k8s.io/v1) wants it: https, no user, no query."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise click.BadParameter(f"{url!r}: {error}", param_hint="--url") from None
    if parts.scheme != "https" or not parts.hostname or parts.username is not None:
        raise click.BadParameter(f"{url!r} is not https://host:port", param_hint="--url")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise click.BadParameter(
            f"{url!r}: leave out what follows the port; /mutate and /validate are added", param_hint="--url"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"https://{host}" + (f":{port}" if port is not None else "")


def _checked_service(service: str) -> tuple[str, str, int]:
    found = _SERVICE.fullmatch(service)
    port = int(found[3] or 443) if found else 0
    if found is None or not 1 <= port <= 65535:
        raise click.BadParameter(f"{service!r} is not NAMESPACE/NAME[:PORT]", param_hint="--service")
    return found[1], found[2], port


def _checked_bundle(file: Path) -> bytes:
    from cryptography import x509  # noqa: PLC0415 - slow to import

    try:
        content = file.read_bytes()
        if b"PRIVATE KEY" in content:
            raise Failure(f"{file} holds a private key, which must not stand in a webhook configuration")
        certificates = x509.load_pem_x509_certificates(content)
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}") from None
    except ValueError:
        raise Failure(f"{file} holds no PEM certificate") from None
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)  # comments stay out
