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


def from_files(fields: Mapping[str, FieldInfo], given: Any) -> Any:
    """``given`` with secrets in place of the files that it names. Raises ``ValueError``, which shows no content."""
    if not isinstance(given, Mapping):
        return given
    found = dict(given)
    for name, field in fields.items():
        path = found.pop(name + SUFFIX, None) if _is_secret(field) and name + SUFFIX not in fields else None
        if path is None:
            continue
        if found.get(name) is not None:
            raise ValueError(f"{name} and {name}{SUFFIX} are both set")
        found[name] = secret_in(path, name)
    return found


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
