"""Tables with few partitions on a real metastore: nothing that changes while they are read is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from stream.sources.hive.live import details
from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.structs import encode_struct
from stream.wire.events import ObjectSet
from tests.servers.hive_catalog import HiveCatalog
from tests.serving.stack import eventually
from tests.sources.hive.test_hive_source import Consumer, catalog, following, stored_partitions, whole

__all__ = ["catalog"]


def stored_statistics(catalog: HiveCatalog, table: str) -> dict[str, bytes | None]:
    """Name → Thrift struct of the statistics of a table's partitions, as the server has them."""
    of = f"{catalog.db}.{table}"
    found = catalog.metastore.partition_statistics(of, ["a"], catalog.metastore.partition_names(of))
    return {json.dumps(values, separators=(",", ":")): encode_struct(struct) for values, struct in found}


@pytest.mark.parametrize("sweep", ["read_few", "read_few_statistics"])
def test_changes_while_few_partitions_are_read_are_not_lost(
    catalog: HiveCatalog, monkeypatch: pytest.MonkeyPatch, sweep: str
) -> None:
    """Added, dropped, written, voided, the table made anew or renamed, just after the metastore gave what was there."""

    def make_anew(it: HiveCatalog) -> None:
        it.drop("anew")
        it.create("anew", transactional=False, partitioned=True)

    changes: dict[str, Callable[[HiveCatalog], object]] = {
        "added": lambda it: it.add_partitions("added", "c"),
        "dropped": lambda it: it.drop_partition("dropped", "a"),
        "written": lambda it: it.set_statistics("written", 3, "a"),
        "voided": lambda it: it.alter("voided", v="1"),
        "renamed": lambda it: it.alter("renamed", rename_to="other"),
        "anew": make_anew,
        "quiet": lambda _: None,
    }
    for table in changes:
        catalog.create(table, transactional=False, partitioned=True)
        catalog.add_partitions(table, "a", "b")
    quiet = catalog.table_id("quiet")
    left = dict(changes)

    read_first: Callable[..., object] = getattr(details, sweep)

    def read(metastore: Metastore, of: str, *shape: Sequence[str]) -> object:
        found = read_first(metastore, of, *shape)
        db, _, name = of.partition(".")
        change = left.pop(name, None) if db == catalog.db else None
        if change is not None:
            with HiveCatalog(catalog.address, catalog.db) as writer:
                change(writer)
        return found

    monkeypatch.setattr(details, sweep, read)
    consumer = Consumer()
    with following(catalog, consumer) as source:
        names = [table if table != "renamed" else "other" for table in changes]

        def why_not() -> list[str]:
            source.following.step()
            if left:
                return [*left]
            return [
                table
                for table in names
                if whole(source, "partition", catalog.table_id(table)) != stored_partitions(catalog, table)
                or whole(source, "partition_statistics", catalog.table_id(table)) != stored_statistics(catalog, table)
            ]

        eventually(lambda: not why_not(), what="the partitions")
        begun = [
            each
            for txn in consumer.transactions
            for each in txn.changes
            if isinstance(each, ObjectSet) and (each.table_id, each.change) == (quiet, "begun")
        ]
        kinds = [each.kind for each in begun]
        assert kinds == ["partition", "partition_statistics"], "a table that nothing wrote needs no pass"
        assert not consumer.folded.dead
