"""A table's rename that was not seen frees its old name; the next table of that name is another table."""

from __future__ import annotations

from consumers.process.replay import Replay
from lab.simulation.hive.metastore import Metastore
from tokens import ValidWriteIdList


def test_a_new_table_does_not_begin_with_the_ids_of_the_one_before() -> None:
    """Else its list would cover writes of its own that nobody has folded yet."""
    metastore, replay = Metastore(), Replay()
    metastore.create("s.t", "full")
    for _ in range(5):
        [txn] = metastore.open_txns(1)
        metastore.allocate("s.t", [txn])
        metastore.write("s.t", "INSERT", txn)
        metastore.end(txn, commit=True)
    seen = len(metastore.log)
    for row in metastore.log:
        replay.feed(row)
    metastore.rename("s.t", "s.u")
    after_rename = len(metastore.log)
    assert after_rename > seen
    metastore.write("s.u", "INSERT", shown=True)
    metastore.create("s.t", "full")
    for row in metastore.log[after_rename:]:
        replay.feed(row)
    served = ValidWriteIdList.parse(replay.tables()["s.t"].write_ids)
    [txn] = metastore.open_txns(1)
    metastore.allocate("s.t", [txn])
    metastore.write("s.t", "INSERT", txn)
    metastore.end(txn, commit=True)
    assert not served.covers(ValidWriteIdList.parse(metastore.valid_write_ids("s.t")))
