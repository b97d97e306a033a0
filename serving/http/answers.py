"""What the front sends, as JSON."""

from __future__ import annotations

import msgspec

from serving.client.answers import Problem
from serving.errors import ReadError

encode = msgspec.json.Encoder().encode
"""The JSON of an answer; the image in it is embedded as it is."""


def problem_bytes(error: ReadError) -> bytes:
    """A `Problem`."""
    return encode(Problem(error.code, str(error), error.hint, error.token))
