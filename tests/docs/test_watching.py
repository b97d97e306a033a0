"""The rules of Prometheus and the dashboard of Grafana in ``docker/`` ask for what Freshet exposes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

ROOT = Path(__file__).parents[2]
METRICS = (ROOT / "docs/operating/monitoring.md").read_text(encoding="utf-8")
RULES = yaml.safe_load((ROOT / "docker" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
DASHBOARD = json.loads((ROOT / "docker" / "grafana" / "freshet.json").read_text(encoding="utf-8"))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS = DASHBOARD["panels"]
OUR_LABELS = {"keyspace", "partition", "shard", "table", "code", "served_from", "freshness", "kind", "reason", "worker"}
OF_PROMETHEUS = {"instance", "job", "le"}


def expression_of(text: str) -> Any:
    """The parsed expression. Grafana's variables stand for what it puts there. Raises ValueError if it is none."""
    return promql_parser.parse(re.sub(r"\$__(rate_interval|range)", "5m", text))


def selectors_of(node: Any) -> Iterator[Any]:
    """The selectors of metrics in an expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("vector_selector", "expr", "lhs", "rhs", "args"):
        part = getattr(node, name, None)
        for each in part if isinstance(part, list) else [part]:
            if each is not None and not isinstance(each, str):
                yield from selectors_of(each)


def names_of(text: str) -> set[str]:
    """The metrics that an expression asks for, without the suffixes of histograms."""
    return {re.sub(r"_bucket$", "", each.name) for each in selectors_of(expression_of(text))}


def labels_of(text: str) -> set[str]:
    """The labels that an expression or a text of an alert names."""
    grouped = re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", text)
    matched = re.findall(r"([a-z_]+)\s*=~?\s*\"", text)
    shown = re.findall(r"\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}", text)
    return {name.strip() for each in grouped for name in each.split(",")} | set(matched) | set(shown)


def expressions() -> list[tuple[str, str]]:
    """Where an expression is, and the expression."""
    panels = [(panel["title"], each["expr"]) for panel in PANELS for each in panel["targets"]]
    notes = [(each["name"], each["expr"]) for each in DASHBOARD["annotations"]["list"]]
    return [(rule["alert"], rule["expr"]) for rule in ALERTS] + panels + notes


@pytest.mark.parametrize(("where", "text"), expressions(), ids=lambda each: each[:40])
def test_each_metric_that_is_asked_for_exists(where: str, text: str) -> None:
    """Each expression parses, and asks only for metrics and labels that the page of metrics has."""
    names = names_of(text)
    assert names, where
    assert {name for name in names if f"`{name}" not in METRICS} == set()
    assert labels_of(text) <= OUR_LABELS | OF_PROMETHEUS


def test_a_metric_that_is_none_would_be_found() -> None:
    """The reader of expressions sees the metrics inside functions, sums, ratios and comparisons."""
    text = "sum(rate(freshet_none_total[5m])) / sum by (le) (freshet_other_bucket) > 2 unless on (keyspace) up"
    assert names_of(text) == {"freshet_none_total", "freshet_other", "up"}


def test_each_alert_says_what_is_the_matter() -> None:
    """Alerts have names of their own, a severity, and a sentence with labels that exist."""
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert labels_of(rule["annotations"]["summary"]) <= OUR_LABELS | OF_PROMETHEUS


def test_each_alert_is_in_the_page_of_alerts() -> None:
    """Whoever is woken finds what to do: the page names each alert, and no other."""
    assert set(re.findall(r"`(Freshet[A-Za-z]+)`", METRICS)) == {rule["alert"] for rule in ALERTS}


def test_an_audit_a_day_raises_no_alert() -> None:
    """It is what the page of running advises: the next one begins a day after the last, and then takes its time."""
    [old] = [rule["expr"] for rule in ALERTS if rule["alert"] == "FreshetVerifyOld"]
    limits_s = [int(each) for each in re.findall(r"> (\d+)", old)]
    assert len(limits_s) == 2
    assert min(limits_s) > 86_400 + 6 * 3_600


def test_panels_do_not_overlap() -> None:
    """Each panel has a place and an identity of its own, and shows something."""
    places = [
        (x, y)
        for panel in PANELS
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
