"""The audit of a keyspace: the live state against a fold of the topic, once or again and again.

It begins with the last snapshot that was verified, or folded from the topic's beginning, if there is one, so it reads
only what the topic got since. Where both are equal, it leaves a snapshot of the result, with which the next one begins
(docs/operating/rebuild.md). A fold that began with a given base proves nothing of the base, so it leaves none.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from freshet.owners import asked_owners, checkpointed, tell_verdicts
from freshet.snapshots import Needed, base_stores, farthest, restore_first
from tokens.errors import FreshetError

if TYPE_CHECKING:
    from consumers.snapshots.places import Place
    from spark_jobs.rebuild import Progress
    from spark_jobs.session import SparkSettings
    from spark_jobs.verify import StoresVerdict
    from stream.kafka.connection import KafkaCluster

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Audit:
    """What to audit. ``base``: where the fold begins, instead of the topic's start or the last such snapshot.

    ``place``: of snapshots; "": none. ``whole``: the fold begins at the topic's start all the same. ``keep``: how many
    differences are shown of each partition.
    """

    keyspace: str
    kafka: KafkaCluster
    spark: SparkSettings
    owners: tuple[str, ...] = ()
    base: str | None = None
    place: str = ""
    whole: bool = False
    keep: int = 10


@dataclass(frozen=True, slots=True)
class Audited:
    """The verdict; the snapshot that the fold began with, and the verified one that was made; "" if none."""

    verdict: StoresVerdict
    since: str = ""
    snapshot: str = ""


def audit(request: Audit, progress: Progress | None = None) -> Audited:
    """Compares the live state with a fold of the topic to its offsets.

    Raises as `freshet.owners.live_checkpoint`, `spark_jobs.rebuild.rebuild` and `spark_jobs.verify.verify_stores`, and
    `SnapshotError`.
    """
    from consumers.owner.protocol import Verdict
    from consumers.snapshots.places import Place
    from consumers.snapshots.temporary import temporary_directory
    from consumers.snapshots.writing import write_snapshot
    from consumers.store.directory import kept
    from consumers.store.leader_epochs import keep_leader_epoch, kept_leader_epoch
    from spark_jobs.auditing.tracing import with_events
    from spark_jobs.offsets import topic_bounds
    from spark_jobs.output import find_stores
    from spark_jobs.rebuild import RebuildRequest, checkpoint_begins, checkpoint_offsets, run_rebuild
    from spark_jobs.verify import verify_stores
    from stream.kafka.topics import events_topic

    keyspace, kafka = request.keyspace, request.kafka
    owners = asked_owners(kafka, keyspace, request.owners)
    live = checkpointed(keyspace, owners)
    place = Place(request.place) if request.place else None
    since, snapshot = "", ""
    with kept(live.values()), temporary_directory("verify") as scratch:
        ends, begins = checkpoint_offsets(live), checkpoint_begins(live)
        target = scratch / "rebuild"
        base = base_stores(request.base, keyspace, kafka, target, Needed(ends, begins))
        if base is None and place is not None and not request.whole:
            since, base = _last_witness(place, keyspace, kafka, Needed(ends, begins, witness=True), target)
        if base is None:
            _check_retained(topic_bounds(kafka, events_topic(kafka, keyspace)).low, begins)
        fold = RebuildRequest(keyspace, kafka, target, ends, base, begins=begins, digests=False)
        run_rebuild(fold, request.spark, progress)
        folded = find_stores(target, keyspace)
        verdict = verify_stores(live, folded, names=("live", "rebuilt"), keep=request.keep)
        with _verdict_stands("the owners are not told of the verdict, so no page shows it"):
            at_ms = int(time.time() * 1000)
            told = [Verdict(each.partition, each.offset, each.equal, at_ms) for each in verdict.partitions]
            tell_verdicts(keyspace, owners, told)
        if not verdict.equal:
            with _verdict_stands("the events that made the differences are not told"):
                verdict = with_events(verdict, kafka, topic_bounds(kafka, events_topic(kafka, keyspace)).low)
        elif place is not None and request.base is None:
            with _verdict_stands("the equal state is not kept as a snapshot"):
                for partition, directory in folded.items():  # the same state, so the same place in Kafka's log
                    epoch = kept_leader_epoch(live[partition], ends[partition])
                    keep_leader_epoch(directory, ends[partition], epoch)
                snapshot = write_snapshot(place, folded, made_from="rebuild", verified=True).name
    return Audited(verdict, since, snapshot)


def _check_retained(low: Mapping[int, int], begins: Mapping[int, int]) -> None:
    """Refuses a topic that no longer has what the live state began with.

    A fold of the rest may be whole, from the beginning of an epoch, but it lacks what that voided: it is not equal to a
    right state. Raises `RebuildError` ``history_incomplete``.
    """
    from spark_jobs.output import history_incomplete

    for partition, offset in sorted(low.items()):
        if begins.get(partition, 0) < offset:
            raise history_incomplete(
                partition,
                offset,
                f"what the live state began with, at {begins.get(partition, 0)},",
                hint="begin with an earlier checkpoint (--base), or with a verified or rebuilt snapshot (--snapshots)",
            )


@contextmanager
def _verdict_stands(what_lacks: str) -> Iterator[None]:
    """Logs an error of what follows a verdict: it must not be lost with it."""
    try:
        yield
    except (FreshetError, OSError) as error:
        known = error if isinstance(error, FreshetError) else FreshetError(str(error))
        log.warning(what_lacks, code=known.code, reason=str(known), hint=known.hint)


def _last_witness(
    place: Place, keyspace: str, kafka: KafkaCluster, needed: Needed, target: Path
) -> tuple[str, Path | None]:
    """The name of the last snapshot that an audit may begin with, and its stores, made beside ``target``; or none."""
    from consumers.snapshots.errors import SnapshotError
    from consumers.store.errors import RetryableStoreError

    chosen, refused = farthest(place, keyspace, kafka, needed)
    if not chosen:
        log.info("no snapshot to begin with: folding from the topic's start", keyspace=keyspace, others=refused[:5])
        return "", None
    stores = target.with_name(".witness")
    try:
        return restore_first(place, chosen, stores).name, stores
    except (SnapshotError, RetryableStoreError) as error:  # a damaged one, or a full disk, must not end the audit
        log.warning("a snapshot is not used", keyspace=keyspace, code=error.code, reason=str(error), hint=error.hint)
        shutil.rmtree(stores, ignore_errors=True)
        return "", None


def audit_again_and_again(
    request: Audit, every_s: float, told: Callable[[Audited | FreshetError, float], Any], wait: Callable[[float], Any]
) -> None:
    """Audits every ``every_s`` seconds, until ``told`` or ``wait`` raises. An audit that fails is an outcome.

    ``told`` gets the outcome of each, and its seconds. An audit that takes longer is followed by the next one at once.
    """
    while True:
        started = time.monotonic()
        outcome: Audited | FreshetError
        try:
            outcome = audit(request)
        except FreshetError as error:
            outcome = error
        except Exception as error:  # a full disk, a JVM that was killed: the next audit may do better
            log.warning("an audit ended with an error", exc_info=True)
            outcome = FreshetError(
                f"{type(error).__name__}: {error}", hint="the log has the traceback", code="audit_failed"
            )
        seconds = time.monotonic() - started
        told(outcome, seconds)
        wait(max(0.0, every_s - seconds))
