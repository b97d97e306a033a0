"""What one task keeps from message to message, and where it stops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.export import NOTES, STAGED, Commit, ExportTask, finish_commit, run_export
from spark_jobs.exporting.changes import Changes, Exported
from spark_jobs.output import RebuildError
from spark_jobs.partition import SPILL_PREFIX
from spark_jobs.source.cut import AsOf, Survey
from stream.wire.events import VALUE
from tests.consumers.histories import SHARD, frame, gtid, key, marker, start, value
from tests.spark_jobs.source.shop import BEGUN
from tests.spark_jobs.test_export import batches, description
from tests.spark_jobs.test_partition import task
from tests.spark_jobs.topics import in_arrow


def test_an_export_stops_right_before_the_end_that_was_asked_for(tmp_path: Path) -> None:
    """The message at that offset is the next run's."""
    (tmp_path / NOTES / STAGED).mkdir(parents=True)
    messages = [start(), *(frame([(key(each), VALUE, b"{}", each)]) for each in (2, 3, 4))]
    [answer] = run_export(ExportTask(str(tmp_path / NOTES / STAGED), {0: Exported(0)}, {0: 3}), batches(messages))
    done = json.loads(answer.column("summary").to_pylist()[0])
    assert (done["state"]["offset"], done["rows"]) == (3, 3)
    finish_commit(tmp_path, Commit("shop", "t1", files=done["files"]))


def test_a_table_that_was_cached_in_between_is_told_to_be_cached_no_longer() -> None:
    """For the same reason as before: who reads the export would take it for whole from then on."""
    changes = Changes(0, Exported(0))
    kinds = [(False, "no key"), (True, ""), (False, "no key")]
    told = [description(at, cacheable=fits, reason=reason) for at, (fits, reason) in enumerate(kinds, 2)]
    changes.add(range(4), [start(), *told])
    found = [row for table, _, _, rows in changes.take() if table == "shop.items" for row in rows]
    assert [(row["_kind"], row["_ordinal"]) for row in found] == [("not_cached", 2), ("not_cached", 4)]


def test_a_transaction_without_rows_moves_no_row_into_another_one() -> None:
    """No publisher of today writes one; an old form of frames has room for it, and the fold takes its rows."""
    said: dict[str, Any] = {"transactions": [0, 1, 0, 1, 0], "timestamps": [BEGUN + each for each in range(5)]}
    empty = frame([(key(1), VALUE, b"{}", 2), (key(2), VALUE, b"{}", 3)], gtids=[*map(gtid, range(5))], **said)
    changes = Changes(0, Exported(0))
    changes.add([0], [empty])
    [(_, _, _, rows)] = changes.take()
    assert [(row["_key"], row["_gtid"], row["_time"]) for row in rows] == [
        ("[1]", gtid(1), BEGUN + 1),
        ("[2]", gtid(3), BEGUN + 3),
    ]
    for seconds, cut in ((BEGUN + 2, 3), (BEGUN + 9, 4)):
        survey = Survey("shop.items", AsOf(seconds=seconds))
        survey.read(0, [start(), empty, marker(3, as_of_ms=1_000 * (BEGUN + 99))])
        assert survey.cut == {SHARD: (1, cut)}


def test_a_task_writes_a_file_for_so_many_bytes_and_not_for_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count from the last file on. Of thousands of files RocksDB would make few for hours."""
    monkeypatch.setattr("spark_jobs.partition.SPILL_BYTES", 4_000)
    messages = [start(), *(value(each, b'{"n":"%s"}' % (b"x" * 1_000), each) for each in range(2, 18))]
    with task(tmp_path).open(0) as fold:
        for at, message in enumerate(messages):
            fold.fold(*in_arrow([at], [message]))
        assert 2 <= fold._files <= len(messages) // 2
        assert fold.finish().entries == len(messages) - 1


def test_what_is_gone_since_the_last_spill_is_gone(tmp_path: Path) -> None:
    """The file of before still has it: the fold must not see it there."""
    with task(tmp_path).open(0) as fold:
        fold._rocks.ingest({b"k": b"before", b"other": b"kept"}, fold.directory / f"{SPILL_PREFIX}1.sst")
        fold._entries.put({b"k": b""})
        assert [fold._lookup(each) for each in (b"k", b"other", b"none")] == [None, b"kept", None]


def test_the_beginning_of_an_earlier_epoch_is_none_of_a_later_one(tmp_path: Path) -> None:
    """The later one has voided what was before, and its own beginning may be in another place of the topic."""
    messages = [start(), value(1, b"{}", 2), marker(2), value(1, b"{}", 2, epoch=2), marker(2, epoch=2)]
    with task(tmp_path, low=7).open(0) as fold:
        fold.fold(*in_arrow(range(7, 12), messages))
        with pytest.raises(RebuildError, match="the beginning of shop/0 is gone") as refused:
            fold.finish()
    assert refused.value.code == "history_incomplete"
