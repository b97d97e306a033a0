"""The state of one catalog table as bytes, and of one name binding. Pure values.

Canonical: a msgpack array of fixed order with sorted lists, so that equal histories give equal bytes. A table's key is
``0x01`` and its decimal id (a rename stays put); a binding's is ``0x00 name/`` and the name, and every partition has
all bindings.
"""

from __future__ import annotations

from typing import Final

import msgspec

from consumers.fold.state import CATALOG, NAME_PREFIX
from tokens.errors import FreshetError
from tokens.writeid_state import WriteIds

TRANSACTIONAL: Final = "transactional"
EXTERNAL: Final = "external"
UNKNOWN_WRITER: Final = (0, 0)
"""Pending where a writer may be open that was never heard of; the server's own list ends it."""


class CatalogStateError(FreshetError, ValueError):
    """Stored bytes that are no catalog state; code ``bad_state``."""

    code = "bad_state"


class StagedImage(msgspec.Struct, array_like=True):
    """What an open transaction wrote, where the source undoes it on ABORT."""

    txn: int
    ordinal: int
    image: bytes | None


class TableState(msgspec.Struct, array_like=True):
    """Everything folded about one table.

    ``image`` answers a demand iff `waits_for` is empty: it follows the last write event, and no transaction that wrote
    the table is pending (docs/concepts/catalog.md).
    """

    table_id: int
    shard: str
    epoch: int
    ordinal: int
    """Of the last event folded; events of the lineage that are not above it are duplicates."""
    name: str = ""
    kind: str = TRANSACTIONAL
    exists: bool = False
    """False with ``created`` 0: only allocations were seen, the table is not there yet (ALLOC may precede CREATE)."""
    created: int = 0
    """Ordinal at which it came to be, or was dropped."""
    ids: WriteIds = msgspec.field(default_factory=WriteIds)
    image: bytes | None = None
    lo: str = ""
    """Position before the image was read: it decides freshness."""
    hi: str = ""
    """Nothing in the image is later: the session takes it away."""
    image_ordinal: int = 0
    """Of the event that brought the image; 0: none did."""
    write_ordinal: int = 0
    write_position: str = ""
    """Of the last write event: the image must follow it."""
    pending: list[tuple[int, int]] = []
    """(transaction, write id) of writers whose end has not come, where the source does not undo writes. Sorted."""
    staged: list[StagedImage] = []
    """By transaction; the committed image stays servable beside them."""
    void: str = ""
    """Why the image may not be served until a new one comes, else empty."""
    list_ordinal: int = 0
    """Of the event since which all its ALLOCs were heard: its CREATE, or the server's own list. 0: none came."""

    def waits_for(self) -> str:
        """Why the image may not be served yet, else empty."""
        if not self.exists:
            return "the table does not exist" if self.created else "its CREATE has not come"
        if self.void:
            return self.void
        if self.pending:
            txn, write_id = self.pending[0]
            if self.pending[0] == UNKNOWN_WRITER:
                return "events of it were lost: who writes it is not known until the server's list comes"
            return f"write id {write_id} of transaction {txn or '(unknown)'} wrote it and is pending"
        if self.image is None or not self.image_ordinal:
            return f"no image yet, the last write was at {self.write_position or 'an unknown position'}"
        if self.image_ordinal < self.write_ordinal:
            return f"written at {self.write_position}, the image that follows is awaited"
        return ""

    def staged_by(self, txn: int) -> StagedImage | None:
        """What ``txn`` has staged."""
        return next((each for each in self.staged if each.txn == txn), None)


class Binding(msgspec.Struct, array_like=True):
    """Which table a name stands for; ``table_id`` 0: none."""

    table_id: int
    shard: str
    epoch: int
    ordinal: int


_encode = msgspec.msgpack.Encoder().encode
_table = msgspec.msgpack.Decoder(TableState).decode
_binding = msgspec.msgpack.Decoder(Binding).decode


def table_key(table_id: int) -> bytes:
    """Store key of a table's state."""
    return CATALOG + str(table_id).encode()


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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CatalogStateError(f"no table state: {error}", hint="rebuild the partition") from error


def encode_binding(binding: Binding) -> bytes:
    """Canonical bytes of ``binding``."""
    return _encode(binding)


def decode_binding(value: bytes) -> Binding:
    """The binding in ``value``; raises `CatalogStateError`."""
    try:
        return _binding(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CatalogStateError(f"no name binding: {error}", hint="rebuild the partition") from error
