"""Hive's other kinds of write-id lists: the compactor's, the cleaner's, and all lists of one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from .errors import TokenError
from .integers import excerpt, parse_java_long
from .writeids import RangeAnswer, ValidWriteIdList


class CompactorWriteIdList(ValidWriteIdList):
    """Hive's ``ValidCompactorWriteIdList``: every exception counts as aborted; a range is all valid or not valid."""

    __slots__ = ()

    def is_aborted(self, write_id: int) -> bool:
        """True iff the id is an exception."""
        return self._is_exception(write_id)

    def range_valid(self, low: int, high: int) -> RangeAnswer:  # noqa: ARG002  # Hive looks at the end only
        """ALL iff every id up to ``high`` is resolved, else NONE."""
        return RangeAnswer.ALL if self.hwm >= high else RangeAnswer.NONE


class CleanerWriteIdList(ValidWriteIdList):
    """Hive's ``ValidCleanerWriteIdList``: a reader's list, but in a range that reaches above ``hwm`` no id is valid."""

    __slots__ = ()

    @classmethod
    def _parse(cls, text: str) -> Self:
        # Hive copies a reader's list, and the copy loses minOpen if there is no exception.
        parsed = super()._parse(text)
        return parsed if parsed.exceptions else cls(parsed.table, parsed.hwm)

    def range_valid(self, low: int, high: int) -> RangeAnswer:
        """As in the base class, but NONE if ``high`` is above ``hwm``."""
        return RangeAnswer.NONE if high > self.hwm else super().range_valid(low, high)


class TxnWriteIds:
    """Hive's ``ValidTxnWriteIdList``: one transaction's list for each table it reads, ``txnId$list$list…``.

    Tables are looked up by their exact name. Immutable; iterates over the lists in the order of the text.
    """

    __slots__ = ("_lists", "txn_id")

    def __init__(self, txn_id: int | None, lists: tuple[ValidWriteIdList, ...] = ()) -> None:
        """If two lists are for one table, the later one replaces the earlier one in its place."""
        self.txn_id = txn_id
        self._lists = {write_ids.table: write_ids for write_ids in lists}

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Parse ``text``; ``""`` and None mean no transaction. Raises `TokenError`."""
        if not text:
            return cls(None)
        head, *lists = text.rstrip("$").split("$")
        if not head:
            raise TokenError(f"{excerpt(text)} has no transaction id", hint="it begins with the transaction id, then $")
        txn_id = parse_java_long(head, "transaction id")
        return cls(txn_id, tuple(ValidWriteIdList.parse(part) for part in lists))

    def get(self, table: str | None) -> ValidWriteIdList | None:
        """The list of ``table``, or None."""
        return self._lists.get(table)

    def __iter__(self) -> Iterator[ValidWriteIdList]:
        return iter(self._lists.values())

    def __len__(self) -> int:
        return len(self._lists)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TxnWriteIds):
            return NotImplemented
        return self.txn_id == other.txn_id and self._lists == other._lists

    def __hash__(self) -> int:
        return hash((self.txn_id, frozenset(self._lists)))

    def __str__(self) -> str:
        if self.txn_id is None:
            return ""
        return "$".join([str(self.txn_id), *map(str, self)])
