"""The binary log: files of events, GTID positions at each place, and what a replica is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from pymysql.constants import ER

from lab.simulation.mariadb.log import events
from lab.simulation.mariadb.log.events import Event, Gtid
from lab.simulation.mariadb.storage.errors import ServerError
from stream.sources.mariadb.binlog.events import ROTATE

State: TypeAlias = dict[tuple[int, int], int]
"""(domain, server) → last sequence, the last writer of a domain last."""

MAGIC_BYTES: Final = 4


def position_text(state: State) -> str:
    """The last GTID of each domain."""
    last = {domain: f"{domain}-{server}-{sequence}" for (domain, server), sequence in state.items()}
    return ",".join(last[domain] for domain in sorted(last))


class BinlogFile:
    """One file. ``places``: offset between groups → the state there. ``next``: the file that follows."""

    def __init__(self, number: int, state: State) -> None:
        self.name = f"binlog.{number:06d}"
        self.number = number
        self.start = dict(state)
        self.size = MAGIC_BYTES
        self.events: list[bytes] = []
        self.groups: list[tuple[int, Gtid]] = []
        """The first event of each transaction, by index, and its GTID."""
        self.places: dict[int, State] = {MAGIC_BYTES: self.start}
        self.next: BinlogFile | None = None

    def append(self, event: Event) -> None:
        """Write one event."""
        raw = event.at(self.size)
        self.events.append(raw)
        self.size += len(raw)


class BinaryLog:
    """A server's binlog. ``committed``: the place up to which the engine has committed."""

    def __init__(self, server: int, timestamp: int) -> None:
        self.server = server
        self.state: State = {}
        self.files: list[BinlogFile] = []
        self._begin_file(1, timestamp)

    @property
    def last(self) -> BinlogFile:
        """The file that is written."""
        return self.files[-1]

    def _begin_file(self, number: int, timestamp: int) -> None:
        file = BinlogFile(number, self.state)
        for event in (
            events.format_description(timestamp, self.server),
            events.gtid_list(self.server, self.state),
            events.checkpoint(timestamp, self.server, file.name),
        ):
            file.append(event)
            file.places[file.size] = file.start
        if self.files:
            self.last.next = file
        self.files.append(file)
        self.committed = file.name, file.size

    def write(self, gtid: Gtid, group: Sequence[Event]) -> tuple[str, int]:
        """Write a transaction, whose first event is its GTID. Returns the place after it."""
        domain, server, sequence = gtid
        file = self.last
        file.groups.append((len(file.events), gtid))
        for event in group:
            file.append(event)
        self.state.pop((domain, server), None)
        self.state[domain, server] = sequence
        file.places[file.size] = dict(self.state)
        return file.name, file.size

    def rotate(self, timestamp: int, *, crashed: bool = False) -> None:
        """Begin a new file. After a crash the old one has no end."""
        number = self.last.number + 1
        if not crashed:
            self.last.append(events.rotate(timestamp, self.server, f"binlog.{number:06d}", artificial=False))
        self._begin_file(number, timestamp)

    def purge(self, count: int) -> None:
        """Delete the ``count`` oldest files, but not the last one."""
        del self.files[: min(count, len(self.files) - 1)]

    def reset(self, timestamp: int) -> None:
        """Forget everything, as RESET MASTER does. Who reads an old file waits at its end for ever."""
        self.files = []
        self.state = {}
        self._begin_file(1, timestamp)

    @property
    def position(self) -> str:
        """``@@gtid_binlog_pos``."""
        return position_text(self.state)

    @property
    def state_text(self) -> str:
        """``@@gtid_binlog_state``."""
        return ",".join(f"{domain}-{server}-{n}" for (domain, server), n in sorted(self.state.items()))

    def position_at(self, name: str, offset: int) -> str | None:
        """``BINLOG_GTID_POS``: the position at a place; None if it is no place in a file of this server."""
        for file in self.files:
            if file.name == name and offset in file.places:
                return position_text(file.places[offset])
        return None

    def find(self, wanted: str) -> tuple[BinlogFile, dict[int, int]]:
        """The file to begin with for a replica that has ``wanted``, and the last sequence of each of its domains.

        Raises `ServerError` 1236 as the server does for a strict replica.
        """
        has: dict[int, tuple[int, int]] = {}
        for part in filter(None, wanted.split(",")):
            domain, server, sequence = map(int, part.split("-"))
            has[domain] = (server, sequence)
            if self.state.get((domain, server), 0) < sequence:
                raise ServerError(
                    ER.MASTER_FATAL_ERROR_READING_BINLOG,
                    f"Error: connecting slave requested to start from GTID {part}, which is not in the master's binlog",
                )
        for file in reversed(self.files):
            if all(n <= has.get(domain, (0, 0))[1] for (domain, _), n in file.start.items()):
                return file, {domain: sequence for domain, (_, sequence) in has.items()}
        raise ServerError(
            ER.MASTER_FATAL_ERROR_READING_BINLOG,
            "Could not find GTID state requested by slave in any binlog files. Probably the slave state is too old and"
            " required binlog files have been purged.",
        )


class Dump:
    """What one replica is sent: the events after its position, from file to file."""

    def __init__(self, log: BinaryLog, wanted: str) -> None:
        self._server = log.server
        self._file, self._has = log.find(wanted)
        self._at = 0
        self._group = 0
        self._opened = False

    def ready(self) -> bool:
        """Whether there is an event to send now."""
        return not self._opened or self._at < len(self._file.events) or self._file.next is not None

    def take(self) -> bytes:
        """The next event. It may be one that says which file follows."""
        if not self._opened:
            self._opened = True
            return events.rotate(0, self._server, self._file.name, artificial=True).at(0)
        self._skip_known()
        if self._at < len(self._file.events):
            self._at += 1
            return self._file.events[self._at - 1]
        if self._file.next is None:
            return self.heartbeat()
        self._file, self._at, self._group = self._file.next, 0, 0
        return events.rotate(0, self._server, self._file.name, artificial=True).at(0)

    def _skip_known(self) -> None:
        """Pass over transactions that the replica has."""
        groups = self._file.groups
        while self._group < len(groups) and groups[self._group][0] == self._at:
            domain, _, sequence = groups[self._group][1]
            self._group += 1
            if sequence > self._has.get(domain, 0):
                return
            self._at = self._end_of_group()

    def _end_of_group(self) -> int:
        groups = self._file.groups
        if self._group < len(groups):
            return groups[self._group][0]
        at = self._at
        while at < len(self._file.events) and self._file.events[at][4] != ROTATE:
            at += 1
        return at

    def heartbeat(self) -> bytes:
        """What is sent when there is no event: the place that was reached."""
        return events.heartbeat(self._server, self._file.name, self._file.size)
