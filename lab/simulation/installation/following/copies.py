"""What a reader of the change stream keeps of a keyspace, and whether it is what was committed. Pure.

The reader does what docs/concepts/change-stream.md asks of it: it keeps each row as it was told last, and drops what a
void, an epoch or an unreadable message may have changed. Then at each event its rows are those of one commit, and no
commit between two events was left out. A row that was read for the stream may be ahead of that, up to where it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lab.simulation.installation.committed import CommittedRecord, History, Image, NoteChange, Point, RowName
from lab.simulation.installation.parts import Complain
from lab.simulation.installation.writing import NOTES, image_of
from serving.client.streaming import StreamChange, StreamEvent
from tokens import EventToken, Vector

TELLS_ALL: Final = "the stream tells all"
UNMATCHED: Final = "unmatched"
"""In the place of an image: the row has not what is asked for."""
_EVERY_TABLE: Final = "*"


class Chosen(NamedTuple):
    """What a reader asks for. ``has``: which rows. ``sees``: what it is told of a row that is so."""

    has: Callable[[RowName], bool] = lambda _: True
    sees: Callable[[Image], Image] = lambda image: image


EVERY_ROW: Final = Chosen()


@dataclass
class FollowedCopy:
    """``tables``: those that are judged; ``shard``: the only one that the keyspace has."""

    record: CommittedRecord
    shard: str
    tables: frozenset[str]
    complain: Complain
    name: str
    hears_notes: bool = False
    """Whether rows without a key are asked for."""
    chosen: Chosen = EVERY_ROW
    is_told: Callable[[str, Point], bool] = lambda *_: True
    """Whether the source told a table's rows behind a commit: what said so may be before the stream's beginning."""
    has_begun: Callable[[], bool] = lambda: True
    """Whether the second has come, by any clock, at which the stream begins: until then all may be left out."""
    rows: dict[RowName, Image] = field(default_factory=dict)
    """Those that were told, and that nothing has made void since."""
    told: int | None = None
    """The commit up to which everything was told; None: the stream has just begun, or must be read anew."""
    floor: Point | None = None
    """A commit behind which everything must be told, while nothing was: the stream was there before the next one."""
    last: StreamEvent | None = None
    """The last transaction that was told. Backfilled rows may have its GTID, too."""
    _before: dict[RowName, Image] = field(default_factory=dict)
    """What the rows of the present transaction are said to have been."""
    _notes: list[NoteChange] = field(default_factory=list)
    """What it is said to have done to rows without a key."""
    _read: dict[RowName, Vector] = field(default_factory=dict)
    """Those of its rows that were read, and up to where."""
    _ahead: dict[RowName, int] = field(default_factory=dict)
    """Row that was read → the last commit that it may be of."""
    untold: set[str] = field(default_factory=set)
    """Tables that are not cached, and so not told."""

    def forget(self) -> None:
        """The stream can't go on where it was: another one begins."""
        self.rows.clear()
        self._read.clear()
        self._ahead.clear()
        self.told = self.last = self.floor = None

    def begin_after(self, token: Vector) -> None:
        """The stream begins after a token's position, if it has one."""
        _, position = token.get(self.shard) or (0, None)
        latest = len(self.record.histories) - 1
        commit = self.record.histories[latest].by_gtid.get(_gtid(str(position)))
        if commit is not None and not self.record.is_ambiguous:
            self.floor = Point(latest, commit)

    def take(self, event: StreamEvent) -> None:
        """An event has come: `CommittedRecord` has all that was committed before."""
        if self.told is None and self.floor is None and self.has_begun():
            latest = len(self.record.histories) - 1
            self.floor = Point(latest, self.record.histories[latest].end)
        if event.kind == "unreadable":
            self.forget()
        elif event.kind in ("watermark", "end"):
            epoch, position = Vector.parse(event.token).get(self.shard) or (0, None)
            if position is not None and str(position):
                self._check(epoch, str(position), frozenset(), f"a watermark at {position}")
        elif event.kind == "transaction":
            last, position = self.last, EventToken.parse(event.token).position
            is_again = last is not None and (last.token, last.changes) == (event.token, event.changes)
            is_same = last is not None and last.checkpoint == event.checkpoint
            if is_again and (is_same or self._is_written(event, str(position))):
                self.complain(TELLS_ALL, f"{self.name} is told {event.gtid} twice")
            voided = self._apply(event.changes)
            self.last = event
            self._check(event.epoch, str(position), voided, f"{event.gtid or 'a backfill'} at {position}")

    def _is_written(self, event: StreamEvent, position: str) -> bool:
        """Whether the commit of a position has written a row of the event. Else it is a piece of a backfill.

        A source that is started again may read that once more, and publish it at another place: it keeps in mind how
        far it is only behind the rows.
        """
        gtid = _gtid(position)
        history = self.record.histories[self.record.of_commit(event.epoch, gtid)]
        commit = history.by_gtid.get(gtid)
        rows = [(change.table, (change.key[-1],)) for change in event.changes if change.kind == "row"]
        return any(at == commit for row in rows for at, _ in history.versions.get(row, []))

    def _apply(self, changes: Iterable[StreamChange]) -> frozenset[str]:
        """Keeps what they say. Returns the tables of which they make rows void."""
        voided = set[str]()
        for change in changes:
            if change.kind == "row" and change.table in self.tables:
                row: RowName = change.table, (change.key[-1],)
                self._ahead.pop(row, None)
                if not self.chosen.has(row):
                    self.complain(TELLS_ALL, f"{self.name} is told of {row}")
                if change.read_at:
                    self._read[row] = Vector.parse(change.read_at)
                if change.op == "void":
                    self.rows.pop(row, None)
                    voided.add(change.table)
                else:
                    self.rows[row] = UNMATCHED if change.op == UNMATCHED else image_of(change.row)
                if change.was:
                    self._before[row] = image_of(change.before)
            elif change.kind == "keyless":
                self._notes.append((change.op, image_of(change.before), image_of(change.row)))
            elif change.kind == "epoch":
                self.forget()
                voided.add(_EVERY_TABLE)
            elif change.kind == "scope":
                self.untold |= self.tables
            elif change.kind == "void":
                voided.add(change.table)
                self._drop(change.table)
            elif change.kind == "schema":
                (self.untold.discard if change.cacheable and change.columns else self.untold.add)(change.table)
        for table in self.untold:
            self._drop(table)
        return frozenset(voided)

    def _drop(self, table: str) -> None:
        for row in [each for each in self.rows if table in (_EVERY_TABLE, each[0])]:
            del self.rows[row]

    def _check(self, epoch: int, position: str, voided: frozenset[str], what: str) -> None:
        """The rows that are kept are those of the commit, and none that it follows was left out."""
        gtid = _gtid(position)
        number = self.record.of_commit(epoch, gtid)
        history, since = self.record.histories[number], self.told
        if since is None and self.floor is not None and self.floor.history == number:
            since = self.floor.commit
        commit = history.by_gtid.get(gtid)
        if commit is None:
            problem = "nobody has committed that"
        else:
            voided |= self._unsure(number)
            problem = self._problem(number, since, commit, voided) or self._wrong_before(history, commit)
            problem = problem or self._wrong_notes(history, since, commit, voided)
        self._before.clear()
        self._notes.clear()
        if problem:
            self.complain(TELLS_ALL, f"{self.name} is told {what}: {problem}")
        self.told = commit

    def _wrong_before(self, history: History, commit: int) -> str:
        """What is wrong with what rows are said to have been before the commit."""
        for row, image in self._before.items():
            if (true := history.image_at(row, commit - 1)) != image:
                return f"{row} is said to have been {image}, and was {true}"
        return ""

    def _unsure(self, number: int) -> frozenset[str]:
        """Drops rows that were read in another history, or while nobody could tell. Returns the tables of those."""
        read, dropped = dict(self._read), set[str]()
        self._read.clear()
        is_latest = number == len(self.record.histories) - 1 and not self.record.is_ambiguous
        for row, vector in read.items():
            epoch, position = vector.get(self.shard) or (0, None)
            gtid = _gtid(str(position))
            last = self.record.histories[number].by_gtid.get(gtid)
            if is_latest and last is not None and self.record.of_commit(epoch, gtid) == number:
                self._ahead[row] = last
            else:
                self.rows.pop(row, None)
                dropped.add(row[0])
        return frozenset(dropped)

    def _wrong_notes(self, history: History, since: int | None, commit: int, voided: frozenset[str]) -> str:
        """What is wrong with what is told of rows without a key, behind the commit before."""
        true: list[NoteChange] = []
        if self.hears_notes:
            is_behind = since is not None and (since < commit or self.told is not None)
            if not is_behind or voided & {NOTES, _EVERY_TABLE}:  # else the first that is told may be of any commit
                return ""
            assert since is not None
            true = history.noted(since, commit)
        return "" if self._notes == true else f"of rows without a key it says {self._notes}, and not {true}"

    def _problem(self, number: int, since: int | None, commit: int, voided: frozenset[str]) -> str:
        history = self.record.histories[number]
        if self.told is not None and commit < self.told:
            return f"commit {commit} comes after {self.told}"
        sees = self.chosen.sees
        for row, image in self.rows.items():
            true = sees(history.image_at(row, commit))
            later = range(commit + 1, self._ahead.get(row, commit) + 1)
            if true != image and image not in (sees(history.image_at(row, at)) for at in later):
                return f"{row} is {image}, and not {true}"
        for row, versions in history.versions.items():
            is_told = row[0] in self.tables - self.untold and not voided & {row[0], _EVERY_TABLE}
            is_told = is_told and self.chosen.has(row)
            written = [at for at, _ in versions if since is not None and since < at <= commit]
            if is_told and written and row not in self.rows and self.is_told(row[0], Point(number, since or 0)):
                return f"{row} was written by commit {written[0]} and is not told"
        return ""


def _gtid(position: str) -> str:
    """The only GTID of a position, without its flavor: the shard has one domain."""
    return position.partition("/")[2]
