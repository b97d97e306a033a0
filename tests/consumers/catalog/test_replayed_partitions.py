"""Which partitions a replayed log leaves known."""

from __future__ import annotations

import json
from typing import Any

from consumers.process.replay import Replay

TABLE = json.dumps(
    {
        "1": {"str": "t"},
        "2": {"str": "d"},
        "8": {"lst": ["rec", 1, {"1": {"str": "p"}, "2": {"str": "string"}}]},
        "25": {"i64": 7},
    }
)
PARTITION = json.dumps({"1": {"lst": ["str", 1, "a"]}, "2": {"str": "d"}, "3": {"str": "t"}})


def known(replay: Replay, event_id: int, kind: str, **message: Any) -> tuple[list[list[str]], bool]:
    """The values of the table's known partitions after one more event, and whether these are all."""
    row = {"eventId": event_id, "eventTime": 1, "eventType": kind, "db": "d", "table": "t", "message": message}
    assert replay.feed(row) == event_id
    [table] = replay.tables().values()
    return [each.values for each in table.partitions], table.partitions_whole


def test_after_an_event_that_cannot_be_read_no_partition_is_known() -> None:
    """It may have dropped any of them, or added some: its table is void with all that belongs to it."""
    replay = Replay()
    assert known(replay, 1, "CREATE_TABLE", tableObjJson=TABLE) == ([], True)
    added = {"tableObjJson": TABLE, "partitionListJson": [PARTITION]}
    assert known(replay, 2, "ADD_PARTITION", **added) == ([["a"]], True)
    assert known(replay, 3, "SOMETHING_NEW") == ([], False)
    assert known(replay, 4, "ADD_PARTITION", **added) == ([["a"]], False)
