"""The owner protocol: what a front and the process that owns a partition's store say to each other.

Length-prefixed (4 bytes, big-endian) msgpack frames over TCP. Each request carries an id, its answer the same id: so
requests pipeline, and answers come in any order. The first frame of a connection is `Hello`. Positions and vectors
are text (``MariaDB/0-1-5``; `tokens.Vector`); "" is none.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import msgspec

from consumers.fold.state import Void
from tokens.errors import FreshetError

VERSION: Final = 1
FRAME_BYTES_MAX: Final = 64 << 20
HELLO_BYTES_MAX: Final = 64 << 10
"""What a side that has not been let in yet may send as one frame."""
KEYS_MAX: Final = 1_000
"""Keys in one `Get`."""
WAIT_MS_MAX: Final = 60_000
PREFIX_BYTES: Final = 4

UNKNOWN_KEY: Final = 0
"""`Row.kind`: nothing was folded for the key since the shard's low-water."""
HISTORY_LOST: Final = "history_lost"
"""`Row.code` and `Table.code`: the demand lies in a history that the shard has lost."""


class OwnerError(FreshetError):
    """What an owner answered instead of data, or why it could not be asked.

    Codes: ``not_owner``, ``bad_request``, ``bad_token``, ``too_busy``, ``unauthorized``, ``version_mismatch``,
    ``owner_unreachable``, ``owner_timeout``, ``frame_too_large``, and those of `consumers.store.errors`.
    """

    code = "owner_error"


class Message(msgspec.Struct, array_like=True, tag=True):
    """Base of all frames: a msgpack array of tag, request id, fields."""

    id: int


class Hello(Message, tag="hello"):
    """First frame of a connection."""

    version: int = VERSION
    token: str = ""


class Get(Message, tag="get"):
    """Rows of one partition. ``vector`` "": the request brought no token, answers are ``eventual``."""

    keyspace: str
    partition: int
    keys: list[bytes]
    vector: str = ""
    max_wait_ms: int = 0


class GetTable(Message, tag="get_table"):
    """A catalog table by name. ``write_ids`` "" and ``table_id`` 0: not given."""

    keyspace: str
    name: str
    write_ids: str = ""
    table_id: int = 0
    vector: str = ""
    max_wait_ms: int = 0


class Wait(Message, tag="wait"):
    """Wait until a partition's watermarks are at or past ``vector``."""

    keyspace: str
    partition: int
    vector: str
    max_wait_ms: int


class Stamp(NamedTuple):
    """What a fill of a row was made over. It answers only while the stamp of its key is still the same."""

    shard: str
    epoch: int
    ordinal: int
    voids: tuple[Void, ...]


class Fill(Message, tag="fill"):
    """What the source said of a key (``image`` None: no such row), read at ``lo``; ``stamp`` as the `Row` had it."""

    keyspace: str
    partition: int
    key: bytes
    image: bytes | None
    lo: str
    hi: str
    timestamp: int
    stamp: Stamp


class FillTable(Message, tag="fill_table"):
    """What the source said of a catalog table; ``stamp`` as the `Table` had it.

    ``lo`` was noted before it was read, nothing in it is later than ``hi``. ``write_ids`` is the list fetched before
    the image, "" for a table that has none.
    """

    keyspace: str
    partition: int
    table_id: int
    name: str
    kind: str
    image: bytes
    write_ids: str
    lo: str
    hi: str
    stamp: bytes


class Checkpoint(Message, tag="checkpoint"):
    """Commit, and keep a copy of the state at an offset. ``partition`` -1: all that this process owns."""

    keyspace: str
    partition: int = -1


class Status(Message, tag="status"):
    """How each partition is. ``keyspace`` "": of all."""

    keyspace: str = ""


class Describe(Message, tag="describe"):
    """Columns and key of a row table, and the keyspace's layout."""

    keyspace: str
    table: str = ""


class Row(msgspec.Struct, array_like=True):
    """What is known of one key, and what follows for the demand.

    ``kind``: 1 value, 2 absent, 3 void (changed, value unknown), 0 unknown key. ``image`` is the canonical JSON, None
    unless there is a value that may be given. ``freshness`` is the decision; ``served`` says that the answer may be
    given. ``needs_source``: only the source can answer (waiting would not help). ``code`` is ``history_lost`` where
    the demand lies in a lost history. ``filled``: the answer is a fill of the overlay. ``stamp`` goes into a `Fill`.
    """

    kind: int
    image: bytes | None
    freshness: str
    why: str
    served: bool
    needs_source: bool
    shard: str
    epoch: int
    lo: str
    hi: str
    timestamp: int
    watermark: str
    low_water: str
    stamp: Stamp
    filled: bool = False
    code: str = ""


class Rows(Message, tag="rows"):
    """Answer to `Get`: one `Row` a key, in order."""

    rows: list[Row]


class Table(Message, tag="table"):
    """Answer to `GetTable`. ``elsewhere``: the state is in ``partition``, which this process does not own.

    ``table_id`` 0: the name stands for nothing here. Else as in `Row`.
    """

    table_id: int
    partition: int
    image: bytes | None
    write_ids: str
    freshness: str
    why: str
    served: bool
    needs_source: bool
    shard: str
    epoch: int
    lo: str
    hi: str
    watermark: str
    low_water: str
    stamp: bytes
    filled: bool = False
    elsewhere: bool = False
    code: str = ""


class Waited(Message, tag="waited"):
    """Answer to `Wait`: whether it was reached, and the partition's watermarks as a vector."""

    reached: bool
    watermarks: str


class Filled(Message, tag="filled"):
    """Answer to `Fill` and `FillTable`."""

    accepted: bool
    why: str


class CheckpointPlace(msgspec.Struct, array_like=True):
    """A store directory that holds exactly the state before ``offset`` (`consumers.store.store.StoreView` opens it)."""

    partition: int
    directory: str
    offset: int


class Checkpoints(Message, tag="checkpoints"):
    """Answer to `Checkpoint`."""

    places: list[CheckpointPlace]


class ShardStatus(msgspec.Struct, array_like=True):
    """How far a partition is in one shard. ``lag_seconds``: source time, newest event seen − watermark; -1 unknown."""

    shard: str
    epoch: int
    ordinal: int
    watermark: str
    watermark_timestamp: int
    low_water: str
    lag_seconds: float


class PartitionStatus(msgspec.Struct, array_like=True):
    """One partition. ``position`` is the next offset to read, ``end`` the topic's end (-1 unknown).

    ``silent_seconds``: how long nothing has been folded; a source that runs says something each second (-1 unknown).
    """

    keyspace: str
    partition: int
    offset: int
    committed: int
    position: int
    end: int
    ready: bool
    state: str
    shards: list[ShardStatus]
    entries: int
    pending_rows: int
    overlay_entries: int
    overlay_bytes: int
    layout: str
    topic_id: str
    silent_seconds: float = -1.0


class Statuses(Message, tag="statuses"):
    """Answer to `Status`. ``ready``: all partitions have caught up with where the topic ended at start."""

    ready: bool
    instance: str
    partitions: list[PartitionStatus]


class SchemaColumn(msgspec.Struct, array_like=True):
    """As in ``TableSchema.avsc``."""

    name: str
    kind: str
    exact: bool


class Description(Message, tag="description"):
    """Answer to `Describe`. ``found`` False: no such table is known here (yet)."""

    found: bool
    layout: str
    table: str = ""
    columns: list[SchemaColumn] = []
    primary_key: list[str] = []
    cacheable: bool = False
    reason: str = ""
    shard: str = ""
    """The shard it was last described by."""


class Welcome(Message, tag="welcome"):
    """Answer to `Hello`."""

    version: int
    instance: str


class Failure(Message, tag="failure"):
    """Instead of an answer."""

    code: str
    message: str
    hint: str


Request: TypeAlias = Hello | Get | GetTable | Wait | Fill | FillTable | Checkpoint | Status | Describe
Answer: TypeAlias = Welcome | Rows | Table | Waited | Filled | Checkpoints | Statuses | Description | Failure

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode_frame(message: Request | Answer) -> bytes:
    """``message`` with its length before it. Raises `OwnerError` ``frame_too_large``."""
    body = _encoder.encode(message)
    if len(body) > FRAME_BYTES_MAX:
        raise OwnerError(
            f"a frame of {len(body)} bytes is above {FRAME_BYTES_MAX}",
            hint="ask for fewer keys",
            code="frame_too_large",
        )
    return len(body).to_bytes(PREFIX_BYTES, "big") + body


def decode_request(body: bytes | memoryview) -> Request:
    """The request in a frame's body. Raises ``msgspec.DecodeError`` (a ``ValueError``)."""
    try:
        return _requests.decode(body)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def decode_answer(body: bytes | memoryview) -> Answer:
    """The answer in a frame's body. Raises ``msgspec.DecodeError``."""
    try:
        return _answers.decode(body)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


class FrameBuffer:
    """Puts frames together from what a stream brings; holds at most one of ``frame_bytes_max``, which may be raised."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies of the frames that ``data`` completes. Raises `OwnerError` ``frame_too_large``."""
        buffer = self._data
        buffer += data
        bodies: list[bytes] = []
        at, size = 0, len(buffer)
        while size - at >= PREFIX_BYTES:
            length = int.from_bytes(buffer[at : at + PREFIX_BYTES], "big")
            if length > self.frame_bytes_max:
                raise OwnerError(
                    f"the other side announces a frame of {length} bytes",
                    hint="is this the owner's port?",
                    code="frame_too_large",
                )
            if size - at - PREFIX_BYTES < length:
                break
            at += PREFIX_BYTES
            bodies.append(bytes(buffer[at : at + length]))
            at += length
        if at:
            del buffer[:at]
        return bodies
