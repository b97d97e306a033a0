"""Sessions that read tables by their leading columns: page by page, in either direction, or only how many rows.

What they get is judged by what was committed: all rows of one moment, none more or less.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lab.simulation.installation.committed import History, Image
from lab.simulation.installation.judging import Asked
from lab.simulation.installation.traffic import PATIENCE_S, STALENESS_MS, Traffic
from lab.simulation.installation.writing import SimulatedTable, Slot, image_of
from lab.simulation.kernel.fronts import async_client
from lab.simulation.whole_processes.run import CLIENT
from lab.simulation.whole_processes.words import EXPLAINS, NO_EPOCH
from serving.client.answers import Page
from serving.client.client import Session
from serving.client.errors import ClientError

WAYS: Final = 12
"""How a reader may name what it asks for (`way_of`)."""
LIMITS: Final = (100, 1, 2)
"""Rows of a page."""


class Stretch(NamedTuple):
    """What a reader asks for: a table, or one row of it. ``leading``: columns that it names.

    ``by_version``: the rows come in the order of their versions, and not of their keys.
    """

    table: SimulatedTable
    leading: tuple[tuple[str, object], ...] = ()
    descending: bool = False
    only: int | None = None
    by_version: bool = False

    @property
    def order(self) -> str:
        """For ``order_by``: the version, or what follows in the key."""
        if self.by_version:
            return "-version" if self.descending else "version"
        following = [name for name in self.table.columns if name not in dict(self.leading)]
        return f"-{following[0]}" if self.descending and following else ""


def way_of(slot: Slot, way: int) -> tuple[Stretch, int]:
    """What a reader asks for, and how many rows a page has."""
    table = slot.table
    if table.is_coded:  # by which column its pages are ordered, and which one leads to a row, changes
        return Stretch(table), LIMITS[0]
    limit, descending, named = LIMITS[way % 3], bool(way // 3 % 2), bool(way // 6 % 2)
    if not named:
        return Stretch(table, descending=descending and not table.first), limit
    if table.first:
        customer = (table.aliases, table.first)[way % 2][0]
        return Stretch(table, (("customer", customer),), descending), limit
    return Stretch(table, ((table.columns[-1], slot.row),), only=slot.row), limit


@dataclass(frozen=True, slots=True)
class FoundStretch:
    """Rows of a table, or their number. Implements `lab.simulation.installation.judging.Judged`.

    ``after``, ``until``: the numbers of the rows between which it lies, the second included; None: without bound.
    ``by_version``: they come in the order of their versions; ``behind``: behind this one and the number of its row;
    ``more``: others follow. ``number``: how many rows there are, counted up to ``limit`` (0: all); None if the rows
    themselves were asked for.
    """

    table: str
    images: Sequence[Image]
    served_from: str
    freshness: str
    why: str
    descending: bool = False
    after: int | None = None
    until: int | None = None
    only: int | None = None
    """The one row that is asked for, if it is only one."""
    number: int | None = None
    limit: int = 0
    by_version: bool = False
    behind: tuple[int, int] | None = None
    more: bool = False

    @property
    def said(self) -> str:
        """See `Judged`."""
        what = list(self.images) if self.number is None else f"{self.number} rows"
        return f"{what} of {self.table} after {self.after} from the {self.served_from}"

    def first_in(self, history: History, demanded: int, time: float) -> int | None:
        """See `Judged`."""
        return history.first_state(self.table, self._within, self._holds, demanded, time)

    def versions_in(self, history: History) -> str:
        """See `Judged`."""
        states: list[str] = []

        def note(rows: Sequence[Image]) -> bool:
            states.append(f"{[*rows]}")
            return False

        history.first_state(self.table, self._within, note, 0, history.times[-1])
        return "; ".join(states)

    def _within(self, number: int) -> bool:
        if self.only is not None and number != self.only:
            return False
        low, high = (self.until, self.after) if self.descending else (self.after, self.until)
        above = low is None or (number >= low if self.descending else number > low)
        below = high is None or (number < high if self.descending else number <= high)
        return above and below

    def _holds(self, rows: Sequence[Image]) -> bool:
        if self.number is not None:
            return self.number == (min(len(rows), self.limit) if self.limit else len(rows))
        if self.by_version:
            return self._holds_by_version(rows)
        return list(self.images) == (list(reversed(rows)) if self.descending else list(rows))

    def _holds_by_version(self, rows: Sequence[Image]) -> bool:
        ordered = sorted(rows, key=_place, reverse=self.descending)
        if self.behind is not None:
            ordered = [
                row for row in ordered if (_place(row) < self.behind if self.descending else _place(row) > self.behind)
            ]
        found = list(self.images)
        return found == ordered[: len(found)] and self.more == (len(ordered) > len(found))


def number_of(image: Image) -> int:
    """The number of a row, which is the last column of its key."""
    columns = json.loads(image or "{}")
    found: int = columns.get("number", columns.get("id"))
    return found


def version_of(image: Image) -> int:
    """The version of a row, which is no column of its key."""
    found: int = json.loads(image or "{}")["version"]
    return found


def _place(image: Image) -> tuple[int, int]:
    return version_of(image), number_of(image)


class Finding(Traffic):
    """The ops that read ranges."""

    def op_find(self, session: int, row: int, way: int, staleness: int, patience: int) -> None:
        """A session reads a table, with or without a bound of its age; or a task of an asyncio application does."""
        stretch, limit = way_of(self.slot(row), way)
        bound_ms = STALENESS_MS[staleness] if staleness < len(STALENESS_MS) else None
        if staleness == len(STALENESS_MS):
            self._find_in_task(stretch, limit, patience)
            return
        name, client = self._session(session % 2)
        self._do(lambda: self.find(name, client, stretch, limit, bound_ms), patience)

    def op_sort(self, session: int, row: int, way: int, patience: int) -> None:
        """A session reads a table in the order of the versions of its rows."""
        stretch, limit = way_of(self.slot(row), way)
        stretch = stretch._replace(by_version=True, descending=bool(way // 3 % 2))
        name, client = self._session(session % 2)
        self._do(lambda: self.find(name, client, stretch, limit), patience)

    def op_count(self, session: int, row: int, way: int, patience: int) -> None:
        """A session asks how many rows there are, up to some number or all, or whether there is one."""
        stretch, limit = way_of(self.slot(row), way)
        name, client = self._session(session % 2)
        self._do(lambda: self._count_rows(name, client, stretch, limit % 100, asks_whether=way % 4 == 3), patience)

    def find(self, name: str, client: Session, stretch: Stretch, limit: int, bound_ms: int | None = None) -> str:
        """Reads a stretch to its end, and has it judged. Returns where its first page came from; "" if it failed."""
        reading = _Reading(self, name, stretch, bound_ms)
        pages = client.scan(*reading.arguments, **reading.options(limit))
        while True:
            reading.ask()
            try:
                page = next(pages, None)
            except ClientError as error:
                self._refused(name, [Slot(stretch.table, 0)], error)
                return ""
            if page is None:
                return reading.end()
            reading.take(page)

    def _find_in_task(self, stretch: Stretch, limit: int, patience: int) -> None:
        done = list[bool]()
        if self._async is None:
            self._async = async_client(self.kernel, self._ports(), **self.credentials.shown)
            self._async_session = self._async.session()
        session = self._async_session
        self.under_way += 1
        reading = _Reading(self, "of tasks", stretch, None)

        async def read() -> None:
            reading.ask()
            try:
                async for page in session.scan(*reading.arguments, **reading.options(limit)):
                    reading.take(page)
                    reading.ask()
            except ClientError as error:
                self._refused("of tasks", [Slot(stretch.table, 0)], error)
            else:
                reading.end()
            self.under_way -= 1
            done.append(True)

        self.kernel.run_task(CLIENT, read)
        self.run_until(lambda: bool(done), PATIENCE_S[patience % len(PATIENCE_S)])

    def _count_rows(self, name: str, client: Session, stretch: Stretch, limit: int, *, asks_whether: bool) -> None:
        table, slot = stretch.table, Slot(stretch.table, 0)
        judge = self._judge_of([slot])
        asked = judge.asked(name, self.kernel.now)
        try:
            if asks_whether:
                number, limit = int(client.exists(table.keyspace, table.name, dict(stretch.leading))), 1
            else:
                number = client.count(table.keyspace, table.name, dict(stretch.leading), limit=limit or None)
        except ClientError as error:
            self._refused(name, [slot], error)
            return
        self.record_commits()
        self._count("counted")
        self.say(f"session {name}: {table.name} has {number} rows, counted up to {limit or 'the end'}")
        must = judge.must_be_fresh(name, asked)
        found = FoundStretch(
            table.name, (), "cache", "fresh" if must else "eventual", "", only=stretch.only, number=number, limit=limit
        )
        judge.stood(name, asked, self.kernel.now, found)
        judge.attempts(name)  # its token has moved, nobody can say where to


class _Reading:
    """A stretch that is read page by page."""

    def __init__(self, run: Finding, name: str, stretch: Stretch, bound_ms: int | None) -> None:
        self._run, self._name, self._stretch, self._bound_ms = run, name, stretch, bound_ms
        self._judge = run._judge_of([Slot(stretch.table, 0)])
        self._asked: list[Asked] = []
        self._pages: list[Page] = []
        self._images: list[str | None] = []
        self._after: int | None = None
        self.arguments = (stretch.table.keyspace, stretch.table.name, dict(stretch.leading))

    def options(self, limit: int) -> dict[str, Any]:
        """For `Session.scan`."""
        return {"order_by": self._stretch.order, "limit": limit, "max_staleness_ms": self._bound_ms}

    def ask(self) -> None:
        """The next page is asked for."""
        bound_s = None if self._bound_ms is None else self._bound_ms / 1000
        self._asked.append(self._judge.asked(self._name, self._run.kernel.now, bound_s))

    def take(self, page: Page) -> None:
        """A page has come: its rows are those of one moment, between the last row of the page before and its own."""
        run, images = self._run, [image_of(row) for row in page.rows]
        run._count(f"range, {page.freshness} from the {page.served_from}")
        moved = " (moved)" if page.moved else ""
        run.say(f"session {self._name}: {self._stretch.table.name} has {images}{moved}: {page.freshness}: {page.why}")
        until = number_of(images[-1]) if page.page else None
        run.record_commits()
        if self._stretch.by_version:
            found = self._found(images, page, None, None, bool(page.page))
        else:
            found = self._found(images, page, self._after, until)
        self._judge.answered(self._name, self._asked[len(self._pages)], run.kernel.now, [found])
        self._pages.append(page)
        self._images += images
        self._after = until

    def end(self) -> str:
        """There are no more pages. Unless one says that it moved, all of them are of one moment."""
        pages = self._pages
        if len(pages) > 1 and not any(page.moved for page in pages):
            all_fresh = all(page.freshness == "fresh" for page in pages)
            found = self._found(self._images, pages[0] if all_fresh else pages[-1], None, None)
            self._judge.stood(self._name, self._asked[0], self._run.kernel.now, found)
        named = not any(NO_EPOCH in page.why for page in pages)
        if any(page.moved for page in pages) and named and self._judge.knows_the_last(self._name, self._asked[0]):
            what = f"a page of {self._stretch.table.name} is said to have moved, and nothing was committed since"
            self._run.complain(EXPLAINS, f"session {self._name}: {what}")
        return pages[0].served_from

    def _found(
        self, images: list[str | None], page: Page, after: int | None, until: int | None, more: bool = False
    ) -> FoundStretch:
        stretch, is_page = self._stretch, images is not self._images
        behind = _place(self._images[-1]) if stretch.by_version and is_page and self._images else None
        return FoundStretch(
            stretch.table.name, images, page.served_from, page.freshness, page.why, stretch.descending, after, until,
            stretch.only, by_version=stretch.by_version, behind=behind, more=more,
        )  # fmt: skip
