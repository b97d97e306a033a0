"""The errors of the byte cache. A damaged or full disk is none of them: it makes a read slower, not wrong."""

from __future__ import annotations

from typing import Final

from tokens.errors import FreshetError

_HINTS: Final = {
    "bad_key_file": "one key a line, 64 hexadecimal digits, the current one first: `openssl rand -hex 32`",
    "bad_bytes_option": "docs/operating/settings.md has the options of the byte cache",
    "bytes_dir_denied": "choose a directory of its own that this user may write; it must not be a symbolic link",
    "bytes_dir_foreign": "choose an empty directory: this one holds other files",
    "bytes_dir_newer": "update this process, or choose another directory",
    "bytes_dir_in_use": "its owner runs with other settings or does not answer: end it, or choose another directory",
    "bytes_no_holes": "choose a file system with hole punching (ext4, XFS, Btrfs, tmpfs)",
    "file_changed": "read it again: it was replaced while it was read",
    "short_read": "the remote store returned less than the file's length: try again, and look at the store",
    "no_ranges": "read the file from its beginning and as a whole, or have its server answer requests with `Range`",
    "no_length": "read it from the store, or through the file system `freshet`, which does so",
    "no_bytes_dir": "set bytes.dirs, or give --bytes-dirs",
    "bytes_not_given": "ask for less, give the directory a larger quota, or put it elsewhere",
    "bad_trace": "record one with `freshet bytes trace`",
}


class ByteCacheError(FreshetError, OSError):
    """What a user of the byte cache can see. An ``OSError``, as callers of file systems expect."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, hint=_HINTS[code], code=code)
