"""Work that histories share: equal messages are decoded, checked and described once, however many owners fold them.

What is remembered is a function of a message's bytes alone, so a history comes out the same with and without it.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from consumers import answering, fold
from stream import batch, codec, records

MESSAGES_MAX: Final = 32_768
PLAIN: Final = 2
"""The version of `marshal` in which equal records of one kind are equal bytes."""


class _Remembered(dict[str, Any]):
    """A decoded message, what `codec.check` said of it, and its bytes when it is encoded again."""

    refused: codec.CodecError | None = None
    checked = False
    encoded = b""


@lru_cache(maxsize=MESSAGES_MAX)
def decoded(value: bytes) -> tuple[str, _Remembered]:
    """`codec.decode`; nobody may change the answer."""
    name, record = codec.decode(value)
    return name, _Remembered(record)


def _check(name: str, record: _Remembered) -> None:
    if not record.checked:
        try:
            codec.check(name, record)
        except codec.CodecError as error:
            record.refused = error
        record.checked = True
    if record.refused is not None:
        raise record.refused.with_traceback(None)


@lru_cache(maxsize=MESSAGES_MAX)
def _encoded(name: str, written: bytes) -> bytes:
    return codec.encode(name, marshal.loads(written))


def _encode(name: str, record: Any) -> bytes:
    if not isinstance(record, _Remembered):
        return _encoded(name, marshal.dumps(record, PLAIN))
    if not record.encoded:
        record.encoded = codec.encode(name, record)
    return record.encoded


@contextmanager
def remembering() -> Iterator[None]:
    """Publishers, the fold and the owners' answers use what is remembered."""
    ours: dict[str, Any] = {"decode": decoded, "check": _check, "encode": _encode}
    patched = [(module.__dict__, {name: ours[name] for name in ours if name in vars(module)}) for module in _MODULES]
    before = [(scope, {name: scope[name] for name in names}) for scope, names in patched]
    for scope, names in patched:
        scope.update(names)
    try:
        yield
    finally:
        for scope, names in before:
            scope.update(names)


_MODULES: Final = (fold, answering, batch, records)
