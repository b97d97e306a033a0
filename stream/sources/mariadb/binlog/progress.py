"""How far a source is: what the topic has of its transactions and descriptions. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, cast

import xxhash

from stream.sources.mariadb.schema import TableFilter
from stream.wire.batch import PARTLY, whole_words
from stream.wire.events import (
    EVERY_TABLE,
    BeginScope,
    Change,
    DescribeTable,
    KeylessRow,
    ResumePoint,
    RowChange,
    SingleRows,
    SourceTransaction,
    VoidTable,
)

IMAGE_FORMAT = 2
"""Raise it when the canonical image of any value changes, or fewer tables may be cached. All is voided then."""
UNDESCRIBED = -1
"""In place of the fingerprint of a choice, which is never negative: the tables must be described again."""


def fingerprint(tables: TableFilter) -> int:
    """A number for a choice of tables, the range of their keys, and the format of images."""
    key_range = f"\0{tables.key_range}" if tables.key_range else ""
    return int(xxhash.xxh3_64_intdigest(f"{IMAGE_FORMAT}\0{tables!r}{key_range}".encode()) >> 1)


_TABLES: Final = "tables"
"""Name of the annotation in the source's state."""
_TABLES_CHARS_MAX: Final = 1_000
UNREPEATABLE: Final = "unrepeatable"
"""Name of the annotation: the last transaction that may have other events when it is read again."""


def remembered(tables: TableFilter) -> Mapping[str, str]:
    """The words of a choice in the source's state, by which the next source sees whether it only has more tables."""
    parts = (tables.databases, tables.include, tables.exclude, tables.prefixes)
    text = json.dumps(parts, ensure_ascii=False)
    return {_TABLES: text if len(text) <= _TABLES_CHARS_MAX else ""}


def has_all_of(tables: TableFilter, resume: ResumePoint) -> bool:
    """Whether every table that is published is one of ``tables`` too, with the same images, in the same partitions.

    The fingerprint in the topic must be that of the choice that is remembered: it has the format of images in it.
    """
    text = resume.annotations.get(_TABLES)
    if text is None:
        return False
    databases, include, exclude, prefixes = json.loads(text)
    prefixed = tuple(map(tuple, prefixes))
    before = TableFilter(tuple(databases), tuple(include), tuple(exclude), prefixed, tables.key_range)
    if fingerprint(before) != resume.table_choice:
        return False
    return all(
        name in tables and tables.prefix_of(name, len(described.primary_key)) == described.prefix
        for name, described in resume.descriptions.items()
    )


class Progress:
    """The source's progress. ``table_choice`` is the fingerprint of the choice of tables described in the topic.

    Version 1 of `SourceState` had no field for it and kept it as the only open transaction. (Row sources have no other
    ones.) That entry stays until another choice is described.
    """

    _version_1_entries: tuple[int, ...]

    def __init__(self, resume: ResumePoint) -> None:
        self.begin(resume)
        self._version_1_entries = tuple(sorted(resume.open_transactions))
        self.table_choice = resume.table_choice or next(iter(self._version_1_entries), 0)
        if self.partial_gtid and self.partial_gtid == self.position:
            self.table_choice = 0  # a description is partly published: it must be continued

    def begin(self, resume: ResumePoint) -> None:
        """Start from a resume point, in an epoch that has described nothing."""
        self.epoch = resume.epoch
        self.position = resume.position
        self.timestamp = resume.timestamp
        self.partial_gtid = resume.partial_gtid
        self.partial_events = resume.partial_events
        self.checksum, self.cursor = resume.checksum, resume.cursor
        self.unrepeatable = resume.annotations.get(UNREPEATABLE, "")
        self.partly = resume.annotations.get(PARTLY, "")
        self.is_new = resume.ordinal <= 1
        self._version_1_entries = ()
        self.table_choice = 0

    @property
    def may_describe(self) -> bool:
        """Whether no binlog transaction is partly published; a partly published description may be continued."""
        return not self.partial_gtid or self.partial_gtid == self.position

    def moved(self, transaction: SourceTransaction) -> None:
        """Record that a transaction was given to the publisher."""
        self.position, self.timestamp = transaction.position, transaction.timestamp
        if transaction.checksum:
            self.checksum, self.cursor = transaction.checksum, transaction.cursor

    def description(self, tables: TableFilter, described: Iterable[DescribeTable], choice: int) -> SourceTransaction:
        """The transaction that describes all tables. Its GTID is the position, which no later transaction has.

        If it is partly published, it is repeated as a whole after the events that will be skipped.
        """
        changes: list[Change] = [BeginScope(tables.words), *described]
        if not self.is_new:
            changes.insert(0, VoidTable(EVERY_TABLE, "the choice of tables or the format of images has changed"))
        if self.partial_gtid:
            changes[:0] = [changes[0]] * self.partial_events
        return SourceTransaction(
            self.position,
            self.position,
            self.timestamp,
            changes,
            closed=self._version_1_entries,
            table_choice=choice,
            checksum=self.checksum,
            cursor=self.cursor,
        )

    def addition(self, described: Mapping[DescribeTable, bool], choice: int) -> SourceTransaction:
        """The transaction that describes tables which a choice has besides those that are published.

        ``described``: what to say, and whether it voids. A new table is voided: nobody said what changed in it before.
        One that is published already, and only has other words for its types, is not. What else the choice has is
        described by the binlog reader, where its schema is known, and voided there.
        """
        found = sorted(described, key=lambda each: each.table)
        voided = [each.table for each in found if described[each]]
        changes: list[Change] = [VoidTable(table, "it is published from here on") for table in voided]
        return SourceTransaction(
            self.position,
            self.position,
            self.timestamp,
            [*changes, *found],
            closed=self._version_1_entries,
            table_choice=choice,
            checksum=self.checksum,
            cursor=self.cursor,
        )

    def mark_described(self, choice: int) -> None:
        """Record that the `description` is published."""
        self.table_choice = choice
        self._version_1_entries = ()
        self.partial_gtid = ""

    def has_said(self, transaction: SourceTransaction) -> bool:
        """Whether it voids everything at the position, behind which another one is partly published already.

        A reader says it again whenever it begins there.
        """
        changes = transaction.changes
        first = changes[0] if self.partial_gtid and transaction.gtid == self.position and changes else None
        return isinstance(first, VoidTable) and first.table == EVERY_TABLE

    def repeatable(self, transaction: SourceTransaction) -> Mapping[str, str]:
        """What a state with a part of the transaction must say of it, if that is new.

        What voids a table hides its rows, and may be over once it is read again: a disk has room, a table is as before.
        """
        changes = transaction.changes
        if type(transaction) is SingleRows or len(changes) <= 1 or _is_row(changes[len(changes) - 1]):
            return {}
        self.unrepeatable = transaction.gtid
        return {UNREPEATABLE: transaction.gtid}

    def aligned(self, transaction: SourceTransaction, choice: int) -> SourceTransaction:
        """What goes on with a partly published transaction, so that skipping its events by number loses nothing.

        Rows are in key order, so the same binlog gives the same events, if the choice of tables is the same. Other
        events may differ now, and so may rows if there were any. The server may have been restored, and have another
        transaction under the same GTID, or it has other foreign keys by now (MySQL). Another server may have another
        transaction first: one of another domain, or of another server. In these cases everything is voided after the
        skipped events, and described anew: by the next source if this one dies before that, so the topic says that
        nothing is described. The void goes by the name that is expected, whatever was read.
        """
        changes = transaction.changes
        is_same = (
            transaction.gtid == self.partial_gtid
            and self.partly in ("", whole_words(transaction))
            and choice == self.table_choice
            and len(changes) > self.partial_events
            and _is_row(changes[len(changes) - 1])
            and transaction.gtid != self.unrepeatable
        )
        if is_same:
            return transaction
        self.table_choice = UNDESCRIBED
        void = VoidTable(EVERY_TABLE, "a transaction that was partly published cannot be continued")
        changes = cast("list[Change]", [void] * (self.partial_events + 1))
        return replace(transaction, gtid=self.partial_gtid, changes=changes, table_choice=UNDESCRIBED)


def _is_row(change: Change) -> bool:
    return isinstance(change, RowChange | KeylessRow)
