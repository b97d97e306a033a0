"""The character sets and collations that the simulated server knows: how texts compare, and how they are stored."""

from __future__ import annotations

from typing import Final, NamedTuple

from lab.simulation.mariadb.sql.syntax import UnknownStatement

BINARY_ID: Final = 63


class Collation(NamedTuple):
    """``pads``: trailing blanks do not count. ``folds``: neither do case and accents."""

    id: int
    charset: str
    pads: bool
    folds: bool


COLLATIONS: Final = {
    "latin1_swedish_ci": Collation(8, "latin1", pads=True, folds=True),
    "latin1_bin": Collation(47, "latin1", pads=True, folds=False),
    "utf8mb3_general_ci": Collation(33, "utf8mb3", pads=True, folds=True),
    "utf8mb4_general_ci": Collation(45, "utf8mb4", pads=True, folds=True),
    "utf8mb4_bin": Collation(46, "utf8mb4", pads=True, folds=False),
    "utf8mb4_nopad_bin": Collation(1070, "utf8mb4", pads=False, folds=False),
    "binary": Collation(BINARY_ID, "binary", pads=False, folds=False),
}
CHARSETS: Final = {
    "latin1": ("latin1_swedish_ci", 1),
    "utf8mb3": ("utf8mb3_general_ci", 3),
    "utf8mb4": ("utf8mb4_general_ci", 4),
    "binary": ("binary", 1),
}
"""Character set → its default collation, and the most bytes of a character."""

_LATIN1: Final = tuple(bytes([byte]).decode("cp1252", "replace").replace("�", chr(byte)) for byte in range(256))
"""MariaDB's latin1 is cp1252 without holes."""
_LATIN1_BYTES: Final = {character: byte for byte, character in enumerate(_LATIN1)}


def decoded(value: bytes, charset: str) -> str:
    """The text of ``value``."""
    return "".join(_LATIN1[byte] for byte in value) if charset == "latin1" else value.decode()


def encoded(value: str, charset: str) -> bytes:
    """The bytes of ``value``. Raises `UnicodeEncodeError` if the character set lacks a character."""
    if charset != "latin1":
        return value.encode()
    if missing := [at for at, character in enumerate(value) if character not in _LATIN1_BYTES]:
        raise UnicodeEncodeError("latin1", value, missing[0], missing[0] + 1, "no such character")
    return bytes(_LATIN1_BYTES[character] for character in value)


def folded(value: str, collation: str) -> str:
    """What two texts have in common if and only if the collation calls them equal."""
    known = collation_of(collation)
    text = value.rstrip(" ") if known.pads else value
    return text.upper() if known.folds else text


def collation_of(name: str) -> Collation:
    """A collation by its name."""
    if name not in COLLATIONS:
        raise UnknownStatement(f"collation {name}")
    return COLLATIONS[name]


def charset_of(name: str) -> str:
    """A character set by one of its names."""
    found = "utf8mb3" if name == "utf8" else name
    if found not in CHARSETS:
        raise UnknownStatement(f"character set {name}")
    return found
