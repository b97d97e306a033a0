"""Puts the messages of all partitions together into whole transactions, in the order of each shard. Pure.

A marker says: every event of this shard up to ordinal N is before me in this partition. So once each partition has
shown a marker of N or later, all events up to N are here. They are given out in the order of their ordinals. A marker
never names an ordinal in the middle of a transaction, so transactions are whole. Shards are not ordered among each
other.

What waits for markers is held in memory, up to ``held_bytes_max``. Beyond it images are let go: their rows become
VOID (changed, image unknown), as rows above the wire's limit are. Beyond twice of it, keys go too, and their tables
become void. So a transaction of any size takes bounded memory, and nothing is left out.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final

from stream.changes.anchors import Anchors
from stream.changes.checkpoint import NOWHERE, Checkpoint, Place
from stream.changes.items import Event, Item, Mark, RowEvent, Transaction, Unreadable, Watermark
from stream.changes.pieces import ROW_OVERHEAD, Piece, piece_of, put_before, without_images, without_keys
from stream.changes.start import LeavesOut, Start
from stream.wire.announced import Announced
from stream.wire.checks import check
from stream.wire.codec import BAD_FIELD, HEADER_SIZE, SKIPPED, CodecError, PartitionReader, Record, headers
from stream.wire.records import follows_a_gap
from tokens import Position, TokenError
from tokens.errors import FreshetError

HELD_BYTES_MAX: Final = 64 * 1024 * 1024
_MARK_BYTES: Final = 400
_STATES: Final = headers("SourceState")
_UNNUMBERED: Final = frozenset({"SourceState", "Topology", SKIPPED})
_BEFORE: Final = "BeforeImages"


class LogReplaced(FreshetError):
    """Kafka has lost the end of a partition, and it was filled again. Numbers of events may mean others now."""

    code = "checkpoint_lost"


@dataclass(slots=True)
class _Shard:
    """What is known of a shard. Lists have an element for each partition."""

    done: Place
    """Everything up to here has been given out or left out."""
    frontier: list[Place]
    seen: list[Place]
    pieces: list[list[Piece]]
    skip: LeavesOut | None
    last: list[dict[int, Place]]
    """Epoch → the last marker of it, from the epoch of ``done`` on."""
    over: dict[int, int] = field(default_factory=dict)
    """Partition → the offset at which a successor has named it: nothing of it follows."""
    links: dict[int, Place] = field(default_factory=dict)
    """Partition → epoch and continuity of its last marker."""
    marks: dict[Place, Mark] = field(default_factory=dict)
    """Those that some partition has not reached yet, and the last one that all have."""
    ahead: dict[int, deque[tuple[Place, int]]] = field(default_factory=lambda: defaultdict(deque))
    """Partition → its markers after ``done``, and their offsets: whoever goes on there must be shown them again."""

    @property
    def reached(self) -> Place:
        """What all partitions have shown. One that is in a later epoch may have lost the end of this one."""
        epoch = min(self.frontier).epoch
        return min(last.get(epoch, NOWHERE) for last in self.last)


class Assembler:
    """Feed it messages, in the order of each partition; take what is complete.

    ``earlier``: for each partition what is announced before its beginning, as of `PartitionReader`; (): nothing is.
    """

    def __init__(
        self,
        start: Start,
        held_bytes_max: int = HELD_BYTES_MAX,
        earlier: Sequence[Iterable[Mapping[bytes, Announced]]] = (),
    ) -> None:
        self._from = start.checkpoint
        self._unheard = dict(start.skips)
        """Shard → what will be left out of it, of shards that nothing was read of."""
        self.skip_others = start.skip_others
        self._next = list(start.checkpoint.offsets)
        """Partition → the offset after the last message."""
        self._anchors = Anchors(start.checkpoint)
        self._safe, self._held_by = start.checkpoint.offsets, start.checkpoint.anchors
        self._limit = held_bytes_max
        texts: dict[bytes, Announced] = {}
        self._readers = [PartitionReader(texts, each) for each in earlier or [()] * len(self._next)]
        self._unreadable: list[tuple[int, int, str, str]] = []
        self._shards: dict[str, _Shard] = {}
        self._marks: dict[str, Mark] = {}
        self._moved: set[str] = set()
        self._lets_go: Callable[[Piece], None] | None = None
        """What is taken out of pieces, since more is held than may be."""
        self.held_bytes = 0
        for shard, place in start.checkpoint.places.items():
            self._shards[shard] = self._new_shard(place, self._unheard.pop(shard, None))
        for partition, (shard, link) in start.links.items():
            if shard in self._shards:
                self._shards[shard].links[partition] = link

    def _new_shard(self, done: Place, skip: LeavesOut | None) -> _Shard:
        count = len(self._next)
        last = [{done.epoch: done} for _ in range(count)]
        return _Shard(done, [done] * count, [done] * count, [[] for _ in range(count)], skip, last)

    @property
    def held(self) -> int:
        """Bytes that wait for markers, about."""
        return self.held_bytes + _MARK_BYTES * sum(len(shard.marks) for shard in self._shards.values())

    @property
    def left_out(self) -> dict[str, LeavesOut]:
        """Shard → what more of it is left out, of shards that have not come to the beginning."""
        heard = {name: shard.skip for name, shard in self._shards.items() if shard.skip is not None}
        return {**self._unheard, **heard}

    @property
    def places(self) -> dict[str, Place]:
        """Shard → what has been given out, or left out, up to here."""
        return {name: shard.done for name, shard in self._shards.items()}

    @property
    def offsets(self) -> tuple[int, ...]:
        """Partition → the offset after the last message that was fed."""
        return tuple(self._next)

    @property
    def checkpoint(self) -> Checkpoint:
        """Goes on after all that has been taken."""
        return Checkpoint(self._from.keyspace, self._from.topic_id, self._safe, self.places, self._held_by)

    def behind(self) -> set[int]:
        """The partitions that hold back what is held: they are before the furthest one."""
        found: set[int] = set()
        for shard in self._shards.values():
            if shard.marks or any(shard.pieces):
                furthest = max(shard.frontier)
                found |= {partition for partition, place in enumerate(shard.frontier) if place < furthest}
        return found

    # --- in ---

    def feed(self, partition: int, offset: int, value: bytes | None) -> None:
        """Takes one message; passes over one that it had.

        Raises `NewerWireError`, `LogReplaced`, and what ``earlier`` does.
        """
        if offset < self._next[partition]:
            return
        self._next[partition] = offset + 1
        if value is None or value[:HEADER_SIZE] in _STATES:
            if value is None:
                self._unreadable.append((partition, offset, "not_freshet", "the message has no value"))
            return
        try:
            name, record = self._readers[partition].decode(value)
            if name not in _UNNUMBERED:
                check(name, record)
                _check_positions(name, record)
        except CodecError as error:
            self._unreadable.append((partition, offset, error.code, str(error)))
            return
        if name == "Topology":
            self._end_ancestors(partition, offset, record)
        elif name == _BEFORE:
            self._add_before(partition, record)
            self._anchors.follow(partition)
        elif name not in _UNNUMBERED and name != "SchemaText":
            self._add(partition, offset, name, record)
            if name == "Marker":
                self._anchors.add(partition, offset, value)
            else:
                self._anchors.follow(partition)

    def _end_ancestors(self, partition: int, offset: int, topology: Record) -> None:
        """Forgets what its successor found half published of a shard: the successor publishes it, as its own."""
        for each in (*topology["ancestors"], *topology["succeeded"]):
            shard = self._shards.get(each["shard"])
            if shard is None or partition in shard.over:
                continue
            shard.over[partition] = offset
            self._moved.add(each["shard"])
            end = shard.frontier[partition]
            for piece in shard.pieces[partition]:
                self.held_bytes -= piece.size if piece.last > end else 0
            shard.pieces[partition] = [piece for piece in shard.pieces[partition] if piece.last <= end]

    def _add(self, partition: int, offset: int, name: str, record: Record) -> None:
        shard = self._shards.get(record["shard"])
        if shard is None:
            skip = self._unheard.pop(record["shard"], self.skip_others)
            shard = self._shards[record["shard"]] = self._new_shard(NOWHERE, skip)
        if name == "Marker":
            _check_chain(partition, shard, record)
            self._mark(partition, offset, shard, record)
            return
        pieces = self._frame(offset, record) if name == "RowFrame" else [piece_of(offset, name, record)]
        for piece in pieces:
            if piece.last <= shard.seen[partition]:
                continue  # said again
            shard.seen[partition] = piece.last
            if self._lets_go is not None:
                self._lets_go(piece)
            shard.pieces[partition].append(piece)
            self.held_bytes += piece.size
        self._let_go()

    def _add_before(self, partition: int, record: Record) -> None:
        """What rows were before, of pieces that this partition has shown since its last marker."""
        shard = self._shards.get(record["shard"])
        if shard is None or self._lets_go is not None:
            return
        epoch, base = record["epoch"], record["ordinal"]
        images = {base + each: image for each, image in zip(record["ordinals"], record["images"], strict=True)}
        first = Place(epoch, min(images))
        for piece in reversed(shard.pieces[partition]):
            if piece.last < first:
                break
            if piece.first.epoch == epoch:
                self.held_bytes += put_before(piece, images)
        self._let_go()

    def _mark(self, partition: int, offset: int, shard: _Shard, record: Record) -> None:
        self._moved.add(record["shard"])
        place = Place(record["epoch"], record["ordinal"])
        if place < shard.frontier[partition]:
            return
        if place > shard.frontier[partition]:
            shard.ahead[partition].append((place, offset))
            self._anchors.follow(partition)  # it may be read again, from behind the marker before
        shard.frontier[partition] = shard.last[partition][place.epoch] = place
        shard.marks[place] = Mark(place, record["position"], record["timestamp"], record["as_of_ms"])

    def _frame(self, offset: int, frame: Record) -> Iterator[Piece]:
        epoch, base, at = frame["epoch"], frame["ordinal"], 0
        positions, origins = frame["positions"], frame["origins"]
        for number, count in enumerate(frame["transactions"]):
            end = at + count
            events: list[Event] = [
                RowEvent(base + ordinal, key, operation, image)
                for ordinal, key, operation, image in zip(
                    frame["ordinals"][at:end],
                    frame["keys"][at:end],
                    frame["operations"][at:end],
                    frame["images"][at:end],
                    strict=True,
                )
            ]
            size = sum(map(len, frame["keys"][at:end])) + sum(map(len, frame["images"][at:end]))
            gtid = frame["gtids"][number]
            yield Piece(
                Place(epoch, events[0].ordinal),
                Place(epoch, events[-1].ordinal),
                offset,
                gtid,
                positions[number] if positions else gtid,
                frame["timestamps"][number],
                origins[number] if origins else "",
                events,
                size + count * ROW_OVERHEAD,
            )
            at = end

    def _let_go(self) -> None:
        """Takes images, and if that is not enough keys, out of what is held and out of what comes next."""
        if self.held_bytes <= self._limit or self._lets_go is without_keys:
            return
        self._lets_go = without_keys if self._lets_go is without_images else without_images
        for shard in self._shards.values():
            for piece in (each for pieces in shard.pieces for each in pieces):
                self.held_bytes -= piece.size
                self._lets_go(piece)
                self.held_bytes += piece.size

    # --- out ---

    def take(self) -> list[Item]:
        """What has become complete: transactions, what can't be read, and at the end how far everything is."""
        items: list[Item] = []
        moved, self._moved = self._moved, set()
        for name in sorted(moved):
            items += self._release(name, self._shards[name])
        if self.held_bytes <= self._limit // 2:
            self._lets_go = None
        unreadable, self._unreadable = self._unreadable, []
        if not moved and not unreadable:
            return items
        held = [self._first_held(partition) for partition in range(len(self._next))]
        self._safe, self._held_by = self._anchors.before(held)
        self._forget_ended()
        checkpoint = self.checkpoint
        items += [Unreadable(*each, checkpoint) for each in unreadable]
        items.append(Watermark(dict(self._marks), checkpoint, self.offsets))
        return items

    def _forget_ended(self) -> None:
        """Takes out the shards that are over, once checkpoints lie behind all of them.

        One that ended before the stream's beginning never reaches it, so nobody must wait for that.
        """
        for name in [name for name, shard in self._shards.items() if self._is_over(shard)]:
            if all(self._safe[partition] > offset for partition, offset in self._shards[name].over.items()):
                del self._shards[name]
                if name in self._marks:
                    self._marks[name] = self._marks[name]._replace(is_over=True)

    def _first_held(self, partition: int) -> int:
        """The offset of the first message that is still needed, else of the next message.

        That is one of which something is held, or a marker that other partitions have not reached.
        """
        shards = self._shards.values()
        held = [shard.pieces[partition][0].offset for shard in shards if shard.pieces[partition]]
        ahead = [
            shard.ahead[partition][0][1] for shard in shards if shard.ahead[partition] and not self._is_over(shard)
        ]
        return min([self._next[partition], *held, *ahead])

    def _is_over(self, shard: _Shard) -> bool:
        """Whether nothing of it follows in any partition."""
        return len(shard.over) == len(self._next)

    def _release(self, name: str, shard: _Shard) -> Iterator[Transaction]:
        until = shard.reached
        if until < shard.done or until not in shard.marks:
            return
        before = _size(shard)
        pieces = _whole(shard, until)
        self.held_bytes += _size(shard) - before
        for (_, gtid), parts in groupby(pieces, key=lambda piece: (piece.first.epoch, piece.gtid)):
            transaction = self._transaction(name, shard, gtid, list(parts))
            if transaction is not None:
                yield transaction
        shard.done = until
        for markers in shard.ahead.values():
            while markers and markers[0][0] <= until:
                markers.popleft()
        # A later marker of the same ordinal, of a partition that is ahead, holds here too: no event is between them.
        mark = shard.marks[until]
        told = max(mark.timestamp, mark.as_of_ms // 1000)
        if shard.skip is not None and shard.skip.is_reached(mark.place, mark.position, told):
            shard.skip = None
        if shard.skip is None:  # before its beginning: what follows the mark may be left out
            self._marks[name] = mark
        shard.marks = {place: each for place, each in shard.marks.items() if place > until}

    def _transaction(self, name: str, shard: _Shard, gtid: str, parts: Sequence[Piece]) -> Transaction | None:
        last = max(piece.last for piece in parts)
        position = next((piece.position for piece in parts if piece.position), gtid)
        head = parts[0]
        shard.done = last
        if len(parts) == 1:
            events: Sequence[Event] = head.events
        else:
            by_ordinal = {event.ordinal: event for piece in parts for event in piece.events}  # said to all partitions
            events = [by_ordinal[ordinal] for ordinal in sorted(by_ordinal)]
        if shard.skip is not None:
            told = shard.skip.told(last, position, head.timestamp, events)
            if told is None:
                return None
            shard.skip, events = None, told
        size = sum(piece.size for piece in parts)
        return Transaction(name, last, gtid, position, head.timestamp, head.origin, events, self.checkpoint, size)


def _check_chain(partition: int, shard: _Shard, marker: Record) -> None:
    """Raises `LogReplaced` if the marker follows another one than the last: as `consumers.fold.markers`."""
    epoch, held = shard.links.get(partition, NOWHERE)
    if epoch == marker["epoch"] and follows_a_gap(held, marker):
        raise LogReplaced(
            f"Kafka lost or replaced records of {marker['shard']} in partition {partition}",
            hint="read anew, and start from a second or from now",
        )
    if marker["epoch"] > epoch or (marker["epoch"] == epoch and marker["continuity"]):
        shard.links[partition] = Place(marker["epoch"], marker["continuity"])


def _check_positions(name: str, record: Record) -> None:
    """Raises `CodecError` if a text is no position: no token could be made of it, and each reader would end here."""
    if name == "RowFrame":
        texts = [*record["gtids"], *record["positions"]]
    else:
        texts = [record.get("gtid", ""), record.get("position", "")]
    try:
        for text in texts:
            Position.parse(text)
    except TokenError as error:
        raise CodecError(f"{name}: {error}", code=BAD_FIELD) from error


def _size(shard: _Shard) -> int:
    return sum(piece.size for held in shard.pieces for piece in held)


def _whole(shard: _Shard, until: Place) -> list[Piece]:
    """Takes out the pieces up to ``until``, in order; without those of an epoch that ended before they were whole."""
    found: list[Piece] = []
    for held in shard.pieces:
        count = next((at for at, piece in enumerate(held) if piece.last > until), len(held))
        found += held[:count]
        del held[:count]
    found.sort(key=attrgetter("first"))
    if until.epoch == shard.done.epoch:
        return found
    epochs = {piece.last.epoch for piece in found}
    whole = {epoch: min(until, *(last.get(epoch, NOWHERE) for last in shard.last)) for epoch in epochs}
    shard.last = [{epoch: last[epoch] for epoch in last if epoch >= until.epoch} for last in shard.last]
    return [piece for piece in found if piece.last <= whole[piece.last.epoch]]
