"""TenantLedgers in the cluster. Only the leading controller writes them; each write says what it was decided on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dra_gate.cluster.client import Client, Object
from dra_gate.fairness.ledger import LedgerSpec, read_spec, written_spec
from dra_gate.kube.raw import at, text

PATH = "/apis/dra-gate.io/v1alpha1/tenantledgers"
_SECONDS = 5.0  # for a write to be answered: a pass waits for it, and whoever leads next finishes what was written


class Ledger:
    """One tenant's, as it was last read or written. `version` is its resourceVersion, empty while there is none.

    One thread at a time. Writes raise what `Client` raises and change nothing here; after Conflict, NotFound or
    Unreachable what is stored may be another: `read` it before the next one.
    """

    def __init__(self, client: Client, tenant: str, obj: Object | None = None) -> None:
        """`obj` is what is stored. Raises ValueError when it is none of ours."""
        self.tenant = tenant
        self.spec = LedgerSpec()
        self.status: Mapping[str, Any] = {}
        self.version = ""
        self._client = client
        if obj is not None:
            self._take(obj)

    def read(self) -> None:
        """What is stored. Raises NotFound, too."""
        self._take(self._client.get(f"{PATH}/{self.tenant}", timeout=_SECONDS))

    def write(self, spec: LedgerSpec) -> None:
        """Store `spec` if nobody has written since."""
        metadata: dict[str, Any] = {"name": self.tenant, "labels": {"app.kubernetes.io/managed-by": "dra-gate"}}
        body = {
            "apiVersion": "dra-gate.io/v1alpha1",
            "kind": "TenantLedger",
            "metadata": metadata,
            "spec": written_spec(spec),
        }
        if self.version:
            metadata["resourceVersion"] = self.version
            self._take(self._client.replace(f"{PATH}/{self.tenant}", body, timeout=_SECONDS))
        else:
            self._take(self._client.create(PATH, body, timeout=_SECONDS))

    def tell(self, status: Mapping[str, Any]) -> None:
        """Store `status` if nobody has written since."""
        body = {
            "apiVersion": "dra-gate.io/v1alpha1",
            "kind": "TenantLedger",
            "metadata": {"name": self.tenant, "resourceVersion": self.version},
            "spec": written_spec(self.spec),
            "status": status,
        }
        self._take(self._client.replace(f"{PATH}/{self.tenant}/status", body, timeout=_SECONDS))

    def _take(self, obj: Object) -> None:
        self.spec = read_spec(obj.get("spec"))
        self.status = obj.get("status") or {}
        self.version = text(at(obj, "metadata", "resourceVersion"))


def ledgers(client: Client) -> dict[str, Ledger]:
    """All that are stored, by tenant. Raises what `Client.list` raises, and ValueError for one that is none of ours."""
    return {name: Ledger(client, name, obj) for obj in client.list(PATH) if (name := text(at(obj, "metadata", "name")))}
