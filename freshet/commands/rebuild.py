"""``freshet rebuild``: fold a keyspace's topic anew with Spark, into stores beside the live ones."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshet.keyspaces import AsArgument, AsOption, explain_unknown_keyspace, one_keyspace
from freshet.sections.values import is_address
from freshet.settings import load_settings
from freshet.snapshots import Needed, base_directory, base_stores, clear_useless, work_directory
from freshet.spark import spark_settings

if TYPE_CHECKING:
    from spark_jobs.output import RebuildReport
    from spark_jobs.rebuild import Progress, RebuildRequest

PLAIN_INTERVAL_S = 5.0

Master = Annotated[str, typer.Option("--master", help="Spark master.", metavar="URL")]
DriverMemory = Annotated[str, typer.Option(help="Memory of Spark's driver (JVM).", metavar="SIZE")]
SparkLog = Annotated[
    Path | None, typer.Option(help="Where Spark logs (default: spark.log in the cache directory).", metavar="FILE")
]
Bootstrap = Annotated[str | None, typer.Option(help="Kafka, as host:port (default: the settings').")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def command(
    keyspace: AsArgument = "",
    *,
    keyspace_option: AsOption = "",
    to: Annotated[
        str,
        typer.Option(
            help="Directory for the stores: a new one, or a rebuild to go on with. With ://, where a snapshot is made.",
            metavar="DIR|URI",
        ),
    ],
    bootstrap: Bootstrap = None,
    to_checkpoint: Annotated[
        Path | None, typer.Option(help="Stop at the offsets of this checkpoint of the owners.", metavar="DIR")
    ] = None,
    offsets: Annotated[str | None, typer.Option(help='Stop before these offsets, by partition: {"0": 17, …}.')] = None,
    base: Annotated[
        str | None,
        typer.Option(
            help="Start from this checkpoint or rebuild, or the newest snapshot there, instead of the topic's start.",
            metavar="DIR|URI",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is new, until Ctrl-C or SIGTERM.")] = False,
    master: Master = "local[*]",
    driver_memory: DriverMemory = "1g",
    spark_log: SparkLog = None,
    as_json: AsJson = False,
) -> None:
    """Fold a keyspace's topic anew with Spark, into stores beside the live ones (docs/operating/rebuild.md).

    A run that was stopped or killed is gone on with by the same command."""
    from consumers.snapshots.places import Place
    from consumers.snapshots.writing import write_snapshot
    from spark_jobs.output import exclusive, find_stores
    from spark_jobs.rebuild import RebuildRequest, checkpoint_begins, checkpoint_offsets, run_rebuild

    if sum(given is not None for given in (to_checkpoint, offsets)) > 1:
        raise typer.BadParameter("give --to-checkpoint or --offsets, not both")
    if follow and (to_checkpoint or offsets):
        raise typer.BadParameter("--follow has no end: it takes no --to-checkpoint or --offsets")
    keyspace = one_keyspace(keyspace, keyspace_option)
    settings = load_settings(flags={"kafka": {"bootstrap": bootstrap}})
    if follow and is_address(to):
        raise typer.BadParameter("--follow makes stores in a directory, no snapshot")
    kafka = settings.kafka.cluster
    ends = ends_from(keyspace, to_checkpoint, offsets, find_stores, checkpoint_offsets)
    begins = checkpoint_begins(find_stores(to_checkpoint, keyspace)) if to_checkpoint is not None else None
    spark = spark_settings(master, driver_memory, spark_log)
    place = Place(to) if is_address(to) else None
    target = Path(to) if place is None else work_directory(settings, keyspace, to)
    with explain_unknown_keyspace(settings, keyspace):
        stores = base_directory(base, target)
        request = RebuildRequest(keyspace, kafka, target, ends, stores, begins=begins, follow=follow)
        if place is not None:
            clear_useless(request)
        base_stores(base, keyspace, kafka, target, Needed(ends, begins))
        with shown_progress("rebuild", quiet=as_json) as progress:
            report = run_rebuild(request, spark, progress)
    told: dict[str, Any] = {"directory": to}
    if place is not None:
        replayed = _is_replayed(request)
        with exclusive(target):
            snapshot = write_snapshot(place, find_stores(target, keyspace), made_from="rebuild", replayed=replayed)
            shutil.rmtree(target)
        told = {"place": place.uri, "snapshot": snapshot.name}
    if as_json:
        typer.echo(json.dumps(told | report.as_json()))
    else:
        typer.echo(summary_text(report, " ".join(told.values())))
    if stores is not None and base is not None and is_address(base) and not follow:
        shutil.rmtree(stores, ignore_errors=True)


def _is_replayed(request: RebuildRequest) -> bool:
    """Whether a rebuild holds all of the topic's history, and nothing that was not folded from it."""
    from spark_jobs.offsets import topic_bounds
    from spark_jobs.output import read_begun
    from stream.kafka.topics import events_topic

    begun = read_begun(request.target)
    low = topic_bounds(request.kafka, events_topic(request.kafka, request.keyspace)).low
    return begun is not None and not begun.base and all(low[each] <= begun.begins.get(each, 0) for each in low)


def ends_from(
    keyspace: str, to_checkpoint: Path | None, offsets: str | None, find_stores: Any, checkpoint_offsets: Any
) -> dict[int, int] | None:
    """The end offsets that the flags give, by partition; None: the topic's current end."""
    from spark_jobs.offsets import parse_offsets

    if to_checkpoint is not None:
        found: dict[int, int] = checkpoint_offsets(find_stores(to_checkpoint, keyspace))
        return found
    return None if offsets is None else parse_offsets(offsets)


def summary_text(report: RebuildReport, where: str) -> str:
    """The outcome as text."""
    lines = [
        f"partition {each.partition}: {each.messages} messages, {each.rows} events to offset {each.offset}, "
        f"{each.entries} entries, digest {each.digest}"
        + (f", {each.dead_letters} dead letters" * bool(each.dead_letters))
        for each in report.partitions
    ]
    total = f"{report.rows} events in {report.seconds:.1f} s = {report.rows_per_s} events/s, {report.entries} entries"
    return "\n".join([*lines, f"rebuilt {report.keyspace} into {where}: {total}"])


@contextmanager
def shown_progress(what: str, *, quiet: bool = False) -> Iterator[Progress | None]:
    """A progress bar on a terminal, else a line every few seconds, both on stderr; nothing if ``quiet``."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar(what) as progress:
            yield progress
    else:
        yield _lines(what)


@contextmanager
def _bar(what: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{what}: starting Spark", total=None)
        yield lambda done, total: bar.update(task, description=what, completed=done, total=total)


def _lines(what: str) -> Progress:
    last = [time.monotonic(), 0.0]

    def tell(done: int, total: int) -> None:
        now = time.monotonic()
        if now - last[0] >= PLAIN_INTERVAL_S or (done >= total and last[1] < total):
            last[:] = [now, done]
            print(f"{what}: {done} of {total} offsets", file=sys.stderr, flush=True)

    return tell
