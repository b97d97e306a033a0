"""``freshet verify``: compares stores with each other or with a rebuild, byte for byte."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from freshet.commands.rebuild import (
    AsJson,
    Bootstrap,
    DriverMemory,
    Master,
    SparkLog,
    run_rebuild,
    shown_progress,
)
from freshet.keyspaces import explain_unknown_keyspace
from freshet.owners import live_checkpoint
from freshet.settings import load_settings
from freshet.spark import spark_settings

if TYPE_CHECKING:
    from spark_jobs.verify import StoresVerdict


def command(
    left: Annotated[
        Path | None,
        typer.Argument(
            help="A keyspace; or, to compare directories, a store, checkpoint, rebuild or data directory.",
            metavar="[KEYSPACE|LEFT]",
        ),
    ] = None,
    right: Annotated[Path | None, typer.Argument(help="What to compare it with.")] = None,
    keyspace: Annotated[str | None, typer.Option(help="The keyspace to compare, also of two directories.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Compare the live state with this rebuild instead of a new one.", metavar="DIR")
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(
            help="Rebuild from this earlier checkpoint or rebuild instead of the topic's start.", metavar="DIR"
        ),
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
    from spark_jobs.output import find_stores
    from spark_jobs.verify import verify_stores

    if left is not None and right is None and keyspace is None and len(left.parts) == 1 and not left.exists():
        left, keyspace = None, str(left)
    if base is not None and (left is not None or against is not None):
        raise typer.BadParameter("--base needs a new rebuild; it cannot be combined with directories or --against")
    if left is not None and right is not None:
        verdict = verify_stores(
            find_stores(left, keyspace or ""),
            find_stores(right, keyspace or ""),
            names=(str(left), str(right)),
            keep=keep,
        )
    elif left is not None or keyspace is None:
        raise typer.BadParameter("give a keyspace, or two directories")
    else:
        settings = load_settings(flags={"kafka": {"bootstrap": bootstrap}})
        kafka = settings.kafka.cluster
        with explain_unknown_keyspace(settings, keyspace):
            live = live_checkpoint(kafka, keyspace, owner or [])
        if against is not None:
            names = ("live", str(against))
            verdict = verify_stores(live, find_stores(against, keyspace), names=names, keep=keep)
        else:
            from spark_jobs.rebuild import RebuildRequest, checkpoint_begins, checkpoint_offsets

            spark = spark_settings(master, driver_memory, spark_log)
            with tempfile.TemporaryDirectory(prefix="freshet-verify-") as scratch:
                target = Path(scratch) / "rebuild"
                request = RebuildRequest(
                    keyspace, kafka, target, checkpoint_offsets(live), base, begins=checkpoint_begins(live)
                )
                with shown_progress("rebuild", quiet=as_json) as progress:
                    run_rebuild(request, spark, progress)
                verdict = verify_stores(live, find_stores(target, keyspace), names=("live", "rebuilt"), keep=keep)
    typer.echo(json.dumps(verdict.as_json()) if as_json else verdict_text(verdict))
    if not verdict.equal:
        raise typer.Exit(1)


def verdict_text(verdict: StoresVerdict) -> str:
    """The outcome as text: a line per partition, each followed by its first differing keys."""
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
    unequal = sum(not each.equal for each in verdict.partitions)
    outcome = "equal, byte for byte" if verdict.equal else f"{unequal} of {len(verdict.partitions)} partitions differ"
    return "\n".join([*lines, f"{verdict.keyspace}: {verdict.left} and {verdict.right}: {outcome}"])
