"""Snapshots as the commands use them: where they are, which one a fold begins with, and stores made from it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import typer

from freshet.sections.values import is_address
from freshet.settings import Settings
from freshet.settings_errors import SettingsError

if TYPE_CHECKING:
    from consumers.snapshots.finding import Found
    from consumers.snapshots.manifest import Snapshot
    from consumers.snapshots.places import Place
    from spark_jobs.rebuild import RebuildRequest
    from stream.kafka.connection import KafkaCluster

log = structlog.get_logger(__name__)


def no_address(text: str) -> Path:
    """A directory, as an option's value. Of an address a path would be made below the present directory."""
    if is_address(text):
        raise typer.BadParameter(f"{text} is an address; give a directory, which all who use it see under this path")
    return Path(text)


def place_of(settings: Settings, keyspace: str, given: str | None) -> str:
    """Where the snapshots of a keyspace are: as given, else as set. Raises `SettingsError`."""
    uri = given or set_place(settings, keyspace)
    if not uri:
        raise SettingsError(
            f"no place for snapshots of {keyspace}",
            hint=f"name one with --at (of `make` with --to), or set keyspaces.{keyspace}.snapshots",
        )
    return uri


def set_place(settings: Settings, keyspace: str) -> str:
    """Where the settings say that a keyspace's snapshots are; empty if they don't."""
    return settings.keyspaces[keyspace].snapshots if keyspace in settings.keyspaces else ""


def work_directory(settings: Settings, keyspace: str, uri: str) -> Path:
    """Where stores are made that become a snapshot at ``uri``: the same for each run, so that a killed one goes on."""
    return settings.data_dir / "rebuilds" / f"{keyspace}-{hashlib.sha256(uri.encode()).hexdigest()[:12]}"


def clear_useless(request: RebuildRequest) -> None:
    """Removes the work directory that a killed run left where this one can't go on with it: it begins anew.

    That is so if retention has passed it, the topic is another one, it was begun from another base, is damaged or past
    the end that is wanted. It is Freshet's own: nobody could be asked to give another. A store that can't be opened now
    may be whole. Raises `RebuildError` ``target_busy``, and as `prepare` if the run could not begin anew either.
    """
    from consumers.store.errors import RebuildNeededError, StoreCorruptError, StoreError
    from spark_jobs.offsets import OffsetsError
    from spark_jobs.output import RebuildError, exclusive
    from spark_jobs.rebuild import prepare

    if not request.target.exists():
        return
    with exclusive(request.target):
        try:
            start = prepare(replace(request, ends=None)).chosen.start
            past = {each: at for each, at in start.items() if at > (request.ends or {}).get(each, at)}
            reason = f"it is at {past} already" if past else ""
        except (OffsetsError, RebuildError) as error:
            cause = error.__cause__
            if isinstance(cause, StoreError) and not isinstance(cause, StoreCorruptError | RebuildNeededError):
                raise
            reason = str(error)
        if reason:
            is_made_later = request.base == _beside(request.target)
            prepare(replace(request, base=None) if is_made_later else request, anew=True)
            log.warning("what a killed rebuild left is of no use", directory=str(request.target), reason=reason)
            shutil.rmtree(request.target)
            shutil.rmtree(_beside(request.target), ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Needed:
    """What a fold needs of the snapshot that it begins with.

    ``ends``: partition → where the fold ends (None: the topic's end); ``begins``: partition → where the state must have
    begun (None: anywhere). ``witness``: only one that is the topic's word counts (`Snapshot.is_witness`).
    """

    ends: Mapping[int, int] | None = None
    begins: Mapping[int, int] | None = None
    witness: bool = False


def farthest(
    place: Place, keyspace: str, kafka: KafkaCluster, needed: Needed
) -> tuple[list[tuple[Found, Snapshot]], list[str]]:
    """The snapshots that a fold can begin with, those with the most messages first; and why it can't with others.

    Raises `SnapshotError` if the place does not answer, and as `spark_jobs.offsets.topic_bounds`.
    """
    from consumers.snapshots.finding import find_snapshots, refusal_of_whole
    from spark_jobs.offsets import topic_bounds
    from stream.kafka.topics import events_topic

    bounds = topic_bounds(kafka, events_topic(kafka, keyspace))
    ends = bounds.end if needed.ends is None else needed.ends
    chosen: list[tuple[Found, Snapshot]] = []
    refused: list[str] = []
    for found in find_snapshots(place, keyspace):
        snapshot = found.snapshot
        if snapshot is None:
            refused.append(str(found.error))
            continue
        error = refusal_of_whole(snapshot, bounds.topic_id, bounds.low, ends)
        begins = {each.partition: each.begin for each in snapshot.partitions}
        if error is not None:
            refused.append(str(error))
        elif needed.witness and not snapshot.is_witness:
            refused.append(f"snapshot {snapshot.name} is neither verified nor folded from the topic's beginning")
        elif needed.begins is not None and begins != dict(needed.begins):
            refused.append(f"snapshot {snapshot.name} began at {begins}, not at {dict(needed.begins)}")
        else:
            chosen.append((found, snapshot))
    chosen.sort(key=lambda pair: (sum(pair[1].offsets.values()), pair[1].name), reverse=True)
    return chosen, refused


def restore_first(place: Place, chosen: list[tuple[Found, Snapshot]], root: Path) -> Snapshot:
    """Makes the stores of the first of the ``chosen`` snapshots below ``root``; a damaged one gives way to the next.

    Raises as `consumers.snapshots.restoring.restore_all`, of a damaged one if it is the last.
    """
    from consumers.snapshots.errors import SnapshotError
    from consumers.snapshots.restoring import restore_all

    *others, (found, last) = chosen
    for other, snapshot in others:
        try:
            restore_all(place, other, snapshot, root)
        except SnapshotError as error:
            if error.code not in ("snapshot_damaged", "snapshot_missing", "snapshot_differs"):
                raise
            log.warning(
                "a snapshot is not used",
                keyspace=snapshot.keyspace,
                code=error.code,
                reason=str(error),
                hint=error.hint,
            )
            shutil.rmtree(root, ignore_errors=True)
        else:
            return snapshot
    restore_all(place, found, last, root)
    return last


def base_directory(base: str | None, target: Path) -> Path | None:
    """Where the stores of ``base`` are or will be: those of a snapshot beside ``target``."""
    if base is None:
        return None
    return _beside(target) if is_address(base) else Path(base)


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.base")


def base_stores(base: str | None, keyspace: str, kafka: KafkaCluster, target: Path, needed: Needed) -> Path | None:
    """Where the stores of ``base`` are, as `base_directory`. Those of a snapshot are made there, unless ``target`` was
    begun with some: it goes on with its own.

    Raises `SnapshotError` if there is no snapshot that can be continued, or all such are damaged; and as
    `spark_jobs.output.read_begun`.
    """
    from consumers.snapshots.errors import SnapshotError
    from consumers.snapshots.places import Place
    from spark_jobs.output import read_begun

    beside = base_directory(base, target)
    if base is None or beside is None or not is_address(base):
        return beside
    if read_begun(target) is not None:
        return beside
    place = Place(base)
    if not target.exists():
        shutil.rmtree(beside, ignore_errors=True)  # of a run that never began, perhaps from another snapshot
    chosen, refused = farthest(place, keyspace, kafka, needed)
    if not chosen:
        raise SnapshotError(
            f"no snapshot of {keyspace} at {place.uri} can be continued" + "".join(f"; {why}" for why in refused[:3]),
            hint="without --base it is folded from the topic's start",
            code="snapshot_missing",
        )
    restore_first(place, chosen, beside)
    return beside
