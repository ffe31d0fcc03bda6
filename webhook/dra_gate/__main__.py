"""`python -m dra_gate` is `dra-gate`."""

from dra_gate.cli.main import main

main()
