"""Percentiles of measured times."""

from __future__ import annotations

from collections.abc import Sequence

QUANTILES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Nearest-rank percentiles and the maximum, in milliseconds. Nothing is interpolated or left out."""
    ordered = sorted(seconds)
    found = {name: 1000 * ordered[min(len(ordered) - 1, int(q * len(ordered)))] for name, q in QUANTILES.items()}
    return found | {"max_ms": 1000 * ordered[-1]}
