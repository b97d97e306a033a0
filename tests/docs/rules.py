"""Evaluates rules of Prometheus over series that a test states, as ``promtool test rules`` does.

It knows what the rules in ``docker/prometheus`` use, and raises `KeyError` at anything else. An increase is what was
counted between the samples: Prometheus also adds what may have come before and after them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final

import promql_parser

Labels = Mapping[str, str]
Vector = list[tuple[Labels, float]]
LOOKBACK_S: Final = 300.0
NAME: Final = "__name__"
_COMPARE: Final = {">": operator.gt, "<": operator.lt, "==": operator.eq, ">=": operator.ge, "<=": operator.le}
_COMPUTE: Final = {"-": operator.sub, "+": operator.add, "*": operator.mul, "/": operator.truediv}
_AGGREGATE: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "sum": sum, "min": min, "max": max, "count": len,
}  # fmt: skip


def _increase(seen: Sequence[float]) -> float:
    """A counter that is lower than before began anew."""
    return sum(now - before if now >= before else now for before, now in pairwise(seen))


_OVER_TIME: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "rate": _increase, "increase": _increase, "max_over_time": max,
}  # fmt: skip


def seconds_of(text: str) -> float:
    """A duration as rules write it: ``5m``, ``1d``."""
    units = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
    return float(sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([smhd])", text)))


def samples_of(text: str) -> Iterator[float | None]:
    """The values of a series as promtool writes them: ``1x3`` is 1, 1, 1, 1; ``0+5x2`` is 0, 5, 10; ``_x2`` is none."""
    for word in text.split():
        number, step, times = re.fullmatch(r"(_|\d+(?:\.\d+)?)([+-]\d+)?(?:x(\d+))?", word).groups()  # type: ignore[union-attr]
        for index in range(int(times or 0) + (number != "_" or times is None)):
            yield None if number == "_" else float(number) + index * float(step or 0)


def series_of(text: str) -> Labels:
    """The labels of a series that is written as in an expression, its name among them."""
    found: Any = promql_parser.parse(text)
    return {NAME: found.name} | {each.name: each.value for each in found.matchers.matchers}


class World:
    """Series with samples at equal intervals."""

    def __init__(self, interval_s: float, series: Mapping[str, str]) -> None:
        """``series``: how each is written → its values."""
        values = {text: list(samples_of(each)) for text, each in series.items()}
        self.end_s = interval_s * (max(map(len, values.values())) - 1)
        """When the last sample is."""
        self._series = [
            (series_of(text), [(at * interval_s, value) for at, value in enumerate(all_of_it) if value is not None])
            for text, all_of_it in values.items()
        ]

    def firing(self, rule: Mapping[str, Any], at_s: float, every_s: float) -> Vector:
        """What an alert fires for at a moment: what its expression had at each evaluation for as long as it waits."""
        for_s, expression = seconds_of(rule.get("for", "0s")), promql_parser.parse(rule["expr"])
        found: Vector = self.value(expression, at_s)
        for back in range(int(for_s // every_s) + 1):
            then = [labels for labels, _ in self.value(expression, at_s - back * every_s)]
            found = [each for each in found if each[0] in then]
        return found

    def value(self, node: Any, at_s: float) -> Any:
        """A vector, or a number."""
        kind = type(node).__name__
        if kind == "NumberLiteral":
            return node.val
        if kind == "ParenExpr":
            return self.value(node.expr, at_s)
        if kind == "VectorSelector":
            return [(labels, seen[-1]) for labels, seen in self._samples(node, LOOKBACK_S, at_s)]
        if kind == "AggregateExpr":
            return _aggregated(node, self.value(node.expr, at_s))
        if kind == "Call":
            return self._called(node, at_s)
        return _combined(node, self.value(node.lhs, at_s), self.value(node.rhs, at_s))

    def _samples(self, selector: Any, range_s: float, at_s: float) -> Iterator[tuple[Labels, list[float]]]:
        end_s = at_s - (selector.offset or timedelta()).total_seconds()
        wanted = {NAME: selector.name} | {each.name: each.value for each in selector.matchers.matchers}
        for labels, samples in self._series:
            seen = [value for time_s, value in samples if end_s - range_s < time_s <= end_s]
            if seen and wanted.items() <= labels.items():
                yield labels, seen

    def _called(self, node: Any, at_s: float) -> Any:
        name = node.func.name
        if name == "time":
            return at_s
        if name == "vector":
            return [({}, self.value(node.args[0], at_s))]
        if name == "absent":
            return [] if self.value(node.args[0], at_s) else [({}, 1.0)]
        if name == "histogram_quantile":
            return _quantiles(node.args[0].val, self.value(node.args[1], at_s))
        taken, range_s = node.args[0].vector_selector, node.args[0].range.total_seconds()
        over = _OVER_TIME[name]
        per = range_s if name == "rate" else 1.0
        least = 1 if name == "max_over_time" else 2
        found = [(labels, seen) for labels, seen in self._samples(taken, range_s, at_s) if len(seen) >= least]
        return [(_without(labels, {NAME}), over(seen) / per) for labels, seen in found]


def _without(labels: Labels, names: set[str]) -> Labels:
    return {name: value for name, value in labels.items() if name not in names}


def _only(labels: Labels, names: Sequence[str]) -> Labels:
    return {name: labels[name] for name in names if name in labels}


def _grouped(vector: Vector, key: Callable[[Labels], Labels]) -> Iterator[tuple[Labels, Vector]]:
    groups: dict[tuple[tuple[str, str], ...], Vector] = {}
    for labels, value in vector:
        groups.setdefault(tuple(sorted(key(labels).items())), []).append((labels, value))
    return ((dict(each), members) for each, members in groups.items())


def _aggregated(node: Any, vector: Vector) -> Vector:
    names = node.modifier.labels if node.modifier is not None else []
    over = _AGGREGATE[str(node.op)]
    groups = _grouped(vector, lambda labels: _only(labels, names))
    return [(labels, over([value for _, value in members])) for labels, members in groups]


def _quantiles(quantile: float, vector: Vector) -> Vector:
    """The upper bound of the bucket in which the quantile is."""
    found: Vector = []
    for labels, members in _grouped(vector, lambda labels: _without(labels, {"le"})):
        buckets = sorted((float(each["le"]), value) for each, value in members)
        if buckets[-1][1]:
            found.append((labels, next(le for le, value in buckets if value >= quantile * buckets[-1][1])))
    return found


def _combined(node: Any, left: Any, right: Any) -> Any:
    sign = str(node.op)
    if not isinstance(left, list) and not isinstance(right, list):
        return _COMPUTE[sign](left, right)
    matching = node.modifier.matching if node.modifier is not None else None
    names = None if matching is None else matching.labels

    def key(labels: Labels) -> Labels:
        return _without(labels, {NAME}) if names is None else _only(labels, names)

    if sign in ("and", "unless"):
        there = [key(labels) for labels, _ in right]
        return [each for each in left if (key(each[0]) in there) is (sign == "and")]
    if sign == "or":
        there = [key(labels) for labels, _ in left]
        return left + [each for each in right if key(each[0]) not in there]
    pairs = (
        [(labels, value, right) for labels, value in left]
        if not isinstance(right, list)
        else [(labels, left, value) for labels, value in right]
        if not isinstance(left, list)
        else [(labels, value, other) for labels, value in left for at, other in right if key(at) == key(labels)]
    )
    if sign in _COMPARE:
        return [(labels, one) for labels, one, other in pairs if _COMPARE[sign](one, other)]
    return [(_without(labels, {NAME}), _COMPUTE[sign](one, other)) for labels, one, other in pairs]
