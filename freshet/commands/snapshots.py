"""``freshet snapshots``: makes, lists, checks and removes snapshots of a keyspace's folded state."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshet.keyspaces import explain_unknown_keyspace
from freshet.settings import load_settings
from freshet.snapshots import place_of

if TYPE_CHECKING:
    from consumers.snapshots.finding import Found
    from consumers.snapshots.places import Place

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Make, list, check and remove snapshots, from which consumers start (docs/operating/snapshots.md).",
)

Keyspace = Annotated[str, typer.Argument(help="Keyspace whose snapshots to use.")]
At = Annotated[
    str | None, typer.Option(help="Where the snapshots are (default: the keyspace's setting).", metavar="URI")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


@app.command("make")
def make(
    keyspace: Keyspace,
    to: Annotated[
        str | None, typer.Option(help="Where to write it (default: the keyspace's setting).", metavar="URI")
    ] = None,
    owner: Annotated[
        list[str] | None, typer.Option(help="Address of an owner (default: as announced in freshet.locations).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a snapshot of what the owners have folded. They go on meanwhile."""
    from consumers.snapshots.places import Place
    from consumers.snapshots.writing import write_snapshot
    from consumers.store.directory import kept
    from freshet.owners import live_checkpoint

    settings = load_settings()
    place = Place(place_of(settings, keyspace, to))
    with explain_unknown_keyspace(settings, keyspace):
        stores = live_checkpoint(settings.kafka.cluster, keyspace, owner or [])
    with kept(stores.values()):
        snapshot = write_snapshot(place, stores, made_from="owners")
    if as_json:
        typer.echo(json.dumps({"place": place.uri, **_summary(snapshot)}))
    else:
        typer.echo(f"{snapshot.name}: {snapshot.entries} entries, {snapshot.bytes} bytes at {place.uri}")


@app.command("ls")
def ls(keyspace: Keyspace, at: At = None, as_json: AsJson = False) -> None:
    """List the snapshots of a keyspace, the oldest first."""
    place, found = _found(keyspace, at)
    for each in found:
        snapshot = each.snapshot
        if as_json:
            told = {"error": {"code": each.error.code, "message": str(each.error)}} if each.error else {}
            typer.echo(json.dumps({"name": each.name, **(_summary(snapshot) if snapshot else {}), **told}))
        elif snapshot is not None:
            typer.echo(
                f"{snapshot.name}  fold {snapshot.fold_version}  from {snapshot.made_from}"
                f"{', verified' * snapshot.verified}{', from the topic alone' * snapshot.replayed}  "
                f"offsets {sum(snapshot.offsets.values())}  "
                f"{snapshot.entries} entries  {snapshot.bytes} bytes"
            )
        else:
            typer.echo(f"{each.name}  {each.error.code if each.error else ''}: {each.error}")
    if not found and not as_json:
        typer.echo(f"no snapshots of {keyspace} at {place.uri}")


@app.command("verify")
def verify(
    keyspace: Keyspace,
    name: Annotated[str | None, typer.Argument(help="One snapshot (default: all).")] = None,
    at: At = None,
    as_json: AsJson = False,
) -> None:
    """Check that each file is what was written, and holds the state that its manifest says. Exit 1 if not.

    Of another fold version only the files are checked.
    """
    from consumers.snapshots.checking import check_snapshot, reads_state
    from consumers.snapshots.errors import SnapshotError

    place, found = _found(keyspace, at)
    chosen = [each for each in found if name in (None, each.name)]
    if not chosen:  # nothing that is checked is good: a misspelled name or place would pass
        raise SnapshotError(
            f"no {f'snapshot {name}' if name is not None else 'snapshots'} of {keyspace} at {place.uri}",
            hint=f"`freshet snapshots ls {keyspace}` shows them; check the keyspace and --at",
            code="snapshot_missing",
        )
    good = True
    for each in chosen:
        errors = [each.error] if each.error is not None else []
        if each.snapshot is not None:
            errors = [error for _, error in check_snapshot(place, each, each.snapshot) if error is not None]
        good &= not errors
        is_read = each.snapshot is not None and reads_state(each.snapshot)
        if as_json:
            told = [{"code": error.code, "message": str(error), "hint": error.hint} for error in errors]
            typer.echo(json.dumps({"name": each.name, "good": not errors, "state": is_read, "errors": told}))
        else:
            word = "DAMAGED" if errors else "good" if is_read else "good, of another fold version: its files alone"
            lines = [f"{each.name}  {word}", *(f"  {error}" for error in errors)]
            typer.echo("\n".join(lines))
    if not good:
        raise typer.Exit(1)


@app.command("prune")
def prune(
    keyspace: Keyspace,
    keep: Annotated[int, typer.Option(help="How many of the newest stay, at least.", min=1, max=1_000)] = 3,
    at: At = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove snapshots that are no longer needed. What the topic's retention makes necessary always stays."""
    from consumers.snapshots.pruning import judge, remove_snapshot
    from stream.kafka.reader import end_offsets, start_offsets
    from stream.kafka.topics import describe_topic, events_topic

    settings = load_settings()
    kafka = settings.kafka.cluster
    place, found = _found(keyspace, at)
    with explain_unknown_keyspace(settings, keyspace):
        topic = describe_topic(kafka, events_topic(kafka, keyspace))
        low = start_offsets(kafka, topic.name, range(topic.partitions))
        end = end_offsets(kafka, topic.name, range(topic.partitions))
    for verdict in judge(found, topic.topic_id, low, keep, datetime.now(UTC), end):
        if not verdict.stays and not dry_run:
            remove_snapshot(place, verdict.found)
        done = "stays" if verdict.stays else "would be removed" if dry_run else "removed"
        if as_json:
            typer.echo(json.dumps({"name": verdict.found.name, "stays": verdict.stays, "why": verdict.why}))
        else:
            typer.echo(f"{verdict.found.name}  {done}: {verdict.why}")


def _found(keyspace: str, at: str | None) -> tuple[Place, list[Found]]:
    from consumers.snapshots.finding import find_snapshots
    from consumers.snapshots.places import Place

    place = Place(place_of(load_settings(), keyspace, at))
    return place, find_snapshots(place, keyspace)


def _summary(snapshot: Any) -> dict[str, Any]:
    """A snapshot without its files, as JSON values."""
    names = ("name", "keyspace", "topic_id", "layout", "fold_version", "created", "made_from", "verified", "replayed")
    told = {name: getattr(snapshot, name) for name in names}
    offsets = {str(partition): offset for partition, offset in snapshot.offsets.items()}
    return told | {"offsets": offsets, "entries": snapshot.entries, "bytes": snapshot.bytes}
