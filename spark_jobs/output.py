"""The output directory of a rebuild: a run that was killed is gone on with where its stores end.

``DIR/rebuild.json`` is the report, there iff the last run ended well; ``DIR/<keyspace>/<partition>/`` is a partition's
store, as in an owner's data directory; ``DIR/streaming.json`` says what the directory was begun as. It begins with its
base's stores in it, or not at all.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from consumers.store.manifest import MANIFEST_NAME, Manifest, read_manifest, sync_directory, write_atomically
from tokens.errors import FreshetError

REPORT_NAME = "rebuild.json"
REPORT_VERSION = 1
STATE_NAME = "streaming.json"


class RebuildError(FreshetError):
    """A rebuild was refused or failed. Codes: ``target_exists``, ``target_busy``, ``target_not_shared``,
    ``history_incomplete``, ``state_missing``, ``offsets_not_rising``, ``no_store``, ``ambiguous_stores``,
    ``not_a_rebuild``, ``not_a_checkpoint``, ``rebuild_newer``, ``rebuild_failed``.
    """

    code = "rebuild_failed"


def history_incomplete(
    partition: int,
    low: int,
    gone: str,
    hint: str = "rebuild from a snapshot (--base), or restart the source with a new epoch",
) -> RebuildError:
    """The error for a partition that retention has cut to ``low``, so that the beginning of a history is missing."""
    return RebuildError(
        f"partition {partition} is retained from offset {low} only: {gone} is gone",
        hint=hint,
        code="history_incomplete",
    )


def not_shared(what: str) -> RebuildError:
    """The error for a directory that is another one on an executor than in the driver."""
    return RebuildError(
        f"{what}: driver and executors don't share this directory",
        hint="give one that all of them share: --to, data_dir if that is a URI, TMPDIR for verify",
        code="target_not_shared",
    )


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """What was folded of one partition. ``start``: first offset requested; ``offset``: next offset to fold."""

    partition: int
    start: int
    offset: int
    messages: int
    rows: int
    dead_letters: int
    entries: int
    digest: str
    seconds: float


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """The report of a rebuild: its topic, its end offsets, and a summary of each partition."""

    keyspace: str
    topic: str
    topic_id: str
    fold_version: int
    ends: dict[int, int]
    partitions: tuple[PartitionSummary, ...]
    seconds: float
    """From the start of the Spark job to the end of the last partition; without Spark's start-up."""

    @property
    def messages(self) -> int:
        """Messages folded in this run."""
        return sum(summary.messages for summary in self.partitions)

    @property
    def rows(self) -> int:
        """Row events and other events folded in this run."""
        return sum(summary.rows for summary in self.partitions)

    @property
    def dead_letters(self) -> int:
        """Messages, or parts of them, that were rejected."""
        return sum(summary.dead_letters for summary in self.partitions)

    @property
    def entries(self) -> int:
        """Items of all stores, heads included."""
        return sum(summary.entries for summary in self.partitions)

    @property
    def rows_per_s(self) -> int:
        """Rows per second over `seconds`."""
        return round(self.rows / self.seconds) if self.seconds else 0

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values; `read_report` reads it back."""
        totals = {name: getattr(self, name) for name in ("messages", "rows", "dead_letters", "entries", "rows_per_s")}
        return {"report_version": REPORT_VERSION, **asdict(self), **totals}


@dataclass(frozen=True, slots=True)
class Begun:
    """What a directory was begun as; a later run must be of the same. ``begins``: where its new stores begin."""

    keyspace: str
    topic_id: str
    base: str = ""
    begins: Mapping[int, int] = field(default_factory=dict)


def read_begun(target: Path) -> Begun | None:
    """What ``target`` was begun as; None if it is absent or empty.

    Raises `RebuildError` ``target_exists`` if it is something else, ``state_missing`` if that is damaged.
    """
    path = target / STATE_NAME
    try:
        fields = json.loads(path.read_bytes())
        begins = {int(partition): int(offset) for partition, offset in fields["begins"].items()}
        return Begun(str(fields["keyspace"]), str(fields["topic_id"]), str(fields["base"]), begins)
    except (FileNotFoundError, NotADirectoryError):
        check_target(target)
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RebuildError(
            f"{path} is damaged", hint="start again in another directory (--to)", code="state_missing"
        ) from error


@contextmanager
def staged(target: Path, begun: Begun) -> Iterator[Path]:
    """A new directory that becomes ``target`` if the block ends without an error. The caller holds `exclusive`."""
    check_target(target)
    target = Path(os.path.realpath(target))
    _remove_leftovers(target)
    staging = target.with_name(f".{target.name}.partial-{secrets.token_hex(4)}")
    staging.mkdir()
    try:
        yield staging
        write_atomically(staging / STATE_NAME, (json.dumps(asdict(begun), indent=1) + "\n").encode())
        sync_tree(staging)
        if target.exists():
            target.rmdir()
        staging.rename(target)
        sync_directory(target.parent)
    finally:
        _remove_leftovers(target)


def _remove_leftovers(target: Path) -> None:
    for leftover in target.parent.glob(f".{glob.escape(target.name)}.partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def check_target(target: Path) -> None:
    """Raises `RebuildError` ``target_exists`` unless ``target`` is absent or an empty directory."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RebuildError(
            f"{target} exists and is neither empty nor a rebuild that could go on",
            hint="give a new directory, or remove it",
            code="target_exists",
        )


@contextmanager
def exclusive(target: Path) -> Iterator[None]:
    """Locks ``target`` against other runs; the kernel releases the lock if the process dies. Raises `RebuildError`.

    Also against those that know it by another name.
    """
    target = Path(os.path.realpath(target))
    path = target.with_name(f".{target.name}.lock")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a")
        while not _locked(handle, path, target):
            handle.close()
            handle = path.open("a")
    except OSError as error:
        raise RebuildError(
            f"cannot write beside {target}: {error.strerror}", hint="give another directory with --to"
        ) from error
    with handle:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked(handle: TextIO, path: Path, target: Path) -> bool:
    """Locks the open ``path``. False if a run that ended has removed it meanwhile: then it locks nobody out."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        handle.close()
        raise RebuildError(
            f"another rebuild is writing {target}",
            hint="wait for it, or give another directory with --to",
            code="target_busy",
        ) from error
    try:
        return os.path.samestat(os.fstat(handle.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def find_stores(root: Path, keyspace: str = "") -> dict[int, Path]:
    """Partition → store directory, for all stores of one keyspace at ``root`` or up to three levels below.

    ``root`` may be a data directory, a rebuild, an owner's ``checkpoints`` (the newest of each partition counts) or a
    single store. Raises `RebuildError` ``no_store`` if there is no store, ``ambiguous_stores`` if there are several
    keyspaces or several stores of a partition.
    """
    found: dict[int, tuple[Path, Manifest]] = {}
    for pattern in (".", "*", "*/*", "*/*/*"):
        for path in sorted(root.glob(f"{pattern}/{MANIFEST_NAME}")):
            directory = path.parent
            manifest = read_manifest(directory) if directory == root or directory.name.isdigit() else None
            if manifest is None or (keyspace and manifest.keyspace != keyspace):
                continue
            other, of_other = found.get(manifest.partition) or next(iter(found.values()), (directory, manifest))
            if manifest.keyspace != of_other.keyspace or (
                manifest.partition in found
                and not (directory.parent == other.parent and 0 <= of_other.offset < manifest.offset)
            ):
                raise RebuildError(
                    f"{root} has more than one data set: {other} and {directory}",
                    hint="give the directory of one of them, or --keyspace",
                    code="ambiguous_stores",
                )
            found[manifest.partition] = directory, manifest
    if not found:
        of = f" of {keyspace}" if keyspace else ""
        raise RebuildError(f"no store{of} in {root}", hint="give a rebuild, checkpoint or store", code="no_store")
    return {partition: directory for partition, (directory, _) in sorted(found.items())}


def write_report(directory: Path, report: RebuildReport) -> None:
    """Writes ``rebuild.json``."""
    write_atomically(directory / REPORT_NAME, (json.dumps(report.as_json(), indent=1) + "\n").encode())


def read_report(directory: Path) -> RebuildReport:
    """Reads ``rebuild.json``; raises `RebuildError` ``not_a_rebuild`` or ``rebuild_newer``."""
    path = directory / REPORT_NAME
    try:
        fields = json.loads(path.read_bytes())
        version = int(fields["report_version"])
        if version > REPORT_VERSION:
            raise RebuildError(
                f"{path} has format {version}; this version reads up to {REPORT_VERSION}",
                hint="run the newer Freshet, or rebuild again with this one",
                code="rebuild_newer",
            )
        return RebuildReport(
            keyspace=fields["keyspace"],
            topic=fields["topic"],
            topic_id=fields["topic_id"],
            fold_version=fields["fold_version"],
            ends={int(partition): offset for partition, offset in fields["ends"].items()},
            partitions=tuple(PartitionSummary(**summary) for summary in fields["partitions"]),
            seconds=fields["seconds"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise RebuildError(
            f"{directory} has no readable {REPORT_NAME}",
            hint="give a directory that `freshet rebuild --to` wrote",
            code="not_a_rebuild",
        ) from error


def sync_tree(directory: Path) -> None:
    """Makes all names below ``directory`` durable."""
    for parent, _, _ in os.walk(directory):
        sync_directory(Path(parent))
