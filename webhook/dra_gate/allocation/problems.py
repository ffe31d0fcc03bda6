"""How an allocation ends early."""

from __future__ import annotations


class Failed(Exception):
    """The scheduler gives up on all nodes, with this text."""


class CannotEvaluate(Exception):
    """Something is not understood here, or not promised by the scheduler; the message says what. Never guessed."""
