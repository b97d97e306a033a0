"""What a source has truly committed: an independent record, without positions, tokens or folds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

Image = str | None
"""A row as canonical JSON; None: there is no such row."""
RowName = tuple[str, tuple[object, ...]]
"""Table, and the values of the primary key."""
Note = tuple[tuple[object, ...], Image]
"""A row without a primary key as a commit left it, behind what only the server knows it by."""
NoteChange = tuple[str, Image, Image]
"""What happened to such a row, what it was, and what it is."""


class Point(NamedTuple):
    """A commit, or what it left: the number of a history of the shard, and of a commit in it."""

    history: int
    commit: int


class History:
    """One history of a shard: commits 1, 2, 3…, with the time from which each may be seen. 0 is the initial state.

    ``begins_at``: commits after this one are its own; those before it shares with the history that it replaced.
    """

    def __init__(self, began: float, begins_at: int = 0) -> None:
        self.began = began
        self.begins_at = begins_at
        self.times = [began]
        self.versions: dict[RowName, list[tuple[int, Image]]] = {}
        """Row → (commit, image from that commit on)."""
        self.after_epoch = 0
        """The last epoch of the histories before it."""
        self.by_gtid: dict[str, int] = {}
        """The GTID of each commit that has one."""
        self.notes: list[tuple[int, Note]] = []
        """Commit, and a row without a key as it left it."""

    @property
    def end(self) -> int:
        """The last commit."""
        return len(self.times) - 1

    def first_state(
        self,
        table: str,
        within: Callable[[int], bool],
        holds: Callable[[Sequence[Image]], bool],
        demanded: int,
        time: float,
    ) -> int | None:
        """The earliest commit at or after ``demanded`` and before ``time`` at which a stretch of a table ``holds``.

        ``within``: whether a row's number is in the stretch. ``holds`` gets its rows in the order of their numbers.
        """
        latest = bisect_right(self.times, time) - 1
        changes: dict[int, dict[int, Image]] = {0: {}}
        for (name, (*_, number)), versions in self.versions.items():
            if name == table and isinstance(number, int) and within(number):
                for commit, image in versions:
                    changes.setdefault(commit, {})[number] = image
        state: dict[int, Image] = {}
        begins = sorted(changes)
        for since, until in zip(begins, [*begins[1:], self.end + 1], strict=True):
            state |= changes[since]
            first = max(since, demanded)
            if first < until and first <= latest:
                rows = [state[number] for number in sorted(state) if state[number] is not None]
                if holds(rows):
                    return first
        return None

    def latest(self) -> dict[RowName, Image]:
        """Every row that there has been, as it is now."""
        return {row: versions[-1][1] for row, versions in self.versions.items() if versions}

    def image_at(self, row: RowName, commit: int) -> Image:
        """The row as a commit left it."""
        return next((image for at, image in reversed(self.versions.get(row, [])) if at <= commit), None)

    def noted(self, since: int, until: int) -> list[NoteChange]:
        """What the commits behind ``since``, up to ``until``, did to rows without a key, in order."""
        now: dict[tuple[object, ...], Image] = {}
        found: list[NoteChange] = []
        for commit, (key, image) in self.notes:
            before, now[key] = now.get(key), image
            if since < commit <= until:
                operation = "deleted" if image is None else "inserted" if before is None else "updated"
                found.append((operation, before, image))
        return found

    def first_with(self, row: RowName, image: Image, demanded: int, time: float) -> int | None:
        """The earliest commit at or after ``demanded`` and before ``time`` at which the row has this image."""
        latest = bisect_right(self.times, time) - 1
        versions = [(0, None), *self.versions.get(row, [])]
        ends = [*(commit for commit, _ in versions[1:]), self.end + 1]
        for (since, found), until in zip(versions, ends, strict=True):
            first = max(since, demanded)
            if found == image and first < until and first <= latest:
                return first
        return None


class CommittedRecord:
    """The histories of one shard, in the order in which each replaced the one before."""

    def __init__(self) -> None:
        self.histories = [History(0.0)]
        self.is_ambiguous = False
        """A history was replaced, and not every part of the installation knows it yet.

        The two can't be told apart until then (docs/concepts/guarantees.md, what is not guaranteed, 1).
        """
        self._of_writer: dict[str, tuple[Point, float]] = {}

    def commit(
        self,
        time: float,
        writes: Mapping[RowName, Image],
        writer: str = "",
        gtid: str = "",
        notes: Iterable[Note] = (),
    ) -> Point:
        """Adds a commit, whose writes may be seen from ``time`` on. ``writer``: names the attempt, if one asks for it.

        A row that it deletes is written with None. ``notes``: rows without a key that it leaves, in order.
        """
        history = self.histories[-1]
        history.times.append(time)
        for row, image in writes.items():
            history.versions.setdefault(row, []).append((history.end, image))
        history.notes += ((history.end, note) for note in notes)
        if gtid:
            history.by_gtid[gtid] = history.end
        point = Point(len(self.histories) - 1, history.end)
        if writer:
            self._of_writer[writer] = point, time
        return point

    def committed_by(self, writer: str, time: float) -> Point | None:
        """The commit of an attempt, if there was one by ``time``, whatever its writer was told."""
        point, at = self._of_writer.get(writer, (None, 0.0))
        return point if at <= time else None

    def committed_until(self, time: float) -> Point:
        """The last commit that could be seen by then, in the latest history."""
        history = self.histories[-1]
        return Point(len(self.histories) - 1, max(bisect_right(history.times, time) - 1, 0))

    def replace(self, time: float, kept: int | None = None, *, epoch: int = 0) -> None:
        """Begins a new history. ``kept``: the last commit of the old one that is in the new one too; None: all.

        ``epoch``: the last one of the old history. Those of the new one are later.
        """
        old = self.histories[-1]
        last = old.end if kept is None else kept
        new = History(time, last)
        new.after_epoch = epoch
        new.times = old.times[: last + 1]
        new.by_gtid = {gtid: commit for gtid, commit in old.by_gtid.items() if commit <= last}
        new.notes = [each for each in old.notes if each[0] <= last]
        for row, versions in old.versions.items():
            new.versions[row] = [version for version in versions if version[0] <= last]
        self.histories.append(new)
        self.is_ambiguous = True

    def in_history(self, point: Point, history: int) -> int | None:
        """The commit that ``point`` is in a later history (or its own); None if it was lost on the way, or is later."""
        if point.history > history:
            return None
        lost = any(point.commit > each.begins_at for each in self.histories[point.history + 1 : history + 1])
        return None if lost else point.commit

    def of_epoch(self, epoch: int) -> int:
        """The number of the history that an epoch is of."""
        return max(number for number, each in enumerate(self.histories) if each.after_epoch < epoch)

    def of_commit(self, epoch: int, gtid: str) -> int:
        """The number of the history that a commit of an epoch is of; the last one, if it is of none.

        A source may go on in its epoch for a moment: until it notices that its topic is another one.
        """
        number = self.of_epoch(epoch)
        while gtid not in self.histories[number].by_gtid and number + 1 < len(self.histories):
            number += 1
        return number

    def after_loss(self, point: Point, time: float, epoch: int = 0) -> Point:
        """What a session that had seen ``point`` must still see after it was told, by ``time``, that history was lost.

        The reader is told to expect older data: nothing that the next history has of its own is owed any more.
        ``epoch``: the one that it was told of, whose history may be a later one than the next; 0: not known.
        """
        told = self.of_epoch(epoch) if epoch else 0
        number = min(max(point.history + 1, told), self.number_at(time))
        begins = (each.begins_at for each in self.histories[min(point.history + 1, number) : number + 1])
        return Point(number, min(point.commit, *begins))

    def number_at(self, time: float) -> int:
        """The number of the history that was the latest one."""
        return sum(history.began <= time for history in self.histories) - 1
