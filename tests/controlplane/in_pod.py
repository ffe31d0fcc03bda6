"""`python -m controlplane.in_pod FOLDER WORDS…`: `dra-gate WORDS…` as in a Pod whose service account is in FOLDER.

A container finds its token and CA at one path, which no test may write to; here they stand elsewhere, and that is all
that differs. The two variables that every container has (KUBERNETES_SERVICE_HOST, _PORT) come from whoever starts this.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dra_gate.cli.main import main
from dra_gate.cluster import service_account

if __name__ == "__main__":
    service_account.FOLDER = Path(sys.argv.pop(1))
    sys.argv[0] = "dra-gate"
    main()
