"""Lists of write ids that a metastore reads otherwise, or that nothing can prove."""

from __future__ import annotations

import pytest

from serving.thrift.calls import asked_by
from stream.sources.hive.rpc.thrift import record, text

NONE_OPEN = 2**63 - 1


@pytest.mark.parametrize(
    ("listed", "is_asked"),
    [
        (f"db.t:5:{NONE_OPEN}::", True),
        (f"db.t:{NONE_OPEN}:{NONE_OPEN}::", False),
        ("", False),
        ("[5:]", False),
        (f"db.other:5:{NONE_OPEN}::", False),
    ],
    ids=["plain", "all valid", "empty", "of no table", "of another table"],
)
def test_a_call_with_an_odd_list_is_the_metastores(listed: str, is_asked: bool) -> None:
    """By an empty one a metastore takes every write for valid, and says that statistics hold.

    No entry covers a list in which all ids to come are valid: to wait for one would take as long as may be waited.
    """
    asked = asked_by("get_table_req", {1: record({1: text("db"), 2: text("t"), 6: text(listed)})}, "hive")
    assert (asked is not None) is is_asked
