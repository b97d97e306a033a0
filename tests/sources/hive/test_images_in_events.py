"""What a replay, which can fetch nothing, takes of the tables that events show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stream.sources.hive.translator import HiveTranslator
from stream.wire.events import TableImage


@pytest.mark.parametrize(("table_type", "shown"), [("EXTERNAL_TABLE", 2), ("MATERIALIZED_VIEW", 0)])
def test_the_image_of_a_materialized_view_is_not_taken(table_type: str, shown: int) -> None:
    """A REBUILD changes its creation metadata without an event: a cache would prove it for ever."""
    struct = json.dumps({"1": {"str": "v"}, "2": {"str": "s"}, "12": {"str": table_type}, "25": {"i64": 7}})
    events: list[tuple[str, dict[str, Any]]] = [
        ("CREATE_TABLE", {"tableObjJson": struct}),
        ("ALTER_TABLE", {"tableObjBeforeJson": struct, "tableObjAfterJson": struct}),
    ]
    translator = HiveTranslator(with_images=True)
    found: list[TableImage] = []
    for number, (kind, message) in enumerate(events, 1):
        row = {"eventId": number, "eventTime": 1, "eventType": kind, "db": "s", "table": "v", "message": message}
        txn = translator.translate(row)
        assert txn is not None
        found += [each for each in txn.changes if isinstance(each, TableImage)]
    assert {each.change for each in found} >= {"created", "written"}
    assert len([each for each in found if each.image is not None]) == shown
