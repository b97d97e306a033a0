"""Write-id lists: which writes of one table a reader may see, as Hive writes them.

Text ``db.table:hwm:minOpen:open,…:aborted,…``; parsing, printing and the answers about single ids and ranges follow
``org.apache.hadoop.hive.common.ValidReaderWriteIdList`` of Hive 4.0.1. The short form of HIVE-23571,
``[hwm:exceptions]``, is accepted too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, Self

from .errors import TokenError
from .integers import INT64_MAX, excerpt, parse_java_long, wrap_int64

NO_OPEN_ID = INT64_MAX
"""minOpen of a list without an open id."""
CACHED_TEXT_MAX = 1024
JUMP_MAX = 100_000
"""How many open ids one allocation or commit may add. Beyond it the server's own list is needed."""


class RangeAnswer(Enum):
    """How many ids of a range have a property (Hive's ``RangeResponse``)."""

    ALL = "all"
    SOME = "some"
    NONE = "none"


class Missing(NamedTuple):
    """Ids that one list sees as committed and another one doesn't: the first of them, and how many."""

    first: int
    total: int


class ValidWriteIdList:
    """The valid write ids of a table: 1 to ``hwm`` without the exceptions (open and aborted ids).

    Immutable. ``table`` is None if the list names no table. An exception above ``hwm`` means nothing for ``covers``; a
    forgotten aborted id counts as valid.
    """

    __slots__ = ("_aborted_at", "_aborted_ids", "_text", "exceptions", "hwm", "is_short_form", "min_open", "table")

    table: str | None
    hwm: int
    min_open: int
    exceptions: tuple[int, ...]
    is_short_form: bool

    def __init__(
        self,
        table: str | None,
        hwm: int,
        open_ids: Iterable[int] = (),
        aborted_ids: Iterable[int] = (),
        min_open: int | None = None,
    ) -> None:
        """``min_open`` None: the smallest open id. Ids need not be sorted; duplicates are kept, as in Hive."""
        opened, aborted = tuple(open_ids), tuple(aborted_ids)
        self.table = table
        self.hwm = hwm
        self.min_open = min(opened, default=NO_OPEN_ID) if min_open is None else min_open
        self.exceptions = tuple(sorted(opened + aborted))
        # Indexes, not ids: if an id is listed twice, Hive flags and prints only one of the two as aborted.
        self._aborted_at = frozenset(_java_binary_search(self.exceptions, write_id) for write_id in aborted)
        self._aborted_ids = frozenset(aborted)
        self._text: str | None = None
        self.is_short_form = False

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """The list that ``text`` stands for; ``""`` and None are Hive's "everything is valid". Raises `TokenError`."""
        if not text:
            return cls(None, INT64_MAX)
        if cls is ValidWriteIdList and len(text) <= CACHED_TEXT_MAX:
            return _parse_cached(text)  # type: ignore[return-value]  # cls is ValidWriteIdList
        return cls._parse(text)

    @classmethod
    def _parse(cls, text: str) -> Self:
        if text[0] == "[" and text[-1] == "]" and text.count(":") == 1:
            return cls._parse_short(text)
        fields = _java_split(text, ":")
        if len(fields) < 3:
            raise TokenError(
                f"write-id list {excerpt(text)} has {len(fields)} of the 3 required fields",
                hint="write it as db.table:hwm:minOpen:open,…:aborted,…",
            )
        return cls(
            None if fields[0].lower() == "null" else fields[0],
            parse_java_long(fields[1], "high-water mark"),
            _parse_ids(fields, 3, "open write id"),
            _parse_ids(fields, 4, "aborted write id"),
            parse_java_long(fields[2], "smallest open write id"),
        )

    @classmethod
    def _parse_short(cls, text: str) -> Self:
        hwm, _, exceptions = text[1:-1].partition(":")
        ids = [parse_java_long(part, "exception") for part in exceptions.split(",")] if exceptions else []
        parsed = cls(None, parse_java_long(hwm, "high-water mark"), ids)
        parsed.is_short_form = True
        return parsed

    @property
    def open_ids(self) -> tuple[int, ...]:
        """The exceptions that aren't flagged as aborted, ascending."""
        flagged = self._aborted_at
        return tuple(write_id for index, write_id in enumerate(self.exceptions) if index not in flagged)

    @property
    def aborted_ids(self) -> tuple[int, ...]:
        """The exceptions that are flagged as aborted, ascending."""
        return tuple(self.exceptions[index] for index in sorted(self._aborted_at))

    def is_valid(self, write_id: int) -> bool:
        """True iff the id is visible: at most ``hwm`` and not an exception (so 0 is valid)."""
        return write_id <= self.hwm and not self._is_exception(write_id)

    def is_aborted(self, write_id: int) -> bool:
        """True iff the id is flagged as aborted, wherever ``hwm`` is."""
        return write_id in self._aborted_ids

    def is_valid_base(self, write_id: int) -> bool:
        """True iff a base file with this id can be read: nothing up to it is open."""
        return write_id < self.min_open and write_id <= self.hwm

    def range_valid(self, low: int, high: int) -> RangeAnswer:
        """Whether all, some or none of ``low``…``high`` are valid. An id above ``hwm`` is not. Each id counts once.

        Hive counts exceptions above ``hwm`` and repeated ones twice, so it may answer SOME for ALL or NONE.
        """
        if low > self.hwm:
            return RangeAnswer.NONE
        invalid = max(0, high - self.hwm) + len(self._exceptions_in(low, min(high, self.hwm)))
        return _range_answer(invalid, high - low + 1, none=RangeAnswer.ALL, every=RangeAnswer.NONE)

    def range_aborted(self, low: int, high: int) -> RangeAnswer:
        """Whether all, some or none of ``low``…``high`` are flagged as aborted; NONE if all are above ``hwm``."""
        if low > self.hwm:
            return RangeAnswer.NONE
        aborted = sum(1 for write_id in self._aborted_ids if low <= write_id <= high)
        return _range_answer(aborted, high - low + 1, none=RangeAnswer.NONE, every=RangeAnswer.ALL)

    def same_table(self, other: ValidWriteIdList) -> bool:
        """True iff both name the same table, in any case as for Hive, or at least one names no table."""
        ours, theirs = self.table, other.table
        return ours == theirs or ours is None or theirs is None or _equals_ignore_case(ours, theirs)

    def covers(self, other: ValidWriteIdList) -> bool:
        """True iff a value read under this list serves a reader that has ``other`` (docs/concepts/catalog.md).

        That is: the tables match, and every id valid in ``other`` is valid or known as aborted in this list.
        """
        return self.same_table(other) and self.missing(other) is None

    def missing(self, other: ValidWriteIdList) -> Missing | None:
        """The ids valid in ``other`` that are neither valid nor known as aborted in this list, or None.

        The cost grows with the number of exceptions, not with the number of ids.
        """
        first = count = 0
        aborted = self._aborted_ids
        previous = 0
        for write_id in self.exceptions:
            if previous < write_id <= self.hwm and write_id not in aborted and other.is_valid(write_id):
                first = first or write_id
                count += 1
            previous = max(previous, write_id)
        low = max(1, self.hwm + 1)
        if low <= other.hwm:
            excepted = other._exceptions_in(low, other.hwm)
            beyond = other.hwm - low + 1 - len(excepted)
            if beyond:
                first = first or _first_gap(low, excepted)
                count += beyond
        return Missing(first, count) if count else None

    def allocate(self, write_id: int) -> Self:
        """The list after the id was allocated: ids up to it are known, and the new ones are open.

        Raises `TokenError` if more than `JUMP_MAX` ids become known at once.
        """
        if write_id <= self.hwm:
            return self
        self._refuse_jump(write_id)
        known = set(self.exceptions)
        opened = [*self.open_ids, *(new for new in range(max(1, self.hwm + 1), write_id + 1) if new not in known)]
        return type(self)(self.table, write_id, opened, self.aborted_ids)

    def commit(self, write_id: int) -> Self:
        """The list after the id's transaction committed (or the id was reallocated, which makes it valid)."""
        known = self.allocate(write_id) if write_id > self.hwm else self
        return type(self)(
            self.table,
            known.hwm,
            (open_id for open_id in known.open_ids if open_id != write_id),
            (aborted_id for aborted_id in known.aborted_ids if aborted_id != write_id),
        )

    def abort(self, write_id: int) -> Self:
        """The list after the id's transaction aborted. An id that isn't open does not change."""
        if write_id in self._aborted_ids or not self._is_exception(write_id):
            return self
        opened = (open_id for open_id in self.open_ids if open_id != write_id)
        return type(self)(self.table, self.hwm, opened, (*self.aborted_ids, write_id))

    def __str__(self) -> str:
        text = self._text
        if text is None:
            text = list_text(self.table, self.hwm, self.min_open, self.open_ids, self.aborted_ids)
            self._text = text
        return text

    def __repr__(self) -> str:
        return f"{type(self).__name__}.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ValidWriteIdList):
            return NotImplemented
        return type(self) is type(other) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return type(self).parse, (str(self),)

    def _is_exception(self, write_id: int) -> bool:
        exceptions = self.exceptions
        at = bisect_left(exceptions, write_id)
        return at < len(exceptions) and exceptions[at] == write_id

    def _exceptions_in(self, low: int, high: int) -> list[int]:
        """The distinct exceptions in ``low``…``high``, ascending."""
        exceptions = self.exceptions
        inside = exceptions[bisect_left(exceptions, low) : bisect_right(exceptions, high)]
        return sorted(set(inside))

    def _refuse_jump(self, write_id: int) -> None:
        if write_id - self.hwm > JUMP_MAX:
            raise TokenError(
                f"write id {write_id} is {write_id - self.hwm} above the high-water mark {self.hwm}",
                hint="take the list from the server (a conversion to full ACID starts at 10000001)",
                code="write_id_jump",
            )


def list_text(table: str | None, hwm: int, min_open: int, open_ids: Iterable[int], aborted_ids: Iterable[int]) -> str:
    """A list as Hive writes it: ``db.table:hwm:minOpen:open,…:aborted,…``, ids in the order given."""
    opened, aborted = ",".join(map(str, open_ids)), ",".join(map(str, aborted_ids))
    return f"{'null' if table is None else table}:{hwm}:{min_open}:{opened}:{aborted}"


def hive_compare(a: ValidWriteIdList, b: ValidWriteIdList) -> int:
    """Hive's ``TxnIdUtils.compare``: 0 if equivalent, 1 if ``a`` is more recent, -1 if ``b`` is.

    It is for compatibility only: Freshet never decides by it. For equal table names the sign tells which list has the
    smallest id of the symmetric difference. For different tables it is the difference of the names (lower case,
    UTF-16). Raises `TokenError` where Hive throws: for a list without a table name, except the short form, which
    matches any table.
    """
    if not (a.is_short_form or b.is_short_form):
        if a.table is None or b.table is None:
            raise TokenError(
                "Hive cannot compare a list without a table name",
                hint="write the list as db.table:hwm:minOpen:open:aborted",
            )
        if not _equals_ignore_case(a.table, b.table):
            return _java_compare(a.table.lower(), b.table.lower())
    for one, other in zip(a.exceptions, b.exceptions, strict=False):
        if one != other:
            return 1 if one > other else -1
    common = min(len(a.exceptions), len(b.exceptions))
    if len(a.exceptions) == len(b.exceptions):
        return _signum(wrap_int64(a.hwm - b.hwm))
    if len(a.exceptions) == common:
        before = wrap_int64(b.exceptions[common] - 1)
        if a.hwm != before:
            return _signum(wrap_int64(a.hwm - before))
        return 0 if _all_invalid_from(common, b) else -1
    before = wrap_int64(a.exceptions[common] - 1)
    if b.hwm != before:
        return _signum(wrap_int64(before - b.hwm))
    return 0 if _all_invalid_from(common, a) else 1


def _all_invalid_from(index: int, write_ids: ValidWriteIdList) -> bool:
    """True iff the exceptions from ``index`` on are every id up to the high-water mark."""
    rest = write_ids.exceptions[index:]
    return rest[-1] == write_ids.hwm and all(after == before + 1 for before, after in pairwise(rest))


def _range_answer(count: int, size: int, none: RangeAnswer, every: RangeAnswer) -> RangeAnswer:
    if count == 0:
        return none
    return every if count == size else RangeAnswer.SOME


def _first_gap(low: int, taken: list[int]) -> int:
    for write_id in taken:
        if write_id != low:
            break
        low += 1
    return low


def _parse_ids(fields: list[str], index: int, what: str) -> list[int]:
    if len(fields) <= index or not fields[index]:
        return []
    return [parse_java_long(part, what) for part in _java_split(fields[index], ",")]


def _java_split(text: str, separator: str) -> list[str]:
    """``String.split``: trailing empty parts are dropped."""
    parts = text.rstrip(separator).split(separator)
    return parts if parts != [""] else []


def _java_binary_search(values: tuple[int, ...], wanted: int) -> int:
    """``Arrays.binarySearch``. Which of several equal values it finds decides how a list with duplicates is printed."""
    low, high = 0, len(values) - 1
    while low <= high:
        middle = (low + high) >> 1
        if values[middle] < wanted:
            low = middle + 1
        elif values[middle] > wanted:
            high = middle - 1
        else:
            return middle
    raise AssertionError("an aborted id is always among the exceptions")


def _equals_ignore_case(a: str, b: str) -> bool:
    return len(a) == len(b) and all(
        one == other or _folded(one) == _folded(other) for one, other in zip(a, b, strict=True)
    )


def _folded(char: str) -> str:
    """A character as ``String.equalsIgnoreCase`` compares it: simple upper case, then simple lower case."""
    upper = char.upper()
    upper = upper if len(upper) == 1 else char
    # U+0130 is the one character whose lower case has two; Java's simple mapping has the first.
    return upper.lower()[0]


def _java_compare(a: str, b: str) -> int:
    """``String.compareTo``: the difference of the first differing UTF-16 units, else of the lengths."""
    ours, theirs = a.encode("utf-16-be", "surrogatepass"), b.encode("utf-16-be", "surrogatepass")
    for at in range(0, min(len(ours), len(theirs)), 2):
        difference = int.from_bytes(ours[at : at + 2], "big") - int.from_bytes(theirs[at : at + 2], "big")
        if difference:
            return difference
    return (len(ours) - len(theirs)) // 2


def _signum(value: int) -> int:
    return (value > 0) - (value < 0)


_parse_cached = lru_cache(maxsize=4096)(ValidWriteIdList._parse)
