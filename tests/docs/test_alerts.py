"""Each alert of ``docker/prometheus`` fires when it should, and for nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.rules import World

RULES = yaml.safe_load((Path(__file__).parents[2] / "docker" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
EVERY_S = 10.0
PLACE = '{instance="c",keyspace="shop",partition="0"}'
OTHER = '{instance="c",keyspace="shop",partition="1"}'
SHARD = '{instance="c",keyspace="shop",partition="0",shard="shop/0"}'
SECOND = '{instance="c",keyspace="shop",partition="0",shard="shop/1"}'
SOURCE = '{instance="s",keyspace="shop",shard="shop/0"}'
FRONT = '{instance="f"}'
KEYSPACE = '{instance="v",keyspace="shop"}'
SILENCE, SHARD_SILENCE = "freshet_consumer_silence_seconds", "freshet_consumer_shard_silence_seconds"
PAUSED, READY, EPOCH = "freshet_consumer_paused", "freshet_consumer_ready", "freshet_consumer_epoch"
LETTERS, REBUILDS = "freshet_consumer_dead_letters_total", "freshet_store_rebuilds_total"
CACHE = 'freshet_serve_answers_total{instance="f",kind="row",served_from="cache",freshness="fresh"}'
FROM_SOURCE = 'freshet_serve_answers_total{instance="f",kind="row",served_from="source",freshness="fresh"}'
REFUSED = 'freshet_serve_refused_total{instance="f",code="too_many_requests"}'
COMMITS = "freshet_store_commit_seconds_bucket"
LONG = "0+10x400"

FIRES: list[tuple[str, dict[str, str]]] = [
    ("FreshetSourceGone", {SILENCE + PLACE: LONG, PAUSED + PLACE: "0x400",
                           SILENCE + OTHER: LONG, PAUSED + OTHER: "1x400"}),
    ("FreshetShardSilent", {SILENCE + PLACE: "1x400", SHARD_SILENCE + SHARD: "1x400", SHARD_SILENCE + SECOND: LONG}),
    ("FreshetSourceWaits", {"freshet_source_ready" + SOURCE: "0x400"}),
    ("FreshetSourceBehind", {"freshet_source_lag_seconds" + SOURCE: LONG, "freshet_source_ready" + SOURCE: "1x400"}),
    ("FreshetFoldingStopped", {PAUSED + PLACE: "1x400", PAUSED + OTHER: "0x400"}),
    ("FreshetPartitionStands", {SILENCE + PLACE: LONG, SILENCE + OTHER: "1x400"}),
    ("FreshetReadersBehind", {"freshet_consumer_lag_seconds" + SHARD: LONG}),
    ("FreshetPartitionNotReady", {READY + PLACE: "0x400", READY + OTHER: "1x400"}),
    ("FreshetNobodyOwns", {SILENCE + PLACE: "1x400"}),
    ("FreshetPartitionAway", {'freshet_serve_partitions_away{instance="f",keyspace="shop"}': "2x400"}),
    ("FreshetFrontNotReady", {"freshet_serve_ready" + FRONT: "0x400"}),
    ("FreshetDeadLetters", {LETTERS + PLACE: "0x390 1x10"}),
    ("FreshetDeadLetters", {LETTERS + PLACE: "_x390 3x10"}),  # before the first scrape
    ("FreshetHistoryLost", {EPOCH + SHARD: "1x390 2x10"}),
    ("FreshetHistoryLost", {EPOCH + SHARD: "1x100 _x290 2x10"}),  # while the consumer was away
    ("FreshetStoreRebuilt", {REBUILDS + '{instance="c"}': "0x390 1x10"}),
    ("FreshetStoreRebuilt", {REBUILDS + '{instance="c"}': "0x10 _x380 1x10"}),  # as the process starts
    ("FreshetHitRateFalls", {CACHE: LONG, FROM_SOURCE: "0+200x400"}),
    ("FreshetHitRateFalls", {FROM_SOURCE: "0+200x400"}),  # not one from the cache
    ("FreshetSourceOfTruthFails", {"freshet_serve_source_failures_total" + FRONT: LONG}),
    ("FreshetReadsRefused", {REFUSED: LONG}),
    ("FreshetCommitsSlow", {COMMITS + '{instance="c",le="1"}': "0x400", COMMITS + '{instance="c",le="5"}': LONG,
                            COMMITS + '{instance="c",le="+Inf"}': LONG}),
    ("FreshetClockAhead", {"freshet_source_clock_ahead_seconds" + SOURCE: "2x400"}),
    ("FreshetVerifyDiffers", {"freshet_verify_differences" + KEYSPACE: "1x400"}),
    ("FreshetVerifyFails", {"freshet_verify_failures_total" + KEYSPACE: "0x10 3x390"}),
    ("FreshetVerifyOld", {"freshet_verify_started_timestamp_seconds" + KEYSPACE: "0x17600"}),
    ("FreshetVerifyOld", {"freshet_verify_last_verified_timestamp_seconds" + KEYSPACE: "0x17600"}),
]  # fmt: skip
STAYS_QUIET: list[tuple[str, dict[str, str]]] = [
    ("FreshetSourceGone", {SILENCE + PLACE: LONG, SILENCE + OTHER: "1x400"}),
    ("FreshetSourceGone", {SILENCE + PLACE: LONG, PAUSED + PLACE: "1x400"}),  # its store stands: the disk is full
    ("FreshetShardSilent", {SILENCE + PLACE: LONG, SHARD_SILENCE + SHARD: LONG}),
    ("FreshetSourceBehind", {"freshet_source_lag_seconds" + SOURCE: LONG, "freshet_source_ready" + SOURCE: "0x400"}),
    ("FreshetPartitionStands", {SILENCE + PLACE: LONG, SILENCE + OTHER: LONG}),
    ("FreshetNobodyOwns", {READY + PLACE: "0x400"}),
    ("FreshetDeadLetters", {LETTERS + PLACE: "3x400"}),
    ("FreshetHistoryLost", {EPOCH + SHARD: "3x300 _x50 1x10 2x10 3x30"}),  # its store is folded again
    ("FreshetHistoryLost", {EPOCH + SHARD: "_x390 1x10"}),
    ("FreshetHistoryLost", {EPOCH + SHARD: "3x400", EPOCH + SECOND: "1x400"}),
    ("FreshetStoreRebuilt", {REBUILDS + '{instance="c"}': "1x400"}),
    ("FreshetHitRateFalls", {CACHE: "0+200x400", FROM_SOURCE: LONG}),
    ("FreshetHitRateFalls", {FROM_SOURCE: "0+50x400"}),  # too few to say so
    ("FreshetSourceOfTruthFails", {"freshet_serve_source_failures_total" + FRONT: "0x385 1x15"}),
    ("FreshetCommitsSlow", {COMMITS + '{instance="c",le="1"}': "7x400", COMMITS + '{instance="c",le="5"}': "7x400"}),
    ("FreshetVerifyOld", {"freshet_verify_started_timestamp_seconds" + KEYSPACE: "0x17600",
                          "freshet_verify_last_verified_timestamp_seconds" + KEYSPACE: "90000x17600"}),
]  # fmt: skip


def fired(alert: str, series: dict[str, str]) -> list[dict[str, str]]:
    """The labels that an alert fires with, at the end of the longest series."""
    world = World(EVERY_S, series)
    return [dict(labels) for labels, _ in world.firing(ALERTS[alert], world.end_s, EVERY_S)]


@pytest.mark.parametrize(("alert", "series"), FIRES, ids=lambda each: each if isinstance(each, str) else "")
def test_an_alert_fires_when_it_should(alert: str, series: dict[str, str]) -> None:
    """Once, for what it is about."""
    assert len(fired(alert, series)) == 1


@pytest.mark.parametrize(("alert", "series"), STAYS_QUIET, ids=lambda each: each if isinstance(each, str) else "")
def test_an_alert_fires_for_nothing_else(alert: str, series: dict[str, str]) -> None:
    """Whoever was woken for nothing does not get up the next time."""
    assert fired(alert, series) == []


def test_each_alert_is_tried() -> None:
    """One whose metrics, labels or functions do not fit never fires, and nobody misses it."""
    assert {alert for alert, _ in FIRES} == ALERTS.keys()
