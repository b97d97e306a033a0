"""A metastore that dies while a source publishes its catalog for the first time, and comes back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from freshet.local.hive.server import HiveServer
from stream.sources.hive.rpc.connection import MetastoreError
from stream.wire.events import ObjectImage, TableImage
from tests.servers.hive_catalog import HiveCatalog
from tests.serving.stack import eventually
from tests.sources.hive.test_hive_source import Consumer, Source, follow_details, following, stored_partitions, whole

TABLES = [f"t{number}" for number in range(7)]
PARTITIONED = "t8"


def stepped(source: Source) -> bool:
    """One step, as the process makes it: an outage is waited out."""
    try:
        return source.following.step()
    except MetastoreError:
        return False


@pytest.mark.nightly
def test_a_bootstrap_goes_on_where_the_metastore_died(
    new_hive: Callable[..., HiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Amid the tables, amid what belongs to them, and amid partitions: nothing is lost, and what was done is not done
    again."""
    bounds = (
        "following.CHUNK_TABLES",
        "details.CHUNK_DETAILS",
        "fetching.AHEAD",
        "partitions.CHUNK",
        "partitions.CHUNKS_AHEAD",
    )
    for name in (*bounds, "members.FEW_MAX"):
        monkeypatch.setattr(f"stream.sources.hive.live.{name}", 1)
    server, consumer = new_hive(), Consumer()
    with HiveCatalog((server.host, server.port), "d") as catalog:
        for table in TABLES:
            catalog.create(table, v="0")
        partitioned = catalog.create(PARTITIONED, transactional=False, partitioned=True)
        catalog.add_partitions(PARTITIONED, *"abcdef")
        first = catalog.table_id(TABLES[0])
        with following(catalog, consumer) as source:
            progress, passes = source.following._progress, source.following._partitions._passes

            def has_members() -> bool:
                images = (each for txn in consumer.transactions for each in txn.changes)
                return any(isinstance(each, ObjectImage) and each.kind == "partition" for each in images)

            cuts: list[tuple[str, Callable[[], bool]]] = [
                ("tables", lambda: progress.swept >= "d.t3"),
                ("details", lambda: (progress.detailed or "") >= "d.t3"),
                ("partitions", lambda: bool(passes) and has_members()),
            ]
            for number, (what, is_amid) in enumerate(cuts):
                eventually(lambda is_amid=is_amid: is_amid() or (stepped(source) and False), what=what)  # type: ignore[misc]
                assert not source.following.is_complete
                server.kill()
                with pytest.raises(MetastoreError):
                    eventually(lambda: source.following.step() and False, what="the outage")
                server.start()
                catalog.write("t1", v=str(number + 1))
                catalog.write("t6", v=str(number + 1))
            eventually(lambda: stepped(source) or source.following.is_complete, what="a connection")
            source.follow(*TABLES, PARTITIONED)
            follow_details(source, *TABLES, PARTITIONED)
            stored = stored_partitions(catalog, PARTITIONED)
            eventually(
                lambda: stepped(source) or whole(source, "partition", partitioned) == stored, what="the partitions"
            )
    changes = [each for txn in consumer.transactions for each in txn.changes]
    images = [each for each in changes if isinstance(each, TableImage) and each.change == "image"]
    assert [each.table_id for each in images].count(first) == 1, "the first table was published before"
    details = [each for each in changes if isinstance(each, ObjectImage) and each.kind == "constraints"]
    assert [each.table_id for each in details].count(first) == 1, "so was what belongs to it"
    assert not consumer.folded.dead
