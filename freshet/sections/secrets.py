"""Secrets that stand in files of their own: ``NAME_file`` in place of any secret ``NAME``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import SecretStr
from pydantic.fields import FieldInfo

SUFFIX: Final = "_file"
BYTES_MAX: Final = 64 << 10

read_files: Final[set[Path]] = set()
"""Those that were read in this process. `freshet.access.reloading` looks whether they change."""
names: Final[set[str]] = set()
"""Of the secrets of all sections, which may stand in files."""


class BothSetError(ValueError):
    """A secret that is given in both ways in one place."""


def from_files(fields: Mapping[str, FieldInfo], given: Any) -> Any:
    """``given`` with secrets in place of the files that it names. Raises ``ValueError``, which shows no content."""
    if not isinstance(given, Mapping):
        return given
    found = dict(given)
    for name in secrets_of(fields):
        path = found.pop(name + SUFFIX, None)
        if path is None:
            continue
        if found.get(name) is not None:
            raise BothSetError(f"{name} and {name}{SUFFIX} are both set")
        found[name] = secret_in(path, name)
    return found


def secrets_of(fields: Mapping[str, FieldInfo]) -> list[str]:
    """Those that may stand in files."""
    return [name for name, field in fields.items() if _is_secret(field) and name + SUFFIX not in fields]


def without_replaced(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """The ``earlier`` of two layers of settings without the secrets that ``later`` gives in the other way.

    Merged they would be ``x`` and ``x_file``, of which nobody could say which one was meant. An empty one, as of a
    variable that a script has not filled, replaces none: the file's would be gone, and a front open to all.
    """
    found: dict[str, Any] = {}
    for key, value in earlier.items():
        instead = later.get(key)
        if isinstance(value, Mapping) and isinstance(instead, Mapping):
            found[key] = without_replaced(value, instead)
        elif isinstance(value, Mapping) or later.get(_other_way(key)) in (None, ""):
            found[key] = value
    return found


def _other_way(key: str) -> str:
    """``x_file`` of a secret ``x``, ``x`` of its ``x_file``; else ""."""
    if key in names:
        return key + SUFFIX
    secret = key.removesuffix(SUFFIX)
    return secret if secret != key and secret in names else ""


def secret_in(path: Any, name: str) -> str:
    """The text of a file, without its line end. Raises ``ValueError``."""
    try:
        place = Path(path)
        read_files.add(place.absolute())  # one that is not there yet may come
        with place.open("rb") as file:
            text = file.read(BYTES_MAX + 1)
        if len(text) > BYTES_MAX:
            raise ValueError(f"{name}{SUFFIX}: {place} is too large for a secret")
        return text.decode().rstrip("\r\n")
    except (OSError, TypeError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text file"
        raise ValueError(f"{name}{SUFFIX}: {path} cannot be read: {reason}") from None


def _is_secret(field: FieldInfo) -> bool:
    return field.annotation is SecretStr or SecretStr in get_args(field.annotation)
