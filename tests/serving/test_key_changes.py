"""What the page of one key tells of its changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from consumers.owner.protocol import OwnerRow
from serving.client.streaming import StreamChange, StreamColumn
from serving.errors import ReadError
from serving.http.front import make_front
from serving.http.status.key_changes import ROW_CHARS_MAX, _told, changes_of, in_words
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace
from stream.wire.keys import Layout

HELD = OwnerRow(1, b"{}", "fresh", "", True, False, "shop/0", 1, "MariaDB/0-1-5", "MariaDB/0-1-5", 9, "", "", b"")


def event(gtid: str, *changes: dict[str, Any], kind: str = "transaction") -> bytes:
    """An event of a change stream."""
    return json.dumps({"kind": kind, "gtid": gtid, "timestamp": 3, "changes": changes}).encode()


def test_the_event_that_made_the_entry_says_so() -> None:
    """A void of the table in the same transaction did not make it, nor did an earlier change."""
    row = {"kind": "row", "table": "s.t", "op": "value", "row": {"id": 7, "text": "x" * ROW_CHARS_MAX}}
    void = {"kind": "void", "table": "s.t", "reason": "TRUNCATE"}
    made, voided = _told(event("MariaDB/0-1-5", row, void), HELD)
    assert (made.at, made.transaction, made.what, made.made_entry) == (3, "MariaDB/0-1-5", "written", True)
    assert made.row.startswith('{"id":7,"text":"xxx')
    assert (len(made.row), made.row[-1]) == (ROW_CHARS_MAX + 1, "…")
    assert (voided.what, voided.row, voided.made_entry) == ("its table was voided: TRUNCATE", "", False)
    [earlier] = _told(event("MariaDB/0-1-4", row), HELD)
    assert not earlier.made_entry
    assert list(_told(b"", HELD)) == []
    assert list(_told(event("", kind="unreadable"), HELD)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (StreamChange("row", op="deleted"), "deleted"),
        (StreamChange("row", op="void"), "changed, and the log does not say to what"),
        (StreamChange("void"), "its table was voided"),
        (StreamChange("schema", columns=[StreamColumn("id", "int")]), "its table was described anew"),
        (StreamChange("schema"), "its table is gone"),
        (StreamChange("backfill"), "a backfill of its table began"),
        (StreamChange("backfill", complete=True), "a backfill of its table was complete"),
        (StreamChange("epoch"), "an epoch of the shard began: what was before does not count"),
        (StreamChange("scope"), "only tables that are described from here on count"),
        (StreamChange("later"), "later"),
    ],
)
def test_changes_are_told_in_words(change: StreamChange, words: str) -> None:
    """One that this version does not know is told by its kind."""
    assert in_words(change) == words


def test_a_front_without_kafka_says_so() -> None:
    """The rest of the page is there all the same."""
    space = RowSpace("shop", Layout(2), "shop")
    found = asyncio.run(changes_of(make_front([space], Locations()), space, "s.t", b"s.t\0[7]", HELD, "1"))
    assert (found.changes, found.note) == ([], "this front has no Kafka to read changes from")


@pytest.mark.parametrize("fails", [False, True])
def test_a_page_gives_its_stream_back(*, fails: bool) -> None:
    """A front has so many: some looks at a page would use them up. Also where Kafka goes away meanwhile."""
    closed: list[bool] = []

    class Looking:
        has_ended = True

        async def batches(self, _: float) -> AsyncIterator[list[Any]]:
            if fails:
                raise ReadError("stream_unavailable", "Kafka is away")
            yield []

        async def close(self) -> None:
            closed.append(True)

    class Streams:
        async def begin(self, *_: object, **__: object) -> Looking:
            return Looking()

    space = RowSpace("shop", Layout(2), "shop")
    front = make_front([space], Locations())
    front.streams = cast("Any", Streams())
    found = asyncio.run(changes_of(front, space, "s.t", b"s.t\0[7]", HELD, "all"))
    assert (found.changes, found.note, closed) == ([], "Kafka is away" if fails else "", [True])
