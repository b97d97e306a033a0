"""The answers of the read API: their types (for the client and the OpenAPI description) and their bytes.

The server doesn't build the types: it puts an answer together from bytes, and the row's image, JSON already, is
embedded without being decoded. Tests hold the two against each other.
"""

from __future__ import annotations

import msgspec

from serving.errors import ReadError

_text = msgspec.json.encode


def envelope_bytes(served_from: str, freshness: str, why: str, token: str) -> bytes:
    """The part that all answers begin with, open: the caller adds fields and the closing brace."""
    return b'{"served_from":"%b","freshness":"%b","why":%b,"token":%b' % (
        served_from.encode(),
        freshness.encode(),
        _text(why),
        _text(token),
    )


def row_bytes(
    envelope: bytes,
    image: bytes | None,
    *,
    event_token: str | None = None,
    fresher: bool | None = None,
    not_found: str = "",
) -> bytes:
    """A `RowAnswer`. ``image`` is JSON; None: there is no such row, and ``not_found`` says which one isn't there."""
    parts = [envelope, b',"found":true,"row":' + image if image is not None else b',"found":false,"row":null']
    if event_token is not None:
        parts.append(b',"event_token":' + _text(event_token))
    if fresher is not None:
        parts.append(b',"fresher":true' if fresher else b',"fresher":false')
    if image is None:
        parts.append(_not_found(not_found))
    parts.append(b"}")
    return b"".join(parts)


def table_bytes(
    envelope: bytes, table_id: int, write_ids: str | None, image: bytes | None, not_found: str = ""
) -> bytes:
    """A `TableAnswer`; ``image`` as in `row_bytes`."""
    if image is None:
        return envelope + b',"found":false,"table_id":0,"write_ids":null,"table":null' + _not_found(not_found) + b"}"
    return envelope + b',"found":true,"table_id":%d,"write_ids":%b,"table":%b}' % (table_id, _text(write_ids), image)


def _not_found(what: str) -> bytes:
    return (
        b',"code":"not_found","message":%b,"hint":"the token of this answer proves the absence as it would a row"'
        % (_text(what))
    )


def problem_bytes(error: ReadError) -> bytes:
    """A `Problem`."""
    fields = {"code": error.code, "message": str(error), "hint": error.hint}
    if error.token is not None:
        fields["token"] = error.token
    return _text(fields)
