"""How busy accelerators were, from a Prometheus that scrapes NVIDIA's DCGM exporter.

The exporter names the Pod that has a device: in labels `namespace` and `pod`, or, where the scrape does not honour an
exporter's labels, in `exported_namespace` and `exported_pod`. Under DRA it does so only with KUBERNETES_ENABLE_DRA.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import urllib3

from dra_gate.kube.raw import mapping, sequence, text
from dra_gate.migration.cohort import HOUR
from dra_gate.migration.usage import Used

MINUTE = 60  # seconds between two looks at a series
# A share of time in which anything ran (also on MIG devices); where it is not collected the older one, in percent.
_BUSY = 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{pod!=""} or DCGM_FI_DEV_GPU_UTIL{pod!=""} / 100'
_LABELS = ("namespace", "pod", "exported_namespace", "exported_pod")
_TIMEOUT = urllib3.Timeout(connect=5.0, read=60.0)
_MOST = 64 << 20  # bytes of an answer


class PrometheusError(Exception):
    """It did not answer, or not as its HTTP API is documented; the message says what it said."""


def usage(url: str, since: int, until: int, now: int) -> Iterator[Used]:
    """What is known of the hours in [since, until), the one that is not over yet up to `now`; milliseconds since 1970.

    Raises PrometheusError.
    """
    whole = min(until, now - now % HOUR)
    if since < whole:
        yield from _spans(url, since + HOUR, whole, HOUR)
    rest = (min(until, now) - max(since, whole)) // (1000 * MINUTE) * 1000 * MINUTE
    if rest > 0:
        at = max(since, whole) + rest
        yield from _spans(url, at, at, rest)


def _spans(url: str, first: int, last: int, span: int) -> Iterator[Used]:
    """Of spans of that length, which end at `first`, and every hour until `last`."""
    counts = _asked(url, "count", first, last, span)
    for key, busy in _asked(url, "sum", first, last, span).items():
        (namespace, pod, end) = key
        yield Used(namespace, pod, end - span, end, counts.get(key, 0.0) * MINUTE, busy * MINUTE)


def _asked(url: str, how: str, first: int, last: int, span: int) -> dict[tuple[str, str, int], float]:
    query = f"sum by ({', '.join(_LABELS)}) ({how}_over_time(({_BUSY})[{span // 1000}s:{MINUTE}s]))"
    fields = {"query": query, "start": str(first // 1000), "end": str(last // 1000), "step": str(HOUR // 1000)}
    found: dict[tuple[str, str, int], float] = {}
    for series in map(mapping, sequence(_data(url, fields).get("result"))):
        labels = mapping(series.get("metric"))
        namespace = text(labels.get("exported_namespace")) or text(labels.get("namespace"))
        pod = text(labels.get("exported_pod")) or text(labels.get("pod"))
        for sample in sequence(series.get("values")):
            at, value = _sample(url, sample)
            if math.isfinite(value):
                key = namespace, pod, at
                found[key] = found.get(key, 0.0) + value
    return found


def _sample(url: str, sample: Any) -> tuple[int, float]:
    try:
        at, value = sample
        return round(1000 * float(at)), float(value)
    except (TypeError, ValueError):
        raise PrometheusError(f"{url}: a sample is no time and value: {str(sample)[:100]}") from None


def _data(url: str, fields: Mapping[str, str]) -> Mapping[str, Any]:
    """The `data` of a query_range (Prometheus, "HTTP API")."""
    if not url.startswith(("http://", "https://")):
        raise PrometheusError(f"{url!r} begins with neither http:// nor https://")
    path = f"{url.rstrip('/')}/api/v1/query_range"
    try:
        with urllib3.PoolManager(retries=False, timeout=_TIMEOUT) as pool:
            answer = pool.request("GET", path, fields=dict(fields), redirect=False, preload_content=False)
            try:
                content = answer.read(_MOST + 1)
            finally:
                answer.close()
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        raise PrometheusError(f"{url}: {error}") from None
    if len(content) > _MOST:
        raise PrometheusError(f"{url}: the answer is longer than {_MOST >> 20} MiB: ask for fewer hours (--last)")
    try:
        body = mapping(json.loads(content))
    except (ValueError, RecursionError):
        said = content[:200].decode(errors="replace")
        raise PrometheusError(f"{url}: {answer.status}, and no JSON; is it a Prometheus? {said}") from None
    if body.get("status") != "success":
        raise PrometheusError(f"{url}: {answer.status} {text(body.get('errorType'))}: {text(body.get('error'))[:500]}")
    data = mapping(body.get("data"))
    if data.get("resultType") != "matrix":
        raise PrometheusError(f"{url}: the answer is no matrix")
    return data
