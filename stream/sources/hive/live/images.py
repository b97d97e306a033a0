"""Publishes tables that were fetched: each that nothing touched meanwhile, with its list and who holds its open ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from stream.sources.hive.live.details import Details
from stream.sources.hive.live.fetching import Fetched
from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.live.partitions import Partitions
from stream.sources.hive.messages import FLAVOR, HiveMessageError, TableObject
from stream.sources.hive.progress import Progress
from stream.sources.hive.recent_ids import RecentWriteIds
from stream.sources.hive.refusals import Refusals
from stream.sources.hive.translator import HiveTranslator
from stream.wire.events import AllocateWriteId, Change, OpenTransaction, TableImage, VoidTable
from tokens.errors import one_line
from tokens.writeid_state import WriteIds


class Publish(Protocol):
    """Publishes changes at the position that was read last, with the transactions that they tell of."""

    def __call__(self, changes: list[Change], opened: tuple[OpenTransaction, ...] = ()) -> None:
        """See above."""


class Images:
    """What is known of tables to be fetched, and their publishing. ``drain``: reads the log up to an event."""

    def __init__(
        self,
        metastore: Metastore,
        translator: HiveTranslator,
        recent: RecentWriteIds,
        progress: Progress,
        partitions: Partitions,
        details: Details,
        publish: Publish,
        drain: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metastore = metastore
        self._translator = translator
        self._recent = recent
        self._progress = progress
        self._partitions = partitions
        self._details = details
        self._publish = publish
        self._drain = drain
        self.touched: dict[str, int] = {}
        """Table → the last event that wrote, made, dropped or renamed it, since no fetch was under way.

        Or that ended a transaction, if it makes the fold wait for an image.
        """
        self.committed: dict[str, int] = {}
        """Table → the last COMMIT of an id of it, since no fetch was under way."""
        self.unseen_commit_at = 0
        """The last COMMIT of which it is not known whose ids it held."""
        self.voided_at = 0
        """The last event that voided everything: a table that was read before it is fetched again."""
        self.unsure = set(progress.dirty)
        """Tables of which it isn't known whether what belongs to them was published."""
        self.unreadable = Refusals[str](clock)
        """Tables that could not be read. They are void."""
        self.unheld: set[str] = set()
        """Tables with an open id of which nobody has told the transaction: no event may tell that it has ended."""

    def ended(self, event_id: int, names: Iterable[str], *, committed: bool) -> None:
        """A transaction ended that holds ids of these tables.

        No DDL is rolled back: the image that follows an abort counts. After a void the one that follows a COMMIT does:
        what the transaction had written is lost (`consumers.fold.catalog`).
        """
        progress = self._progress
        awaited = [
            name
            for name in names
            if not committed or name in self.unsure or (progress.sweeping and name > progress.swept)
        ]
        self.touched |= dict.fromkeys(awaited, event_id)
        progress.touch(awaited)

    def try_again(self) -> None:
        """Those that could not be read are to be fetched, if it is time."""
        self._progress.touch(self.unreadable.due())

    def take(self, fetched: Fetched, *, in_sweep: bool) -> None:
        """Read the log past the fetch, then publish each table that nothing touched meanwhile.

        One that could not be read is void either way: it may take so long that something touches it each time.
        """
        self._drain(fetched.hi)
        touched = [name for name in fetched.names if max(self.touched.get(name, 0), self.voided_at) > fetched.lo]
        touched = [name for name in touched if not isinstance(fetched.tables.get(name), HiveMessageError)]
        again = self._set_since(fetched)
        self._progress.touch(again)
        settled = [name for name in fetched.names if name not in (*touched, *again)]
        holders = self._unknown_holders(fetched, settled)
        for name in settled:
            self._progress.done(name)
            self.unheld.discard(name)
            table = fetched.tables.get(name)
            if isinstance(table, TableObject):
                self._publish_table(table, fetched, holders.get(name, {}), in_sweep=in_sweep)
            elif table is not None:
                self._void(name, f"it cannot be read: {table}")
            else:
                self.unreadable.forget(name)
                if not self._progress.sweeping and (gone := self._translator.forget(name)):
                    self._publish(gone)

    def _set_since(self, fetched: Fetched) -> list[str]:
        """The tables that a COMMIT may have changed since. It has not written those that nobody had shown before."""
        return [
            name
            for name, table in fetched.tables.items()
            if isinstance(table, TableObject)
            and table.takes_commits
            and max(self.committed.get(name, 0), self.unseen_commit_at) > fetched.lo
        ]

    def _void(self, name: str, reason: str) -> None:
        is_news = name not in self.unreadable
        self.unreadable.note(name)
        self.unsure.add(name)
        if is_news:
            self._publish([VoidTable(name, one_line(reason))])

    def _unknown_holders(self, fetched: Fetched, names: Iterable[str]) -> dict[str, dict[int, int]]:
        """The transactions of open ids that were allocated before the log was read."""
        wanted: dict[str, set[int]] = {}
        for name in names:
            table, listed = fetched.tables.get(name), fetched.lists.get(name)
            if isinstance(table, TableObject) and table.transactional and listed is not None:
                unknown = {*listed.open} - self._translator.holders(name).keys()
                if unknown:
                    wanted[name] = unknown
        if not wanted:
            return {}
        return self._metastore.holders(wanted, fetched.transactions.open, fetched.transactions.hwm)

    def _publish_table(self, table: TableObject, fetched: Fetched, holders: dict[int, int], *, in_sweep: bool) -> None:
        name, listed = table.name, fetched.lists.get(table.name)
        image = TableImage(table.table_id, name, "external", "image", image=table.image, struct=table.struct)
        if table.is_materialized:  # whoever reads it gets it from the metastore
            image.change, image.image, image.struct = "written", None, None
        image.lo, image.hi = f"{FLAVOR}/{fetched.lo}", f"{FLAVOR}/{fetched.hi}"
        ids = WriteIds()
        if table.transactional:
            if listed is None:
                self._void(name, "the metastore has answered no write-id list of it")
                return
            ids = listed.write_ids()
            if not self._recent.brought_forward(name, ids, fetched.listed_at, holders):
                self._progress.touch([name])
                return
            image.kind, image.write_ids = "transactional", ids.full_text(name)
        self.unreadable.forget(name)
        names = self._translator.bind(table)
        # The image comes before the name: else a reader may meet the one from before a rename under the new name.
        changes: list[Change] = [image]
        opened: tuple[OpenTransaction, ...] = ()
        if table.transactional:
            opened = self._restored(name, holders)
            if names:  # what was allocated before is not told of this table yet
                opened = (*opened, *self._translator.writers_of(name))
            held = holders | self._translator.holders(name)
            changes += [AllocateWriteId(table.table_id, held[each], each) for each, _ in ids.open if each in held]
            self.unheld |= {name for each, _ in ids.open if each not in held}
        changes += names
        if name in self.unsure:
            self.unsure.discard(name)
            if not in_sweep:  # after a sweep of tables comes one of what belongs to them
                self._details.want(table.table_id)
                changes += self._partitions.find(table.table_id, fetched.lo, is_partitioned=bool(table.partition_keys))
        self._publish(changes, opened)

    def _restored(self, name: str, holders: dict[int, int]) -> tuple[OpenTransaction, ...]:
        """The open transactions of which the server told that they hold ids of the table."""
        still_open = ((write_id, txn) for write_id, txn in holders.items() if not self._recent.has_ended(txn))
        found = {txn: self._translator.restore(name, txn, write_id) for write_id, txn in still_open}
        return tuple(found.values())
