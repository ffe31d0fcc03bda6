"""`dra-gate certs`: an own certificate authority and a serving certificate, for clusters without cert-manager."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dra_gate.cli.failure import Failure

if TYPE_CHECKING:  # 50 ms that `--help` of every verb would pay
    from dra_gate.controller.x509 import Pair


@click.command(name="certs")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder for the files.")
@click.option("--dns", multiple=True, metavar="NAME", help="DNS name the API server calls; may be repeated.")
@click.option("--ip", multiple=True, metavar="ADDRESS", help="IP address the API server calls; may be repeated.")
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="Life of the certificate.")
@click.option("--ca-days", type=click.IntRange(1, 36500), default=3650, show_default=True, help="Life of a new CA.")
@click.option("--force", is_flag=True, help="Replace a tls.crt that this folder's CA did not sign.")
def command(out: Path, dns: Sequence[str], ip: Sequence[str], days: int, ca_days: int, force: bool) -> None:
    """Issue an own CA and a serving certificate (ECDSA P-256).

    Writes ca.crt, ca.key, tls.crt and tls.key; keys are readable by their owner only and never printed. A CA that is
    already in the folder is kept, so running the same command again renews the certificate and the caBundle of the
    webhook configurations stays as it is. A running server takes the new pair within a second.

    \b
    Examples:
      dra-gate certs --out certs/local --ip 127.0.0.1 --dns localhost
      dra-gate certs --out certs/local --dns dra-gate-webhook.dra-gate.svc --days 90
    """
    from dra_gate.controller.x509 import new_serving  # noqa: PLC0415

    if not dns and not ip:
        raise click.UsageError("name at least one --dns or --ip: the API server checks it on every call")
    try:
        names = [*dns, *(str(ipaddress.ip_address(address)) for address in ip)]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--ip") from None
    for name in dns:
        if not name.isascii():
            raise click.BadParameter(f"{name!r} is not ASCII; write it in punycode", param_hint="--dns")
    try:
        out.mkdir(parents=True, exist_ok=True, mode=0o700)
        made_ca, authority = _authority(out, ca_days)
        if not force:
            _refuse_foreign(out / "tls.crt", authority)
        leaf = new_serving(authority, names, dt.datetime.now(dt.UTC), dt.timedelta(days=days))
        _write_pair(out, "tls", leaf)
    except OSError as error:
        raise Failure(f"{error.filename}: {error.strerror}") from None
    click.echo(f"{'new' if made_ca else 'kept'} CA   {out / 'ca.crt'}   valid until {_day(authority)}")
    click.echo(f"new cert {out / 'tls.crt'}  valid until {_day(leaf)}, for {', '.join(names)}")
    if made_ca:
        click.echo(f"{out / 'ca.key'} signs whatever the API server will trust here: the server does not need it.")


def _authority(out: Path, days: int) -> tuple[bool, Pair]:
    """The folder's CA, made if there is none; True if it was made now."""
    from dra_gate.controller.x509 import new_authority, read_pair  # noqa: PLC0415

    now = dt.datetime.now(dt.UTC)
    certificate_file, key_file = out / "ca.crt", out / "ca.key"
    there = [file.exists() for file in (certificate_file, key_file)]
    if not any(there):
        made = new_authority(now, dt.timedelta(days=days))
        _write_pair(out, "ca", made)
        return True, made
    if not all(there):
        missing, other = (key_file, certificate_file) if there[0] else (certificate_file, key_file)
        raise Failure(f"{missing} is missing beside {other}: put it back, or choose an empty folder for a new CA")
    try:
        found = read_pair(certificate_file.read_bytes(), key_file.read_bytes())
    except ValueError as error:
        raise Failure(f"{certificate_file} and {key_file} can't be read as a CA: {error}") from None
    if found.certificate.not_valid_after_utc <= now:
        raise Failure(f"{certificate_file} ended on {_day(found)}: choose an empty folder for a new CA")
    return False, found


def _refuse_foreign(file: Path, authority: Pair) -> None:
    """A certificate of another authority was put there by somebody: renewing ours must not destroy it."""
    from dra_gate.controller.x509 import issued, read_certificates  # noqa: PLC0415

    if not file.exists():
        return
    try:
        ours = issued(read_certificates(file.read_bytes())[0], authority.certificate)
    except ValueError:
        ours = False
    if not ours:
        raise Failure(f"{file} was not signed by this folder's CA: move it away, or add --force")


def _write_pair(out: Path, stem: str, pair: Pair) -> None:
    _replace(out / f"{stem}.key", pair.key_pem, 0o600)
    _replace(out / f"{stem}.crt", pair.certificate_pem, 0o644)


def _replace(file: Path, content: bytes, mode: int) -> None:
    """Write beside and rename: readers see the old file or the new one, and a key never has a wider mode."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        beside.replace(file)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _day(pair: Pair) -> str:
    return f"{pair.certificate.not_valid_after_utc:%Y-%m-%d}"
