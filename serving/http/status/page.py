"""The page at ``/``: health at a glance, rendered here, from what the status API says.

It only watches. There is no build step and no script of ours: htmx fetches the page again and puts its ``main`` in
place. Charts are SVG, so that they need no script, and a screen reader gets a sentence for each (decision 0084).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from operator import add
from pathlib import Path
from time import gmtime, strftime
from typing import Final, NamedTuple

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from serving.errors import ReadError
from serving.http.responses import PAGE_HEADERS, Response, html_response
from serving.http.status.answers import (
    BackfillState,
    FrontStatus,
    KeyspaceHistory,
    KeyspaceStatus,
    KeyStatus,
    PartitionHistory,
    PartitionState,
    StatusHistory,
)
from serving.http.status.inspector import AskedKey, shown_time
from serving.http.status.rings import LOOK_S
from serving.http.status.timeline import AWAY
from serving.misses import REASONS

FILES: Final = {
    "htmx.min.js": b"text/javascript; charset=utf-8",
    "page.css": b"text/css; charset=utf-8",
    "icon.svg": b"image/svg+xml",
}
"""What the page loads: name in ``files/`` → type. Nothing comes from elsewhere."""
REFRESH_S: Final = 5
OLD_S: Final = 5.0
"""From this age on a partition is marked: a live source says something each second."""
SHOWN_MAX: Final = 64
"""Partitions of a keyspace that are shown: the worst."""
OLDEST_SHOWN: Final = 8
"""Partitions of a keyspace whose age over time is shown: the worst of that time."""
SPANS: Final[dict[int, tuple[str, str]]] = {
    1: ("the last hour", "ten seconds"),
    6: ("the last 6 hours", "one minute"),
    24: ("the last day", "five minutes"),
}
"""Hours → in words, and how far two points are apart."""
EVENTS_SHOWN: Final = 30
BEHIND_MAX: Final = 1_000
"""From this many records on an edge is marked."""
WIDTH, HEIGHT = 600, 80
GAP_STEPS: Final = 2.5
"""Over so many steps without a look no line is drawn."""

NONE_FILLED: Final[Mapping[str, Sequence[BackfillState]]] = {}
_DIRECTORY = Path(__file__).parent / "files"


class Edge(NamedTuple):
    """One step of the way from the source to the reader."""

    name: str
    told: str
    is_well: bool


class Audit(NamedTuple):
    """What the last `freshet verify` found of a keyspace."""

    told: str
    is_well: bool


class Chart(NamedTuple):
    """``lines``: class → points of an SVG polyline, one for each stretch without a gap. ``text``: the same in words."""

    title: str
    text: str
    lines: tuple[tuple[str, str], ...]


def page_response(
    status: FrontStatus,
    history: StatusHistory,
    backfills: Mapping[str, Sequence[BackfillState]] = NONE_FILLED,
    *,
    refresh: bool,
) -> Response:
    """The whole page. ``backfills``: of keyspaces with tables that are read from their beginning."""
    html = _template().render(
        status=status,
        at=strftime("%H:%M:%S UTC", gmtime(status.at)),
        is_ready=all(each.ready for each in status.keyspaces),
        paths={each.name: path_of(each) for each in status.keyspaces},
        audits={each.name: audit_of(each) for each in status.keyspaces},
        tables={each.name: tables_of(each, backfills.get(each.name, ())) for each in status.keyspaces},
        charts=charts_of(history),
        oldest=oldest_of(history),
        hours=history.hours,
        spans=SPANS,
        misses=misses_of(history),
        events=events_of(history),
        answers=(sum(history.cache), sum(history.source), sum(history.refused)) if has_answers(history) else None,
        refresh=refresh,
        refresh_s=REFRESH_S,
        shown_max=SHOWN_MAX,
    )
    return html_response(html)


def key_response(
    keyspaces: list[str], asked: AskedKey, held: KeyStatus | None, problem: ReadError | None = None
) -> Response:
    """The page of one key. ``problem``: why nothing is held."""
    made = environment()
    made.filters |= {"pretty": lambda image: msgspec.json.format(bytes(image)).decode(), "time": shown_time}
    html = made.get_template("key.html").render(keyspaces=keyspaces, asked=asked, held=held, problem=problem)
    return html_response(html, 200 if problem is None else problem.status)


@cache
def file_response(name: str) -> Response:
    """A file of the page."""
    return Response(200, (_DIRECTORY / name).read_bytes(), FILES[name], PAGE_HEADERS)


def path_of(keyspace: KeyspaceStatus) -> list[Edge]:
    """Source → topic → owners → front, with the age of what has come that far."""
    parts = keyspace.partitions
    ages = [shard.age_s for each in parts for shard in each.shards if shard.age_s is not None]
    heard_s = min(ages or [each.silent_s for each in parts if each.silent_s is not None], default=None)
    owned = [each for each in parts if each.state != AWAY]
    behind = [each.behind for each in owned if each.behind is not None]
    return [
        Edge("source → topic", f"last heard of {shown_age(heard_s)}", heard_s is not None and heard_s < OLD_S),
        Edge("topic → owners", _followed(owned, max(behind, default=0)), bool(behind) and max(behind) < BEHIND_MAX),
        Edge("owners → front", f"{len(owned)} of {len(parts)} partitions answer", len(owned) == len(parts)),
        Edge("proved until", proved_until(parts[0]) if parts else "unknown", bool(parts) and is_well(parts[0])),
    ]


def _followed(owned: list[PartitionState], behind: int) -> str:
    """How far the owners are in the topic. ``owned``: the worst first."""
    oldest = f"; oldest watermark {proved_until(owned[0])}" if owned else ""
    return f"{behind:,} records behind{oldest}"


def is_well(part: PartitionState) -> bool:
    """Whether nobody has to look at a partition."""
    age = part.judged_age_s
    return part.state != AWAY and age is not None and age < OLD_S


def proved_until(part: PartitionState) -> str:
    """Up to when the partition proves that it has all that was committed."""
    if part.has_clock or part.silent_s is None:
        return shown_age(part.age_s)
    return f"no clock, heard of {shown_age(part.silent_s)}"


def audit_of(keyspace: KeyspaceStatus) -> Audit | None:
    """What was verified; None: nothing that an owner knows of. One partition that differs is what counts."""
    told = [(each.verified_at, each.verified_equal) for each in keyspace.partitions if each.verified_at is not None]
    if not told:
        return None
    first = strftime("%d %b %H:%M:%S UTC", gmtime(min(at for at, _ in told)))
    if not all(equal for _, equal in told):
        return Audit(f"verified at {first}: differs", False)
    part = "" if len(told) == len(keyspace.partitions) else f" in {len(told)} of {len(keyspace.partitions)} partitions"
    return Audit(f"verified at {first}: equal{part}", True)


def is_filled(keyspace: KeyspaceStatus) -> bool:
    """Whether a table's backfill has begun that is not complete in every partition."""
    return any(whole < len(keyspace.partitions) for _, whole, _ in tables_of(keyspace))


def tables_of(keyspace: KeyspaceStatus, backfills: Sequence[BackfillState] = ()) -> list[tuple[str, int, str]]:
    """Table → in how many partitions it is whole, and how far it is read; of those whose backfill has begun."""
    found: dict[str, int] = {}
    for each in keyspace.partitions:
        for table, is_whole in each.tables.items():
            found[table] = found.get(table, 0) + is_whole
    read: dict[str, list[str]] = {}
    for backfill in backfills:
        read.setdefault(backfill.table, []).append(how_far(backfill))
    told = [(table, whole, "; ".join(read.get(table, []))) for table, whole in found.items()]
    return sorted(told, key=lambda each: (each[1], each[0]))


def how_far(backfill: BackfillState) -> str:
    """A backfill in words."""
    rows = f"{backfill.rows:,} rows"
    if backfill.estimated_rows:
        rows = f"{backfill.rows:,} of about {backfill.estimated_rows:,} rows"
    if backfill.paused:
        return f"{rows}, paused: {backfill.paused}"
    if not backfill.is_read:
        return f"{rows}, waits for its turn"
    return rows if backfill.eta_s < 0 else f"{rows}, {backfill.eta_s:,} s left"


def charts_of(history: StatusHistory) -> list[Chart]:
    """Each keyspace's age over time, and the answers."""
    charts = []
    for each in history.keyspaces:
        known = [age for age in each.age_s if age is not None]
        text = "no source tells a clock"
        if known:
            text = f"at most {max(known):.1f} s{_unknown(each.unknown)}"
        lines = _lines("age", history, _where_known(each), max([*known, OLD_S]))
        charts.append(Chart(f"{each.name}: age of the oldest partition", text, lines))
    if not has_answers(history):
        return charts
    top = max([*history.cache, *history.source, 1])
    text = f"at most {top:,} in {SPANS[history.hours][1]}" if history.at else "nothing known yet"
    answers = (*_lines("cache", history, history.cache, top), *_lines("source", history, history.source, top))
    charts.append(Chart("answers: from the cache, and from the source", text, answers))
    return [*charts, *misses_over_time(history)]


def misses_over_time(history: StatusHistory) -> list[Chart]:
    """Misses stacked by why, in the colours of their table; no chart if there are none.

    Each is drawn from the ground up to the sum of itself and those more frequent; the highest first, so that what is
    below stays to be seen.
    """
    reasons = [reason for reason, _, _ in misses_of(history)]
    if not reasons:
        return []
    layers: list[tuple[str, list[int]]] = []
    below = [0] * len(history.at)
    for reason in reasons:
        below = list(map(add, below, history.misses[reason]))
        layers.append((reason, below))
    top = max([*below, 1])
    text = f"at most {top:,} in {SPANS[history.hours][1]}, stacked by why"
    drawn = tuple(
        (kind, f"{points.split(',')[0]},{HEIGHT} {points} {points.split()[-1].split(',')[0]},{HEIGHT}")
        for reason, heights in reversed(layers)
        for kind, points in _lines(f"miss {reason}", history, heights, top)
    )
    return [Chart("reads that the cache did not answer", text, drawn)]


def oldest_of(history: StatusHistory) -> list[tuple[str, list[tuple[int, Chart]]]]:
    """Of each keyspace whose source tells a clock the partitions that were the oldest, the worst first."""
    shown = []
    for keyspace in history.keyspaces:
        charts = []
        for each in keyspace.partitions:
            known = [age for age in each.age_s if age is not None]
            text = (f"at most {max(known):.1f} s" if known else "") + _unknown(each.unknown)
            lines = _lines("age", history, _where_known(each), max([*known, OLD_S]))
            charts.append((each.partition, Chart(f"Age of partition {each.partition}", text.removeprefix(", "), lines)))
        if charts:
            shown.append((keyspace.name, charts))
    return shown


def _unknown(looks: list[int]) -> str:
    return f", unknown for {sum(looks) * LOOK_S:.0f} s" if any(looks) else ""


def _where_known(history: KeyspaceHistory | PartitionHistory) -> list[float | None]:
    """A line ends where an age was unknown at any look, however young it was at the others."""
    return [None if unknown else age for age, unknown in zip(history.age_s, history.unknown, strict=True)]


def events_of(history: StatusHistory) -> list[tuple[str, str, str, str]]:
    """The last changes: time, keyspace, what, and of which partitions; the newest first."""
    return [
        (strftime("%d %b %H:%M:%S", gmtime(each.at)), each.keyspace, each.what, shown_numbers(each.partitions))
        for each in history.events[: -EVENTS_SHOWN - 1 : -1]
    ]


def shown_numbers(numbers: list[int]) -> str:
    """``0-3, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def misses_of(history: StatusHistory) -> list[tuple[str, int, str]]:
    """Why the cache did not answer: reason, how often, what it means; the most frequent first."""
    counted = [(name, sum(history.misses[name]), REASONS[name]) for name in history.misses]
    return sorted((each for each in counted if each[1]), key=lambda each: -each[1])


def has_answers(history: StatusHistory) -> bool:
    """Whether the caller may know them."""
    return len(history.cache) == len(history.at)


def _lines(
    kind: str, history: StatusHistory, values: list[float | None] | list[int], top: float
) -> tuple[tuple[str, str], ...]:
    """Polylines through ``values`` over time, with gaps where one is unknown and where nobody looked."""
    first_s, last_s = (history.at[0], history.at[-1]) if history.at else (0.0, 0.0)
    scale = WIDTH / max(last_s - first_s, 1)
    stretches: list[list[str]] = [[]]
    before_s = first_s
    for at, value in zip(history.at, values, strict=True):
        if value is None or at - before_s > GAP_STEPS * history.step_s:
            stretches.append([])
        if value is not None:
            stretches[-1].append(f"{(at - first_s) * scale:.1f},{HEIGHT - HEIGHT * value / top:.1f}")
        before_s = at
    return tuple((kind, " ".join(stretch)) for stretch in stretches if stretch)


def shown_age(age_s: float | None) -> str:
    """An age in words."""
    if age_s is None:
        return "unknown"
    if age_s < 120:
        return f"{age_s:.1f} s ago"
    return f"{age_s / 60:.0f} min ago" if age_s < 7_200 else f"{age_s / 3_600:.0f} h ago"


def environment() -> Environment:
    """Of the templates in ``files/``: what is not there is an error, and every text is escaped."""
    return Environment(loader=FileSystemLoader(_DIRECTORY), autoescape=True, undefined=StrictUndefined)


@cache
def _template() -> Template:
    made = environment()
    made.filters |= {"proved": proved_until, "well": is_well}
    return made.get_template("page.html")
