"""``manifest.json`` of a snapshot: of which history it is, how far, and which files it has. Pure.

It is written last, so a snapshot without one is not whole. The format is in docs/internals/snapshots.md.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import msgspec

from consumers.snapshots.errors import SnapshotError
from consumers.store.leader_epochs import UNKNOWN
from consumers.store.manifest import checksum_of

SNAPSHOT_FORMAT: Final = 1
"""Version of manifest and files, `consumers.store.manifest.FORMAT_VERSION` included. Newer ones are refused."""
MANIFEST_NAME: Final = "manifest.json"
CHECKSUM: Final = "checksum"


class SnapshotFile(msgspec.Struct, frozen=True):
    """A sorted file of RocksDB with a range of a partition's keys. ``name``: below the snapshot's directory, never out
    of it.

    ``first``, ``last``: keys in hex. ``pairs``, ``bytes``, ``checksum`` (XXH3-128): of the file. ``entries``,
    ``digest``: of what it holds of the state, as `consumers.store.digest.digest_items`.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+/[0-9]+\.sst\Z")]
    first: str
    last: str
    pairs: int
    bytes: int
    checksum: str
    entries: int
    digest: str


class SnapshotPosition(msgspec.Struct, frozen=True):
    """A shard's watermark in a partition. ``timestamp``: the source's, in seconds."""

    epoch: int
    ordinal: int
    position: str
    timestamp: int


class SnapshotPartition(msgspec.Struct, frozen=True):
    """A partition's state before ``offset``, which began at ``begin``. ``entries``, ``digest``: of the whole state.

    ``leader_epoch``: as `consumers.store.leader_epochs`, so that Kafka can tell whether its log still leads there.
    """

    partition: int
    begin: int
    offset: int
    entries: int
    digest: str
    positions: dict[str, SnapshotPosition]
    files: tuple[SnapshotFile, ...]
    leader_epoch: int = UNKNOWN


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A whole snapshot of a keyspace. ``created``: ISO 8601, UTC, for people. ``made_from``: ``owners`` or ``rebuild``.

    ``verified``: the live state was compared with it when it was made, and equal. ``replayed``: it was folded from the
    topic's beginning and from nothing else; False in snapshots of earlier versions.
    """

    format: int = SNAPSHOT_FORMAT
    name: str
    keyspace: str
    topic_id: str
    layout: str
    fold_version: int
    created: str
    made_from: str
    verified: bool
    partitions: tuple[SnapshotPartition, ...]
    replayed: bool = False

    @property
    def is_witness(self) -> bool:
        """Whether an audit may begin with it: it is the topic's word, not that of the state to be proved."""
        return self.verified or self.replayed

    @property
    def entries(self) -> int:
        """Of all partitions, heads included."""
        return sum(each.entries for each in self.partitions)

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for each in self.partitions for file in each.files)

    @property
    def offsets(self) -> dict[int, int]:
        """Partition → next offset to fold."""
        return {each.partition: each.offset for each in self.partitions}

    def of(self, partition: int) -> SnapshotPartition | None:
        """What it has of a partition."""
        return next((each for each in self.partitions if each.partition == partition), None)


_snapshot = msgspec.json.Decoder(Snapshot)


def encode_manifest(snapshot: Snapshot) -> bytes:
    """The bytes of ``manifest.json``, with their checksum."""
    fields: dict[str, Any] = msgspec.to_builtins(snapshot)
    return (json.dumps(fields | {CHECKSUM: checksum_of(fields)}, indent=1, ensure_ascii=False) + "\n").encode()


def decode_manifest(data: bytes, place: str) -> Snapshot:
    """Reads ``manifest.json``; unknown fields are ignored.

    Raises `SnapshotError` ``snapshot_damaged``, ``snapshot_newer``.
    """
    damaged = SnapshotError(
        f"the manifest of {place} is damaged", hint="remove this snapshot, and make another", code="snapshot_damaged"
    )
    try:
        fields = json.loads(data)
        told = fields.pop(CHECKSUM)
        found, version = checksum_of(fields), int(fields["format"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise damaged from error
    if told != found:
        raise damaged
    if version > SNAPSHOT_FORMAT:
        raise SnapshotError(
            f"{place} has snapshot format {version}; this version reads up to {SNAPSHOT_FORMAT}",
            hint="run the newer Freshet, or use an older snapshot",
            code="snapshot_newer",
        )
    try:
        return _snapshot.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged from error
