"""What an audit leaves and tells, by how it began and what it found: without Spark, of stores that were folded here."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import promql_parser
import pytest
from prometheus_client import generate_latest

from consumers.snapshots.finding import find_snapshots
from consumers.snapshots.places import Place
from consumers.store.directory import remove_unless_kept
from freshet.audit_metrics import AuditMetrics
from freshet.auditing import Audit, Audited, _last_witness, audit
from freshet.snapshots import Needed
from spark_jobs.offsets import TopicBounds
from spark_jobs.output import find_stores
from spark_jobs.rebuild import RebuildRequest
from spark_jobs.session import SparkSettings
from spark_jobs.verify import StoresVerdict
from stream.kafka.connection import KafkaCluster
from tests.consumers.snapshots.made import TOPIC, only, snapshot_of
from tests.data_at_rest.history import KEYSPACE
from tests.docs.test_watching import ALERTS, expression_of, selectors_of
from tests.spark_jobs.test_verify import rebuilt
from tokens.errors import FreshetError


@pytest.fixture
def audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], Audited]:
    """Audits a live state that is right, with snapshots at ``tmp_path / "snapshots"``; from a base, if one is given."""
    live = find_stores(rebuilt(tmp_path / "live"))

    def fold(request: RebuildRequest, *_: object) -> None:
        assert not any(map(remove_unless_kept, live.values())), "they are compared after it"
        rebuilt(request.target)

    monkeypatch.setattr("freshet.auditing.asked_owners", lambda *_: dict.fromkeys(live, "a:1"))
    monkeypatch.setattr("freshet.auditing.checkpointed", lambda *_: live)
    monkeypatch.setattr("freshet.auditing.tell_verdicts", lambda *_: None)
    monkeypatch.setattr("freshet.auditing._last_witness", lambda *_: ("", None))
    bounds = TopicBounds("t", "t1", {0: 0, 1: 0}, {0: 99, 1: 99})
    monkeypatch.setattr("spark_jobs.offsets.topic_bounds", lambda *_: bounds)
    monkeypatch.setattr("spark_jobs.rebuild.run_rebuild", fold)

    def run(base: str | None) -> Audited:
        place = str(tmp_path / "snapshots")
        return audit(Audit("shop", KafkaCluster("127.0.0.1:1"), SparkSettings(), base=base, place=place))

    return run


@pytest.mark.parametrize("base", [None, "checkpoints"])
def test_an_audit_that_trusted_a_base_leaves_no_snapshot(
    base: str | None, audited: Callable[[str | None], Audited], tmp_path: Path
) -> None:
    """It proves nothing of the base, and the next audit would begin with it as if it had."""
    found = audited(base)
    assert found.verdict.equal
    left = [each.name for each in find_snapshots(Place(str(tmp_path / "snapshots")), "shop")]
    assert left == ([found.snapshot] if base is None else [])
    assert bool(found.snapshot) == (base is None)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), FreshetError("away")])
def test_a_verdict_outlives_whatever_keeps_a_snapshot_from_being_written(
    error: Exception, audited: Callable[[str | None], Audited], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk says nothing of the states that were compared."""

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("consumers.snapshots.writing.write_snapshot", fails)
    found = audited(None)
    assert (found.verdict.equal, found.snapshot) == (True, "")


def test_an_audit_without_room_for_its_last_snapshot_folds_the_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fold may need less than the copy: else each audit would end so, and nothing be verified any more."""
    place, target = Place(str(tmp_path / "snapshots")), tmp_path / "verify" / "rebuild"
    snapshot_of(tmp_path / "scratch", place, 50, verified=True)
    bounds = TopicBounds(TOPIC.name, TOPIC.topic_id, {0: 0}, {0: 99})
    monkeypatch.setattr("spark_jobs.offsets.topic_bounds", lambda *_: bounds)
    asked = place, KEYSPACE, KafkaCluster("127.0.0.1:1"), Needed(witness=True), target
    with monkeypatch.context() as trouble:
        trouble.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 30, free=1_000))
        assert _last_witness(*asked) == ("", None)
    assert _last_witness(*asked) == (only(place).name, tmp_path / "verify" / ".witness")


def test_what_was_proved_was_so_when_the_audit_began() -> None:
    """The live state was taken then, however long the fold took."""
    metrics, ended = AuditMetrics("shop"), time.time()
    metrics.note(Audited(StoresVerdict("live", "rebuilt", "shop", ())), 3_600.0)
    shown = generate_latest(metrics._registry).decode()
    [line] = [each for each in shown.splitlines() if each.startswith("freshet_verify_last_verified")]
    assert float(line.split()[-1]) == pytest.approx(ended - 3_600, abs=60)


def shown_by(metrics: AuditMetrics) -> dict[str, float]:
    """Series → value, as Prometheus reads them."""
    lines = generate_latest(metrics._registry).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def may_raise(node: Any, series: dict[str, float]) -> bool:
    """Whether an alert of these series may be raised at all: what it is about is there, and no exception to it."""
    if isinstance(node, promql_parser.ParenExpr):
        return may_raise(node.expr, series)
    if str(getattr(node, "op", "")) == "or":
        return may_raise(node.lhs, series) or may_raise(node.rhs, series)
    if str(getattr(node, "op", "")) == "unless":
        return may_raise(node.lhs, series) and not may_raise(node.rhs, series)
    return all(f'{each.name}{{keyspace="shop"}}' in series for each in selectors_of(node))


def test_an_audit_that_never_succeeds_raises_its_alerts() -> None:
    """A series that is absent until the first success would raise none: it is old, or fails, from the start."""
    series, began = shown_by(AuditMetrics("shop")), time.time()
    for alert in ("FreshetVerifyOld", "FreshetVerifyFails"):
        [rule] = [each for each in ALERTS if each["alert"] == alert]
        assert may_raise(expression_of(rule["expr"]), series)
    started = series['freshet_verify_started_timestamp_seconds{keyspace="shop"}']
    assert started == pytest.approx(began, abs=60)


def test_nothing_was_verified_before_an_audit_found_all_equal() -> None:
    """A page would call a keyspace verified just now that nobody has looked at; then its age is all that counts."""
    metrics, last = AuditMetrics("shop"), 'freshet_verify_last_verified_timestamp_seconds{keyspace="shop"}'
    metrics.note(FreshetError("no Kafka"), 1.0)
    assert last not in shown_by(metrics)
    metrics.note(Audited(StoresVerdict("live", "rebuilt", "shop", ())), 1.0)
    assert last in shown_by(metrics)
    [rule] = [each for each in ALERTS if each["alert"] == "FreshetVerifyOld"]
    old, never = expression_of(rule["expr"]).lhs, expression_of(rule["expr"]).rhs
    assert (may_raise(old, shown_by(metrics)), may_raise(never, shown_by(metrics))) == (True, False)
