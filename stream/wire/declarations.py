"""What a shard says only once, kept so that it can be said again. Pure.

A reader may begin anywhere in the topic. So descriptions of tables, the scope, name bindings, the topology and the
schemas of records are repeated now and then, as the identical bytes: they keep their epoch and ordinal. That a backfill
is complete is repeated for the source itself, which learns from it what is left to do. (A reader that did not see it
begin has not seen its rows.)
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

from stream.wire.codec import (
    HEADER_SIZE,
    MAGIC,
    RECORDS,
    SKIPPED,
    CodecError,
    NewerWireError,
    PartitionReader,
    Record,
    encode,
    headers,
    is_of_unknown_schema,
    schema_texts,
)
from stream.wire.events import EVERY_TABLE, Column, DescribeTable, Topology

Key: TypeAlias = tuple[str, str]
"""Name of a record, and what it is about."""

KINDS: Final = ("SchemaText", "Topology", "Scope", "TableSchema", "TableBackfill", "NameBinding")
"""The records that are said again, in the order in which they are."""
_READ: Final = frozenset((*KINDS, "TableVoid", "EpochStart"))
_HEADERS: Final = {header: name for name in _READ for header in headers(name)}


class Declarations:
    """The declarations of one epoch of a shard. Fill it with `note` while writing, or with `read` from the topic."""

    def __init__(self, shard: str, epoch: int = 0) -> None:
        self.shard = shard
        self.epoch = epoch
        self.has_beginning = False
        """Whether the start of the epoch was read, so that nothing said before can be missing."""
        self.unreadable: CodecError | NewerWireError | None = None
        """Why a record of a newer version, which may be a declaration of this epoch, can't be read."""
        self._reader = PartitionReader()
        """A newer version may have written here before this one."""
        self._said: dict[str, dict[str, bytes]] = {kind: {} for kind in KINDS}
        self._gone: set[str] = set()
        """Tables that are not there. That such a one is complete is said once, or names would pile up."""

    def __len__(self) -> int:
        return sum(map(len, self._said.values()))

    def read(self, value: bytes) -> None:
        """Take over a message of the topic, in its order. Anything but a declaration of this epoch is passed over.

        A record of a newer version that no text before it announces, or that must be understood, may be a declaration:
        see `unreadable`. Raises `CodecError` for a known one that is malformed.
        """
        if not self._is_read(value):
            return
        try:
            name, record = self._reader.decode(value)
        except (CodecError, NewerWireError) as error:
            if not is_of_unknown_schema(value):
                raise
            self.unreadable = error
            return
        if name == SKIPPED:
            return
        if (record["shard"], record["epoch"]) != (self.shard, self.epoch):
            return
        if name == "EpochStart":
            self.has_beginning = True
            self.unreadable = None  # it was of an epoch before
        else:
            self.note(name, record, value)

    def _is_read(self, value: bytes) -> bool:
        """Whether a message is a declaration, in any version, or one of which that is not known."""
        header = value[:HEADER_SIZE]
        if not is_of_unknown_schema(value):
            return header in _HEADERS
        told = self._reader.texts.get(header[len(MAGIC) :])
        return told is None or told.name in _READ or not (told.skippable or told.name in RECORDS)

    def note(self, name: str, record: Record, value: bytes) -> None:
        """Record that the message ``value``, which is ``record``, is in the topic. Other records are passed over."""
        if name == "TableVoid":
            self._forget_backfill(record["table"])
        said = self._said.get(name)
        if said is None:
            return
        match name:
            case "TableSchema":
                _keep(said, record["table"], value, is_kept=bool(record["columns"]))
                (self._gone.discard if record["columns"] else self._gone.add)(record["table"])
            case "NameBinding":
                if record["previous_name"]:
                    self._forget_binding(record["previous_name"], record["table_id"])
                _keep(said, record["name"], value, is_kept=record["table_id"] > 0)
            case "Scope":
                said[""] = value
                tables = self._said["TableSchema"]
                for table in [each for each, known in tables.items() if self._of(known)["ordinal"] < record["ordinal"]]:
                    del tables[table]
                self._forget_backfill(EVERY_TABLE)
            case "TableBackfill":
                is_complete, is_gone = record["complete"], record["table"] in self._gone
                _keep(said, record["table"], value, is_kept=is_complete and not is_gone)
                if is_complete:
                    self._gone.discard(record["table"])
            case "SchemaText":
                said[record["fingerprint"].hex()] = value
            case "Topology":
                said[""] = value

    def _forget_backfill(self, table: str) -> None:
        complete = self._said["TableBackfill"]
        if table == EVERY_TABLE:
            complete.clear()
        else:
            complete.pop(table, None)

    def _forget_binding(self, name: str, table_id: int) -> None:
        """A renamed table leaves its old name, unless another table has that by now."""
        said = self._said["NameBinding"]
        value = said.get(name)
        if value is not None and self._of(value)["table_id"] == table_id:
            del said[name]

    def _of(self, value: bytes) -> Record:
        """The fields of what is kept, which a newer version may have written."""
        return self._reader.decode(value)[1]

    def keys(self) -> list[Key]:
        """What is to be said again, in order."""
        return [(kind, key) for kind in KINDS for key in self._said[kind]]

    def value(self, key: Key) -> bytes | None:
        """The message to say again, or None if it no longer holds."""
        kind, name = key
        return self._said[kind].get(name)

    @property
    def topology(self) -> Record | None:
        """The topology that the epoch has, or None."""
        value = self._said["Topology"].get("")
        return None if value is None else self._of(value)

    def descriptions(self) -> dict[str, DescribeTable]:
        """Table → its last description."""
        return {table: _description(self._of(value)) for table, value in self._said["TableSchema"].items()}

    def bindings(self) -> dict[str, int]:
        """Name of a catalog table → its id."""
        return {name: self._of(value)["table_id"] for name, value in self._said["NameBinding"].items()}

    def complete_tables(self) -> frozenset[str]:
        """The tables whose backfill is complete."""
        return frozenset(self._said["TableBackfill"])


class Speaker:
    """What a publisher says besides events: what its records look like, the topology, and everything once more."""

    def __init__(self, declared: Declarations) -> None:
        self.declared = declared
        self.repeated_from = -1
        """Offset from which the repetition that is under way, or the last one, can be read."""
        self._introduces = False
        self._topology: Topology | None = None
        self._to_repeat: deque[Key] = deque()

    def introduce(self, topology: Topology | None) -> None:
        """Let `introductions` say what the epoch does not have yet."""
        self._introduces, self._topology = True, topology

    def begin_epoch(self, epoch: int) -> None:
        """Forget what was said: a new epoch says everything itself. Ancestors of an ended history have no meaning."""
        if self.declared.epoch and self._topology is not None:
            self._topology = self._topology.in_a_new_epoch()
        self.declared = Declarations(self.declared.shard, epoch)
        self._to_repeat.clear()

    def introductions(self, ordinal: int) -> list[bytes]:
        """The schemas of this version's records, and the topology, as far as the epoch doesn't have them."""
        told = [
            self._declare("SchemaText", ordinal, text)
            for text in (schema_texts() if self._introduces else ())
            if self.declared.value(("SchemaText", text["fingerprint"].hex())) is None
        ]
        return told + self._new_topology(ordinal)

    def _new_topology(self, ordinal: int) -> list[bytes]:
        """The topology, unless the epoch has this one."""
        if self._topology is None:
            return []
        known, wanted = self.declared.topology, self._topology.fields()
        if known is not None and all(known[name] == value for name, value in wanted.items()):
            return []
        return [self._declare("Topology", ordinal, wanted)]

    def _declare(self, name: str, ordinal: int, fields: Record) -> bytes:
        record = {"shard": self.declared.shard, "epoch": self.declared.epoch, "ordinal": ordinal, **fields}
        value = encode(name, record)
        self.declared.note(name, record, value)
        return value

    def begin_repeat(self, offset: int) -> None:
        """Begin to say everything again; ``offset`` is before all of it."""
        self._to_repeat = deque(self.declared.keys())
        self.repeated_from = offset

    @property
    def is_repeating(self) -> bool:
        """Whether something is still to be said again."""
        return bool(self._to_repeat)

    def repeats(self, bytes_max: int) -> list[bytes]:
        """About the next ``bytes_max`` of them: what changed meanwhile as it is now, and nothing that is gone."""
        found: list[bytes] = []
        while self._to_repeat and (bytes_max > 0 or not found):
            value = self.declared.value(self._to_repeat.popleft())
            if value is not None:
                found.append(value)
                bytes_max -= len(value)
        return found


def _keep(said: dict[str, bytes], key: str, value: bytes, *, is_kept: bool) -> None:
    if is_kept:
        said[key] = value
    else:
        said.pop(key, None)


def _description(record: Record) -> DescribeTable:
    columns = tuple(Column(each["name"], each["kind"], each["exact"], each["sql_type"]) for each in record["columns"])
    key, prefix = tuple(record["primary_key"]), record["prefix"]
    return DescribeTable(record["table"], columns, key, record["cacheable"], record["reason"], prefix)
