"""The rows of a statement straight from the connection's bytes, many together and column by column.

PyMySQL sends the statement and reads which columns there are. It would take each row apart field by field, with a
packet object of its own; here a column of some thousand rows is cut out at once. Rows are packets of the text protocol:
a length of three bytes and a number, then each value with its length in front.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import pymysql
from numpy.typing import NDArray

from stream.sources.mariadb.connection import Connection, MariaDBError

BLOCK_BYTES: Final = 256 * 1024
"""About how much is taken apart together."""
_HEAD: Final = 4
_PACKET_MAX: Final = 0xFFFFFF
"""A packet of this size goes on in the next one."""
_END, _END_MAX, _ERROR = 0xFE, 9, 0xFF
"""How the packet after the last row begins, and below which size; how an error begins."""
_NULL: Final = 251
_LONG: Final = ((252, 2), (253, 3), (254, 8))
"""What a length of so many bytes begins with. One below `_NULL` is a byte."""

Values: TypeAlias = list[bytes | None]


class RowPackets:
    """The rows that a statement selects. What it holds in memory is a block, or a row if that is larger."""

    def __init__(self, session: Connection, statement: str) -> None:
        """Sends the statement. Raises PyMySQL's errors, as `read` does."""
        session.query(statement, unbuffered=True)
        self._result: Any = session._result
        self._file: Any = session._rfile
        self._text = bytearray()
        """What has arrived, from the first packet on that was not given."""
        self.is_over = False
        """Whether every row was read."""

    def read(self) -> list[Values]:
        """The next rows: of each column the values. No rows: there are no more. Raises also OSError, EOFError."""
        starts: list[int] = []
        ends: list[int] = []
        text, at = self._text, 0
        while not self.is_over:
            end = _end_of(text, at)
            if end < 0:
                if starts and at >= BLOCK_BYTES:
                    break
                more = self._file.read1(BLOCK_BYTES)
                if not more:
                    raise EOFError("connection closed inside a result")
                text += more
                continue
            first, size = text[at + _HEAD], end - at - _HEAD
            if first == _ERROR:
                self._let_go()
                pymysql.err.raise_mysql_exception(bytes(text[at + _HEAD : end]))
            if first == _END and size < _END_MAX:
                self._let_go()
                break
            starts.append(at + _HEAD)
            ends.append(end)
            at = end
        taken = bytes(text[:at])
        del text[:at]
        return _columns(taken, starts, ends, self._result.field_count) if starts else []

    def give_up(self) -> None:
        """Read no more. The session is of no use from here on: close it."""
        self._result.unbuffered_active = False  # PyMySQL would read all that is left

    def _let_go(self) -> None:
        """The session may be asked something else."""
        self.is_over = True
        self._result.unbuffered_active, self._result.connection = False, None


def _end_of(text: bytearray, at: int) -> int:
    """Where the packet ends that begins at ``at``; -1 if not all of it is there. A row of several becomes one."""
    if len(text) < at + _HEAD:
        return -1
    size = text[at] | text[at + 1] << 8 | text[at + 2] << 16
    end = at + _HEAD + size
    if end > len(text):
        return -1
    return end if size < _PACKET_MAX else _joined(text, end)


def _joined(text: bytearray, end: int) -> int:
    """Where the row ends whose first packet ends at ``end``, without the heads of its others; -1 as in `_end_of`."""
    heads = []
    size = _PACKET_MAX
    while size == _PACKET_MAX:
        heads.append(end)
        size = int.from_bytes(text[end : end + 3], "little")
        end += _HEAD + size
        if end > len(text):
            return -1
    for head in reversed(heads):
        del text[head : head + _HEAD]
    return end - _HEAD * len(heads)


def _columns(text: bytes, starts: list[int], ends: list[int], columns: int) -> list[Values]:
    """The values of rows that lie so in ``text``. Raises `MariaDBError` for what the protocol does not allow."""
    data = np.frombuffer(text, np.uint8)
    at = np.array(starts, np.int64)
    found = []
    try:
        for _ in range(columns):
            mark = data[at]
            size = mark.astype(np.int64)
            at += 1
            nulls: list[int] = []
            if size.max() >= _NULL:
                nulls = np.flatnonzero(mark == _NULL).tolist()
                size[nulls] = 0
                _read_long(data, mark, at, size)
            end = at + size
            values: Values = [text[start:stop] for start, stop in zip(at.tolist(), end.tolist(), strict=True)]
            for row in nulls:
                values[row] = None
            found.append(values)
            at = end
    except IndexError:
        at = np.zeros(1, np.int64)
    if at.tolist() != ends:
        raise MariaDBError("the server's answer is no rows of the columns that it has named")
    return found


def _read_long(
    data: NDArray[np.uint8], mark: NDArray[np.uint8], at: NDArray[np.int64], size: NDArray[np.int64]
) -> None:
    """Sets the sizes that have more than a byte, and moves ``at`` behind them."""
    for begin, width in _LONG:
        rows = np.flatnonzero(mark == begin)
        if len(rows):
            places = at[rows]
            size[rows] = sum(data[places + byte].astype(np.int64) << 8 * byte for byte in range(width))
            at[rows] = places + width
