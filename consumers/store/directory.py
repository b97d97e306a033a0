"""The directory of a store: where it is, who has it open, what is in it, and how it is moved aside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path
from typing import Final

from consumers.store.errors import HINT_LOCKED, StoreCorruptError, StoreError, StoreLockedError, store_error
from consumers.store.manifest import (
    MANIFEST_NAME,
    Manifest,
    check_manifest,
    read_manifest,
    sync_directory,
    write_manifest,
)
from consumers.store.rocks.database import IN_DOUBT_NAME
from consumers.store.view import ROCKS_NAME

_LOCK_NAME: Final = "lock"
SCRATCH_NAME: Final = "commit.sst"


def partition_directory(data_dir: Path, keyspace: str, partition: int) -> Path:
    """Where a partition's store lives. Raises `StoreError` if the keyspace's name would lead elsewhere."""
    if not names_a_directory(keyspace):
        raise StoreError(
            f"{keyspace!r} is no name of a keyspace", hint="a name has letters, digits, - and _", code="store_denied"
        )
    return data_dir / keyspace / str(partition)


def names_a_directory(name: str) -> bool:
    """Whether a name is one directory, or file, below the one that it is put behind."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def holds_store(directory: Path) -> bool:
    """Whether there is a store, or what is left of one."""
    return os.path.exists(directory / MANIFEST_NAME) or os.path.exists(directory / ROCKS_NAME / "CURRENT")


def prepare_directory(directory: Path, wanted: Manifest) -> Manifest:
    """The manifest to continue with; writes ``wanted`` into a new directory."""
    scratch, in_doubt = directory / SCRATCH_NAME, directory / IN_DOUBT_NAME
    if in_doubt.exists():
        scratch.unlink(missing_ok=True)
    elif scratch.exists():
        os.replace(scratch, in_doubt)
    found = read_manifest(directory)
    if found is None:
        if (directory / ROCKS_NAME / "CURRENT").exists():
            raise StoreCorruptError(
                f"{directory} has a RocksDB but no manifest", hint="the store is moved aside and rebuilt"
            )
        write_manifest(directory, wanted)
        return wanted
    check_manifest(found, wanted, directory)
    return found


def lock_directory(directory: Path, what: str = "store") -> int:
    """Locks a directory until the returned handle is closed.

    Raises `StoreLockedError`, `StoreError` ``store_denied`` where there are no locks, ``OSError``.
    """
    try:
        return lock_file(directory / _LOCK_NAME, what)
    except BlockingIOError as error:
        raise StoreLockedError(f"{directory}: another process has this {what} open", hint=HINT_LOCKED) from error


def lock_file(path: Path, what: str) -> int:
    """Locks a file, made if new, until the returned handle is closed. ``what``: its directory's name in errors.

    Raises ``BlockingIOError`` if another process has it, `StoreError` ``store_denied`` where there are no locks,
    ``OSError``.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        flock(handle, LOCK_EX | LOCK_NB)
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            raise
        raise StoreError(  # as on a network's file system without its lock service
            f"{path.parent}: the file system does not lock this {what}: {error.strerror}",
            hint="set data_dir to a directory on a disk of this machine",
            code="store_denied",
        ) from error
    return handle


@contextmanager
def kept(checkpoints: Iterable[Path]) -> Iterator[None]:
    """No owner removes ``checkpoints`` meanwhile. Raises `StoreError` ``checkpoint_missing`` if one is gone already.

    The directories themselves are locked, so that it needs no right to write. Where a file system has no locks, they
    are kept as long as the owner keeps those that nobody reads.
    """
    with ExitStack() as stack:
        for each in checkpoints:
            try:
                handle = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, handle)
                _lock(handle, LOCK_SH)
                is_there = os.path.samestat(os.fstat(handle), os.stat(each))
            except (FileNotFoundError, BlockingIOError):
                is_there = False
            if not is_there:
                raise StoreError(
                    f"the checkpoint {each} has been removed by its owner",
                    hint="others were made since: try again",
                    code="checkpoint_missing",
                )
        yield


def remove_unless_kept(checkpoint: Path) -> bool:
    """Removes a checkpoint, unless somebody reads it (`kept`); returns whether it did. Raises ``OSError``."""
    handle = os.open(checkpoint, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(handle, LOCK_EX)
        shutil.rmtree(checkpoint)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


@contextmanager
def held_alone(directory: Path) -> Iterator[bool]:
    """Makes the directory; yields whether no other process, nor thread, is in this block of it. Raises ``OSError``."""
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            _lock(handle, LOCK_EX)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def _lock(handle: int, kind: int) -> None:
    """Raises ``BlockingIOError`` if somebody else has it; does nothing where there are no such locks, as on NFS."""
    try:
        flock(handle, kind | LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return


def move_aside(directory: Path, why: str) -> Path:
    """Renames a store directory to ``<name>.<why>-<n>`` to make room for a new one; returns the new path."""
    number = 1
    try:
        while (target := directory.with_name(f"{directory.name}.{why}-{number}")).exists():
            number += 1
        os.rename(directory, target)
        sync_directory(directory.parent)
    except OSError as error:
        raise store_error(error, str(directory)) from error
    return target
