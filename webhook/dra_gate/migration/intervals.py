"""Intervals for rates, for their difference, and for the ratio of two times' quantiles, over strata. Pure.

Strata keep a different mix from looking like a difference: what is compared is always Pods of the same size, the same
first choice and the same hour. What befalls the Pods of an hour together (a queue, a driver that is down) counts as one
thing, not as many: where hours differ by more than chance has it, the intervals grow by as much. Sources: Wilson 1927;
Clopper and Pearson 1934; Newcombe 1998, method 10; Mantel and Haenszel 1959 (weights); Mood 1950, over strata as in
Cochran-Mantel-Haenszel, its interval by inverting the test; variance over clusters as in Liang and Zeger 1986.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, inf, lgamma, log, log1p, sqrt
from statistics import NormalDist

from dra_gate.migration.cohort import BOUNDS, STEP

EXACT = 40  # below so many Pods the interval of a rate is exact
Interval = tuple[float, float]
Rates = Sequence[tuple[int, int, int, int, int]]  # a stratum each: its hour, x of n in one lane, x of n in the other
Times = Sequence[tuple[int, Mapping[int, int], int, Mapping[int, int], int]]  # likewise: waits and Pods of each lane


def z_of(alpha: float) -> float:
    """How many standard errors an interval reaches that misses with probability `alpha`."""
    return NormalDist().inv_cdf(1 - alpha / 2)


def wilson(x: float, n: float, alpha: float) -> Interval:
    """Of a rate; `n` may be an effective size."""
    if n <= 0:
        return 0.0, 1.0
    z, p = z_of(alpha), x / n
    middle, reach = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = ((middle + side * reach) / (1 + z * z / n) for side in (-1, 1))
    return 0.0 if x <= 0 else max(0.0, low), 1.0 if x >= n else min(1.0, high)


def exact(x: int, n: int, alpha: float) -> Interval:
    """Of a rate, after Clopper and Pearson: misses with `alpha` at most, whatever n."""
    low = 0.0 if x == 0 else _root(lambda p: at_least(x, n, p) - alpha / 2)
    high = 1.0 if x == n else _root(lambda p: alpha / 2 - (1 - at_least(x + 1, n, p)))
    return low, high


def rate(x: int, n: int, alpha: float) -> Interval:
    """Exact where n is small, Wilson's otherwise."""
    return exact(x, n, alpha) if 0 < n < EXACT else wilson(x, n, alpha)


def at_least(x: int, n: int, p: float) -> float:
    """The probability of x or more out of n."""
    if x <= 0 or p >= 1:
        return 1.0
    if p <= 0:
        return 0.0
    ways = (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) for k in range(x, n + 1))
    return min(1.0, sum(exp(way + k * log(p) + (n - k) * log1p(-p)) for k, way in enumerate(ways, x)))


def difference(strata: Rates, alpha: float) -> tuple[float, float, float]:
    """The first lane's rate less the other's: Mantel and Haenszel's estimate, and Newcombe's limits around it.

    Of more than one stratum the limits are those of the weighted rates, at the sizes that their weights leave.
    (0, -1, 1) where no stratum has Pods of both lanes.
    """
    weighted = [(n * m / (n + m), hour, x, n, y, m) for hour, x, n, y, m in strata if n and m]
    if not weighted:
        return 0.0, -1.0, 1.0
    total = sum(w for w, *_ in weighted)
    p = sum(w * x / n for w, _, x, n, _, _ in weighted) / total
    q = sum(w * y / m for w, _, _, _, y, m in weighted) / total
    size_p = total**2 / sum(w * w / n for w, _, _, n, _, _ in weighted)
    size_q = total**2 / sum(w * w / m for w, _, _, _, _, m in weighted)
    excess: dict[int, float] = {}
    for w, hour, x, n, y, m in weighted:
        excess[hour] = excess.get(hour, 0.0) + w * (x / n - y / m - p + q)
    chance = (p * (1 - p) / size_p + q * (1 - q) / size_q) * total**2
    grown = _grown(excess.values(), chance, alpha)
    low_p, high_p = wilson(p * size_p / grown, size_p / grown, alpha)
    low_q, high_q = wilson(q * size_q / grown, size_q / grown, alpha)
    return (
        p - q,
        p - q - sqrt((p - low_p) ** 2 + (high_q - q) ** 2),
        p - q + sqrt((high_p - p) ** 2 + (q - low_q) ** 2),
    )


def ratio(strata: Times, share: float, alpha: float) -> tuple[float, float, float]:
    """By how much the first lane's times are longer at the quantile `share`: estimate and limits, 1 means no longer.

    The first lane's times are made shorter, a bucket at a time, until as many of them as of the other lane's are above
    the quantile of both together; the limits are where the test would no longer call that chance. Pods without a time
    are above every quantile. The limits are rounded outward to whole buckets. (1, 0, inf) where nothing can be said.
    """
    shared = [one for one in strata if one[2] and one[4]]
    most = len(BOUNDS)
    if not shared:
        return 1.0, 0.0, inf
    reach = z_of(alpha)

    known: dict[int, float] = {}

    def excess(shift: int) -> float:
        if shift not in known:
            known[shift] = _mood(shared, shift, share, alpha)
        return known[shift]

    def last(holds: Callable[[float], bool]) -> int:
        return _last(lambda shift: holds(excess(shift)), -most, most)

    low, high = last(lambda z: z > reach), last(lambda z: z >= -reach) + 1
    last_above, last_not_below = last(lambda z: z > 0), last(lambda z: z >= 0)
    return (
        STEP ** ((last_above + last_not_below + 1) / 2),
        0.0 if low < -most else STEP**low,
        inf if high > most else STEP**high,
    )


def quantile(waits: Mapping[int, int], pods: int, share: float) -> int:
    """The bucket of the quantile of `pods`, of which those without a time are above it all; past the last then."""
    rank, seen = share * pods, 0
    for bucket in sorted(waits):
        seen += waits[bucket]
        if seen >= rank:
            return bucket
    return len(BOUNDS)


def order_limits(waits: Mapping[int, int], pods: int, share: float, alpha: float) -> tuple[int, int]:
    """The buckets between which the quantile lies: order statistics, their ranks from the binomial distribution."""
    mean, reach = share * pods, z_of(alpha) * sqrt(pods * share * (1 - share))
    low, high = mean - reach - 1, mean + reach + 1
    first = quantile(waits, pods, low / pods) if low > 0 else 0
    return first, quantile(waits, pods, high / pods) if high <= pods else len(BOUNDS)


def _mood(strata: Times, shift: int, share: float, alpha: float) -> float:
    """How many standard errors more of the first lane's times are above both lanes' quantile than chance has it, were
    they `shift` buckets shorter."""
    variance: dict[int, float] = {}
    excess: dict[int, float] = {}
    for hour, waits, n, others, m in strata:
        both: dict[int, int] = {}
        for bucket, pods in waits.items():
            both[bucket - shift] = both.get(bucket - shift, 0) + pods
        for bucket, pods in others.items():
            both[bucket] = both.get(bucket, 0) + pods
        wanted, seen, cut = share * (n + m), 0, None
        for bucket in sorted(both):  # the cut whose share is the nearest
            if cut is not None and abs(seen - wanted) <= abs(seen + both[bucket] - wanted):
                break
            cut, seen = bucket, seen + both[bucket]
        if cut is None or seen in (0, n + m) or n + m < 2:
            continue
        top = n + m - seen
        mine = n - sum(pods for bucket, pods in waits.items() if bucket - shift <= cut)
        excess[hour] = excess.get(hour, 0.0) + mine - n * top / (n + m)
        variance[hour] = variance.get(hour, 0.0) + n * m * top * seen / ((n + m) ** 2 * (n + m - 1))
    chance, mean = sum(variance.values()), sum(excess.values())
    if not chance:
        return 0.0
    left = (more - mean * variance[hour] / chance for hour, more in excess.items())
    return mean / sqrt(chance * _grown(left, chance, alpha))


def _grown(excess: Iterable[float], chance: float, alpha: float) -> float:
    """By how much the variance is larger than by chance alone, as what is left of each hour says; 1 at least.

    What is above 1 is known from few hours only, so it counts as many times as Student's quantile squared is the
    normal one's (Abramowitz and Stegun 26.7.5).
    """
    squares = [more * more for more in excess]
    free = len(squares) - 1
    if free < 1 or not chance:
        return 1.0
    z = z_of(alpha)
    student = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return 1.0 + max(0.0, sum(squares) * (free + 1) / free / chance - 1) * (student / z) ** 2


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The largest of low..high for which `holds`, which is true up to there; low - 1 where it never is."""
    if not holds(low):
        return low - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _root(rises: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if rises(middle) > 0 else (middle, high)
    return (low + high) / 2
