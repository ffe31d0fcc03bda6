"""When we try again, where it is we who act."""

from __future__ import annotations

import hashlib

from dra_gate.allocation.failures.table import CLASSES, Class

_MOST_DOUBLINGS = 32  # past every cap, and far from overflow


def next_attempt(klass: Class, attempts: int, seed: str) -> float | None:
    """Seconds until the next attempt after `attempts` failed ones; None: never.

    Doubles with every attempt up to the class's cap, each time between half of it and all of it: `seed`, the
    idempotency key of what is tried, says where. So the same attempt waits equally long on every replica, and many
    that failed together do not come back together.
    """
    plan = CLASSES[klass]
    if not plan.cap:
        return None
    whole = min(plan.cap, plan.first * 2.0 ** min(attempts, _MOST_DOUBLINGS))
    digest = hashlib.blake2b(f"{seed}/{attempts}".encode(), digest_size=4).digest()
    return whole * (1 - int.from_bytes(digest) / 2**33)
