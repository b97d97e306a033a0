"""A consumer without free file handles waits, resumes, and never answers wrongly meanwhile."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from consumers.owner.client import OwnerConnection
from consumers.owner.protocol import OwnerError
from stream.kafka.connection import KafkaCluster
from tests.consumers.consuming import ConsumeProcess, Feed, assert_equal_to_uninterrupted, caught_up, gtid, until
from tokens import Position, Vector

pytestmark = pytest.mark.integration


def starve(process: ConsumeProcess, spare: int) -> None:
    """Limits the process to its open file handles and ``spare`` more; negative: lifts the limit."""
    pid = process.process.pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    soft = hard if spare < 0 else len(os.listdir(f"/proc/{pid}/fd")) + spare
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def goes_on(process: ConsumeProcess) -> bool:
    """Whether it has logged that it resumed."""
    return bool(process.lines("commits succeed again, folding resumed") or process.lines("consuming resumed"))


@pytest.mark.parametrize("spare", [0, 1, 3])
def test_without_file_handles_folding_waits_and_goes_on_by_itself(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path, spare: int
) -> None:
    """It logs the problem once, never answers stale, and folds everything once handles are free."""
    feed = Feed(kafka, keyspace_name)
    feed.load(100)
    keys = feed.keys(0)
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        address = process.ready()
        until(lambda: caught_up(kafka, keyspace_name, address), "caught up")
        with OwnerConnection(address) as connected:
            connected.get(keyspace_name, 0, keys)
            starve(process, spare)
            refused: set[str] = set()

            def troubled() -> bool:
                feed.load(3)
                token = str(Vector({feed.shard: (1, Position.parse(gtid(feed.ordinal + 1)))}))
                try:
                    rows = connected.get(keyspace_name, 0, keys, token)
                except OwnerError as error:
                    refused.add(error.code)
                else:
                    assert not any(row.freshness == "fresh" for row in rows), "nobody has folded that far"
                assert process.process.poll() is None, process.lines()
                return any(line.get("code") == "store_resources" for line in process.lines())

            until(troubled, "no file handle is left")
        assert refused <= {"store_resources", "not_owner"}
        starve(process, -1)
        feed.load(20)
        until(lambda: caught_up(kafka, keyspace_name, address), "goes on")
        until(
            lambda: process.lines("commits succeed again, folding resumed") or process.lines("consuming resumed"),
            "said",
        )
        assert process.terminate() == 0
        said = [line for line in process.lines() if line.get("code") == "store_resources"]
        assert len({(line["event"], line.get("partition")) for line in said}) == len(said), said
        assert not [line for line in process.lines() if "Traceback" in str(line)]
    assert_equal_to_uninterrupted(kafka, feed, tmp_path / "data", tmp_path / "scratch")
