"""How a block is protected: by checksums (XXH3-64), or encrypted (AES-256-GCM), which verifies too.

Either way the block's file version and number are part of it, so a block in another's place is damage.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct, pack
from struct import error as StructError
from typing import Final

import xxhash
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from serving.bytecache.disk.layout import (
    CELL,
    CELLS,
    GRANULE,
    MASK,
    NONCE,
    NONCE_ROOM,
    SEALED_CELL,
    block_seed,
)
from serving.bytecache.errors import ByteCacheError

KEY_BYTES: Final = 32
EPHEMERAL: Final = "ephemeral"
"""In place of a key file: a key that this process makes. The cache ends with it, and the next one begins anew."""
_CONTEXT: Final = Struct("<QQQ")
_NONCES: Final = Struct(f"{NONCE}s{NONCE_ROOM - NONCE}x")


@dataclass(frozen=True)
class Key:
    """A secret and its public name."""

    name: str
    secret: AESGCM

    def seal(self, plain: bytes | memoryview, context: bytes) -> tuple[bytes, bytes]:
        """(nonce, ciphertext with its tag). ``context`` is bound to it."""
        nonce = os.urandom(NONCE)
        return nonce, self.secret.encrypt(nonce, plain, context)

    def open(self, nonce: bytes, sealed: bytes | memoryview, context: bytes) -> bytes | None:
        """The plain bytes; None if anything was changed."""
        try:
            return self.secret.decrypt(nonce, sealed, context)
        except (InvalidTag, ValueError):
            return None

    def open_cells(
        self, nonces: bytes, sealed: memoryview, plain: memoryview, salt: int, number: int, first: int
    ) -> int:
        """Opens cells that follow each other, the first of number ``first``, into ``plain``; how many verified.

        Stops at the first that does not. ``nonces``: as they stand on disk.
        """
        decrypt, bound_to = self.secret.decrypt_into, _CONTEXT.pack
        at = place = opened = 0
        try:
            for (nonce,) in _NONCES.iter_unpack(nonces):
                cell = sealed[place : place + SEALED_CELL]
                decrypt(nonce, cell, bound_to(salt, number, first + opened), plain[at : at + CELL])
                at, place, opened = at + CELL, place + SEALED_CELL, opened + 1
        except (InvalidTag, ValueError, StructError):  # changed, or cut off
            pass
        return opened


def make_key(secret: bytes) -> Key:
    """A key of 32 secret bytes."""
    name = hashlib.sha256(b"freshet bytes key\0" + secret).hexdigest()[:16]
    return Key(name, AESGCM(secret))


def read_keys(key_file: str) -> Sequence[Key]:
    """The keys of a file: one a line, 64 hexadecimal digits. The first one seals, all of them open.

    Raises `ByteCacheError` ``bad_key_file``. Never quotes the file.
    """
    if not key_file:
        return ()
    if key_file == EPHEMERAL:
        return (make_key(os.urandom(KEY_BYTES)),)
    try:
        secrets = [bytes.fromhex(line) for line in Path(key_file).read_text().split()]
    except (OSError, ValueError) as error:
        kind = type(error).__name__
        raise ByteCacheError("bad_key_file", f"cannot read keys from {key_file} ({kind})") from None
    if not secrets or any(len(secret) != KEY_BYTES for secret in secrets):
        raise ByteCacheError("bad_key_file", f"{key_file} must hold keys of {2 * KEY_BYTES} hexadecimal digits")
    return tuple(make_key(secret) for secret in secrets)


def context(salt: int, number: int, cell: int) -> bytes:
    """What a sealed cell is bound to: directory, file version, place in the file."""
    return _CONTEXT.pack(salt, number, cell)


def seal_block(key: Key, data: memoryview, salt: int, number: int, block: int) -> tuple[bytes, bytes]:
    """(nonces, sealed cells) of one block, as they stand on disk."""
    nonces, cells = [], []
    for i, at in enumerate(range(0, len(data), CELL)):
        nonce, cell = key.seal(data[at : at + CELL], context(salt, number, block * CELLS + i))
        nonces.append(nonce.ljust(NONCE_ROOM, b"\0"))
        cells.append(cell)
    return b"".join(nonces), b"".join(cells)


def checksums(data: memoryview, seed: int, block: int) -> tuple[bytes, bytes]:
    """(the block's checksum, those of its granules), as they stand on disk. ``data``: one block."""
    start = block_seed(seed, block)
    parts = [
        xxhash.xxh3_64_intdigest(data[at : at + GRANULE], (start + 1 + at // GRANULE) & MASK)
        for at in range(0, len(data), GRANULE)
    ]
    return pack("<Q", xxhash.xxh3_64_intdigest(data, start)), pack(f"<{len(parts)}Q", *parts)
