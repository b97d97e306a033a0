"""Planted bugs in the source that reads PostgreSQL's connector, and in reads past the cache."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import Replace, Return, postgres
from stream.sources.postgres import chunks, selecting, values
from stream.sources.postgres.reader import PostgresReader
from stream.sources.postgres.snapshot import PostgresSnapshotReader

READS: Final = (
    postgres(
        "read_holds_all_that_is_logged",
        "a read is said to hold all that was logged before it, though somebody writes into its table",
        Replace(PostgresSnapshotReader._read, "bounds[name]", "state.end"),
    ),
    postgres(
        "read_ends_before_its_snapshot",
        "nothing in a read is said to be later than the end of the log before its snapshot",
        Replace(PostgresSnapshotReader._read, "str(read_state(session).end)", "str(state.end)"),
    ),
    postgres(
        "rows_that_change_are_untouched",
        "a row that somebody has begun to change is taken for one that nobody has",
        Replace(selecting._select_keys, "is_untouched == b't'", "True"),
    ),
)
CHUNKS: Final = (
    postgres(
        "chunk_is_of_its_end",
        "rows that are read from the beginning are said to hold all that was logged by the end of their reading",
        Replace(chunks._chunk, "GtidPosition.parse(found.position)", "GtidPosition.parse(found.hi)"),
    ),
    postgres(
        "chunk_leaves_out_its_last_row",
        "a row that a chunk ends with is not told",
        Replace(chunks.PostgresChunkReader.read, "in_order.rows.rows", "in_order.rows.rows[:-1]"),
    ),
)
TABLES: Final = (
    postgres(
        "alterations_go_unseen",
        "the position moves past what was altered, without a look at the tables",
        Return(PostgresReader._note_changes, "None"),
    ),
)
ORDER: Final = (
    postgres(
        "pages_go_one_way",
        "pages that are asked for from the end come from the beginning",
        Replace(selecting._rows, "('DESC', ' NULLS LAST') if wanted.descending else ...", "('ASC', ' NULLS FIRST')"),
    ),
)
MEANING: Final = (
    postgres(
        "what_the_log_lacks_is_a_text",
        "the word for a value that the log does not have is taken for the value",
        Replace(values._text, "value == UNAVAILABLE", "False"),
    ),
    postgres(
        "six_digits_of_a_second",
        "a time has as many digits as a message can have",
        Return(values._digits, "6"),
    ),
)
BUGS: Final = (*READS, *ORDER, *CHUNKS, *TABLES, *MEANING)
