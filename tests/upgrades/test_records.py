"""What a newer source writes, read by this version's fold; and what this one writes, read by the next."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader
from hypothesis import given

from consumers.fold.state import TEXT_PREFIX
from serving.client import Unavailable
from stream.wire import codec
from stream.wire.batch import Framer
from stream.wire.codec import HEADER_SIZE, READER_VERSION, RECORDS, SKIPPED, current_schema, decode, encode
from stream.wire.events import SourceTransaction
from stream.wire.keys import Layout
from tests.consumers.histories import SHARD, Folded, marker
from tests.stream.histories import histories
from tests.stream.test_codec import SAMPLES
from tests.upgrades import next_version
from tests.upgrades.next_version import HINT, TRANSFER, announcement, announcements, topic, written
from tests.upgrades.running import Installation

CRITICAL = {
    "record": written(TRANSFER, {"shard": SHARD, "text": "understand me"}),
    "marker": marker(1, reader_version=READER_VERSION + 1),
}


def framed(history: Sequence[SourceTransaction]) -> list[bytes]:
    """What the publisher writes of a history into a topic of one partition."""
    framer = Framer(SHARD, Layout(1), nonce=7)
    framer.start_epoch("MariaDB/0-1-0", 1_700_000_000, "first_start")
    messages: list[bytes] = []
    for transaction in history:
        framer.add(transaction, 0, len(transaction.changes))
        messages += [value for _, value in framer.take().records]
    return messages


@pytest.mark.parametrize("name", RECORDS)
def test_the_next_consumer_reads_what_this_source_writes(name: str) -> None:
    """A field that the next version adds has its default where this version wrote nothing."""
    fields = SAMPLES[name][1]
    body = BytesIO(encode(name, fields)[HEADER_SIZE:])
    reader = parse_schema(next_version.SCHEMAS[name])
    assert schemaless_reader(body, current_schema(name).writer, reader) == next_version.as_written(name, fields) | {
        "later": {}
    }


@given(histories())
def test_a_newer_source_leaves_the_same_state(history: list[SourceTransaction]) -> None:
    """New fields and records that may be passed over change nothing of what is folded; nothing is rejected."""
    messages = framed(history)
    ours, theirs = Folded(*messages), Folded(*announcements(SHARD), *topic(messages, SHARD))
    assert theirs.rejection_codes == ours.rejection_codes
    assert theirs.state.head.lineages == ours.state.head.lineages
    assert theirs.state.head.voids == ours.state.head.voids
    assert _without_texts(theirs) == _without_texts(ours)


def _without_texts(folded: Folded) -> dict[bytes, bytes]:
    return {key: entry for key, entry in folded.entries.items() if not key.startswith(TEXT_PREFIX)}


@pytest.mark.parametrize("what", CRITICAL)
def test_what_must_be_understood_stops_the_partition_until_the_upgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Nothing is folded past it. Reads go on from what is folded, never stale; then it goes on by itself."""
    running = Installation(tmp_path, monkeypatch)
    running.session.observe(SHARD, running.write(7, 1))
    assert running.session.get_row("shop", "items", 7).freshness == "fresh"
    running.upgrade("source")
    at = running.owner.partition.store.state.head.offset
    running.append(CRITICAL[what])
    newer = running.owner.partition.store.newer
    assert newer is not None
    assert newer.code == "newer_wire"
    assert "update" in newer.hint
    own = running.write(7, 2)
    assert running.owner.partition.store.state.head.offset == at
    row = running.session.get_row("shop", "items", 7)
    assert (row.value, row.freshness, row.served_from) == ({"id": 7, "v": 1}, "fresh", "cache")
    running.session.observe(SHARD, own)
    with pytest.raises(Unavailable):
        running.session.get_row("shop", "items", 7)

    _upgrade_the_consumer(monkeypatch)
    running.consume()
    assert running.owner.partition.store.newer is None
    row = running.session.get_row("shop", "items", 7)
    assert (row.value, row.freshness, row.served_from) == ({"id": 7, "v": 2}, "fresh", "cache")


def _upgrade_the_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next version has the record, and the reader version that the marker asks for."""
    read = codec._decode_announced

    def decode_next(told: Any, value: bytes) -> tuple[str, dict[str, Any]]:
        return (SKIPPED, {}) if told.name == "Transfer" else read(told, value)

    monkeypatch.setattr(codec, "_decode_announced", decode_next)
    monkeypatch.setattr("stream.wire.checks.READER_VERSION", READER_VERSION + 1)


def test_a_record_that_nobody_announced_is_poison() -> None:
    """What no schema in the topic explains voids what it may have changed, as any message of another program."""
    folded = Folded(written(HINT, {"shard": SHARD, "text": "x"}))
    assert folded.rejection_codes == ["unknown_schema"]
    assert (
        Folded(announcement(HINT, SHARD, skippable=True), written(HINT, {"shard": SHARD, "text": "x"})).rejection_codes
        == []
    )


def test_the_next_version_is_another_one() -> None:
    """Its messages are of schemas that this version does not have, so that something is tested."""
    for name, (_, fields) in ((name, SAMPLES[name]) for name in RECORDS):
        message = written(next_version.SCHEMAS[name], next_version.as_written(name, fields) | {"later": {}})
        with pytest.raises(codec.CodecError, match="unknown schema"):
            decode(message)
