"""The directory that a rebuild writes: complete under its name, or not there.

``DIR/rebuild.json`` says of what and up to where; ``DIR/<keyspace>/<partition>/`` is that partition's store, laid out
as an owner's data directory. All of it is written beside, in ``.DIR.partial-…``, and renamed at the end. What a killed
run left there is removed by the next.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from consumers.store.manifest import MANIFEST_NAME, Manifest, read_manifest, sync_directory, write_atomically
from tokens.errors import FreshetError

REPORT_NAME = "rebuild.json"
REPORT_VERSION = 1


class RebuildError(FreshetError):
    """A rebuild that did not happen. Codes: ``target_exists``, ``target_busy``, ``history_incomplete``,
    ``state_missing``, ``offsets_not_rising``, ``no_store``, ``ambiguous_stores``, ``not_a_rebuild``,
    ``not_a_checkpoint``, ``rebuild_newer``, ``rebuild_failed``.
    """

    code = "rebuild_failed"


def history_incomplete(partition: int, low: int, gone: str) -> RebuildError:
    """The error for a partition that is retained from offset ``low`` only, without what a fold must begin with."""
    return RebuildError(
        f"partition {partition} is retained from offset {low} only: {gone} is gone",
        hint="rebuild from a snapshot (--base), or restart the source with a new epoch",
        code="history_incomplete",
    )


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """What was folded of one partition. ``offset``: next to fold; ``start``: first offset that was asked for."""

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
    """A whole rebuild: of what, from where to where, and each partition's summary."""

    keyspace: str
    topic: str
    topic_id: str
    fold_version: int
    ends: dict[int, int]
    partitions: tuple[PartitionSummary, ...]
    seconds: float
    """From the start of the Spark job to the last partition's end; start-up of Spark apart."""

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
        """Messages, or rows of them, that were refused."""
        return sum(summary.dead_letters for summary in self.partitions)

    @property
    def entries(self) -> int:
        """Items of all stores, heads included."""
        return sum(summary.entries for summary in self.partitions)

    @property
    def rows_per_s(self) -> int:
        """Rate over `seconds`."""
        return round(self.rows / self.seconds) if self.seconds else 0

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values; `read_report` reads it back."""
        totals = {name: getattr(self, name) for name in ("messages", "rows", "dead_letters", "entries", "rows_per_s")}
        return {"report_version": REPORT_VERSION, **asdict(self), **totals}


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A fresh directory that becomes ``target`` when the block ends without an error.

    Raises `RebuildError` ``target_exists`` (there is something already) or ``target_busy`` (another run writes it).
    """
    target = Path(os.path.abspath(target))
    with exclusive(target):
        check_target(target)
        _remove_leftovers(target)
        # a name of its own: workers of a killed run may live on for a moment, and must not write into ours
        staging = target.with_name(f".{target.name}.partial-{secrets.token_hex(4)}")
        staging.mkdir()
        try:
            yield staging
            _sync_tree(staging)
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
            f"{target} exists", hint="give a directory that is not there yet, or remove it", code="target_exists"
        )


@contextmanager
def exclusive(target: Path) -> Iterator[None]:
    """Keep every other run off ``target``; the kernel lets go if the process dies."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle = target.with_name(f".{target.name}.lock").open("a")
    except OSError as error:
        raise RebuildError(f"cannot write beside {target}: {error.strerror}", hint="give another --to") from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RebuildError(
                f"another rebuild writes {target}", hint="wait for it, or give another --to", code="target_busy"
            ) from error
        yield


def find_stores(root: Path, keyspace: str = "") -> dict[int, Path]:
    """Partition → store directory, for all stores of one keyspace at ``root`` or up to three levels below.

    So a data directory, a rebuild, the owners' ``checkpoints`` (of each partition the newest) and a single store can
    be given alike. Raises `RebuildError` ``no_store`` if there is none, ``ambiguous_stores`` if there are several of
    a partition, or several keyspaces.
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
                    f"{root} holds more than one data set: {other} and {directory}",
                    hint="name the directory of one of them, or --keyspace",
                    code="ambiguous_stores",
                )
            found[manifest.partition] = directory, manifest
    if not found:
        of = f" of {keyspace}" if keyspace else ""
        raise RebuildError(f"{root} holds no store{of}", hint="name a rebuild, checkpoint or store", code="no_store")
    return {partition: directory for partition, (directory, _) in sorted(found.items())}


def write_report(directory: Path, report: RebuildReport) -> None:
    """Write ``rebuild.json``."""
    write_atomically(directory / REPORT_NAME, (json.dumps(report.as_json(), indent=1) + "\n").encode())


def read_report(directory: Path) -> RebuildReport:
    """Read ``rebuild.json``; raises `RebuildError` ``not_a_rebuild`` if there is none that can be read."""
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
            f"{directory} holds no readable {REPORT_NAME}",
            hint="give what `freshet rebuild --to` wrote",
            code="not_a_rebuild",
        ) from error


def _sync_tree(directory: Path) -> None:
    for parent, _, _ in os.walk(directory):
        sync_directory(Path(parent))
