"""The names of the cached files: which number stands for which path and version.

A log of records: length, checksum, then JSON ``[number, path, version, size, scope]`` (or ``[number]``: gone),
encrypted where there is a key. A torn end is cut off. Heads of numbers that the log does not know are dropped, so a
crash between the two loses an entry, and never mixes two files. Numbers begin at a random one each time the log is
opened: one that a power cut took from log and heads may still have its bytes and checksums on disk.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from time import monotonic
from typing import Final

import msgspec
import xxhash

from serving.bytecache.disk.layout import NONCE, TAG, file_seed
from serving.bytecache.disk.seals import Key
from serving.bytecache.disk.space import write_all

_PREFIX: Final = Struct("<IQ")
RECORD_BYTES_MAX: Final = 64 * 1024
_CONTEXT: Final = b"freshet bytes name"
SAVED: Final = 1 / 8
"""Of its share: the log is looked at each time that it grew by so much, and written anew where that saves as much."""
CROWDED: Final = 3 / 4
"""Of its share: where the names in use take more, entries leave until they take `ROOMY`."""
ROOMY: Final = 5 / 8
RETRY_S: Final = 30.0
"""A log that is full is looked at again after this."""
_SEALED: Final = NONCE + TAG


@dataclass(slots=True, eq=False)
class CachedFile:
    """One version of one remote file. ``seed``: of its checksums. ``alive``: nothing is stored for it otherwise."""

    number: int
    path: str
    version: str
    size: int
    scope: str
    seed: int
    alive: bool = True


class Names:
    """The log, and what it says. Not thread-safe: the directory's lock protects it."""

    def __init__(self, path: Path, salt: int, keys: Iterable[Key]) -> None:
        """Reads the log, cuts a torn end off, and drops what no key opens."""
        self._path = path
        self._salt = salt
        self._keys = list(keys)
        self.by_number: dict[int, CachedFile] = {}
        self.by_path: dict[str, CachedFile] = {}
        self._gone: list[int] = []
        self._next = secrets.randbits(62) + 1
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self.length = self._load()
        except BaseException:
            self.close()
            raise
        self._looked_at = -RETRY_S
        self._due = 0
        """The length from which on a look is due."""

    def close(self) -> None:
        """Closes the log."""
        os.close(self._file)

    def add(self, path: str, version: str, size: int, scope: str) -> CachedFile:
        """Writes down a new file version and makes it the path's current one. Raises ``OSError``."""
        file = CachedFile(self._next, path, version, size, scope, file_seed(self._salt, self._next))
        self._write([file.number, path, version, size, scope])
        self._next += 1
        self.by_number[file.number] = file
        self.by_path[path] = file
        return file

    def remove(self, file: CachedFile) -> None:
        """A file version is not cached any more. Raises ``OSError`` of a disk that does not take that down yet."""
        file.alive = False
        self.by_number.pop(file.number, None)
        if self.by_path.get(file.path) is file:
            del self.by_path[file.path]
        self._gone.append(file.number)
        self.write_gone()

    def write_gone(self) -> None:
        """Takes down what is gone, also what the disk refused before. Raises ``OSError``."""
        while self._gone:
            self._write([self._gone[-1]])
            self._gone.pop()

    def is_due(self, share: int) -> bool:
        """Whether to `shorten` the log, which may take ``share`` bytes."""
        grown = self.length > share // 2 and self.length >= self._due
        return grown or (self.is_full(share) and monotonic() - self._looked_at >= RETRY_S)

    def is_full(self, share: int) -> bool:
        """Whether no name goes in any more."""
        return self.length > share - RECORD_BYTES_MAX

    def shorten(self, share: int, in_use: Callable[[], set[int]], evict: Callable[[float], int]) -> set[int]:
        """Writes the log anew without what is not ``in_use``, if it is worth it; the numbers that left.

        ``evict``: this part of the entries leaves, where names have more than their share; returns how many.
        Raises ``OSError``. Looks at every name and entry, so it is called only where it `is_due`.
        """
        self._looked_at, self._due = monotonic(), self.length + int(share * SAVED)
        used = in_use()
        while (wanted := self._bytes_of(used)) > share * CROWDED and evict(1 - share * ROOMY / wanted):
            used = in_use()
        if self.length - wanted < share * SAVED:
            return set()
        left = self._write_anew(used)
        self._due = self.length + int(share * SAVED)
        return left

    def _bytes_of(self, numbers: Container[int]) -> int:
        more = _PREFIX.size + (_SEALED if self._keys else 0)
        return sum(
            len(msgspec.json.encode(_fields(file))) + more
            for number, file in self.by_number.items()
            if number in numbers
        )

    def _write_anew(self, used: Container[int]) -> set[int]:
        kept = [self._record(_fields(file)) for number, file in self.by_number.items() if number in used]
        place = self._path.with_suffix(".new")
        fresh = os.open(place, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(fresh, b"".join(kept), 0)
            os.replace(place, self._path)
        except BaseException:
            os.close(fresh)
            place.unlink(missing_ok=True)
            raise
        os.close(self._file)
        self._file, self.length = fresh, sum(map(len, kept))
        self._gone.clear()
        left = {number for number in self.by_number if number not in used}
        for number in left:
            gone = self.by_number.pop(number)
            gone.alive = False
            if self.by_path.get(gone.path) is gone:
                del self.by_path[gone.path]
        return left

    def _load(self) -> int:
        text = os.pread(self._file, os.fstat(self._file).st_size, 0)
        at = 0
        for end, payload in records(text):
            self._apply(payload)
            at = end
        if at < len(text):
            os.ftruncate(self._file, at)
        return at

    def _apply(self, payload: bytes) -> None:
        plain: bytes | None = payload
        if self._keys:
            nonce, sealed = payload[:NONCE], payload[NONCE:]
            opened = (key.open(nonce, sealed, _CONTEXT) for key in self._keys)
            plain = next((each for each in opened if each is not None), None)
        fields = _decoded(plain)
        if fields is None:
            return
        number = fields.number
        if (old := self.by_number.pop(number, None)) is not None and self.by_path.get(old.path) is old:
            del self.by_path[old.path]
        if fields.path is not None:
            seed = file_seed(self._salt, number)
            file = CachedFile(number, fields.path, fields.version, fields.size, fields.scope, seed)
            if (earlier := self.by_path.get(file.path)) is not None:
                self.by_number.pop(earlier.number, None)
            self.by_number[number] = self.by_path[file.path] = file

    def _write(self, fields: list[object]) -> None:
        record = self._record(fields)
        write_all(self._file, record, self.length)
        self.length += len(record)

    def _record(self, fields: list[object]) -> bytes:
        payload = msgspec.json.encode(fields)
        if self._keys:
            payload = b"".join(self._keys[0].seal(payload, _CONTEXT))
        return _PREFIX.pack(len(payload), xxhash.xxh3_64_intdigest(payload)) + payload


def is_text(name: str) -> bool:
    """False for the name of a local file, or an ETag, that is not UTF-8: neither the log takes it nor a message."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def records(text: bytes) -> Iterable[tuple[int, bytes]]:
    """(where it ends, payload) of each whole record, up to the first one that is not."""
    at = 0
    while at + _PREFIX.size <= len(text):
        length, check = _PREFIX.unpack_from(text, at)
        end = at + _PREFIX.size + length
        payload = text[at + _PREFIX.size : end]
        if length > RECORD_BYTES_MAX or end > len(text) or xxhash.xxh3_64_intdigest(payload) != check:
            return
        yield end, payload
        at = end


def _fields(file: CachedFile) -> list[object]:
    return [file.number, file.path, file.version, file.size, file.scope]


class _Named(msgspec.Struct, array_like=True):
    number: int
    path: str | None = None
    version: str = ""
    size: int = 0
    scope: str = ""


_named = msgspec.json.Decoder(_Named)


def _decoded(plain: bytes | None) -> _Named | None:
    """None for what no version of this code has written, or another key sealed. Without a path: gone."""
    if plain is None:
        return None
    try:
        return _named.decode(plain)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
