"""The owner protocol: the messages between a front and the process that owns a partition's store.

They travel as frames over TCP (`consumers.owner.framing`). An answer carries the id of its request, so requests
pipeline and answers come in any order. The first frame of a connection is `Hello`. Positions and vectors are text
(``MariaDB/0-1-5``; `tokens.Vector`); "" means not given or unknown.

Requests of a front carry the ``topic_id`` of the keyspace's topic as announced; "" if nothing is. An owner that follows
another topic refuses them: the address may now belong to another installation, whose keyspaces are named alike.

Both sides ignore fields that they don't know at the end of a message. A field that is added later goes to the end and
has a default, so that an older side may leave it out.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from consumers.fold.shards import NO_KIN, Kin
from tokens.errors import FreshetError

VERSION: Final = 3
OLDEST: Final = 2
"""The oldest version that this program still speaks."""
OBJECTS_SINCE: Final = 3
"""The first version in which `GetObjects` can be asked."""
KEYS_MAX: Final = 1_000
"""Keys in one `Get`, rows in one `GetRange`."""
WAIT_MS_MAX: Final = 60_000

UNKNOWN_KEY: Final = 0
"""`OwnerRow.kind`: nothing has been folded for the key since the shard's low-water."""
HISTORY_LOST: Final = "history_lost"
"""`OwnerRow.code` and `OwnerTable.code`: the demand lies in a history that the shard has lost."""
PAGE_EXPIRED: Final = "page_expired"
"""`OwnerObjects.code`: the objects changed since the page before."""
SCHEMA_CHANGED: Final = "schema_changed"
"""`OwnerRow.code`: the table's keys mean something else here than the request says."""


class OwnerError(FreshetError):
    """A failure that an owner answered, or the reason why it could not be reached.

    Codes: ``not_owner``, ``wrong_partition``, ``bad_request``, ``bad_token``, ``bad_answer``, ``too_busy``,
    ``unauthorized``, ``version_mismatch``, ``owner_unreachable``, ``owner_timeout``, ``frame_too_large``, and those of
    `consumers.store.errors`.
    """

    code = "owner_error"
    moved: Standing | None = None
    """With ``not_owner``: who holds the partition, as far as the instance knows."""


class Message(msgspec.Struct, array_like=True, tag=True):
    """A frame: a msgpack array of tag, request id, fields."""

    id: int


class Hello(Message, tag="hello"):
    """First frame of a connection. The front speaks the versions from ``oldest`` to ``newest``; 0: only ``newest``."""

    newest: int = VERSION
    token: str = ""
    oldest: int = 0


class Get(Message, tag="get"):
    """Asks for rows of one partition. Without a ``vector`` answers are ``eventual``.

    ``meanings``: table → what the front believes that its keys mean (`consumers.owner.meaning`). A table that is left
    out is not compared.
    """

    keyspace: str
    partition: int
    keys: list[bytes]
    vector: str = ""
    max_wait_ms: int = 0
    meanings: dict[str, bytes] = {}
    topic_id: str = ""
    not_before_ms: int = 0
    """As in `tokens.Demand`. An owner of before does not see it, so the front looks at ``as_of_ms`` of what it gets."""
    holder: str = ""
    """Who would fill what is missed, so that others may wait for it; "": nobody (`consumers.owner.leasing`)."""
    last_known: bool = False
    """Whether a request without a demand may have an image of before a void. An owner of before gives none."""
    trace: str = ""
    """The front's span, as W3C's ``traceparent``; "": it has none (`consumers.owner.connection`)."""


class GetRange(Message, tag="get_range"):
    """Asks for the rows of one partition whose keys begin with ``leading``, in an order.

    ``leading`` is the table's name, a 00 and, unless ``columns`` is 0, the JSON array of so many values. ``after``: the
    row key after which to go on; empty: from the first one. ``limit``: of rows; 0: they are only counted, up to
    ``count_max`` (0: all). ``asked``: of so many partitions the range is asked for, this one or all.

    ``index``: columns that have the values ``equal`` (a JSON array); then ``columns`` is 0. ``order``: columns by which
    rows come, before the key; ``after_values``: theirs in the row ``after`` (a JSON array). With either of them
    ``meaning`` is that of `consumers.owner.ranges.indexed.meaning_with`. ``shard``: only the rows that are its by the
    map; "": there is one shard that has them all. An owner of before this field knows no map, and proves nothing of
    several shards.
    """

    keyspace: str
    partition: int
    asked: int
    leading: bytes
    columns: int
    after: bytes = b""
    descending: bool = False
    limit: int = 0
    count_max: int = 0
    vector: str = ""
    max_wait_ms: int = 0
    meaning: bytes = b""
    topic_id: str = ""
    not_before_ms: int = 0
    index: list[str] = []
    equal: bytes = b""
    order: list[str] = []
    after_values: bytes = b""
    shard: str = ""
    trace: str = ""
    """As in `Get`."""


class GetTable(Message, tag="get_table"):
    """Asks for a catalog table by name. ``write_ids`` "" and ``table_id`` 0: not given."""

    keyspace: str
    name: str
    write_ids: str = ""
    table_id: int = 0
    vector: str = ""
    max_wait_ms: int = 0
    topic_id: str = ""
    trace: str = ""
    not_before_ms: int = 0
    """As in `Get`, like ``trace``."""
    as_struct: bool = False
    """The answer has the table as Thrift, and no JSON. A list without an id is of the table that has the name: whoever
    asks so demands the end of the source's log, where the name is."""


class GetObjects(Message, tag="get_objects"):
    """Asks for catalog objects other than tables: by ``names`` (JSON arrays), or one page of all. Since version 3.

    ``table`` "" and ``table_id`` 0: of no table. ``prefix``: values that the first parts of a name must have, "" any.
    ``filter``: of partitions, in Hive's grammar. ``after`` and ``version``: of the page before. ``limit`` 0: as many as
    an answer may have.
    """

    keyspace: str
    kind: str
    table: str = ""
    table_id: int = 0
    write_ids: str = ""
    vector: str = ""
    names: list[str] = []
    prefix: list[str] = []
    filter: str = ""
    after: str = ""
    version: str = ""
    limit: int = 0
    names_only: bool = False
    count_only: bool = False
    max_wait_ms: int = 0
    topic_id: str = ""
    trace: str = ""
    not_before_ms: int = 0
    """As in `Get`, like ``trace``."""
    as_struct: bool = False
    """As in `GetTable`."""


class Wait(Message, tag="wait"):
    """Waits until a partition's watermarks are at or past ``vector``."""

    keyspace: str
    partition: int
    vector: str
    max_wait_ms: int
    topic_id: str = ""


class Fill(Message, tag="fill"):
    """Offers the source's value of a key (``image`` None: no such row), read at ``lo``; ``stamp``: the answer's.

    ``meaning``: as in `Get.meanings`, of the key that was read; empty: not compared. An empty ``lo``: there is
    nothing to keep, and the lease of the key ends.
    """

    keyspace: str
    partition: int
    key: bytes
    image: bytes | None
    lo: str
    hi: str
    timestamp: int
    stamp: bytes
    meaning: bytes = b""
    topic_id: str = ""


class FillTable(Message, tag="fill_table"):
    """Offers the source's answer for a catalog table; ``stamp`` is the `OwnerTable`'s.

    ``lo`` was recorded before the read, nothing in the answer is later than ``hi``. ``write_ids`` is the list fetched
    before the image, "" for a table without one.
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
    topic_id: str = ""
    written: str = ""
    """No write of the table that the answer shows is later; "": than ``hi``."""


class Checkpoint(Message, tag="checkpoint"):
    """Commits, and makes a checkpoint of the state. ``partition`` -1: of all that this process owns."""

    keyspace: str
    partition: int = -1


class Verdict(msgspec.Struct, array_like=True):
    """What an audit found: whether the partition's state at ``offset`` was what the topic says. ``at_ms``: when."""

    partition: int
    offset: int
    equal: bool
    at_ms: int


class Verified(Message, tag="verified"):
    """Tells what an audit found, so that `Status` can. The process remembers it while it owns the partition."""

    keyspace: str
    verdicts: list[Verdict]


class Drain(Message, tag="drain"):
    """Has the process leave its group for good; it answers for each partition until the next owner is announced."""


class Status(Message, tag="status"):
    """Asks for the status of each owned partition. ``keyspace`` "": of all keyspaces."""

    keyspace: str = ""
    topic_id: str = ""


class Describe(Message, tag="describe"):
    """Asks for the columns and key of a row table, and the keyspace's layout."""

    keyspace: str
    table: str = ""
    topic_id: str = ""


class OwnerRow(msgspec.Struct, array_like=True):
    """What is known of one key, and the decision on the demand.

    ``kind``: 1 value, 2 absent, 3 void (changed, value unknown), 0 unknown key. ``image`` is canonical JSON, None
    unless there is a value that may be served. ``freshness`` is the decision, ``served`` whether the answer may be
    used. ``needs_source``: waiting would not help, only the source can answer. ``filled``: the answer is from the
    overlay. ``stamp`` goes into a `Fill`; only the owner that made it can read it. ``code``: `HISTORY_LOST`,
    `SCHEMA_CHANGED`, or "".
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
    stamp: bytes
    filled: bool = False
    code: str = ""
    kin: Kin = NO_KIN
    """Only of an answer that may not be served: what the source's answer is judged by."""
    as_of_ms: int = 0
    """All that the source had committed by then, by its own clock, is in ``watermark``; 0: unknown."""
    leased: bool = False
    """The front that asked is the one that fills the key. It ends that by a `Fill`, kept or not."""


class Rows(Message, tag="rows"):
    """Answer to `Get`: one `OwnerRow` per key, in order."""

    rows: list[OwnerRow]


class RangeRows(Message, tag="range_rows"):
    """Answer to `GetRange`: the first rows of the range, or their number. Fields as in `OwnerRow`.

    The rows of the range are these at every position from ``hi``, where one of them changed last, to ``watermark``.
    ``more``: there are rows after the last one.
    """

    keys: list[bytes]
    images: list[bytes]
    count: int
    more: bool
    freshness: str
    why: str
    served: bool
    needs_source: bool
    shard: str
    epoch: int
    hi: str
    watermark: str
    as_of_ms: int = 0
    code: str = ""
    kin: Kin = NO_KIN


class OwnerTable(Message, tag="table"):
    """Answer to `GetTable`. Fields as in `OwnerRow`.

    ``table_id`` 0: the name is not bound here. ``elsewhere``: the state is in ``partition``, which this process does
    not own.
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
    kin: Kin = NO_KIN
    name: str = ""
    """What the table is called, of one that was asked by id."""
    as_of_ms: int = 0
    struct: bytes | None = None
    """The table as Thrift, if it was asked for and is known: a fill has none."""


class OwnerObjects(Message, tag="objects"):
    """Answer to `GetObjects`. Fields as in `OwnerTable`.

    ``images``: canonical JSON, in the order of ``names``; None where there is no such object. ``after`` "": this was
    the last page. ``count``: how many objects there are, of a page up to its end. ``compliant``: of statistics, in the
    order of ``names``, whether they hold for the reader's list; empty: without a list, or nobody can tell.
    """

    table_id: int
    partition: int
    freshness: str
    why: str
    served: bool
    needs_source: bool
    shard: str
    epoch: int
    lo: str
    hi: str
    watermark: str
    names: list[str]
    images: list[bytes | None]
    write_ids: str = ""
    count: int = 0
    after: str = ""
    version: str = ""
    compliant: list[bool] = []
    elsewhere: bool = False
    code: str = ""
    kin: Kin = NO_KIN
    as_of_ms: int = 0
    structs: list[bytes | None] = []
    """The objects as Thrift in place of ``images``, if they were asked for so."""


class ShardKin(msgspec.Struct, array_like=True):
    """The shards around a shard of the partition, in the epoch that the partition has folded."""

    shard: str
    epoch: int
    kin: Kin = NO_KIN


class Waited(Message, tag="waited"):
    """Answer to `Wait`: whether the vector was reached, and the partition's watermarks as a vector.

    ``shards``: what each shard of the partition declares of the others.
    """

    reached: bool
    watermarks: str
    shards: list[ShardKin] = []


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
    """How far a partition has followed one shard. ``lag_seconds`` is as in `Partition.lag_seconds`; -1: unknown.

    ``silent_seconds``: how long nothing of the shard has been folded; -1: unknown, or others have succeeded it.
    """

    shard: str
    epoch: int
    ordinal: int
    watermark: str
    watermark_timestamp: int
    low_water: str
    lag_seconds: float
    as_of_ms: int = 0
    """The source's own clock: all that was committed before is at or before the watermark. 0: unknown."""
    silent_seconds: float = -1.0


class Standing(msgspec.Struct, array_like=True):
    """Who owns a partition, as an instance has read it in the topic of announcements.

    ``epoch``: the generation of the announcement; ``term``: its ``swap``. ``members``: the instances that hold the
    partition, the owner first, then followers; without a follower that has not announced itself.
    """

    address: str
    instance: str
    topic_id: str
    zone: str
    epoch: int
    term: int
    members: list[str] = []


class PartitionStatus(msgspec.Struct, array_like=True):
    """The status of one partition. ``position`` is the next offset to read, ``end`` the topic's end (-1: unknown).

    ``silent_seconds``: how long nothing has been folded (-1: unknown). A live source publishes at least each second.
    ``tables``: each one whose backfill has begun, and whether it is whole here.
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
    tables: dict[str, bool] = {}
    standing: Standing | None = None
    """Who owns it; None: nobody that this process has heard of."""
    verdict: Verdict | None = None
    """Of the last audit that told this process."""


class Statuses(Message, tag="statuses"):
    """Answer to `Status`, `Drain` and `Verified`.

    ``ready``: each partition has caught up with its topic as of its take-over. ``draining``: the process gives its
    partitions away; if it has none now, it may still get some for that.
    """

    ready: bool
    instance: str
    partitions: list[PartitionStatus]
    draining: bool = False


class SchemaColumn(msgspec.Struct, array_like=True):
    """As in ``TableSchema.avsc``."""

    name: str
    kind: str
    exact: bool
    sql_type: str = ""


class Description(Message, tag="description"):
    """Answer to `Describe`. ``found`` False: the table is unknown here so far."""

    found: bool
    layout: str
    table: str = ""
    columns: list[SchemaColumn] = []
    primary_key: list[str] = []
    cacheable: bool = False
    reason: str = ""
    shard: str = ""
    """The shard that described it last."""
    prefix: int = 0
    """Leading key columns that choose a row's partition; 0: the whole key."""


class Welcome(Message, tag="welcome"):
    """Answer to `Hello`. ``version``: the newest that both sides speak."""

    version: int
    instance: str


class Failure(Message, tag="failure"):
    """Answer to a request that failed."""

    code: str
    message: str
    hint: str
    moved: Standing | None = None
    """As in `OwnerError`."""


WITHOUT_KEYSPACE: Final = (Hello, Drain)
"""Requests about all keyspaces."""
WITHOUT_TOPIC: Final = (*WITHOUT_KEYSPACE, Checkpoint, Verified)
"""Requests without a ``topic_id``."""
PartitionRequest: TypeAlias = Get | GetRange
"""Asks for rows of one partition: several of them may go to an owner at once."""
TRACED: Final = (Get, GetRange, GetTable, GetObjects)
"""Requests that carry the front's span."""
WAITING: Final = (Get, GetRange, GetTable, GetObjects, Wait)
"""Requests with a ``max_wait_ms``."""
Request: TypeAlias = (
    Hello
    | Get
    | GetRange
    | GetTable
    | GetObjects
    | Wait
    | Fill
    | FillTable
    | Checkpoint
    | Verified
    | Drain
    | Status
    | Describe
)
Answer: TypeAlias = (
    Welcome
    | Rows
    | RangeRows
    | OwnerTable
    | OwnerObjects
    | Waited
    | Filled
    | Checkpoints
    | Statuses
    | Description
    | Failure
)
