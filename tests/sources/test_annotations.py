"""The words of all parts of a source, together in the state of its shard. Without a server."""

from __future__ import annotations

import json
from typing import Any

from stream.publish.handover import HANDED_OVER, HISTORIES, TOLD
from stream.publish.opening import TOPIC_ID
from stream.sources.debezium.places import PLACES
from stream.sources.debezium.source import WORDS_MAX
from stream.sources.mariadb.backfill.choice import CHOICE, Choice
from stream.sources.mariadb.backfill.plan import After, Cursor, Plan
from stream.sources.mariadb.backfill.progress import progress_annotations
from stream.sources.mariadb.backfill.rereading import REREADS, Rereading
from stream.sources.mariadb.backfill.run import NO_BACKFILL
from stream.sources.mariadb.binlog.catalog import HELD, HELD_CHARS_MAX
from stream.sources.mariadb.binlog.progress import _TABLES, _TABLES_CHARS_MAX, UNREPEATABLE
from stream.sources.mariadb.schema import TableFilter
from stream.sources.status import CURSORS, HOLDERS, PROGRESS, TableReading
from stream.wire.batch import ANNOTATIONS_MAX, _kept_annotations
from stream.wire.keys import row_key

PUBLISHER_MAX = 8 * 1024
"""Left for what a publisher says: the topic's id, and positions and histories, of which there are few."""
MANY = [f"{'s' * 64}.{'t' * 60}{number:04}" for number in range(1_000)]


def backfilling() -> dict[str, str]:
    """What a source with as many tables as one likes says of their backfill."""
    plan = Plan(
        cursors={table: Cursor(After(["k" * 20, 12_345_678], ("k",)), 4_096) for table in MANY}, _epoch=1_800_000_000
    )
    choice = Choice(TableFilter(include=tuple(MANY[:3])), offset=1 << 60)
    for name in MANY:
        choice.ask(name, True)
    reading: Any = None
    rereading = Rereading(reading, reading)
    rereading.add({MANY[0]: [row_key(MANY[0], [number]) for number in range(10_000)]})
    table = TableReading("“" * 64 + "." + "„" * 64, 1 << 60, 1 << 60, 1 << 60, "the source is 123456.7 s behind")
    held = dict.fromkeys(MANY, "the prepared transaction 'app-1' (of 2026-01-01 00:00:00 UTC) writes into it")
    return {**plan.annotations, **choice.annotations, **progress_annotations(table, held), **rereading.new_words()}


def test_all_that_a_source_may_say_has_room_in_its_state() -> None:
    """Each part has a limit of its own. A source that meets all of them at once would end, and again at each start."""
    words = backfilling()
    assert words.keys() == NO_BACKFILL.keys() == {CURSORS, CHOICE, PROGRESS, HOLDERS, REREADS}
    of_limits = {UNREPEATABLE: 200, PLACES: WORDS_MAX, HELD: HELD_CHARS_MAX, _TABLES: _TABLES_CHARS_MAX}
    words |= {name: "x" * size for name, size in of_limits.items()}
    kept = _kept_annotations({}, words)
    assert kept == words
    size = sum(len(name) + len(text) for name, text in kept.items())
    assert size + PUBLISHER_MAX <= ANNOTATIONS_MAX, json.dumps({name: len(text) for name, text in words.items()})


def test_a_publisher_has_few_words() -> None:
    """A merged shard's positions are the longest of them."""
    uuids = [f"{number:08x}-71ca-11e1-9e33-c80aa9429562" for number in range(20)]
    told = "MySQL56/" + ",".join(f"{uuid}:1-1000000000:1000000002-2000000000" for uuid in uuids)
    words = {TOPIC_ID: "x" * 22, HANDED_OVER: "shop/" + "x" * 60, TOLD: told}
    words[HISTORIES] = json.dumps({f"shop/{number:03}": uuids[:3] for number in range(30)})
    assert sum(len(name) + len(text) for name, text in words.items()) <= PUBLISHER_MAX
