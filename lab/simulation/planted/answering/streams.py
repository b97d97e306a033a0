"""Planted bugs in `stream.changes` and `serving.streams`: what a reader of the change stream is told."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import Replace, Return, installation, leave_out, never
from serving.changelog.files import LogFiles
from serving.changelog.topic import LogTopic
from serving.changelog.writing import write_log
from serving.client.streaming import Following
from serving.http.streaming.parameters import begin_of
from serving.streams.choice import Choice
from serving.streams.encoding import Encoder
from serving.streams.reading import Reading
from serving.streams.ring import Ring
from stream.changes import pieces
from stream.changes.assembling import Assembler
from stream.changes.checkpoint import Checkpoint
from stream.sources.mariadb.binlog.reading.transaction import OpenTransaction

TOLD: Final = (
    installation(
        "stream_up_to_the_first_marker",
        "a transaction is told when one partition has shown its marker, without the rows of the others",
        Replace(Assembler._release, "any_shard.reached", "max(any_shard.frontier)"),
    ),
    installation(
        "stream_checkpoint_without_places",
        "a checkpoint has only offsets: what was told of the messages there comes again",
        Replace(Checkpoint.__str__, "self.places", "{}"),
    ),
    installation(
        "stream_voids_left_out",
        "a void is left out of the stream",
        Replace(Encoder._record, "any_kind is None", 'any_kind is None or any_kind == "void"'),
    ),
    installation(
        "stream_epochs_left_out",
        "the end of an epoch is left out of the stream",
        Replace(Encoder._record, "any_kind is None", 'any_kind is None or any_kind == "epoch"'),
    ),
    installation(
        "stream_goes_on_at_its_beginning",
        "a client that lost its connection asks for where it began at first",
        leave_out(Following.heard, "self.request = any_request"),
    ),
    installation(
        "stream_joins_a_ring_that_has_dropped",
        "a reader goes on in the ring although it has not read what was dropped there",
        Return(Ring.join, "Joined(self._first + len(self._items), {})"),
    ),
    installation(
        "stream_ring_tells_what_was_told",
        "a reader that joins the ring is told again what it has read from Kafka",
        Return(Reading._is_new, "not isinstance(item, Watermark)"),
    ),
    installation(
        "stream_of_part_of_a_frame",
        "the last transaction of a frame is left out",
        Replace(
            Assembler._frame,
            "enumerate(any_frame['transactions'])",
            "enumerate(any_frame['transactions'][:-1] or any_frame['transactions'])",
        ),
    ),
    installation(
        "stream_skips_too_much",
        "a stream after a token leaves out the first transaction behind it",
        Replace(Assembler._transaction, "any_shard.skip.told(...)", "None"),
    ),
    installation(
        "log_goes_on_without_its_checkpoint",
        "a log that is started again begins at the present",
        Replace(write_log, "any_log.checkpoint or begin", "begin"),
    ),
    installation(
        "log_goes_on_with_a_damaged_checkpoint",
        "a log that is started again asks for a checkpoint that lacks its end",
        Replace(write_log, "any_log.checkpoint or begin", "any_log.checkpoint[:-3] or begin"),
    ),
    installation(
        "log_without_what_was_not_synced",
        "a log says that it is synced before it has written what waits",
        leave_out(LogFiles.sync, "self._write()"),
    ),
    installation(
        "log_keeps_a_torn_line",
        "what a crash has left of a line stays in front of the next one",
        leave_out(LogFiles._recover, "os.ftruncate(self._file, end)"),
    ),
    installation(
        "log_file_without_its_checkpoint",
        "a new file of a log does not say where the one before ended",
        Replace(
            LogFiles._begin_file,
            "msgspec.structs.replace(...)",
            "msgspec.structs.replace(self._heading, begun_at=self._begun_at)",
        ),
    ),
    installation(
        "log_recovers_its_first_file",
        "a log goes on where its first file ends",
        Replace(LogFiles._recover, "files_of(...)[-1:]", "files_of(self._directory, self._heading.keyspace)[:1]"),
    ),
    installation(
        "log_topic_begins_at_the_present",
        "a log in a topic that is started again does not read where it ends",
        leave_out(LogTopic.__enter__, "self.checkpoint = ..."),
    ),
    installation(
        "log_topic_repeats_what_it_has_sent",
        "what was committed is sent again with what follows",
        leave_out(LogTopic.sync, "self._pending, self._pending_bytes = [], 0"),
    ),
    installation(
        "before_is_what_comes_after",
        "what a row is said to have been before a transaction is what it became",
        Replace(Encoder._change, "self._before(event.before)", "self._before(event.image)"),
    ),
    installation(
        "before_of_another_row",
        "what a row was before a transaction is told of the next row",
        Replace(pieces.put_before, "images.get(event.ordinal)", "images.get(event.ordinal + 1)"),
    ),
)
CHOSEN: Final = (
    installation(
        "stream_tells_what_does_not_match",
        "a row that has not what a reader asks for is told as it is",
        never(Encoder._change, "not choice.matches(image)"),
    ),
    installation(
        "stream_of_a_key_is_of_its_table",
        "who asks for one row is told of every row",
        Replace(Choice.has_key, "self.key is not None and key != self.key", "False"),
    ),
    installation(
        "stream_of_a_range_is_of_all",
        "who asks for a range of keys is told of every row",
        Replace(Choice.has_key, "self.key_range is None or ...", "True"),
    ),
    installation(
        "stream_tells_every_column",
        "who asks for some columns is told all of them",
        Return(Choice.project, "msgspec.Raw(image)"),
    ),
    installation(
        "page_begins_anew",
        "a page that connects again is told what it has heard",
        Replace(begin_of, "parameters.last_event_id or parameters.begin", "parameters.begin"),
    ),
)
"""Of who asks for less than all."""
READ: Final = ()
"""Of rows that are read for a stream."""
KEYLESS: Final = (
    installation(
        "rows_without_a_key_turned_round",
        "rows without a key are told in the opposite order",
        Replace(OpenTransaction._tail, "self._keyless", "self._keyless[::-1]"),
    ),
)
BUGS: Final = (*TOLD, *CHOSEN, *READ, *KEYLESS)
