"""Many packed row frames read at once, column by column: one step of numpy for a field of all, not one for each row.

`read_columns` reads frames as `stream.wire.frames.write` writes them, of any number of rows and of several lineages. It
stops before the first frame that has another form or a row that the fold must look at by itself. So what it returns is
valid, and the same as what `stream.wire.frames.read` makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stream.wire.events import VALUE, VOID
from stream.wire.frames import COLUMNS, INT_MAX, NUMBER_MAX, PREFIX_MAX, ROWS_MAX
from stream.wire.keys import SEPARATOR, is_row_key
from stream.wire.single import Numbers, Words, find_singles

Flags: TypeAlias = NDArray[np.bool_]
Some: TypeAlias = Numbers | slice
"""Indexes of frames."""

ALL: Final = slice(None)

PAD: Final = bytes(16)
"""After the last message of a text, so that a word can be read from each place in it."""
_WORD: Final = 8
_VARINT_MAX: Final = 9
"""Longer integers are left to the general decoder."""
_TWO_BYTES: Final = 1 << 14
"""Integers below it take no more."""
_SUMMAND_MAX: Final = 1 << 62
"""Sums of two numbers below it are exact."""
_BY_WORD_MAX: Final = 96
"""Bytes of a text that is looked at word by word with all others. A longer one must not cost these a step a word."""
_TEXTS_TOGETHER: Final = 3
"""Of frames with no more texts than these, each text is read in one step of numpy for all frames."""
_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], np.uint64)
"""Number of bytes → the bits of a word that they are."""
_HIGH_BITS: Final = np.uint64(0x8080808080808080)
_IS_WIDTH: Final = np.array([size in (0, 1, 2, 4, 8) for size in range(_WORD + 1)])


class Text(NamedTuple):
    """Messages in one text that `PAD` ends: where each of them begins and ends."""

    text: bytes
    starts: Numbers
    ends: Numbers


def join_text(values: Sequence[bytes]) -> Text:
    """Messages, one after the other."""
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    ends = np.cumsum(sizes)
    return Text(b"".join((*values, PAD)), ends - sizes, ends)


def words_of(text: bytes) -> Words:
    """The word that begins at each place of a text."""
    return np.ndarray((len(text) - _WORD + 1,), np.dtype("<u8"), text, strides=(1,))


def begin_with(begin: bytes, words: Words, starts: Numbers, sizes: Numbers) -> Flags:
    """Which of the texts begin so."""
    found: Flags = sizes >= len(begin)
    for done in range(0, len(begin), _WORD):
        part = begin[done : done + _WORD]
        word = words[np.minimum(starts + done, len(words) - 1)]
        found &= word & _MASKS[len(part)] == int.from_bytes(part, "little")
    return found


@dataclass(slots=True)
class Columns:
    """The rows of some frames, in order. Starts are places in ``text``."""

    rows: Numbers
    """How many each frame has."""
    text: bytes
    ordinals: Numbers
    operations: NDArray[np.uint8]
    key_starts: Numbers
    key_sizes: Numbers
    image_starts: Numbers
    image_sizes: Numbers
    """0 unless the operation is VALUE."""
    transactions: Numbers
    """Of each row: which of those that follow is its own."""
    timestamps: Numbers
    position_starts: Numbers
    position_sizes: Numbers
    """Of the whole position, in ASCII, or of what stands before its number."""
    position_numbers: Numbers
    """-1: the text is the whole position."""

    @property
    def array_bytes(self) -> int:
        """Memory of the arrays: up to sixteen times as much as the text, if its rows are nearly empty."""
        return sum(each.nbytes for name in self.__slots__ if isinstance(each := getattr(self, name), np.ndarray))

    def keys(self) -> list[bytes]:
        """The key of each row."""
        found = np.empty(len(self.key_starts), object)
        for size in np.unique(self.key_sizes).tolist():  # keys of one size are cut out together
            rows = np.flatnonzero(self.key_sizes == size)
            cuts: NDArray[np.void] = np.ndarray(
                (len(self.text) - size + 1,), np.dtype((np.void, size)), self.text, strides=(1,)
            )
            found[rows] = cuts[self.key_starts[rows]].astype(object)
        return list(found)


class _Texts(NamedTuple):
    """A field of several frames that is an array of texts. ``counts``: how many each frame has."""

    counts: Numbers
    starts: Numbers
    sizes: Numbers

    def of_first(self, frames: int) -> _Texts:
        """Those of the first frames."""
        counts = self.counts[:frames]
        count = int(counts.sum())
        return _Texts(counts, self.starts[:count], self.sizes[:count])


class _Reader:
    """Where each frame is being read. ``good``: those in which nothing was wrong so far."""

    def __init__(self, frames: Text, begin: int | Numbers) -> None:
        self.text, starts, self.ends = frames
        self.bytes = np.frombuffer(self.text, np.uint8)
        self.words = words_of(self.text)
        self.at: Numbers = np.minimum(starts + begin, self.ends)
        self.good: Flags = np.ones(len(starts), np.bool_)

    def _byte(self, of: Some) -> Numbers:
        at = self.at[of]
        found = self.bytes[at].astype(np.int64)
        inside = at < self.ends[of]
        if not inside.all():
            self.good[of] &= inside
        self.at[of] = at + inside
        return found

    def raw(self, of: Some) -> Numbers:
        """The next integer of the frames ``of``, as it is on the wire."""
        found = self._byte(of)
        going = np.flatnonzero(found > 127)
        if len(going):
            found[going] &= 127
            for shift in range(7, 7 * _VARINT_MAX, 7):
                some = going if isinstance(of, slice) else of[going]
                more = self._byte(some)
                found[going] |= (more & 127) << shift
                going = going[more > 127]
                if not len(going):
                    return found
            self.good[going if isinstance(of, slice) else of[going]] = False
        return found

    def number(self, of: Some = ALL) -> Numbers:
        """The next field, an integer."""
        raw = self.raw(of)
        return (raw >> 1) ^ -(raw & 1)

    def size(self, of: Some) -> Numbers:
        """The next length or count: not negative, and no more than there are bytes left."""
        raw = self.raw(of)
        size = raw >> 1
        bad = (raw & 1) | (size > self.ends[of] - self.at[of])
        if bad.any():
            self.good[of] &= bad == 0
            size[bad > 0] = 0
        return size

    def field(self, of: Some = ALL) -> tuple[Numbers, Numbers]:
        """Start and size of the next field, a text or block."""
        size = self.size(of)
        start = self.at[of].copy()
        self.at[of] = start + size
        return start, size

    def texts(self) -> _Texts:
        """The next field, an array of texts."""
        counts = self.size(ALL)
        counts[~self.good] = 0
        starts, sizes = np.zeros((2, int(counts.sum())), np.int64)
        if not counts.any():
            return _Texts(counts, starts, sizes)
        firsts, is_short = np.cumsum(counts) - counts, counts <= _TEXTS_TOGETHER
        for number in range(_TEXTS_TOGETHER):
            some = np.flatnonzero((counts > number) & is_short)
            if len(some):
                starts[firsts[some] + number], sizes[firsts[some] + number] = self.field(some)
        for frame in np.flatnonzero(~is_short).tolist():
            span = slice(firsts[frame], firsts[frame] + counts[frame])
            starts[span], sizes[span] = self._texts_of(frame, int(counts[frame]))
        some = np.flatnonzero(counts)
        self.good[some] &= self._byte(some) == 0  # the array's end
        return _Texts(counts, starts, sizes)

    def _texts_of(self, frame: int, count: int) -> tuple[list[int], list[int]]:
        """Starts and sizes of a frame's next texts."""
        text, at, end = self.text, int(self.at[frame]), int(self.ends[frame])
        starts, sizes, odd = [0] * count, [0] * count, 0
        for number in range(count):
            if at >= end:
                break
            size = text[at]
            at += 1
            if size > 127:
                size += (text[at] << 7) - 128
                if size >= _TWO_BYTES:
                    at += 1
                    size += (text[at] << 14) - _TWO_BYTES
                    odd |= text[at] >> 7
                at += 1
            odd |= size & 1
            starts[number], sizes[number] = at, size >> 1
            at += size >> 1
        if odd or at >= end:  # at least the array's end follows
            self.good[frame] = False
            return [0] * count, [0] * count
        self.at[frame] = at
        return starts, sizes

    def block(self, starts: Numbers, sizes: Numbers, counts: Numbers) -> Numbers:
        """The numbers of each frame's block, one frame after the other. Numbers too large for an int64 are negative."""
        widths = sizes // counts
        width = int(widths[0])
        within = np.arange(int(counts.sum()))
        if not (widths == width).all():
            each = np.repeat(widths, counts)
            at = np.repeat(starts - widths * (np.cumsum(counts) - counts), counts) + each * within
            mixed: Numbers = (self.words[at] & _MASKS[each]).view(np.int64)
            return mixed
        if not width:
            return np.zeros(len(within), np.int64)
        at = np.repeat(starts - width * (np.cumsum(counts) - counts), counts) + width * within
        found: Numbers = (
            self.bytes[at].astype(np.int64) if width == 1 else (self.words[at] & _MASKS[width]).view(np.int64)
        )
        return found

    def are_ascii(self, starts: Numbers, sizes: Numbers) -> Flags:
        """Which of the texts are ASCII."""
        found = np.ones(len(starts), np.bool_)
        for done in range(0, min(int(sizes.max(initial=0)), _BY_WORD_MAX), _WORD):
            word = self.words[np.minimum(starts + done, len(self.words) - 1)]
            found &= word & _MASKS[np.clip(sizes - done, 0, _WORD)] & _HIGH_BITS == 0
        some = np.flatnonzero(sizes > _BY_WORD_MAX)
        if len(some):
            begins, text = starts[some], self.text
            spans = zip(begins.tolist(), (begins + sizes[some]).tolist(), strict=True)
            found[some] = [text[begin:end].isascii() for begin, end in spans]
        return found

    def are_row_keys(self, starts: Numbers, sizes: Numbers) -> Flags:
        """As `stream.wire.keys.is_row_key`. Most keys have the table of the first; the others are looked at singly."""
        start = int(starts[0])
        table = self.text[start : self.text.find(SEPARATOR, start, start + int(sizes[0])) + 1]
        known = is_row_key(table)
        found = begin_with(table, self.words, starts, sizes) if known else np.zeros(len(sizes), np.bool_)
        for row in np.flatnonzero(~found).tolist():
            found[row] = is_row_key(self.text[starts[row] : starts[row] + sizes[row]])
        return found


_READ: Final[dict[str, Callable[[_Reader], Any]]] = {
    "number": _Reader.number,
    "bytes": _Reader.field,
    "texts": _Reader.texts,
}
_BLOCKS: Final = {"lengths": 2, "ordinals": 1, "sizes": 0, "gtid_numbers": 0, "timestamps": 0}
"""How many numbers a block has for each row; 0: one for each transaction."""


class Floors(NamedTuple):
    """Where the ordinals of each frame must begin. ``least``: above that."""

    least: Numbers
    before: Numbers | None = None
    """And above those of this frame, the one before it of its lineage; -1: there is none. None: all are of one."""

    def above(self, lasts: Numbers) -> Numbers:
        """What the first ordinal of each frame must be above, if the last ones are ``lasts``."""
        if self.before is None:
            previous = np.concatenate((self.least[:1], lasts[:-1]))
        else:
            before = self.before[: len(lasts)]
            previous = np.where(before < 0, self.least[: len(lasts)], lasts[before])
        return np.maximum(self.least[: len(lasts)], previous)


def read_columns(frames: Text, begin: int | Numbers, floors: Floors) -> Columns | None:
    """The rows of the first of ``frames``, as many as can be read this way; None if the first cannot.

    ``begin``: the bytes of each frame's `stream.wire.single.single_prefix`, or of all. Ordinals rise in each lineage.
    """
    reader = _Reader(frames, begin)
    if (found := _singles(reader, floors)) is not None:
        return found
    fields = {name: _READ[kind](reader) for name, kind in COLUMNS.items() if name not in ("shard", "epoch")}
    _check_fields(reader, fields)
    while count := _leading(reader.good):
        found, bad = _columns(reader, {name: _first(field, count) for name, field in fields.items()}, floors)
        if found is not None:
            return found
        reader.good[bad] = False
    return None


def _leading(flags: Flags) -> int:
    """How many are set before the first that is not."""
    return len(flags) if flags.all() else int(flags.argmin())


def _first(field: Any, frames: int) -> Any:
    if isinstance(field, _Texts):
        return field.of_first(frames)
    return tuple(each[..., :frames] for each in field) if isinstance(field, tuple) else field[:frames]


def _check_fields(reader: _Reader, fields: dict[str, Any]) -> None:
    """Marks the frames whose fields contradict each other, or have a form that is left to the general decoder."""
    good, rows, transactions = reader.good, fields["operations"][1], fields["transactions"]
    good &= (reader.at == reader.ends) & (transactions > 0) & (transactions <= rows) & (rows <= ROWS_MAX)
    for name, each_row in _BLOCKS.items():
        width, rest = np.divmod(fields[name][1], np.maximum(each_row * rows if each_row else transactions, 1))
        good &= (rest == 0) & (width <= _WORD) & _IS_WIDTH[np.minimum(width, _WORD)]
    gtids, positions = fields["gtids"], fields["positions"]
    prefix_starts, prefix_sizes = fields["gtid_prefix"]
    is_prefixed = prefix_sizes > 0
    good &= np.where(is_prefixed, gtids.counts == 0, gtids.counts == transactions)
    good &= (positions.counts == 0) | (positions.counts == transactions)
    good &= fields["origins"].counts == 0
    good &= (fields["gtid_base"] >= 0) & (fields["gtid_base"] < NUMBER_MAX)
    for counts, starts, sizes in (gtids, positions):
        good[np.repeat(np.arange(len(good)), counts)[~reader.are_ascii(starts, sizes)]] = False
    for frame in np.flatnonzero(is_prefixed & good).tolist():
        start, size = int(prefix_starts[frame]), int(prefix_sizes[frame])
        prefix = reader.text[start : start + size]
        good[frame] = size <= PREFIX_MAX and prefix.isascii() and b"\0" not in prefix


def _columns(reader: _Reader, fields: dict[str, Any], floors: Floors) -> tuple[Columns | None, int]:
    """The columns of frames whose fields are good; or None, and the first frame that is not good after all."""
    rows, transactions = fields["operations"][1], fields["transactions"]
    frames, count = len(rows), int(rows.sum())
    if count > ROWS_MAX:
        return None, int(np.searchsorted(np.cumsum(rows), ROWS_MAX, "right"))
    blocks: dict[str, Numbers] = {}
    for name, each_row in _BLOCKS.items():
        begins, sizes = fields[name]
        blocks[name] = reader.block(begins, sizes, each_row * rows if each_row else transactions)
    first_rows, first_transactions = np.cumsum(rows) - rows, np.cumsum(transactions) - transactions
    good = _are_bounded(blocks, fields, first_rows, first_transactions)
    if not good.all():
        return None, int(good.argmin())
    frame_of = np.repeat(np.arange(frames), rows)
    within = np.arange(count) - first_rows[frame_of]

    steps, lengths = blocks["ordinals"], blocks["lengths"]
    summed = np.cumsum(steps)
    ordinals = (fields["ordinal"] - (summed - steps)[first_rows])[frame_of] + summed + within + 1
    starts = np.cumsum(lengths) - lengths
    keys = within + 2 * first_rows[frame_of]
    images = keys + rows[frame_of]
    moved = (fields["rows"][0] - starts[2 * first_rows])[frame_of]
    operations = reader.bytes[fields["operations"][0][frame_of] + within]
    found = Columns(
        rows,
        reader.text,
        ordinals,
        operations,
        starts[keys] + moved,
        lengths[keys],
        starts[images] + moved,
        np.where(operations == VALUE, lengths[images], 0),
        np.repeat(np.arange(len(blocks["sizes"])), blocks["sizes"] + 1),
        *_transactions(fields, blocks, first_transactions),
    )
    below = np.concatenate(([0], ordinals[:-1]))
    below[first_rows] = floors.above(ordinals[first_rows + rows - 1])
    valid = _are_valid(reader, found, below)
    return (found, 0) if valid.all() else (None, int(frame_of[valid.argmin()]))


def _are_valid(reader: _Reader, columns: Columns, below: Numbers) -> Flags:
    """Which rows the fold may take as they are. ``below``: what the ordinal of each must be above."""
    operations = columns.operations
    valid: Flags = (
        (columns.ordinals > below)
        & (operations > 0)
        & (operations <= VOID)
        & ((operations != VALUE) | (columns.image_sizes > 0))
        & reader.are_row_keys(columns.key_starts, columns.key_sizes)
    )
    return valid


def _singles(reader: _Reader, floors: Floors) -> Columns | None:
    """The rows of frames of one row each, in a fifth of the time that fields one by one take; None if one is another.

    Or if any can't be read this way, or must not be taken: where the run ends then is found out in general.
    """
    rows = find_singles(reader.words, reader.at, reader.ends)
    if rows is None or len(rows.ordinals) > ROWS_MAX:
        return None
    count = len(rows.ordinals)
    found = Columns(
        np.ones(count, np.int64),
        reader.text,
        rows.ordinals,
        rows.operations,
        rows.key_starts,
        rows.key_sizes,
        rows.key_starts + rows.key_sizes,
        np.where(rows.operations == VALUE, rows.image_sizes, 0),
        np.arange(count),
        rows.timestamps,
        rows.gtid_starts,
        rows.gtid_sizes,
        np.full(count, -1),
    )
    valid = _are_valid(reader, found, floors.above(rows.ordinals)) & reader.are_ascii(rows.gtid_starts, rows.gtid_sizes)
    return found if valid.all() else None


def _are_bounded(blocks: dict[str, Numbers], fields: dict[str, Any], rows: Numbers, transactions: Numbers) -> Flags:
    """Which frames' blocks have numbers in their ranges, and sums that fit. ``rows``, ``transactions``: their first."""
    counts, size = fields["operations"][1], fields["rows"][1]
    sizes, lengths, steps = blocks["sizes"], blocks["lengths"], blocks["ordinals"]
    good = _are_bounded_by(ROWS_MAX, sizes, transactions)
    good &= np.add.reduceat(sizes, transactions) + fields["transactions"] == counts
    good &= _are_bounded_by(INT_MAX, lengths, 2 * rows)
    good &= np.add.reduceat(lengths, 2 * rows) == size
    good &= _are_bounded_by(INT_MAX, steps, rows)
    good &= np.add.reduceat(steps, rows) + counts <= INT_MAX
    good &= _are_bounded_by(_SUMMAND_MAX, blocks["timestamps"], transactions)
    good &= _are_bounded_by(_SUMMAND_MAX, blocks["gtid_numbers"], transactions)
    return good


def _are_bounded_by(most: int, numbers: Numbers, firsts: Numbers) -> Flags:
    """Which frames' numbers are from 0 to ``most``."""
    if numbers.min() >= 0 and numbers.max() <= most:
        return np.ones(len(firsts), np.bool_)
    return (np.minimum.reduceat(numbers, firsts) >= 0) & (np.maximum.reduceat(numbers, firsts) <= most)


def _transactions(
    fields: dict[str, Any], blocks: dict[str, Numbers], firsts: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Of each transaction: timestamp; start, size and number of its position, which is its GTID if there is none."""
    frame_of = np.repeat(np.arange(len(firsts)), fields["transactions"])
    prefix_starts, prefix_sizes = fields["gtid_prefix"]
    has_position = fields["positions"].counts > 0
    starts, sizes = prefix_starts[frame_of], prefix_sizes[frame_of]
    numbers = np.where(has_position[frame_of], -1, fields["gtid_base"][frame_of] + blocks["gtid_numbers"])
    for texts, are_meant in ((fields["gtids"], ~has_position), (fields["positions"], has_position)):
        own = are_meant & (texts.counts > 0)
        of_own, theirs = own[frame_of], np.repeat(own, texts.counts)
        starts[of_own], sizes[of_own] = texts.starts[theirs], texts.sizes[theirs]
        numbers[of_own] = -1
    return fields["timestamp"][frame_of] + blocks["timestamps"], starts, sizes, numbers
