"""Answers as the front sends them: JSON, with each image embedded byte for byte as the source or the cache holds it."""

from __future__ import annotations

from typing import TypeAlias, TypedDict

import msgspec

from serving.client.answers import (
    ObjectsAnswer,
    Problem,
    RangeAnswer,
    RowAnswer,
    RowBatchAnswer,
    TableAnswer,
    TableBatchAnswer,
)
from serving.errors import ReadError

RawRowAnswer: TypeAlias = RowAnswer[msgspec.Raw]
RawRangeAnswer: TypeAlias = RangeAnswer[msgspec.Raw]
RawTableAnswer: TypeAlias = TableAnswer[msgspec.Raw]
RawRowBatch: TypeAlias = RowBatchAnswer[RawRowAnswer | Problem]
RawTableBatch: TypeAlias = TableBatchAnswer[RawTableAnswer | Problem]
RawObjects: TypeAlias = ObjectsAnswer[msgspec.Raw]

encode = msgspec.json.Encoder().encode
"""The JSON of an answer."""


def problem_of(error: ReadError) -> Problem:
    """What ``error`` is to a reader."""
    code, line = error.code, str(error)
    title = code.replace("_", " ").capitalize()
    return Problem(code, line, error.hint, error.token, f"urn:freshet:{code}", title, error.status, line)


def encode_problem(error: ReadError) -> bytes:
    """The JSON of `problem_of`."""
    return encode(problem_of(error))


def raw_image(image: bytes | None) -> msgspec.Raw:
    """An image as a field of an answer; JSON null for None."""
    return msgspec.Raw(b"null" if image is None else image)


class AbsenceFields(TypedDict, total=False):
    """The fields that an answer has in addition where the row or table does not exist."""

    code: str
    message: str
    hint: str


def absence_fields(message: str) -> AbsenceFields:
    """The fields of an absence that ``message`` describes; no fields if it is empty."""
    if not message:
        return {}
    hint = "the token of this answer proves the absence as it would a row"
    return {"code": "not_found", "message": message, "hint": hint}
