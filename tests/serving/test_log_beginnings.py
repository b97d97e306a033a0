"""Where a change log goes on, and when it first says so: in a topic after the one before is fenced, else at once."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from serving.changelog.errors import ChangeLogError
from serving.changelog.files import Heading, LogFiles, files_of
from serving.changelog.records import own_framing
from serving.changelog.registry import RegistryError, SchemaRegistry
from serving.changelog.topic import DECIDED_S, RECORD_BYTES_MAX, RECORD_BYTES_MIN, LogTopic
from serving.changelog.writing import QUIET_S, write_log
from serving.client import StreamChange, StreamEvent
from stream.kafka.connection import KafkaCluster
from tests.serving.test_change_log import HEADING, event, logged


def test_a_log_in_a_topic_goes_on_behind_all_that_the_process_before_has_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may commit until it is fenced: what is read before that may be told a second time."""
    fenced: list[bool] = []
    dropped: list[bool] = []

    class Producer:
        def __init__(self, *_: object, **__: object) -> None: ...

        def open(self) -> None:
            fenced.append(True)

        def drop(self) -> None:
            dropped.append(True)

    def read_end(_: LogTopic, *, committed: bool = False) -> str:
        assert committed != bool(fenced)
        return "7" if fenced else "5"

    monkeypatch.setattr("serving.changelog.topic.ShardProducer", Producer)
    monkeypatch.setattr(LogTopic, "_ensure", lambda *_: None)
    monkeypatch.setattr(LogTopic, "_bytes_max", lambda _: 1_000_000)
    monkeypatch.setattr(LogTopic, "_read_end", read_end)
    log = LogTopic(KafkaCluster("127.0.0.1:1"), "log", Heading("shop", []), own_framing(), lambda _: {})
    with log:
        assert log.checkpoint == "7"
    assert dropped, "readers would wait for a transaction that is open until Kafka gives it up"

    def refuse(*_: object, **__: object) -> str:
        raise ChangeLogError("it is another log")

    fenced.clear()
    monkeypatch.setattr(LogTopic, "_read_end", refuse)
    with pytest.raises(ChangeLogError), log:
        pass
    assert not fenced, "what is refused ends nobody else"


def test_the_parts_of_a_transaction_are_committed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the checkpoint behind it: a log that is killed between two parts would never tell the rest."""
    committed: list[int] = []

    class Producer:
        def __init__(self, *_: object, **__: object) -> None: ...

        def commit(self, records: list[tuple[int, bytes]], *_: object) -> None:
            committed.append(len(records))

    monkeypatch.setattr("serving.changelog.topic.ShardProducer", Producer)
    monkeypatch.setattr("serving.changelog.topic.BATCH_BYTES", 1)
    monkeypatch.setattr(LogTopic, "_ensure", lambda *_: None)
    monkeypatch.setattr(LogTopic, "_bytes_max", lambda _: 10_000)
    log = LogTopic(KafkaCluster("127.0.0.1:1"), "log", Heading("shop", []), own_framing(), lambda _: {})
    rows = [StreamChange("row", "shop.items", [n], "value", {"text": "x" * 4_000}) for n in range(3)]
    log.append(StreamEvent("transaction", "2", "t", "shop/0", 1, changes=rows))
    assert committed == [3]


@pytest.mark.parametrize("decided_after", [0, 3, None])
def test_a_log_whose_first_commit_is_not_decided_yet_is_seen_before_it_is_fenced(
    decided_after: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka acknowledges a commit before the partition knows of it. What a killed log has left is not waited for."""
    paused: list[float] = []

    def is_decided() -> bool:
        return decided_after is not None and len(paused) >= decided_after

    def ends(*_: object, committed: bool = True) -> dict[int, int]:
        return {0: 0 if committed and not is_decided() else 2}

    def read_end(*_: object, **__: object) -> str:
        if is_decided():
            raise ChangeLogError("it is another log")
        return ""

    def open_(_: object) -> None:
        raise InterruptedError

    monkeypatch.setattr("serving.changelog.topic.ShardProducer.open", open_)
    monkeypatch.setattr("serving.changelog.topic.end_offsets", ends)
    monkeypatch.setattr("serving.changelog.topic.monotonic", lambda: sum(paused))
    monkeypatch.setattr("serving.changelog.topic.sleep", paused.append)
    monkeypatch.setattr(LogTopic, "_ensure", lambda *_: None)
    monkeypatch.setattr(LogTopic, "_bytes_max", lambda _: 1_000_000)
    monkeypatch.setattr(LogTopic, "_read_end", read_end)
    log = LogTopic(KafkaCluster("127.0.0.1:1"), "log", Heading("shop", []), own_framing(), lambda _: {})
    with pytest.raises(InterruptedError if decided_after is None else ChangeLogError), log:
        pass
    assert sum(paused) <= DECIDED_S + 1


@pytest.mark.parametrize(
    ("allowed", "policy", "room"),
    [
        (RECORD_BYTES_MIN, "delete", RECORD_BYTES_MIN),
        (64 * RECORD_BYTES_MAX, "delete", RECORD_BYTES_MAX),
        (RECORD_BYTES_MIN - 1, "delete", None),
        (RECORD_BYTES_MAX, "compact,delete", None),
    ],
)
def test_a_record_is_no_larger_than_topic_and_producer_take(
    allowed: int, policy: str, room: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large transaction would else end the log at each start. With the batch that it is in, it has to fit."""
    settings = {"max.message.bytes": str(allowed), "cleanup.policy": policy}
    monkeypatch.setattr("serving.changelog.topic.AdminClient", lambda _: nullcontext())
    monkeypatch.setattr("serving.changelog.topic.topic_settings", lambda *_, **__: settings)
    log = LogTopic.__new__(LogTopic)
    log._kafka, log._topic = KafkaCluster("127.0.0.1:1"), "log"
    if room is None:
        with pytest.raises(ChangeLogError):
            log._bytes_max()
    else:
        assert room - 2_000 < log._bytes_max() < room


@pytest.mark.parametrize(
    ("changed", "is_taken"),
    [
        ({}, True),
        ({"freshet-included": b'["before"]'}, True),
        ({"freshet-included": b"[]"}, False),
        ({"freshet-tables": b'["shop.t"]'}, False),
        ({"freshet-keyspace": b"bank"}, False),
        ({"freshet-log": b"2"}, False),
        ({"freshet-log": None}, False),
    ],
)
def test_a_log_goes_on_behind_its_own_last_record_only(changed: dict[str, bytes | None], is_taken: bool) -> None:
    """One of an earlier version does not say what it tells, and goes on all the same."""
    headers = {"freshet-log": b"1", "freshet-keyspace": b"shop", "freshet-tables": b"[]", "freshet-checkpoint": b"c7"}
    log = LogTopic.__new__(LogTopic)
    log._topic, log._heading = "log", Heading("shop", [], included=["before"])
    with nullcontext() if is_taken else pytest.raises(ChangeLogError):
        assert log._checkpoint_in({**headers, **changed}) == "c7"


def test_an_empty_log_has_the_first_watermark_at_once() -> None:
    """Where nothing changes for long: a log that was killed meanwhile would begin anew, perhaps at a later moment."""
    kept: list[str] = []

    class Log:
        checkpoint = ""

        def append(self, event: StreamEvent) -> None:
            kept.append(event.checkpoint)

        def sync(self) -> None:
            kept.append("synced")

    class Front:
        def stream(self, *_: object, **__: object) -> Iterator[StreamEvent]:
            for each in ("1", "2", "3"):
                yield StreamEvent("watermark", each)

    front: Any = Front()
    times = iter([0.0, 1.0, 2.0, QUIET_S + 3.0, QUIET_S + 3.0])
    write_log(front, "shop", Log(), "now", clock=lambda: next(times))
    assert kept == ["1", "synced", "3", "synced"]


@pytest.mark.parametrize("answer", [["bad gateway"], "bad gateway", None, {"message": ["bad"]}])
def test_whatever_answers_in_place_of_a_registry_is_told_in_one_line(answer: object) -> None:
    """A proxy's error is JSON of any form."""
    with (
        httpx2.Client(transport=httpx2.MockTransport(lambda _: httpx2.Response(502, json=answer))) as http,
        pytest.raises(RegistryError, match="502"),
    ):
        SchemaRegistry("http://registry")._id(http, "log-value", "{}")


def test_a_file_that_is_full_before_its_first_event_goes_on(tmp_path: Path) -> None:
    """The next one would say nowhere where the log goes on, and would be refused from then on."""
    (tmp_path / "shop-0000000000000001.jsonl").write_bytes(msgspec.json.encode(HEADING) + b"\n")
    with LogFiles(tmp_path, HEADING, file_bytes_max=1) as files:
        files.append(event(1))  # the process is killed before it is synced
    with LogFiles(tmp_path, HEADING) as files:
        assert files.checkpoint == ""
        files.append(event(1))
        files.sync()
    assert logged(tmp_path) == [1]


def test_what_a_crash_left_of_a_heading_is_in_no_file(tmp_path: Path) -> None:
    """It was about to become a file, and is longer than what is written now."""
    (tmp_path / "shop-0000000000000001.begun").write_bytes(b"x" * 5_000)
    with LogFiles(tmp_path, HEADING) as files:
        files.append(event(1))
        files.sync()
    assert logged(tmp_path) == [1]


def test_a_file_is_on_the_disk_before_the_next_one_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the machine could else tear one that is not the last, and so lose what nobody tells again."""
    synced: dict[int, int] = {}
    named: set[str] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        now = os.fstat(descriptor)
        synced[now.st_ino] = now.st_size
        if stat.S_ISDIR(now.st_mode):
            named.update(os.listdir(tmp_path))

    monkeypatch.setattr(os, "fsync", noted)
    with LogFiles(tmp_path, HEADING, file_bytes_max=300) as files:
        for number in range(1, 30):
            files.append(event(number))
            *ended, last = (each.stat() for each in files_of(tmp_path, HEADING.keyspace))
            assert [synced[each.st_ino] for each in ended] == [each.st_size for each in ended]
            assert synced[last.st_ino] > 0, "its heading, at least"
            assert {each.name for each in files_of(tmp_path, HEADING.keyspace)} <= named
    assert len(files_of(tmp_path, HEADING.keyspace)) > 3
