"""Changes as records: what is too large for a message is left out of it, whatever part of it is large."""

from __future__ import annotations

from typing import Any

import pytest

from stream.wire.events import ObjectImage, TableImage
from stream.wire.records import event_record


@pytest.mark.parametrize(
    ("image", "struct", "fits"), [(50, 50, True), (50, 51, False), (101, 0, False), (0, 101, False)]
)
def test_both_forms_of_a_table_or_an_object_count(image: int, struct: int, fits: bool) -> None:
    """They go in one message: Kafka refuses it if only one of them was measured, and the source never gets past it."""
    both: dict[str, Any] = {"image": b"i" * image, "struct": b"s" * struct}
    table = TableImage(7, "d.t", "external", "image", **both)
    partition = ObjectImage("partition", 7, ("1",), "image", **both)
    for change in (table, partition):
        _, fields = event_record(change, "HiveEvent/5", 100)
        left = {name: fields[name] for name in ("change", "image", "struct")}
        assert left == ({"change": "image", **both} if fits else {"change": "written", "image": None, "struct": None})
