"""Where each shard's history is cut for a table as of a token or a time. Pure.

A shard's history has one order, its ordinals, and its transactions lie in several partitions. The cut of a shard is the
first place, in any partition, of a transaction that the token does not have, or whose time is after the given one. What
lies before it is a prefix of the history, the same in each partition. A token may have gaps (a set of MySQL, or two
domains of MariaDB): then the cut is behind the last transaction that it has, since all of them must be in. Times may
run backwards: what follows the first later transaction, or a whole marker by which the source's clock or its last
transaction was later, is left out too. So what is read as of a time does not change when a transaction with an old time
arrives late (docs/concepts/order.md).

What is read without a moment is cut too: behind the last marker at a transaction's end that all partitions have. Each
is read to its own end, and these are of different moments: a transaction may be half out for minutes, since it spans
batches, and the brokers of two partitions learn at different moments that a batch is committed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from stream.wire.announced import Announced
from stream.wire.checks import decode_folded
from stream.wire.codec import (
    HEADER_SIZE,
    CodecError,
    NewerWireError,
    PartitionReader,
    encode,
    headers,
    is_of_unknown_schema,
)
from tokens.errors import FreshetError, TokenError
from tokens.position import NO_POSITION, Position
from tokens.vector import Vector

Place = tuple[int, int]
"""Epoch and ordinal."""
Cut = dict[str, Place]
"""Shard → the first place that is left out. A shard that is not in it has no cut."""
Ended = dict[str, int]
"""Shard → its last epoch. Others have succeeded it: what it has published by then is all of it."""
_MARKERS: Final = headers("Marker")
_DESCRIPTIONS: Final = headers("TableSchema") | headers("SchemaText")
_SECONDS: Final = re.compile(r"[0-9]{1,18}")


class AsOfError(FreshetError):
    """A table can't be read as of a token or time. Codes: ``bad_as_of``, ``as_of_ahead``, ``table_unknown``."""

    code = "bad_as_of"


@dataclass(frozen=True, slots=True)
class AsOf:
    """The moment that is asked for: of a token its ``vector``, or a time in ``seconds``; neither: now."""

    vector: Vector | None = None
    seconds: int | None = None

    @property
    def is_now(self) -> bool:
        """Whether no moment is asked for."""
        return self.vector is None and self.seconds is None

    def has(self, shard: str, epoch: int, gtid: str, timestamp: int) -> bool:
        """Whether a transaction belongs to it."""
        if self.vector is not None:
            known = self.vector.get(shard)
            if known is None or epoch != known.epoch:
                return known is None or epoch < known.epoch
            return not gtid or known.position.contains(_position(gtid))
        return self.seconds is None or timestamp <= self.seconds

    def has_all(self, shard: str, epoch: int, position: str, timestamp: int, as_of_ms: int) -> bool:
        """Whether all up to a position is known to belong to it.

        ``timestamp``: of the last transaction there; ``as_of_ms``: the source's clock when it was last read to its end,
        which may be long before.
        """
        if self.seconds is not None:
            return timestamp <= self.seconds and 0 < as_of_ms // 1000 <= self.seconds
        return bool(position) and self.has(shard, epoch, position, 0)

    def is_past(self, marker: dict[str, Any]) -> bool:
        """Whether all that belongs to it of the marker's shard lies before the marker."""
        if self.vector is not None:
            known = self.vector.get(marker["shard"])
            if known is None or marker["epoch"] != known.epoch:
                return known is None or marker["epoch"] > known.epoch
            return _position(marker["position"]).contains(known.position)
        return self.seconds is None or max(marker["timestamp"], marker["as_of_ms"] // 1000) > self.seconds


def _position(text: str) -> Position:
    """The position of a message; none if it is not one: the fold rejects what says so, it ends no reading."""
    try:
        return Position.parse(text)
    except TokenError:
        return NO_POSITION


def parse_as_of(text: str) -> AsOf:
    """A token, or a time: seconds since 1970, or ISO 8601, in UTC if it names no zone. Raises `AsOfError`."""
    if not text:
        return AsOf()
    if _SECONDS.fullmatch(text):
        return AsOf(seconds=int(text))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            return AsOf(Vector.parse_all(text))
        except TokenError as error:
            raise AsOfError(
                f"{text[:80]!r} is neither a token nor a time: {error}",
                hint="give a session's token, seconds since 1970, or a time like 2026-03-01T12:00:00Z",
            ) from error
    return AsOf(seconds=int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()))


@dataclass(frozen=True, slots=True)
class Description:
    """What a shard said last of the table: column → kind, and the columns of its key."""

    columns: dict[str, str]
    primary_key: tuple[str, ...]
    prefix: int


@dataclass(slots=True)
class Survey:
    """Finds the cut, the table's description before it, and the topic's layout, from the partitions' messages."""

    table: str
    as_of: AsOf
    layout: str = ""
    described: dict[tuple[str, Place], Description] = field(default_factory=dict)
    _lacked: Cut = field(default_factory=dict, init=False)
    """Shard → the first place that does not belong to the moment."""
    _held: Cut = field(default_factory=dict, init=False)
    """Shard → the place after the last transaction of the token."""
    _marked: list[dict[str, dict[int, int]]] = field(default_factory=list, init=False)
    """Of each partition: shard → epoch → ordinal of the last marker at a transaction's end."""

    @property
    def cut(self) -> Cut:
        """What is left out, by what was read so far."""
        if self.as_of.is_now:
            return self._cut_of_now()
        return {shard: max(place, self._held.get(shard, place)) for shard, place in self._lacked.items()}

    def read(
        self,
        partition: int,
        values: Iterable[bytes | None],
        reached: Iterable[dict[str, Any]] = (),
        texts: dict[bytes, Announced] | None = None,
        over: Ended | None = None,
    ) -> None:
        """Takes all messages of a partition.

        ``reached``: what a base says of those before them, as markers; ``texts``: what it holds as announced; ``over``:
        the shards that it knows as succeeded. Raises `AsOfError` ``as_of_ahead`` if they end too early.
        """
        ended, before = dict(over or {}), list(reached)
        self._marked.append({})
        for marker in before:
            self._mark(marker)
        seen = {marker["shard"]: self.as_of.is_past(marker) for marker in before}
        epochs = {marker["shard"]: marker["epoch"] for marker in before}
        reader = PartitionReader(texts)
        for value in values:
            header = (value or b"")[:HEADER_SIZE]
            if value is None or not (
                self._needs_frames() or header in _MARKERS or header in _DESCRIPTIONS or is_of_unknown_schema(value)
            ):
                continue
            try:
                name, event = decode_folded(reader, value)
            except NewerWireError:
                raise
            except CodecError:
                continue  # the fold rejects it
            if name == "Marker":
                self._mark(event)
                self.layout = event["layout"]
                epochs[event["shard"]] = event["epoch"]
                self._check_epoch(event, is_reached=seen.get(event["shard"], False))
                by_time = self.as_of.seconds is not None
                is_past = self.as_of.is_past(event) and (event["whole"] or not by_time)
                seen[event["shard"]] = seen.get(event["shard"], False) or is_past
                if by_time and is_past:
                    # its last transaction may be of what is not published: what arrives after it is later all the same
                    self._cut_before(event["shard"], (event["epoch"], event["ordinal"] + 1))
            elif name == "Topology":
                self._note_succession(event, ended, seen)
            elif name == "RowFrame":
                self._cut_frame(event)
            elif "gtid" in event:
                place = event["epoch"], event["ordinal"]
                self._cut_at(event["shard"], place, event["ordinal"], event["gtid"], event["timestamp"])
                if name == "TableSchema" and event["table"] == self.table:
                    self.describe(event)
        going_on = {shard: past for shard, past in seen.items() if epochs[shard] > ended.get(shard, -1)}
        self._check(partition, going_on)

    def describe(self, event: dict[str, Any]) -> None:
        """Takes a description of the table."""
        kinds = {each["name"]: each["kind"] for each in event["columns"]}
        place = event["epoch"], event["ordinal"]
        self.described[event["shard"], place] = Description(kinds, tuple(event["primary_key"]), event["prefix"])

    def description(self) -> Description:
        """The last description before the cut. Raises `AsOfError` ``table_unknown``."""
        cut = self.cut
        known = [(place, shard) for shard, place in self.described if shard not in cut or place < cut[shard]]
        if not known and self.as_of.is_now:
            known = [(place, shard) for shard, place in self.described]  # for the changes; no row is in yet
        if not known:
            raise AsOfError(
                f"nothing in the topic describes {self.table} at that moment",
                hint="give the name as database.table; a table is described when its source begins with it",
                code="table_unknown",
            )
        place, shard = max(known)
        return self.described[shard, place]

    def last_description(self) -> Description:
        """The last one that there is, wherever the cut lies: changes are read as they come."""
        place, shard = max((place, shard) for shard, place in self.described)
        return self.described[shard, place]

    def _mark(self, marker: dict[str, Any]) -> None:
        """Notes how far the partition that is read has a shard wholly."""
        ordinals = self._marked[-1].setdefault(marker["shard"], {})
        if marker["whole"]:
            ordinals[marker["epoch"]] = max(marker["ordinal"], ordinals.get(marker["epoch"], 0))

    def _cut_of_now(self) -> Cut:
        """Behind what all partitions have of each shard, in the last epoch that all have; nothing if one has none."""
        found: Cut = {}
        for shard in {shard for marked in self._marked for shard in marked}:
            ordinals = [marked.get(shard) or {0: -1} for marked in self._marked]
            epoch = min(max(each) for each in ordinals)
            found[shard] = epoch, min(each.get(epoch, -1) for each in ordinals) + 1
        return found

    def _needs_frames(self) -> bool:
        return not self.as_of.is_now

    def _cut_frame(self, frame: dict[str, Any]) -> None:
        shard, epoch, ordinal, first = frame["shard"], frame["epoch"], frame["ordinal"], 0
        for size, gtid, timestamp in zip(frame["transactions"], frame["gtids"], frame["timestamps"], strict=True):
            if not size:  # without rows it has no place, and nothing to be cut; no publisher writes one now
                continue
            last = ordinal + frame["ordinals"][first + size - 1]
            is_in = self._cut_at(shard, (epoch, ordinal + frame["ordinals"][first]), last, gtid, timestamp)
            if not is_in and self.as_of.vector is None:
                return
            first += size

    def _cut_at(self, shard: str, place: Place, last: int, gtid: str, timestamp: int) -> bool:
        """Whether a transaction is in. ``last``: ordinal of what lies last of it, which begins at ``place``."""
        if not self.as_of.has(shard, place[0], gtid, timestamp):
            self._cut_before(shard, place)
            return False
        if self.as_of.vector is not None and _position(gtid).set_text():
            self._held[shard] = max((place[0], last + 1), self._held.get(shard, place))
        return True

    def _cut_before(self, shard: str, place: Place) -> None:
        self._lacked[shard] = min(place, self._lacked.get(shard, place))

    def _note_succession(self, topology: dict[str, Any], ended: Ended, seen: dict[str, bool]) -> None:
        """Adds who is over, and leaves out a shard that began after the moment: its ancestors went on until then."""
        note_ended(ended, ((each["shard"], each["epoch"]) for each in (*topology["ancestors"], *topology["succeeded"])))
        ancestors = [each["shard"] for each in topology["ancestors"]]
        if self.as_of.seconds is not None and ancestors and all(seen.get(each) for each in ancestors):
            self._cut_before(topology["shard"], (topology["epoch"], topology["ordinal"] + 1))

    def _check_epoch(self, marker: dict[str, Any], *, is_reached: bool) -> None:
        """Raises `AsOfError` if an epoch begins before the token's position of an earlier one was reached."""
        known = self.as_of.vector.get(marker["shard"]) if self.as_of.vector is not None else None
        if known is not None and marker["epoch"] > known.epoch and not is_reached:
            raise AsOfError(
                f"the token lies in what {marker['shard']} lost: its epoch {known.epoch} ended before {known.position}",
                hint="give a token of its present history, or an earlier one",
            )

    def _check(self, partition: int, seen: dict[str, bool]) -> None:
        vector = self.as_of.vector
        unknown = sorted(shard for shard in seen if vector is not None and vector.get(shard) is None)
        if unknown:
            raise AsOfError(
                f"the token does not name the shard {unknown[0]}", hint="give a token that names all of the keyspace"
            )
        if not self.as_of.is_now and not (seen and all(seen.values())):
            short = sorted(shard for shard, past in seen.items() if not past)
            raise AsOfError(
                f"partition {partition} does not reach that moment yet" + (f", of shard {short[0]}" if short else ""),
                hint="read it later, or give an earlier token or time",
                code="as_of_ahead",
            )


def note_ended(ended: Ended, shards: Iterable[tuple[str, int]]) -> None:
    """Adds shards with the epochs in which others have succeeded them."""
    for shard, epoch in shards:
        ended[shard] = max(epoch, ended.get(shard, epoch))


def cutter(cut: Cut, reader: PartitionReader, *, is_now: bool = False) -> Callable[[bytes | None], bytes | None]:
    """A function that cuts the messages of one partition, given in order; ``b""`` stands for nothing that is left.

    A message that can't be read says no place. It is kept until something was left out; ``is_now``: it is always kept,
    since another shard may have gone on within the cut, and owners void by it, too.
    """
    is_over = False

    def before(value: bytes | None) -> bytes | None:
        nonlocal is_over
        try:
            name, event = decode_folded(reader, value)
        except CodecError:
            return b"" if is_over and not is_now else value
        first = cut.get(event.get("shard", ""))
        if first is None or "ordinal" not in event:
            return value
        if name == "RowFrame" and (event["epoch"], event["ordinal"] + max(event["ordinals"], default=0)) < first:
            return value
        if name != "RowFrame":
            # a topology has the number of what is before it; a shard that began after a moment is left out from it on
            kept = (event["epoch"], event["ordinal"] + (name == "Topology" and not is_now)) < first
            is_over = is_over or not kept
            return value if kept else b""
        count = sum((event["epoch"], event["ordinal"] + each) < first for each in event["ordinals"])
        if count == len(event["ordinals"]):
            return value
        is_over = True
        return encode("RowFrame", _shortened(event, count)) if count else b""

    return before


def _shortened(frame: dict[str, Any], rows: int) -> dict[str, Any]:
    """The first ``rows`` rows of a frame; they end where a transaction does."""
    transactions, left = 0, rows
    while left > 0:
        left -= frame["transactions"][transactions]
        transactions += 1
    by_row, by_transaction = ("keys", "images", "operations", "ordinals"), ("transactions", "gtids", "timestamps")
    short = {name: frame[name][:rows] for name in by_row} | {
        name: frame[name][:transactions] for name in by_transaction
    }
    return frame | short | {name: frame[name][:transactions] for name in ("positions", "origins")}
