"""What an attached process and the owner of a directory say to each other, over a Unix socket in the directory.

A message is a length (4 bytes, little-endian) and MessagePack. Descriptors of the shards' files come with `Welcome`;
with them a process reads what is stored by itself. It calls the owner where something changes: a file is entered,
blocks are claimed, stored or given up. The bytes of `Store` follow its message as they are.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from struct import Struct
from typing import Final

import msgspec
import numpy as np

VERSION: Final = 1
SOCKET: Final = "owner.sock"
MESSAGE_BYTES_MAX: Final = 16 << 20
STORE_BYTES_MAX: Final = 1 << 30
_LENGTH: Final = Struct("<I")


class OwnerGoneError(Exception):
    """The owner ended, does not answer in time, or is another version."""


class OwnerLateError(OwnerGoneError):
    """It has not answered within what a reader's deadline left. It may yet, so it is not left for that."""


class OtherKeysError(OwnerGoneError):
    """The owner's files are sealed with keys that are not at hand, or are not sealed."""


class Hello(msgspec.Struct, tag=True):
    version: int


class Enter(msgspec.Struct, tag=True):
    path: str
    version: str
    size: int
    scope: str


class Known(msgspec.Struct, tag=True):
    path: str


class Claim(msgspec.Struct, tag=True):
    number: int
    blocks: list[int]


class Release(msgspec.Struct, tag=True):
    number: int
    blocks: list[int]


class Wait(msgspec.Struct, tag=True):
    number: int
    blocks: list[int]
    timeout_s: float


class Store(msgspec.Struct, tag=True):
    number: int
    first: int
    length: int
    value: int
    expires: int


class Check(msgspec.Struct, tag=True):
    """A block that did not verify where it was read."""

    number: int
    block: int


class Forget(msgspec.Struct, tag=True):
    path: str
    prefix: bool


class Describe(msgspec.Struct, tag=True):
    files: bool


class ListFiles(msgspec.Struct, tag=True):
    """Each cached file: as many `FileLines` as it takes, the last one empty. An older owner ends the connection."""


class Verify(msgspec.Struct, tag=True):
    pass


class Resize(msgspec.Struct, tag=True):
    quota: int


class Reserve(msgspec.Struct, tag=True):
    """Room for something else, for as long as this connection lasts. An older owner ends it: refused."""

    wanted: int


Request = (
    Hello
    | Enter
    | Known
    | Claim
    | Release
    | Wait
    | Store
    | Check
    | Forget
    | Describe
    | ListFiles
    | Verify
    | Resize
    | Reserve
)


class Welcome(msgspec.Struct, tag=True):
    """``keys``: names, as in the marker. Four descriptors a shard come along: heads, heat, sums, data."""

    salt: int
    slots: int
    shards: int
    keys: list[str]


class Entered(msgspec.Struct, tag=True):
    """``number`` 0: it can't be cached. ``slots``: unit and slot of what is here."""

    number: int
    version: str = ""
    size: int = 0
    slots: list[tuple[int, int]] = []


class Located(msgspec.Struct, tag=True):
    """``slots``: as in `Entered`, of the units asked for. ``claimed``: blocks to be fetched by who asked."""

    slots: list[tuple[int, int]]
    claimed: list[int] = []


class Done(msgspec.Struct, tag=True):
    """``counts``: of files forgotten; of blocks that verified and that were damaged; or 1: reserved, 0: refused."""

    counts: list[int] = []


class FileLine(msgspec.Struct, omit_defaults=True):
    """A cached file, as ``freshet bytes ls --json`` prints it."""

    path: str
    version: str
    size: int
    cached_bytes: int
    scope: str = ""


class FileLines(msgspec.Struct, tag=True):
    """Some of the cached files; none: those were all."""

    files: list[FileLine]


class Took(msgspec.Struct):
    """As `serving.bytecache.disk.health.Times`."""

    counts: list[int]
    seconds: float


class Described(msgspec.Struct, tag=True):
    """A directory, as ``freshet bytes du --json`` prints it. ``times``: of its owner; ``read``: of who asks.

    ``dropped``, ``dropped_bytes`` of ``counts``: of both.
    """

    place: str
    pid: int
    quota: int
    used: int
    entries: int
    pools: dict[str, int]
    counts: dict[str, int]
    files: list[FileLine] = []
    times: dict[str, Took] = {}


Reply = Welcome | Entered | Located | Done | Described | FileLines

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def decode_request(raw: bytes) -> Request:
    """Raises `OwnerGoneError` for what is no request."""
    try:
        return _requests.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OwnerGoneError(str(error)) from error


def decode_reply(raw: bytes) -> Reply:
    """Raises `OwnerGoneError` for what is no reply."""
    try:
        return _replies.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OwnerGoneError(str(error)) from error


def send(link: socket.socket, message: Request | Reply, data: memoryview | None = None) -> None:
    """Sends a message, and what follows it. Raises ``OSError``."""
    raw = _encoder.encode(message)
    link.sendall(_LENGTH.pack(len(raw)) + raw)
    if data is not None:
        link.sendall(data)


def receive(link: socket.socket, longest: int = MESSAGE_BYTES_MAX) -> bytes:
    """The next message. Raises `OwnerGoneError` at the end, and ``OSError``."""
    (length,) = _LENGTH.unpack(receive_exactly(link, _LENGTH.size))
    if length > longest:
        raise OwnerGoneError(f"a message of {length} bytes")
    return receive_exactly(link, length)


def receive_exactly(link: socket.socket, length: int) -> bytes:
    """So many bytes. Raises `OwnerGoneError` at the end, and ``OSError``."""
    return bytes(receive_stored(link, length))


def receive_stored(link: socket.socket, length: int) -> memoryview:
    """As `receive_exactly`, for many: into memory that is neither zeroed nor copied while the process's readers wait.

    The kernel gives that memory as it is filled, and the interpreter is free meanwhile.
    """
    found = np.empty(length, np.uint8).data
    at = 0
    while at < length:
        got = link.recv_into(found[at:])
        if not got:
            raise OwnerGoneError("the connection ended")
        at += got
    return found


def at_socket(place: Path, use: str, link: socket.socket) -> None:
    """``bind`` or ``connect`` to a directory's socket, however long its path is. Raises ``OSError``."""
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        getattr(link, use)(f"/proc/self/fd/{directory}/{SOCKET}")
    finally:
        os.close(directory)
