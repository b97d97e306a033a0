"""``manifest.json``: what a store directory holds (docs/internals/store.md).

One JSON object with its own checksum, replaced atomically. It names the history of the store, so that a store is never
continued from another topic, with another layout or by another fold version.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

from consumers.fold.state import FOLD_VERSION
from consumers.store.errors import RebuildNeededError, StoreCorruptError, StoreNewerError

FORMAT_VERSION = 1
"""Version of the directory: files, key space, entry bytes. Older ones are read, newer ones refused."""

INDEXED_VERSION = 2
"""Of a store with entries of indexes, which an older version would take for folded state. All else is as before."""

MANIFEST_NAME = "manifest.json"
_CHECKSUM = "checksum"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The identity of a store. ``offset`` is the next offset to fold in a checkpoint, -1 in a live store."""

    keyspace: str
    partition: int
    topic_id: str
    layout: str
    format_version: int = FORMAT_VERSION
    fold_version: int = FOLD_VERSION
    offset: int = -1


def checksum_of(fields: dict[str, Any]) -> str:
    """XXH3-128 of ``fields`` as compact JSON with sorted keys."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return xxhash.xxh3_128_hexdigest(text.encode())


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces ``path`` durably; after a crash it holds either the old bytes or the new ones."""
    beside = path.with_name(path.name + ".new")
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Makes renames and new names in ``directory`` durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes ``manifest.json`` into a store directory; raises ``OSError``."""
    fields = asdict(manifest)
    text = json.dumps(fields | {_CHECKSUM: checksum_of(fields)}, indent=1, ensure_ascii=False) + "\n"
    write_atomically(directory / MANIFEST_NAME, text.encode())


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a store directory; None if the file is missing.

    Raises `StoreCorruptError` if its bytes are damaged, `StoreNewerError` if a newer Freshet wrote it.
    """
    path = directory / MANIFEST_NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    damaged = StoreCorruptError(f"{path} is damaged", hint="the store is moved aside and folded again from the topic")
    try:
        fields = json.loads(raw)
        found = fields.pop(_CHECKSUM)
        version = int(fields["format_version"])
        computed = checksum_of(fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise damaged from error
    if found != computed:
        raise damaged
    if version > INDEXED_VERSION:
        raise StoreNewerError(
            f"{directory} has store format {version}; this version reads up to {INDEXED_VERSION}",
            hint="run the newer Freshet, or give this one another data directory",
        )
    try:
        return Manifest(**fields)
    except TypeError as error:
        raise damaged from error


def check_manifest(found: Manifest, wanted: Manifest, directory: Path) -> None:
    """Raises `RebuildNeededError` unless ``found`` may be continued as ``wanted``."""
    hint = "the store is moved aside and folded again from the topic"
    if (found.keyspace, found.partition) != (wanted.keyspace, wanted.partition):
        raise RebuildNeededError(
            f"{directory} holds {found.keyspace}/{found.partition}, not {wanted.keyspace}/{wanted.partition}",
            hint=hint,
            code="topic_changed",
        )
    if found.topic_id != wanted.topic_id:
        raise RebuildNeededError(
            f"{directory} was folded from topic id {found.topic_id}; the topic's id is now {wanted.topic_id}",
            hint=f"the topic was created anew, or this is another cluster; {hint}",
            code="topic_changed",
        )
    if found.layout and wanted.layout and found.layout != wanted.layout:
        raise RebuildNeededError(
            f"{directory} has layout {found.layout}; the topic has {wanted.layout}", hint=hint, code="layout_changed"
        )
    if found.fold_version > FOLD_VERSION:
        raise StoreNewerError(
            f"{directory} has fold version {found.fold_version}; this Freshet has {FOLD_VERSION}",
            hint="run the newer Freshet, or give this one another data directory",
        )
    if found.fold_version != FOLD_VERSION:
        raise RebuildNeededError(
            f"{directory} has fold version {found.fold_version}; this Freshet has {FOLD_VERSION}",
            hint=hint,
            code="fold_changed",
        )
