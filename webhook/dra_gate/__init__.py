"""dra-gate: an admission webhook and policy gate for accelerators under Dynamic Resource Allocation."""

__version__ = "0.1.0"
