"""A folder of policy files in, one immutable policy set out; or every error there is, with file, line and column."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dra_gate.policy.compile import canonical_json, content_digest
from dra_gate.policy.documents import MAX_BYTES, Document, read
from dra_gate.policy.errors import PolicyError, PolicyErrors, PolicyWarning
from dra_gate.policy.meaning import Findings, read_exception, read_models, read_policy, read_settings, read_tenant
from dra_gate.policy.model import (
    API_VERSION,
    DevicePolicy,
    Model,
    Place,
    PolicyException,
    PolicyRef,
    PolicySet,
    Settings,
    Tenant,
)
from dra_gate.policy.plugin_lane import warn as warn_about_plugin_lane
from dra_gate.policy.schemas import shape_errors, sound_part

__all__ = [
    "RELEASED",
    "PolicyError",
    "PolicyErrors",
    "PolicyWarning",
    "load",
    "load_documents",
    "load_documents_with_warnings",
    "load_with_warnings",
    "read_folder",
    "read_released",
]

RELEASED = "RELEASED"  # the list of digests beside the policies
_SUFFIXES = (".yaml", ".yml")
_RELEASED_LINE = re.compile(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)@([1-9][0-9]{0,8}) sha256:([0-9a-f]{64})", re.ASCII)


def load(path: str | Path) -> PolicySet:
    """The policy set of a folder. Raises PolicyErrors with all errors."""
    return load_with_warnings(path)[0]


def load_with_warnings(path: str | Path) -> tuple[PolicySet, tuple[PolicyWarning, ...]]:
    """Like `load`, with what is valid but probably not meant. Raises PolicyErrors with all errors."""
    folder = Path(path)
    files, unreadable, warnings = _read(folder)
    released = files.pop(RELEASED, None)
    try:
        policy_set, found = load_documents_with_warnings(files, released, folder.name)
    except PolicyErrors as error:
        # A file that could not be read may hold the catalogue: do not say that there is none.
        lacking = [e for e in error.errors if not (unreadable and e.place.file == folder.name)]
        raise PolicyErrors(_sorted([*unreadable, *lacking])) from None
    if unreadable:
        raise PolicyErrors(_sorted(unreadable))
    return policy_set, (*warnings, *found)


def read_folder(path: str | Path) -> dict[str, bytes]:
    """The policy files of a folder by name: `*.yaml` and `*.yml`, and `RELEASED`; no hidden files, no sub-folders.

    Of a file that is too big only as much is read as shows that. Raises PolicyErrors for what cannot be read.
    """
    files, errors, _ = _read(Path(path))
    if errors:
        raise PolicyErrors(_sorted(errors))
    return files


def load_documents(files: Mapping[str, bytes], released: bytes | None = None) -> PolicySet:
    """The policy set of files by name; `released` is what `RELEASED` holds. Raises PolicyErrors."""
    return load_documents_with_warnings(files, released)[0]


def load_documents_with_warnings(
    files: Mapping[str, bytes], released: bytes | None = None, folder: str = "."
) -> tuple[PolicySet, tuple[PolicyWarning, ...]]:
    """Like `load_documents`, with warnings. `folder` is where an error stands that is in no file."""
    findings = Findings()
    contents = [read(name, files[name]) for name in sorted(files)]
    findings.errors += [error for content in contents for error in content.errors]
    complete = all(content.complete for content in contents)
    documents = [document for content in contents for document in content.documents]
    sound: dict[str, list[Document]] = {}
    lacking: set[str] = set()  # kinds of which something could not be read, so that a name may be there unseen
    for document in documents:
        kind = str(document.value.get("kind")) if isinstance(document.value, dict) else "?"
        errors = shape_errors(document)
        findings.errors += errors
        part = document if not errors and not document.broken else sound_part(document)
        if part is not None:
            sound.setdefault(kind, []).append(part)
        if part is None or (part is not document and kind == "DeviceCatalog"):
            lacking.add(kind)

    catalogues = sound.get("DeviceCatalog", [])
    if not catalogues and complete and not lacking:
        remedy = f"add one: apiVersion: {API_VERSION}, kind: DeviceCatalog, models: …"
        findings.error(Place(folder, 1, 1), "no DeviceCatalog", remedy)
    for extra in catalogues[1:]:
        first = f"the first one is at {catalogues[0].at(())}; the order of models must be in one place"
        findings.error(extra.at(()), "a second DeviceCatalog", first)
    models = read_models(catalogues[0], findings) if catalogues else {}
    known_models = models if complete and catalogues and not lacking & {"DeviceCatalog", "?"} else None

    policies: dict[PolicyRef, DevicePolicy] = {}
    for document in sound.get("DevicePolicy", []):
        policy = read_policy(document, known_models, findings)
        if policy.ref in policies:
            first = f"the first one is at {policies[policy.ref].place}; give the newer one the next version"
            findings.error(document.at(("metadata",)), f"{policy.ref} is there twice", first)
            continue
        policies[policy.ref] = policy
    known_policies = policies if complete and not lacking & {"DevicePolicy", "?"} else None
    tenants = _tenants(sound.get("Tenant", []), known_policies, known_models, findings)
    settings = sound.get("ClusterSettings", [])
    for extra in settings[1:]:
        first = f"the first one is at {settings[0].at(())}"
        findings.error(extra.at(()), "a second ClusterSettings", f"{first}; what holds for all must be in one place")
    owners = {namespace: tenant.name for tenant in tenants.values() for namespace in tenant.namespaces}
    known_owners = owners if complete and not lacking & {"Tenant", "?"} else None
    exceptions = _exceptions(sound.get("PolicyException", []), known_owners, findings)
    cluster = read_settings(settings[0], known_owners, findings) if settings else Settings()
    if released is not None:
        _check_released(released, policies, findings)
    if findings.errors:
        raise PolicyErrors(_sorted(findings.errors))
    for name, content in zip(sorted(files), contents, strict=True):
        if not content.documents:
            findings.warn(Place(name, 1, 1), "the file holds no document", "write it to its end, or remove it")
    if not tenants:
        said = "no Tenant, so every Pod with devices in a gated namespace is refused"
        findings.warn(Place(folder, 1, 1), said, "add one: kind: Tenant")
    by_name = {str(ref): policy for ref, policy in policies.items()}
    warn_about_plugin_lane(sound.get("DevicePolicy", ()), by_name, models, tenants.values(), cluster, findings)
    policy_set = PolicySet(
        digest=content_digest(sorted(canonical_json(document.value).decode() for document in documents)),
        models=models,
        policies=policies,
        tenants=tenants,
        tenant_by_namespace=owners,
        settings=cluster,
        exceptions=exceptions,
    )
    return policy_set, tuple(sorted(findings.warnings, key=_by_place))


def read_released(data: bytes) -> tuple[dict[PolicyRef, str], tuple[PolicyError, ...]]:
    """The digests (hex) of released versions, and an error for each line that is not `name@version sha256:<hex>`.

    Empty lines and lines that start with # are skipped. A version that stands there twice keeps its first digest.
    """
    digests: dict[PolicyRef, str] = {}
    errors: list[PolicyError] = []
    for number, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = _RELEASED_LINE.fullmatch(text)
        place = Place(RELEASED, number, 1)
        if found is None:
            errors.append(
                PolicyError(place, f"{text[:60]!r} is no release", "write name@version sha256:<64 hex digits>")
            )
            continue
        ref = PolicyRef(found[1], int(found[3]))
        if ref in digests:
            errors.append(PolicyError(place, f"{ref} is there twice", "keep the first one"))
        digests.setdefault(ref, found[4])
    return digests, tuple(errors)


def _check_released(data: bytes, policies: Mapping[PolicyRef, DevicePolicy], findings: Findings) -> None:
    digests, errors = read_released(data)
    findings.errors += errors
    for ref, policy in policies.items():
        if ref in digests and digests[ref] != policy.digest:
            findings.error(
                policy.place,
                f"{ref} was released and has changed since",
                f"undo the change and write it as {ref.name}@{_next_version(ref.name, (*digests, *policies))}",
            )


def _next_version(name: str, refs: Sequence[PolicyRef]) -> int:
    return max(ref.version for ref in refs if ref.name == name) + 1


def _exceptions(
    documents: Sequence[Document], owners: Mapping[str, str] | None, findings: Findings
) -> tuple[PolicyException, ...]:
    exceptions: dict[str, PolicyException] = {}
    for document in documents:
        one = read_exception(document, owners, findings)
        if one.name in exceptions:
            first = f"the first one is at {exceptions[one.name].place}"
            findings.error(document.at(("metadata", "name")), f"exception {one.name} is there twice", first)
            continue
        exceptions[one.name] = one
    return tuple(exceptions.values())


def _tenants(
    documents: Sequence[Document],
    policies: Mapping[PolicyRef, DevicePolicy] | None,
    models: Mapping[str, Model] | None,
    findings: Findings,
) -> dict[str, Tenant]:
    tenants: dict[str, Tenant] = {}
    owners: dict[str, Tenant] = {}
    for document in documents:
        tenant = read_tenant(document, policies, models, findings)
        if tenant.name in tenants:
            findings.error(
                document.at(("metadata", "name")),
                f"tenant {tenant.name} is there twice",
                f"the first one is at {tenants[tenant.name].place}",
            )
            continue
        tenants[tenant.name] = tenant
        for index, namespace in enumerate(tenant.namespaces):
            owner = owners.setdefault(namespace, tenant)
            if owner is not tenant:
                findings.error(
                    document.at(("spec", "namespaces", index)),
                    f"namespace {namespace} already belongs to tenant {owner.name}",
                    f"see {owner.place}; a namespace has one owner",
                )
    return tenants


def _read(folder: Path) -> tuple[dict[str, bytes], list[PolicyError], list[PolicyWarning]]:
    files: dict[str, bytes] = {}
    errors: list[PolicyError] = []
    warnings: list[PolicyWarning] = []
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        return (
            {},
            [
                PolicyError(
                    Place(str(folder), 1, 1), f"cannot be read: {error.strerror}", "name a folder of policy files"
                )
            ],
            [],
        )
    for entry in entries:
        place = Place(entry.name, 1, 1)
        if entry.name.startswith("."):
            continue
        try:
            if entry.is_dir() and entry.name != RELEASED:
                if entry.name != "tests" and _holds_policies(entry):
                    warnings.append(PolicyWarning(place, "policies in sub-folders are not read", "move them up"))
                continue
            if entry.suffix not in _SUFFIXES and entry.name != RELEASED:
                continue
            if not entry.is_file():  # a pipe or a device would never end
                errors.append(PolicyError(place, "not a regular file", "replace or remove it"))
                continue
            files[entry.name] = _head(entry)
            if entry.name == RELEASED and len(files[RELEASED]) > MAX_BYTES:  # half of it would let changes through
                message, remedy = (
                    f"the file has more than {MAX_BYTES} bytes",
                    "take out lines of versions that are gone",
                )
                errors.append(PolicyError(place, message, remedy))
        except OSError as error:
            errors.append(PolicyError(place, f"cannot be read: {error.strerror}", "make it readable, or remove it"))
    return files, errors, warnings


def _holds_policies(folder: Path) -> bool:
    files = (file for file in folder.iterdir() if file.suffix in _SUFFIXES and file.is_file())
    return any(b"policy.dra-gate.io/" in _head(file) for file in files)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _sorted(errors: Sequence[PolicyError]) -> tuple[PolicyError, ...]:
    return tuple(sorted(dict.fromkeys(errors), key=_by_place))


def _by_place(error: PolicyError) -> tuple[str, int, int, str]:
    return error.place.file, error.place.line, error.place.column, error.message
