"""``freshet verify``: compares stores with each other or with a rebuild, byte for byte, once or again and again."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer

from freshet.auditing import Audit, Audited, audit, audit_again_and_again
from freshet.commands.rebuild import AsJson, Bootstrap, DriverMemory, Master, SparkLog, shown_progress
from freshet.keyspaces import explain_unknown_keyspace
from freshet.owners import live_checkpoint
from freshet.settings import Settings, load_settings
from freshet.snapshots import set_place
from freshet.spark import spark_settings
from tokens.errors import FreshetError

if TYPE_CHECKING:
    from spark_jobs.verify import StoresVerdict

log = structlog.get_logger(__name__)


def command(
    left: Annotated[
        Path | None,
        typer.Argument(
            help="A keyspace; or, to compare directories, a store, checkpoint, rebuild or data directory.",
            metavar="KEYSPACE|LEFT",
        ),
    ] = None,
    right: Annotated[Path | None, typer.Argument(help="What to compare it with.")] = None,
    keyspace: Annotated[str | None, typer.Option(help="The keyspace to compare, also of two directories.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Compare the live state with this rebuild instead of a new one.", metavar="DIR")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            help="Rebuild from this earlier checkpoint or rebuild, or the newest snapshot there.", metavar="DIR|URI"
        ),
    ] = None,
    snapshots: Annotated[
        str | None,
        typer.Option(
            help="Begin with the last verified or rebuilt snapshot there, and leave one (default: the setting).",
            metavar="URI",
        ),
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Fold from the topic's start all the same.")] = False,
    every: Annotated[
        float | None, typer.Option(help="Go on, with one audit in so many seconds, until it is stopped.", min=1)
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port for /metrics, with --every; 0: any.", min=0, max=65535)
    ] = None,
    owner: Annotated[
        list[str] | None, typer.Option(help="Address of an owner (default: as announced in freshet.locations).")
    ] = None,
    bootstrap: Bootstrap = None,
    keep: Annotated[int, typer.Option(help="How many differing keys to show per partition.", min=1, max=1000)] = 10,
    master: Master = "local[*]",
    driver_memory: DriverMemory = "1g",
    spark_log: SparkLog = None,
    as_json: AsJson = False,
) -> None:
    """Compare stores byte for byte: two directories, or a keyspace's live state with a rebuild. Unequal: exit 1."""
    if left is not None and right is None and keyspace is None and len(left.parts) == 1 and not left.exists():
        left, keyspace = None, str(left)
    rebuilds = left is None and against is None
    if not rebuilds and (base is not None or snapshots is not None or whole or every is not None):
        raise typer.BadParameter("--base, --snapshots, --whole and --every need a new rebuild, not directories")
    if whole and base is not None:
        raise typer.BadParameter("--whole begins at the topic's start, --base does not")
    if metrics_port is not None and every is None:
        raise typer.BadParameter("--metrics-port needs --every")
    if left is not None and right is not None:
        _end(Audited(_compared(left, right, keyspace or "", (str(left), str(right)), keep)), as_json=as_json)
    if left is not None or keyspace is None:
        raise typer.BadParameter("give a keyspace, or two directories")
    settings = load_settings(flags={"kafka": {"bootstrap": bootstrap}})
    if against is not None:
        with explain_unknown_keyspace(settings, keyspace):
            verdict = _against(settings, keyspace, owner or [], against, keep)
        _end(Audited(verdict), as_json=as_json)
    place = snapshots or set_place(settings, keyspace)
    spark = spark_settings(master, driver_memory, spark_log, brief=every is None)
    request = Audit(keyspace, settings.kafka.cluster, spark, tuple(owner or ()), base, place, whole, keep)
    if every is not None:
        _stand(request, every, metrics_port, as_json=as_json)
        return
    with explain_unknown_keyspace(settings, keyspace), shown_progress("rebuild", quiet=as_json) as progress:
        done = audit(request, progress)
    _end(done, as_json=as_json)


def _compared(left: Path, right: Path, keyspace: str, names: tuple[str, str], keep: int) -> StoresVerdict:
    from spark_jobs.output import find_stores
    from spark_jobs.verify import verify_stores

    return verify_stores(find_stores(left, keyspace), find_stores(right, keyspace), names=names, keep=keep)


def _against(settings: Settings, keyspace: str, owners: list[str], against: Path, keep: int) -> StoresVerdict:
    from consumers.store.directory import kept
    from spark_jobs.output import find_stores
    from spark_jobs.verify import verify_stores

    live = live_checkpoint(settings.kafka.cluster, keyspace, owners)
    with kept(live.values()):
        return verify_stores(live, find_stores(against, keyspace), names=("live", str(against)), keep=keep)


def _end(done: Audited, *, as_json: bool) -> None:
    """Tells the outcome and ends the command."""
    _tell(done, as_json=as_json)
    raise typer.Exit(0 if done.verdict.equal else 1)


def _tell(done: Audited, *, as_json: bool) -> None:
    typer.echo(json.dumps(as_told(done)) if as_json else verdict_text(done))


def as_told(done: Audited) -> dict[str, Any]:
    """An outcome as JSON values."""
    return {"since": done.since, "snapshot": done.snapshot, **done.verdict.as_json()}


def _stand(request: Audit, every_s: float, metrics_port: int | None, *, as_json: bool) -> None:
    """Audits again and again until SIGTERM or Ctrl-C."""
    from freshet.audit_metrics import AuditMetrics

    metrics = AuditMetrics(request.keyspace)
    stopping = threading.Event()

    def tell(outcome: Audited | FreshetError, seconds: float) -> None:
        metrics.note(outcome, seconds)
        if isinstance(outcome, FreshetError):
            log.warning("the audit failed", code=outcome.code, reason=str(outcome), hint=outcome.hint)
        else:
            _tell(outcome, as_json=as_json)

    try:
        with metrics.served(metrics_port):
            audit_again_and_again(request, every_s, tell, stopping.wait)
    except KeyboardInterrupt:
        log.info("stopped", keyspace=request.keyspace)


def verdict_text(done: Audited) -> str:
    """The outcome as text: a line per partition, each followed by its first differing keys and what made them."""
    verdict = done.verdict
    lines: list[str] = []
    for each in verdict.partitions:
        if each.equal:
            lines.append(
                f"partition {each.partition}: equal at offset {each.offset}, {each.items} items, {each.digest}"
            )
            continue
        lines.append(
            f"partition {each.partition}: UNEQUAL at offset {each.offset}: {each.changed} keys differ, "
            f"{each.only_left} only in {verdict.left}, {each.only_right} only in {verdict.right}"
        )
        for difference in each.first:
            lines.append(f"  {difference['key']}")
            lines += [
                f"    {name}: {json.dumps(difference[side], ensure_ascii=False)}"
                for name, side in ((verdict.left, "left"), (verdict.right, "right"))
            ]
            events = difference.get("events", ())
            assert isinstance(events, list | tuple)
            lines += [f"    event: {json.dumps(event, ensure_ascii=False)}" for event in events]
    unequal = sum(not each.equal for each in verdict.partitions)
    outcome = "equal, byte for byte" if verdict.equal else f"{unequal} of {len(verdict.partitions)} partitions differ"
    compared = f"{verdict.items} keys compared, {verdict.differences} differ"
    lines.append(f"{verdict.keyspace}: {verdict.left} and {verdict.right}: {outcome}; {compared}")
    if done.since:
        lines.append(f"folded from the snapshot {done.since}")
    if done.snapshot:
        lines.append(f"left the verified snapshot {done.snapshot}")
    return "\n".join(lines)
