"""``freshet backfill``: which tables are published from their beginning, and how far they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
import typer

from freshet.keyspaces import explain_unknown_keyspace
from freshet.settings import Settings, load_settings
from stream.kafka.requests import send_request
from stream.kafka.topics import describe_topic, events_topic
from stream.publish.resume import read_point
from stream.sources.mariadb.backfill.choice import BackfillRequest, Choice
from stream.sources.mariadb.backfill.plan import Plan, unfit
from stream.sources.mariadb.backfill.progress import TableProgress, table_progress
from stream.wire.events import ResumePoint
from tokens.errors import FreshetError, printable

T = TypeVar("T")
app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Publish tables from their beginning, so that the cache holds them whole.",
)

Keyspace = Annotated[str, typer.Argument(help="The keyspace.")]
Table = Annotated[str, typer.Argument(help="One table, DATABASE.TABLE; default: every table.")]
Shard = Annotated[
    str, typer.Option(help="Which shard, by its range or name: --shard=-80; default: each, one after the other.")
]
Bootstrap = Annotated[str | None, typer.Option(help="Kafka's address, host:port.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for each shard.")]
Follow = Annotated[bool, typer.Option("--follow", help="Show the progress until nothing is left to read.")]

TAKEN_WITHIN_S: Final = 20.0
"""How long to wait for the source. One that is down takes the request when it starts."""
POLL_S: Final = 0.25
SHOW_EVERY_S: Final = 1.0
LEFT: Final = ("reading", "paused", "waiting")


class BackfillError(FreshetError):
    """A table is not published, or cannot be read in chunks; code ``backfill_refused``."""

    code = "backfill_refused"


@app.command("start")
def start(
    keyspace: Keyspace,
    table: Table = "",
    shard: Shard = "",
    bootstrap: Bootstrap = None,
    follow: Follow = False,
    as_json: AsJson = False,
) -> None:
    """Publish a table from its beginning, beside its changes, whatever the settings say.

    One that is under way goes on where it is. One that is complete is read again if it is named. It holds until it is
    cancelled, over restarts of the source. Exit code 1 if no source has taken the request in time.
    """
    _ask(keyspace, table, shard, bootstrap, start=True, follow=follow, as_json=as_json)


@app.command("cancel")
def cancel(
    keyspace: Keyspace, table: Table = "", shard: Shard = "", bootstrap: Bootstrap = None, as_json: AsJson = False
) -> None:
    """Read a table no further, whatever the settings say. What is complete stays so until it is voided.

    Exit code 1 if no source has taken the request in time.
    """
    _ask(keyspace, table, shard, bootstrap, start=False, follow=False, as_json=as_json)


@app.command("status")
def status(
    keyspace: Keyspace,
    table: Table = "",
    shard: Shard = "",
    bootstrap: Bootstrap = None,
    follow: Follow = False,
    as_json: AsJson = False,
) -> None:
    """Show how far each table is, as its source has last said: rows read, out of about how many, and the time left.

    States: complete, reading, paused (the source is behind), waiting (for its turn), cancelled, off (nobody asked for
    it), unfit (it cannot be read in chunks).
    """
    with _installation(keyspace, bootstrap, shard) as places:
        _each(places, lambda place: _look(place, table, follow=follow, as_json=as_json))


def _look(place: _Place, table: str, *, follow: bool, as_json: bool) -> None:
    """Show one shard's tables."""
    point = _point(place)
    name = _known(point, table)
    if follow:
        point = _follow(place, name)
    _show(place, point, name, as_json, {})


class _Place(NamedTuple):
    """A shard of a keyspace."""

    settings: Settings
    keyspace: str
    shard: str


@contextmanager
def _installation(keyspace: str, bootstrap: str | None, shard: str) -> Iterator[list[_Place]]:
    """The shards that are meant. Raises `SettingsError` ``which_shard``."""
    settings = load_settings(flags={"kafka": {"bootstrap": bootstrap}})
    with explain_unknown_keyspace(settings, keyspace):
        if keyspace not in settings.keyspaces:
            names: tuple[str, ...] = (shard or f"{keyspace}/0",)  # its topic may be there all the same
        else:
            names = (settings.shard_of(keyspace, shard),) if shard else settings.shards_of(keyspace)
        yield [_Place(settings, keyspace, name) for name in names]


def _ask(
    keyspace: str, table: str, shard: str, bootstrap: str | None, *, start: bool, follow: bool, as_json: bool
) -> None:
    with _installation(keyspace, bootstrap, shard) as places:
        taken = _each(places, lambda place: _ask_one(place, table, start=start, follow=follow, as_json=as_json))
    if not all(taken):
        typer.echo("no source has taken the request yet: is `freshet source` running? It will when it starts", err=True)
        raise typer.Exit(1)


def _each(places: Iterable[_Place], act: Callable[[_Place], T]) -> list[T]:
    """What ``act`` returns for each shard. One that fails keeps no other from its turn.

    Raises the first `BackfillError` once all had theirs; later ones that say something else are shown before.
    """
    found: list[T] = []
    errors: list[BackfillError] = []
    for place in places:
        try:
            found.append(act(place))
        except BackfillError as error:
            if str(error) not in map(str, errors):
                errors.append(error)
    for other in errors[1:]:
        typer.echo(f"error[{other.code}]: {other}", err=True)
    if errors:
        raise errors[0]
    return found


def _ask_one(place: _Place, table: str, *, start: bool, follow: bool, as_json: bool) -> bool:
    """Ask the source of one shard. Returns whether it has taken the request."""
    point = _point(place)
    name = _known(point, table)
    if start and name and (why := unfit(point.descriptions[name])):
        raise BackfillError(f"{name} cannot be published from its beginning: {why}")
    value = msgspec.json.encode(BackfillRequest(start=start, table=name))
    offset = send_request(place.settings.kafka.cluster, place.keyspace, place.shard, value)
    is_taken = _await_taken(place, offset, point)
    if follow and is_taken:
        _follow(place, name)
    _show(place, _point(place), name, as_json, {"taken": is_taken})
    return is_taken


def _point(place: _Place, before: ResumePoint | None = None) -> ResumePoint:
    """Where the shard is now. Raises `BackfillError` if it has published nothing, and Kafka's errors.

    ``before``: an earlier point, whose tables are taken over.
    """
    kafka = place.settings.kafka.cluster
    topic = describe_topic(kafka, events_topic(kafka, place.keyspace))
    found = read_point(kafka, topic, place.shard, before)
    if found is None:
        raise BackfillError(f"shard {place.shard} has published nothing", hint="start its source: `freshet source …`")
    return found


def _known(point: ResumePoint, table: str) -> str:
    """The full name of a table that is published. Raises `BackfillError`."""
    names = sorted(point.descriptions)
    found = [name for name in names if table in (name, name.partition(".")[2])]
    if not table or len(found) == 1:
        return found[0] if table else ""
    if found:
        raise BackfillError(f"{table} is in several databases: {', '.join(found)}", hint="name one of them")
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    raise BackfillError(f"no table {table} is published", hint=f"the tables are {shown}" if names else "")


def _await_taken(place: _Place, offset: int, before: ResumePoint) -> bool:
    """Wait until the source says that it has read the request at ``offset``. Returns whether it has."""
    deadline = monotonic() + TAKEN_WITHIN_S
    while Choice.told(_point(place, before).annotations).offset <= offset:
        if monotonic() > deadline:
            return False
        sleep(POLL_S)
    return True


def _follow(place: _Place, name: str) -> ResumePoint:
    """Show what changes on stderr, until nothing is left to read. Returns where the shard is then."""
    shown: dict[str, str] = {}
    point = _point(place)
    while True:
        tables = _progress(point, name)
        for each in tables:
            line = _line(each)
            if shown.get(each.table) != line and (shown or each.state in LEFT):
                typer.echo(line, err=True)
            shown[each.table] = line
        if not any(each.state in LEFT for each in tables):
            return point
        sleep(SHOW_EVERY_S)
        begun = Plan.resume(point).cursors.keys()
        point = _point(place, point)
        if Plan.resume(point).cursors.keys() != begun or not begun:  # a table has begun, is complete, or is void
            point = _point(place)


def _progress(point: ResumePoint, name: str) -> list[TableProgress]:
    return [each for each in table_progress(point) if name in ("", each.table)]


def _show(place: _Place, point: ResumePoint, name: str, as_json: bool, more: dict[str, Any]) -> None:
    tables = _progress(point, name)
    if as_json:
        plain = [msgspec.structs.asdict(each) for each in tables]
        found = {"keyspace": place.keyspace, "shard": point.shard, "epoch": point.epoch, "position": point.position}
        typer.echo(json.dumps(found | more | {"tables": plain}, ensure_ascii=False))
        return
    if len(place.settings.shards_of(place.keyspace) if place.keyspace in place.settings.keyspaces else ()) > 1:
        typer.echo(f"{point.shard}:")
    for each in tables:
        typer.echo(_line(each))
    if not tables:
        typer.echo(f"{point.shard} publishes no tables")


def _line(each: TableProgress) -> str:
    parts = [f"{each.table}  {each.state}"]
    if each.rows:
        about = f" of about {each.estimated_rows:,}" if each.estimated_rows else ""
        parts.append(f"{each.rows:,}{about} rows")
    if each.rows_per_s:
        parts.append(f"{each.rows_per_s:,} a second")
    if each.eta_s >= 0:
        parts.append(f"{each.eta_s} s left")
    return printable(", ".join([*parts, *filter(None, [each.reason])]))
