"""A file's bytes in an answer: those that were asked for, all of them, or an error."""

from __future__ import annotations

import pytest

from serving.client.errors import ServerError
from serving.client.wire import FileBytes, read_file


def test_the_bytes_of_a_range_come_with_their_place() -> None:
    """In the file, whose size and version are told too; without a range they are the whole file."""
    part = {"content-range": "bytes 10-14/100", "etag": '"v"'}
    assert read_file(206, part, b"abcde") == FileBytes(b"abcde", 10, 100, '"v"')
    assert read_file(200, {}, b"abcde") == FileBytes(b"abcde", 0, 5, "")


@pytest.mark.parametrize("place", ["bytes 10-15/100", "bytes 10-13/100", "bytes */100", "bytes 10-14/*", ""])
def test_bytes_that_are_not_those_of_their_place_are_none(place: str) -> None:
    """Something on the way has cut them off, or knows no ranges: whoever reads a file in parts would read it wrong."""
    with pytest.raises(ServerError):
        read_file(206, {"content-range": place}, b"abcde")
