"""What a reader of the change stream keeps of a keyspace, and whether it is what was committed. Pure.

The reader does what docs/concepts/change-stream.md asks of it: it keeps each row as it was told last, and drops what a
void, an epoch or an unreadable message may have changed. Then at each event its rows are those of one commit, and no
commit between two events was left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from lab.simulation.installation.committed import CommittedRecord, History, Image, Point, RowName
from lab.simulation.installation.parts import Complain
from lab.simulation.installation.writing import image_of
from serving.client.streaming import StreamChange, StreamEvent
from tokens import EventToken, Vector

TELLS_ALL: Final = "the stream tells all"
_EVERY_TABLE: Final = "*"


@dataclass
class FollowedCopy:
    """``tables``: those that are judged; ``shard``: the only one that the keyspace has."""

    record: CommittedRecord
    shard: str
    tables: frozenset[str]
    complain: Complain
    name: str
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
    untold: set[str] = field(default_factory=set)
    """Tables that are not cached, and so not told."""

    def forget(self) -> None:
        """The stream can't go on where it was: another one begins."""
        self.rows.clear()
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
        if self.told is None and self.floor is None:
            latest = len(self.record.histories) - 1
            self.floor = Point(latest, self.record.histories[latest].end)
        if event.kind == "unreadable":
            self.forget()
        elif event.kind == "watermark":
            epoch, position = Vector.parse(event.token).get(self.shard) or (0, None)
            if position is not None and str(position):
                self._check(epoch, str(position), frozenset(), f"a watermark at {position}")
        elif event.kind == "transaction":
            last = self.last
            if last is not None and (last.token, last.changes) == (event.token, event.changes):
                self.complain(TELLS_ALL, f"{self.name} is told {event.gtid} twice")
            voided = self._apply(event.changes)
            self.last = event
            position = EventToken.parse(event.token).position
            self._check(event.epoch, str(position), voided, f"{event.gtid or 'a backfill'} at {position}")

    def _apply(self, changes: Iterable[StreamChange]) -> frozenset[str]:
        """Keeps what they say. Returns the tables of which they make rows void."""
        voided = set[str]()
        for change in changes:
            if change.kind == "row" and change.table in self.tables:
                row: RowName = change.table, (change.key[-1],)
                if change.op == "void":
                    self.rows.pop(row, None)
                    voided.add(change.table)
                else:
                    self.rows[row] = image_of(change.row)
                if change.was:
                    self._before[row] = image_of(change.before)
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
        problem = "nobody has committed that" if commit is None else self._problem(history, since, commit, voided)
        if commit is not None and not problem:
            problem = self._wrong_before(history, commit)
        self._before.clear()
        if problem:
            self.complain(TELLS_ALL, f"{self.name} is told {what}: {problem}")
        self.told = commit

    def _wrong_before(self, history: History, commit: int) -> str:
        """What is wrong with what rows are said to have been before the commit."""
        for row, image in self._before.items():
            if (true := history.image_at(row, commit - 1)) != image:
                return f"{row} is said to have been {image}, and was {true}"
        return ""

    def _problem(self, history: History, since: int | None, commit: int, voided: frozenset[str]) -> str:
        if self.told is not None and commit < self.told:
            return f"commit {commit} comes after {self.told}"
        for row, image in self.rows.items():
            if (true := history.image_at(row, commit)) != image:
                return f"{row} is {image}, and not {true}"
        for row, versions in history.versions.items():
            is_told = row[0] in self.tables - self.untold and not voided & {row[0], _EVERY_TABLE}
            written = [at for at, _ in versions if since is not None and since < at <= commit]
            if is_told and written and row not in self.rows:
                return f"{row} was written by commit {written[0]} and is not told"
        return ""


def _gtid(position: str) -> str:
    """The only GTID of a position, without its flavor: the shard has one domain."""
    return position.partition("/")[2]
