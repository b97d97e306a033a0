"""Answers calls from the cache where it proves them: by the reader's list, or as of the end of the metastore's log.

A session is a connection. What brings a list and an id is proved by them. Anything else is proved as of a moment after
the call: the metastore is asked for the id of its last event, which costs it next to nothing, and the cache must have
folded the log up to there. So must it after a call that was passed on, since who has made it knows what it showed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

import structlog

from consumers.fold.objects import PARTITION
from consumers.owner.protocol import OwnerObjects, OwnerTable
from consumers.owner.tables import MissingWriteIds
from serving.errors import ReadError
from serving.reads.demands import ReadDemand, RequestedTable
from serving.reads.objects import ObjectReads, RequestedObjects
from serving.reads.owners import Owners
from serving.reads.proof import token_after
from serving.reads.spaces import TableSpace, epoch_of
from serving.reads.tables import TableReads
from serving.sources.hive_tables import position_of
from serving.thrift.calls import (
    Asked,
    ConstraintsCall,
    ListCall,
    OfTable,
    PartitionsCall,
    TableCall,
    asked_by,
    table_in,
)
from serving.thrift.log_end import LogEnd
from serving.thrift.messages import STOP, Head, field_bytes, list_bytes, reply
from serving.thrift.shown import Shown
from stream.sources.hive.partition_names import partition_name, told_by, values_of
from stream.sources.hive.structs import LIST, STRING, STRUCT, decode_struct
from stream.wire.keys import object_parts
from tokens import FreshetError, Position, Vector

log = structlog.get_logger(__name__)

Found = TypeVar("Found", OwnerTable, OwnerObjects)
AT_ONCE: Final = 10_000
CONSTRAINTS: Final = "constraints"
TABLES_MAX: Final = 100_000
LISTLESS_S: Final = 5.0
"""How long a table that needs a list is not looked for without one: engines make several such calls in a row."""
_PLAIN: Final = re.compile("[A-Za-z0-9-]*")
"""Values that a metastore compares as they are: others it may take for patterns (``getPartitionNamesPs``)."""


@dataclass(slots=True)
class Session:
    """What a connection knows. ``moved``: it was shown something that ``token`` does not have."""

    token: str = ""
    moved: bool = False


class Outcome(NamedTuple):
    """The reply to a call. None: it is the metastore's, and ``learn`` is told what that returns."""

    reply: bytes | None = None
    learn: Callable[[bytes], None] | None = None


PASSED_ON: Final = Outcome()


class Answers:
    """Belongs to one event loop, and to one catalog."""

    def __init__(
        self,
        space: TableSpace,
        owners: Owners,
        tables: TableReads,
        objects: ObjectReads,
        log_end: LogEnd,
        shown: Shown,
        now_ms: Callable[[], int],
        *,
        catalog: str,
        max_wait_ms: int,
        max_staleness_ms: int,
    ) -> None:
        """``catalog``: what the metastore calls it. ``max_wait_ms``: for the cache to fold up to the end of the log.

        ``max_staleness_ms``: how old an answer without a list may be, in place of asking for that end; 0: not at all.
        """
        self._space = space
        self._owners = owners
        self._tables = tables
        self._objects = objects
        self._log_end = log_end
        self._shown = shown
        self._now_ms = now_ms
        self._catalog = catalog
        self._max_wait_ms = max_wait_ms
        self._max_staleness_ms = max_staleness_ms
        self._keys: dict[tuple[int, int], tuple[str, ...]] = {}
        """Epoch and table id → partition columns. No statement renames them, adds one or takes one away."""
        self._needs_list: dict[tuple[str, str], float] = {}
        """Database and table → until when a call without a list is the metastore's. It may be another table then."""
        self.may_answer = True
        """False: all is the metastore's."""

    async def answer(self, head: Head, arguments: bytes, session: Session) -> Outcome:
        """The outcome of a call. Never raises: what can't be understood is the metastore's."""
        if not self.may_answer:
            return PASSED_ON
        try:
            asked = asked_by(head.name, decode_struct(arguments), self._catalog)
            result = await self._answer(asked, session) if asked is not None else PASSED_ON
        except (FreshetError, ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
            log.debug("a call is passed on", call=head.name, why=str(error))
            return PASSED_ON
        if not isinstance(result, bytes):
            return result
        return Outcome(reply(head.name, head.sequence, result))

    async def _answer(self, asked: Asked, session: Session) -> bytes | Outcome:
        match asked:
            case TableCall():
                return await self._table(asked, session)
            case PartitionsCall():
                return await self._partitions(asked, session)
            case ListCall():
                return await self._list(asked, session)
            case ConstraintsCall():
                return await self._constraints(asked, session)

    async def _table(self, asked: TableCall, session: Session) -> bytes | Outcome:
        found = await self._proved(asked.of, session, partial(self._read_table, asked.of))
        if found is None or found.struct is None:
            return PASSED_ON
        listed, stored = asked.of.write_ids, found.struct
        result = self._shown.get(self._shown.facts_of(stored), asked.reader, listed)
        if result is not None:
            _take_along(session, found)
            return result

        def learn(seen: bytes) -> None:
            shown = table_in(decode_struct(seen))
            if shown is not None:
                self._shown.learn(stored, asked.reader, listed, seen, shown)

        return Outcome(learn=learn)

    async def _partitions(self, asked: PartitionsCall, session: Session) -> bytes | Outcome:
        values = dict.fromkeys(told_by(values_of(name)) for name in asked.names)
        if not values:
            return PASSED_ON
        wanted = RequestedObjects(PARTITION, names=tuple(values))
        found = await self._proved(asked.of, session, partial(self._read_objects, asked.of, wanted))
        keys = await self._keys_of(found, asked.of, session)
        if found is None or any(_named(keys, told_by(values_of(name))) != name for name in asked.names):
            return PASSED_ON
        names = [_named(keys, object_parts(each)) for each in found.names]
        stored = sorted((name, each) for name, each in zip(names, found.structs, strict=True) if each is not None)
        is_altered = asked.processor and not all(self._shown.is_unbucketed(each) for _, each in stored)
        if len(stored) != found.count or is_altered:
            return PASSED_ON
        if asked.with_privileges and await self._may_have_privileges(asked.of, session):
            return PASSED_ON
        _take_along(session, found)
        return _list_result(STRUCT, [each for _, each in stored], in_struct=asked.in_struct)

    async def _list(self, asked: ListCall, session: Session) -> bytes | Outcome:
        if asked.limit != -1 or not all(_PLAIN.fullmatch(each) for each in asked.values):
            return PASSED_ON
        wanted = RequestedObjects(PARTITION, prefix=asked.values, limit=AT_ONCE, names_only=asked.names_only)
        found = await self._proved(asked.of, session, partial(self._read_objects, asked.of, wanted))
        keys = await self._keys_of(found, asked.of, session)
        if found is None or not keys or len(asked.values) > len(keys):
            return PASSED_ON
        if asked.with_privileges and await self._may_have_privileges(asked.of, session):
            return PASSED_ON
        names = [_named(keys, object_parts(each)) for each in found.names]
        if asked.names_only:
            _take_along(session, found)
            raw = [name.encode() for name in sorted(names)]
            written = [len(each).to_bytes(4, "big") + each for each in raw]
            return _list_result(STRING, written, in_struct=asked.in_struct)
        stored = [each for _, each in sorted(zip(names, found.structs, strict=True)) if each is not None]
        if len(stored) != len(names):
            return PASSED_ON
        _take_along(session, found)
        return _list_result(STRUCT, stored, in_struct=asked.in_struct)

    async def _may_have_privileges(self, of: OfTable, session: Session) -> bool:
        """Whether the table's partitions may have privileges of their own, which a metastore shows with them."""
        table = await self._proved(of, session, partial(self._read_table, of))
        return table is None or table.struct is None or b"PARTITION_LEVEL_PRIVILEGE" in table.struct

    async def _constraints(self, asked: ConstraintsCall, session: Session) -> bytes | Outcome:
        wanted = RequestedObjects(CONSTRAINTS, names=((),))
        found = await self._proved(asked.of, session, partial(self._read_objects, asked.of, wanted))
        if found is None or not found.structs or found.structs[0] is None:
            return PASSED_ON
        _take_along(session, found)
        return field_bytes(0, STRUCT, field_bytes(1, STRUCT, found.structs[0]) + STOP) + STOP

    async def _read_table(self, of: OfTable, demand: ReadDemand) -> OwnerTable | None:
        return await self._tables.read_struct(self._space, self._requested(of), demand)

    async def _read_objects(self, of: OfTable, wanted: RequestedObjects, demand: ReadDemand) -> OwnerObjects | None:
        wanted = wanted._replace(table=self._requested(of))
        return await self._objects.read_structs(self._space, wanted, demand)

    def _requested(self, of: OfTable) -> RequestedTable:
        return RequestedTable(self._space.name, of.db, of.table, of.write_ids, of.table_id)

    async def _proved(
        self, of: OfTable, session: Session, read: Callable[[ReadDemand], Awaitable[Found | None]]
    ) -> Found | None:
        """What ``read`` finds if it is proved for the session; None: it is not."""
        name, now_s = (of.db, of.table), asyncio.get_running_loop().time()
        if of.write_ids is None and self._needs_list.get(name, 0.0) > now_s:
            return None
        try:
            return await self._prove(of, session, read)
        except ReadError as error:
            if error.code == MissingWriteIds.code:
                if len(self._needs_list) >= TABLES_MAX:
                    self._needs_list.clear()
                self._needs_list[name] = now_s + LISTLESS_S
            return None

    async def _prove(
        self, of: OfTable, session: Session, read: Callable[[ReadDemand], Awaitable[Found | None]]
    ) -> Found | None:
        if not session.moved:
            not_before_ms = 0
            is_bounded = of.write_ids is None and self._max_staleness_ms > 0
            if is_bounded:
                not_before_ms = self._now_ms() - self._max_staleness_ms
            if is_bounded or (of.write_ids is not None and of.table_id):
                found = await read(self._demand(session, 0, not_before_ms))
                if found is not None and (is_bounded or found.write_ids):  # a list proves nothing of what has none
                    return found
        end = await self._move(session)
        if end is None:
            return None
        found = await read(self._demand(session, self._max_wait_ms))
        return found if found is not None and await self._is_logged(found, end) else None

    async def _is_logged(self, found: OwnerTable | OwnerObjects, end: int) -> bool:
        """Whether the log, which ended at ``end``, has all that ``found`` was proved by.

        Else events have followed since, or the metastore was set back, and nobody has told the owner yet.
        """
        folded = [Position.parse(each) for each in (found.watermark, found.hi) if each]
        if all(position_of(end).at_or_past(each) for each in folded):
            return True
        try:
            end = await self._log_end.now()
        except ReadError:
            return False
        return all(position_of(end).at_or_past(each) for each in folded)

    def _demand(self, session: Session, max_wait_ms: int, not_before_ms: int = 0) -> ReadDemand:
        vector = Vector.parse(session.token) if session.token else Vector()
        return ReadDemand(vector, bool(session.token), max_wait_ms, not_before_ms)

    async def _move(self, session: Session) -> int | None:
        """Moves the session to the end of the metastore's log, and returns it. None: that is not known."""
        source = self._space.source
        if source is None:
            return None
        # before the end: one of a history that is replaced meanwhile would be out of reach in the next one's epoch
        epoch = await epoch_of(self._owners, self._space, source.shard)
        if epoch is None:
            return None
        try:
            end = await self._log_end.now()
        except ReadError:
            return None
        session.token = token_after(session.token, source.shard, epoch, str(position_of(end)))
        session.moved = False
        return end

    async def _keys_of(self, found: OwnerObjects | None, of: OfTable, session: Session) -> tuple[str, ...]:
        """The partition columns of the table that ``found`` is of; none if they are not known."""
        if found is None:
            return ()
        key = found.epoch, found.table_id
        keys = self._keys.get(key)
        if keys is None:
            seen = Session(token_after(session.token, found.shard, found.epoch, found.hi))
            table = await self._read_table(of._replace(table_id=found.table_id), self._demand(seen, 0))
            if table is None or table.struct is None:
                return ()
            if len(self._keys) >= TABLES_MAX:
                self._keys.clear()
            keys = self._keys[key] = self._shown.facts_of(table.struct).partition_keys
        return keys


def _list_result(kind: int, values: Sequence[bytes], *, in_struct: bool) -> bytes:
    """The result of a call that returns a list, or a struct with nothing else in it."""
    listed = list_bytes(kind, values)
    if in_struct:
        return field_bytes(0, STRUCT, field_bytes(1, LIST, listed) + STOP) + STOP
    return field_bytes(0, LIST, listed) + STOP


def _named(keys: Sequence[str], values: Sequence[str]) -> str:
    return partition_name(keys, values) if len(keys) == len(values) else ""


def _take_along(session: Session, found: OwnerTable | OwnerObjects) -> None:
    session.token = token_after(session.token, found.shard, found.epoch, found.hi)
