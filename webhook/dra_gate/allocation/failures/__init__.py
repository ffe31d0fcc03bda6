"""What keeps a Pod from its devices: a table of signals in data, and the one row of it that holds for a Pod. Pure."""

from dra_gate.allocation.failures.classify import Facts, Failure, classify, evidence, look_again
from dra_gate.allocation.failures.retry import next_attempt
from dra_gate.allocation.failures.table import CLASSES, ROWS, Row

__all__ = ["CLASSES", "ROWS", "Facts", "Failure", "Row", "classify", "evidence", "look_again", "next_attempt"]
