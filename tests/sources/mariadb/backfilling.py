"""A source whose publisher writes into a list: what it says is framed and folded by the real code, without Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from consumers.fold.backfills import Drops, whole_shards
from consumers.fold.entry import ABSENT, VALUE, decode_entry
from consumers.owner.rows import view_row
from lab.simulation.rows.publishing import collect
from stream.publish.resume import resume_point
from stream.sources.mariadb.backfill.run import BackfillOptions
from stream.sources.mariadb.schema import TableFilter
from stream.sources.mariadb.source import MariaDBSource, SourceOptions
from stream.wire.batch import BatchLimits, Framer
from stream.wire.codec import decode, headers
from stream.wire.declarations import Declarations
from stream.wire.events import ResumePoint, SourceTransaction, Topology
from stream.wire.keys import Layout, row_key
from tests.consumers.histories import Folded
from tests.patience import PATIENCE_S
from tests.sources.mariadb.conftest import Source
from tokens.errors import FreshetError

SHARD = "s/0"
_STATES = headers("SourceState")
_BACKFILLS = headers("TableBackfill")


class Killed(FreshetError):
    """The source's process is killed."""

    code = "killed"


class ListPublisher:
    """Writes batches into ``log``. ``on_commit`` is told how many there were, and may raise `Killed`."""

    def __init__(self, log: list[bytes], on_commit: Callable[[int], None]) -> None:
        self._log = log
        self._on_commit = on_commit
        self._commits = 0

    def open(
        self, start_if_new: Callable[[], tuple[str, int]], _: Callable[[str], None] | None = None, /
    ) -> ResumePoint:
        """Resumes from the list."""
        states = [decode(value)[1] for value in self._log if value[:10] in _STATES]
        point = resume_point(states) if states else None
        declared = Declarations(SHARD, point.epoch if point else 0)
        for value in self._log:
            declared.read(value)
        self._framer = Framer(
            SHARD, Layout(1), point, BatchLimits(batch_bytes=16 * 1024), declared=declared, nonce=len(self._log)
        )
        self._framer.announce(Topology((SHARD,)))
        if point is None:
            self._framer.start_epoch(*start_if_new(), "first_start", 1)
        self.flush()
        said = self._framer._speaker.declared
        return replace(self._framer.resume, descriptions=said.descriptions(), complete=said.complete_tables())

    def publish(self, txn: SourceTransaction) -> None:
        """Frames, and commits each transaction by itself."""
        collect(self._framer, txn, self.flush)
        self.flush()

    def flush(self) -> None:
        """Commits what is collected."""
        self._on_commit(self._commits)
        self._commits += 1
        self._log += [value for _, value in self._framer.take().records]

    def start_new_epoch(self, position: str, timestamp: int, reason: str) -> ResumePoint:
        """Begins an epoch."""
        self._framer.start_epoch(position, timestamp, reason)
        self.flush()
        return self._framer.resume

    def annotate(self, annotations: Mapping[str, str]) -> None:
        """The next batch has them."""
        self._framer.annotate(annotations)

    def has_room(self, _: float = 0.0, /) -> bool:
        """Everything is committed."""
        return True

    def stamp(self, as_of_ms: int) -> None:
        """Not looked at."""

    def close(self) -> None:
        """Commits the annotations."""
        self.flush()

    def abandon(self) -> None:
        """Nothing is open."""


class Backfilled:
    """A source that backfills all tables of a database, and what a partition knows by it."""

    def __init__(self, source: Source, **options: Any) -> None:
        self.source = source
        self.log: list[bytes] = []
        self.on_commit: Callable[[int], None] = lambda _: None
        self._options = options
        self.off = False
        """Whether the source is to begin without a backfill."""
        self._pool = ThreadPoolExecutor(1)
        self.running: MariaDBSource | None = None
        self._future: Future[None] | None = None
        self._folded = Folded()
        self._read = 0

    def _committed(self, commits: int) -> None:
        self.on_commit(commits)

    def start(self) -> None:
        """Runs the source, from where it stopped."""
        tables = TableFilter((self.source.database,))
        options = SourceOptions(
            self.source.settings,
            SHARD,
            tables,
            server_id=60_000 + int(time.monotonic() * 1000) % 10_000_000,
            heartbeat_s=0.05,
            backfill=None if self.off else BackfillOptions(tables, **self._options),
        )
        self.running = MariaDBSource(options, lambda: ListPublisher(self.log, self._committed))
        self._future = self._pool.submit(self.running.run)

    def stop(self) -> None:
        """Ends the source; raises what it raised."""
        assert self.running is not None
        self.running.stop()
        self.join()

    def join(self) -> None:
        """Waits until the source ends; raises what it raised. Meanwhile only its own thread may look at the state."""
        assert self._future is not None
        self._future.result(timeout=PATIENCE_S)

    def __enter__(self) -> Backfilled:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def fold(self) -> Folded:
        """The partition as of now."""
        while self._read < len(self.log):
            self._folded.fold(self.log[self._read])
            self._read += 1
        return self._folded

    def is_whole(self, table: str) -> bool:
        """Whether the partition knows all of a table."""
        return bool(whole_shards(self.fold().state.head, f"{self.source.database}.{table}"))

    def await_whole(self, *tables: str) -> None:
        """Polls until the tables are whole, and everything that is committed is folded."""
        end = self.source.position()
        self.until(lambda: self.watermark == end and all(map(self.is_whole, tables)))

    def until(self, condition: Callable[[], bool]) -> None:
        """Polls until ``condition`` is true, while the source runs."""
        deadline = time.monotonic() + PATIENCE_S
        assert self._future is not None
        while not condition():
            assert time.monotonic() < deadline, self.fold().state.head.backfills
            if self._future.done():
                self._future.result()
            time.sleep(0.01)

    def begun(self, table: str) -> int:
        """How often the backfill of a table began."""
        name = f"{self.source.database}.{table}"
        found = [decode(value)[1] for value in self.log if value[:10] in _BACKFILLS]
        return sum(each["table"] == name and not each["complete"] for each in found)

    def await_rows(self, table: str, rows: int) -> None:
        """Polls until so many rows of a table are published."""
        self.until(lambda: len(self.kinds(table)) >= rows)

    def await_complete(self, table: str) -> None:
        """Polls until a table is whole, perhaps behind the server."""
        self.until(lambda: self.is_whole(table))

    def survived(self, table: str) -> bool:
        """Waits until the source is killed, or the table is whole; whether it is."""
        assert self._future is not None
        deadline = time.monotonic() + PATIENCE_S
        while not self._future.done():
            assert time.monotonic() < deadline
            if self.is_whole(table):
                return True
            time.sleep(0.01)
        assert isinstance(self._future.exception(), Killed)
        return self.is_whole(table)

    @property
    def watermark(self) -> str:
        """The partition's."""
        lineage = self.fold().state.head.lineages.get(SHARD)
        return lineage.watermark if lineage else ""

    def images(self, table: str) -> dict[bytes, bytes]:
        """Key → image of each row of a table that the partition would answer."""
        prefix = f"{self.source.database}.{table}\0".encode()
        folded = self.fold()
        found = [key for key in folded.entries if key.startswith(prefix)]
        rows = {key: view_row(folded.state.head, key, folded.entries[key]) for key in found}
        return {key: row.image or b"" for key, row in rows.items() if row.kind == VALUE}

    def may_keep(self, table: str) -> int:
        """How many entries of a table a store keeps after its next sweep."""
        name, folded = f"{self.source.database}.{table}", self.fold()
        drops = Drops(folded.state.head)
        held = ((key, folded.entries[key]) for key in folded.entries if key.startswith(f"{name}\0".encode()))
        return sum(drops.entry(key, value) is None for key, value in held)

    def is_absent(self, table: str, *values: object) -> bool:
        """Whether the partition knows that a row does not exist."""
        folded, key = self.fold(), row_key(f"{self.source.database}.{table}", values)
        return view_row(folded.state.head, key, folded.entries.get(key)).kind == ABSENT

    def kinds(self, table: str) -> dict[bytes, int]:
        """Key → kind of each entry of a table."""
        prefix = f"{self.source.database}.{table}\0".encode()
        return {key: decode_entry(value).kind for key, value in self.fold().entries.items() if key.startswith(prefix)}
