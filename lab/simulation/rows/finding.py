"""Sessions that read all rows of a table at once: the real ranges of owners and fronts, judged as one state."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from lab.simulation.models.truth import CommitHistory, Image
from lab.simulation.rows.asking import Read, SimulatedSession, keyspace_of
from lab.simulation.rows.judging import EXPLAINS, MONOTONIC, OWN_WRITES, STALE, Judge
from lab.simulation.rows.reading import PACE_S, RowReadOps, shown
from lab.simulation.rows.shaping import TABLES
from lab.simulation.rows.source import SLOT_OF, SLOTS, SLOTS_A_SHARD, image_of
from serving.client.answers import Page, Row
from tokens import Vector

PAGES_MAX: Final = 4
"""A table of the model has two rows at most. More pages than this would never end."""


class RangeRead(Read):
    """A read of a table, in pages of ``limit`` rows; of those with the image ``wanted``, if it is given."""

    def __init__(
        self, session: SimulatedSession, table: str, shard: int, limit: int, wanted: bytes | None = None
    ) -> None:
        slots = SLOTS[shard * SLOTS_A_SHARD : (shard + 1) * SLOTS_A_SHARD]
        super().__init__(session, [slot.key for slot in slots if slot.table == table], given=True)
        self.table = table
        self.shard = shard
        self.limit = limit
        self.wanted = wanted
        self.pages: list[Page] = []
        self.demands: list[Vector] = []
        """Of the request for each page."""

    @property
    def what(self) -> str:
        """What is asked for."""
        return f"all of {self.table}" if self.wanted is None else f"{self.table} by {self.wanted.decode()}"

    def state(self, history: CommitHistory, index: int) -> list[Image]:
        """The rows as of a commit."""
        images = (history.state(SLOT_OF[key], index) for key in self.keys)
        return [image for image in images if image is not None and self.wanted in (None, image)]

    async def _ask(self, max_wait_ms: int) -> list[Row]:
        """Reads into `pages`."""
        self.make_current()
        find, page = self.session.client.find, ""
        columns = json.loads(self.wanted) if self.wanted is not None else None
        while not self.pages or (page and len(self.pages) < PAGES_MAX):
            wait = max_wait_ms or None
            found = await find(
                keyspace_of(self.shard), self.table, columns, limit=self.limit, page=page, max_wait_ms=wait
            )
            self.pages.append(found)
            self.demands.append(self.demand)
            page = found.page
        return []


class FindOps(RowReadOps):
    """Ops of sessions that read ranges."""

    def op_find(self, session: int, shard: int, table: int, owner: int, front: int, mode: int) -> None:
        """Modes: the source answers from the primary (0, 1) or the replica (2); 3: in pages of one row.

        From 4 on: the row with a value that a row of the table has or had, and (10, 11) the replica.
        """
        shard, name = shard % len(self.sources), TABLES[table % len(TABLES)]
        if mode < 4:
            self._find(RangeRead(self.sessions[session], name, shard, 1 if mode == 3 else 10), owner, front, mode)
            return
        history = self.sources[shard].history
        slots = [slot for slot in range(len(SLOTS)) if SLOTS[slot].table == name]
        written = [version for slot in slots for version in history.versions.get(slot, ()) if version[1] is not None]
        if written:
            wanted = sorted(written)[-1 - mode % 4 % len(written)][1]
            read = RangeRead(self.sessions[session], name, shard, 10, wanted)
            self._find(read, owner, front, 2 if mode > 9 else 0)

    def _find(self, read: RangeRead, owner: int, front: int, mode: int) -> None:
        reader = read.session
        self.last_owner = owner
        self._mark_uncertain(reader)
        reader.front = self.front(front)
        reader.front.route.owner = owner
        self.loop.advance(PACE_S)
        if self.tracing:
            self.say(f"session {reader.number} asks owner {owner} for {read.what} at {shown(reader.client.vector)}")
        self.asked.update(SLOT_OF[key] for key in read.keys)
        self.answers_at_once = mode == 2, True
        self._run(read)
        self.answers_at_once = None

    def _note_rows(self, read: Read, rows: list[Row]) -> None:
        if not isinstance(read, RangeRead):
            super()._note_rows(read, rows)
            return
        for page in read.pages:
            self.outcome.answers[f"range, {page.served_from}: {page.freshness}"] += 1
            if self.tracing:
                moved = " (moved)" if page.moved else ""
                self.say(
                    f"  session {read.session.number} gets {page.rows} from the {page.served_from}{moved}: {page.why}"
                )
        RangeJudge(self.judge).check(read)


class RangeJudge:
    """Compares pages with the truth: all of them are one state of the table, unless a page says that it moved."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def check(self, read: RangeRead) -> None:
        """Checks the pages of a read, and notes what the session has seen."""
        name = f"s/{read.shard}"
        pages, last = read.pages, read.pages[-1]
        token = Vector.parse(last.token) if last.token else Vector()
        component = token.get(name)
        for page, demand in zip(pages, read.demands, strict=True):
            self._check_explanation(read, name, page, demand)
        if any(page.moved for page in pages):
            self._check_moved(read, name)
            return
        images = [image_of(row["v"]) for page in pages for row in page.rows]
        labelled = self._judge.history(read.shard, component.epoch if component is not None else None)
        history = self._judge.history_read(read.shard, read.snapshot_history) or labelled
        if history is None:
            return
        uncertain = name in read.uncertain or history is not labelled
        demanded = {} if uncertain or last.freshness != "fresh" else self._demanded(read, name, history)
        start = _state_at(history, read, images, max(demanded.values(), default=0))
        if start is None:
            self._complain(read, history, images, demanded)
            return
        reached = history.index_of.get(str(component.position)) if component is not None else None
        if reached is not None and labelled is history and start > reached:
            self._judge.complain(
                EXPLAINS, f"{_said(read, images)} is from commit {start}, but the token ends at {reached}"
            )
        if component is not None:
            read.session.saw(name, history.number, start)
            if history is not labelled:
                read.session.uncertain.add(name)

    def _check_explanation(self, read: RangeRead, name: str, page: Page, demand: Vector) -> None:
        token = Vector.parse(page.token) if page.token else Vector()
        wanted = "fresh" if demand and name in token else "eventual"
        if page.freshness != wanted or not page.why:
            what = f"{read.what} is called {page.freshness} ({page.why}), expected {wanted}"
            self._judge.complain(EXPLAINS, what)

    def _check_moved(self, read: RangeRead, name: str) -> None:
        """Pages may move if anything was committed after what the first of them demanded, or in another history."""
        component = read.demands[0].get(name)
        history = self._judge.history(read.shard, component.epoch) if component is not None else None
        if component is None or history is None or history is not self._judge.last_history(read.shard):
            return
        if history.index_of.get(str(component.position), 0) == history.end:
            what = f"{read.what} moved between pages, and nothing was committed after what the first one demanded"
            self._judge.complain(EXPLAINS, what)

    def _demanded(self, read: RangeRead, name: str, history: CommitHistory) -> dict[str, int]:
        """Rule → the commit at or after which the state must be."""
        demanded: dict[str, int] = {}
        component = read.demand.get(name)
        if component is not None and self._judge.history(read.shard, component.epoch) is history:
            demanded[STALE] = history.index_of.get(str(component.position), 0)
        seen = read.seen.get(name)
        if seen is not None and seen.history == history.number:
            own = self._judge.own.get((read.session.number, name))
            mine = own is not None and own == tuple(seen)
            demanded[OWN_WRITES if mine else MONOTONIC] = seen.commit
        return demanded

    def _complain(
        self, read: RangeRead, history: CommitHistory, images: Sequence[bytes], demanded: dict[str, int]
    ) -> None:
        rule = STALE
        for name, index in demanded.items():
            if _state_at(history, read, images, index) is None:
                rule = name
        states = {index: read.state(history, index) for index in range(history.end + 1)}
        wanted = ", ".join(f"{index} ({name})" for name, index in demanded.items()) or "any"
        self._judge.complain(rule, f"{_said(read, images)}; wanted the state of a commit from {wanted}: {states}")


def _state_at(history: CommitHistory, read: RangeRead, images: Sequence[bytes], demanded: int) -> int | None:
    """The commit from which the rows were these, if they were at or after commit ``demanded``; else None."""
    since: int | None = None
    for index in range(history.end + 1):
        if read.state(history, index) != images:
            since = None
        elif since is None:
            since = index
        if since is not None and index >= demanded:
            return since
    return None


def _said(read: RangeRead, images: Sequence[bytes]) -> str:
    page = read.pages[-1]
    rows = [image.decode() for image in images]
    return f"session {read.session.number} got {rows} as {read.what} from the {page.served_from} ({page.why})"
