"""The state of a catalog table and of a name binding, and their canonical bytes. Pure values.

The bytes are a msgpack array in fixed order with sorted lists, so that equal histories give equal bytes. A table's key
is ``0x01``, ``t`` and its decimal id, so a rename does not move it. A binding's key is ``0x00 name/`` and the name;
every partition holds all bindings.
"""

from __future__ import annotations

from typing import Final

import msgspec

from consumers.fold.state import CATALOG, NAME_PREFIX, TABLE, Rejection
from stream.wire.canonical import UNDECODABLE
from tokens.errors import FreshetError
from tokens.writeid_state import WriteIds

TRANSACTIONAL: Final = "transactional"
EXTERNAL: Final = "external"
UNKNOWN_WRITER: Final = (0, 0)
"""In `TableState.pending`: a writer whose ALLOC was lost may be open. The server's own list removes it."""


class CatalogStateError(FreshetError, ValueError):
    """Stored bytes are not a valid catalog state; code ``bad_state``."""

    code = "bad_state"


class CatalogChanges(dict[bytes, bytes]):
    """The entries that change, those that go (`consumers.fold.state.Changes`), and the parts that were rejected."""

    rejections: tuple[Rejection, ...] = ()
    gone: tuple[bytes, ...] = ()


class StagedImage(msgspec.Struct, array_like=True):
    """What an open transaction wrote, if the source undoes it on ABORT."""

    txn: int
    ordinal: int
    image: bytes | None
    struct: bytes | None = None


class TableState(msgspec.Struct, array_like=True):
    """Everything folded about one table.

    ``image`` is servable iff `waits_for` is empty: it follows the last write event, and no transaction that wrote the
    table is pending (docs/concepts/catalog.md).
    """

    table_id: int
    shard: str
    epoch: int
    ordinal: int
    """Of the last event folded. Events of the lineage at or below it are duplicates."""
    name: str = ""
    kind: str = TRANSACTIONAL
    exists: bool = False
    """False with ``created`` 0: only allocations were folded so far (ALLOC may precede CREATE)."""
    created: int = 0
    """Ordinal of the CREATE, or of the DROP if the table does not exist."""
    ids: WriteIds = msgspec.field(default_factory=WriteIds)
    image: bytes | None = None
    lo: str = ""
    """Position before the image was read: it decides freshness."""
    hi: str = ""
    """Nothing in the image is later; the session adopts it."""
    image_ordinal: int = 0
    """Of the event that brought the image; 0: no image yet."""
    write_ordinal: int = 0
    write_position: str = ""
    """Of the last write event: the image must follow it."""
    pending: list[tuple[int, int]] = []
    """(transaction, write id) of writers that have not ended, if the source does not undo writes. Sorted."""
    staged: list[StagedImage] = []
    """Sorted by transaction. The committed image stays servable meanwhile."""
    void: str = ""
    """Why the image may not be served until a new one arrives; "" if it may."""
    list_ordinal: int = 0
    """Of the CREATE or the server's own list: since then every ALLOC has been folded. 0: neither has arrived."""
    partial: bool = False
    """Events before the first one folded are unknown: writers that had begun then may still commit."""
    struct: bytes | None = None
    """The whole table as Thrift, beside ``image``."""
    objects_void: int = 0
    """Ordinal of the last void, or of the first event: what belongs to the table and is not newer is void."""

    @property
    def is_dropped(self) -> bool:
        """Whether it was dropped, and not created again."""
        return bool(self.created) and not self.exists

    def waits_for(self) -> str:
        """Why the image may not be served yet; "" if it may."""
        if not self.exists:
            return "the table does not exist" if self.created else "its CREATE has not arrived"
        if self.void:
            return self.void
        if self.partial:
            return "its history was folded from the middle: an image with the server's own list is awaited"
        if self.pending:
            txn, write_id = self.pending[0]
            if self.pending[0] == UNKNOWN_WRITER:
                return "events were lost: its writers are unknown until the server's list arrives"
            return f"write id {write_id} of transaction {txn or '(unknown)'} wrote it and is still pending"
        if self.image is None or not self.image_ordinal:
            return f"no image yet; the last write was at {self.write_position or 'an unknown position'}"
        if self.image_ordinal < self.write_ordinal:
            return f"written at {self.write_position}; the image that follows has not arrived"
        return ""

    def staged_by(self, txn: int) -> StagedImage | None:
        """What ``txn`` has staged, if anything."""
        return next((each for each in self.staged if each.txn == txn), None)


class Binding(msgspec.Struct, array_like=True):
    """Which table a name is bound to; ``table_id`` 0: no table."""

    table_id: int
    shard: str
    epoch: int
    ordinal: int


_encode = msgspec.msgpack.Encoder().encode
_table = msgspec.msgpack.Decoder(TableState).decode
_binding = msgspec.msgpack.Decoder(Binding).decode


def table_key(table_id: int) -> bytes:
    """Store key of a table's state."""
    return CATALOG + TABLE + str(table_id).encode()


def name_key(name: str) -> bytes:
    """Store key of a name's binding; ``name`` is ``db.table``."""
    return NAME_PREFIX + name.encode()


def encode_table(state: TableState) -> bytes:
    """Canonical bytes of ``state``."""
    return _encode(state)


def decode_table(value: bytes) -> TableState:
    """The state in ``value``; raises `CatalogStateError`."""
    try:
        return _table(value)
    except UNDECODABLE as error:
        raise CatalogStateError(f"invalid table state: {error}", hint="rebuild the partition") from error


def encode_binding(binding: Binding) -> bytes:
    """Canonical bytes of ``binding``."""
    return _encode(binding)


def decode_binding(value: bytes) -> Binding:
    """The binding in ``value``; raises `CatalogStateError`."""
    try:
        return _binding(value)
    except UNDECODABLE as error:
        raise CatalogStateError(f"invalid name binding: {error}", hint="rebuild the partition") from error
