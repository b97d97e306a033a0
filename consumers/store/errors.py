"""The errors of a store on disk, each with a stable code and a hint."""

from __future__ import annotations

import errno
import os

from tokens.errors import FreshetError


class StoreError(FreshetError):
    """Base of the errors of a partition's store."""

    code = "store_error"


class StoreCorruptError(StoreError):
    """Bytes on disk differ from those that were written. Nothing of the store may be served."""

    code = "store_corrupt"


class StoreNewerError(StoreError):
    """A newer version of Freshet wrote the store. It is left unchanged."""

    code = "store_newer"


class StoreLockedError(StoreError):
    """Another process owns the store."""

    code = "store_locked"


class RetryableStoreError(StoreError):
    """A commit failed for a reason that may pass. Nothing is lost; the same commit is tried again."""


class DiskFullError(RetryableStoreError):
    """No space (or quota, or file size) left for a commit."""

    code = "disk_full"


class DiskIOError(RetryableStoreError):
    """The disk reports I/O errors. What was read is right; what was not written is tried again."""

    code = "store_io"


class ResourcesError(RetryableStoreError):
    """The process has no file handles or no memory left."""

    code = "store_resources"


class RebuildNeededError(StoreError):
    """The store is undamaged but has another history or fold version. It must be folded again from the topic.

    Codes: ``topic_changed``, ``layout_changed``, ``fold_changed``, ``offset_out_of_range``, ``log_truncated``.
    """

    code = "rebuild_needed"


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_TEXTS = ("No space left on device", "Disk quota exceeded", "File too large", "No Space")
_FAILS = (errno.EIO, errno.EROFS, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ENODEV, errno.ENXIO)
"""The last ones are of disks that are away: of a network, or detached."""
_FAILS_TEXTS = (
    *map(os.strerror, _FAILS),
    "Unexpected error(5)",
    "Direct I/O is not supported",
)
"""The last two are RocksDB's texts for EIO when it checks that a file exists, or probes its directory."""
_LOCK_TEXTS = ("lock hold by current process", "While lock file")
HINT_LOCKED = "stop the other process, or give this one another data directory"
_HINT_FAILS = "look for disk errors in the kernel's log; the consumer resumes by itself when writes succeed"
_HINT_FULL = "free space under the data directory; the consumer resumes by itself"
_HINT_RESOURCES = "raise the process's limits (ulimit -n); the consumer resumes by itself"


def store_error(error: BaseException, place: str) -> StoreError:
    """The `StoreError` for an exception that RocksDB or the file system raised at ``place``."""
    text = str(error)
    if isinstance(error, StoreError):
        return error
    if (isinstance(error, OSError) and error.errno in _FULL) or any(part in text for part in _FULL_TEXTS):
        return DiskFullError(f"{place}: no space left: {text}", hint=_HINT_FULL)
    if any(part in text for part in _LOCK_TEXTS):
        return StoreLockedError(f"{place}: another process has this store open", hint=HINT_LOCKED)
    if isinstance(error, PermissionError) or "Permission denied" in text:
        return StoreError(f"{place}: {text}", hint="give this user read and write access", code="store_denied")
    if isinstance(error, MemoryError) or "Too many open files" in text or "Cannot allocate memory" in text:
        return ResourcesError(f"{place}: {text}", hint=_HINT_RESOURCES)
    if "already closed" in text or "mutably borrowed" in text:
        return StoreError(
            f"{place}: the store is closed",
            hint="the partition has moved, or the process is stopping",
            code="store_closed",
        )
    if (isinstance(error, OSError) and error.errno in _FAILS) or any(part in text for part in _FAILS_TEXTS):
        return DiskIOError(f"{place}: {text}", hint=_HINT_FAILS)
    return StoreCorruptError(f"{place}: {text}", hint="the store is moved aside and folded again from the topic")
