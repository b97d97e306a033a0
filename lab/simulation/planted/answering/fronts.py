"""Planted bugs in `serving`: the answers, fills and proofs of a front, and a session's vector."""

from __future__ import annotations

from typing import Final

from consumers.owner import client
from consumers.owner import rows as owner_rows
from consumers.owner.client import OwnerClient
from consumers.owner.ranges import answering
from lab.simulation.planted.planting import (
    Begin,
    Replace,
    Return,
    always,
    catalog,
    installation,
    leave_out,
    never,
    rows,
)
from serving.client.session import SessionState
from serving.http import app, batches, openapi, route
from serving.http.letters import routes as letters
from serving.http.streaming import parameters as streams
from serving.reads import proof, spaces
from serving.reads import rows as row_reads
from serving.reads.flight import Flights
from serving.reads.lookups import lookup
from serving.reads.lookups import sources as row_sources
from serving.reads.lookups.sources import SourceLookups
from serving.reads.ranges import reading as ranges
from serving.reads.ranges.pages import Stretch
from serving.reads.ranges.reading import RangeReads
from serving.reads.readiness import Readiness
from serving.reads.rows import RowReads
from serving.reads.tables import TableReads
from stream.kafka import dead_letters
from stream.sources.status import SourceStatus

NO_OWN_KEY: Final = Replace(
    row_sources.may_offer,
    "any_own and any_row.shard == any_shard and any_rest",
    "any_row.shard == any_shard and any_rest",
)
ABSENCE_REFUSED: Final = "any_request.image is None"
NEW_TOKEN: Final = "Vector(any_kept)"

OFFERS: Final = (
    rows(
        "fill_of_another_shard",
        "the front offers a fill although the owner assigns the key to another shard",
        always(row_sources.may_offer, "any_row.shard == any_shard"),
    ),
    rows(
        "fill_of_another_spelling",
        "a row found through a collation is cached under the requested spelling of its key",
        NO_OWN_KEY,
        never(owner_rows._schema_refusal, ABSENCE_REFUSED),
    ),
    rows(
        "absence_of_another_spelling",
        "the absence of one spelling of a key is cached and served as the absence of the row",
        always(row_reads.may_answer, "any_row.image is not None or any_key.exact"),
        never(owner_rows._schema_refusal, ABSENCE_REFUSED),
        NO_OWN_KEY,
    ),
    rows(
        "absence_of_a_text_key",
        "an absence is cached for a key that is compared by a collation",
        never(owner_rows._schema_refusal, ABSENCE_REFUSED),
        Replace(row_sources.may_offer, "any_same if any_found else any_key.exact", "any_same if any_found else True"),
    ),
)
SESSIONS: Final = (
    rows(
        "session_goes_back",
        "a session replaces its vector by the last answer's token instead of merging it",
        Replace(SessionState.adopt, "self._vector.merge(any_token)", "any_token"),
        Replace(proof._token_after, "any_vector.merge(any_seen)", "any_seen"),
    ),
    rows(
        "own_write_not_observed",
        "a session's own commit does not enter its vector",
        leave_out(SessionState.observe, "self._vector = ..."),
    ),
    rows(
        "first_write_in_the_fronts_epoch",
        "a session's first write is placed in an epoch that the session knows has ended",
        Replace(SessionState._place, "max(any_known, any_seen.epoch)", "any_known"),
    ),
    rows(
        "unplaced_write_forgotten",
        "a session's first write is forgotten when its shard's epoch becomes known",
        leave_out(SessionState._place, "self._vector = ..."),
    ),
    rows(
        "lost_token_not_adopted",
        "a session keeps the refused token after a 409",
        Return(SessionState._adopt_lost, "None"),
    ),
)
PROOFS: Final = (
    rows(
        "source_needs_no_proof",
        "the source's answer is served without proof, however far the source lags",
        Replace(proof.Proof.judge, "Demand(...)", "Demand(given=True)"),
    ),
    rows(
        "source_is_where_it_is_wanted",
        "the source is assumed to have reached the demanded position",
        Replace(proof.Proof.judge, "self._tag(position, as_of_ms)", "self._tag(self.demanded_position, as_of_ms)"),
    ),
    rows(
        "proof_takes_the_older_epoch",
        "the source's answer is assigned to the older of the known epochs",
        Replace(proof.Proof.__init__, "max(any_epochs)", "min(any_epochs)"),
    ),
    rows(
        "proof_ignores_the_sessions_epoch",
        "the source's answer is assigned to the front's epoch, although the session knows a later one",
        Replace(proof.Proof.__init__, "any_component.epoch if any_component else None", "None"),
    ),
    rows(
        "front_goes_back_an_epoch",
        "a front goes back to the older epoch of an owner that is behind",
        always(spaces.Epochs.learn, "any_epoch > self.known.get(...)"),
    ),
    rows(
        "lost_token_is_the_old_one",
        "409 history_lost returns the refused token",
        Replace(proof.history_lost_error, NEW_TOKEN, "vector"),
    ),
    rows(
        "lost_token_forgets_other_shards",
        "409 history_lost for one shard drops the positions of the others",
        Replace(proof.history_lost_error, NEW_TOKEN, "Vector()"),
    ),
)
READS: Final = (
    rows(
        "cache_answer_not_in_the_token",
        "an answer from the cache leaves the session's token as it was",
        Replace(RowReads._from_owner, "token_after(any_token, ...)", "any_token"),
    ),
    rows(
        "absence_not_in_the_token",
        "the answer that a row does not exist leaves the session's token as it was",
        Replace(
            lookup.answer,
            'missing = "" if image is not None else any_text',
            'missing = "" if image is not None else any_text\n'
            "if image is None:\n    token = lookup.context.demand.token",
        ),
    ),
    rows(
        "batch_token_of_the_last",
        "the token of a batch is that of its last row",
        Replace(batches._summary, "any_vector.merge(any_other)", "any_other"),
    ),
    rows(
        "batch_called_fresh",
        "a batch is called fresh, whatever its rows are",
        Replace(
            batches._summary,
            "max(any_names, key=any_place, default='unknown')",
            "'fresh'",
        ),
    ),
    rows(
        "epoch_not_learnt_from_rows",
        "a front does not take the epoch of a shard from the answers of owners",
        leave_out(RowReads._from_owner, "any_space.epochs.learn(any_row.shard, any_row.epoch)"),
    ),
)
FLIGHTS: Final = (
    rows(
        "flight_shared_across_epochs",
        "a read joins another one of the same row, whose positions belong to another epoch",
        Replace(
            SourceLookups._from_shard,
            "(any_source.shard, any_proof.epoch)",
            "(any_source.shard, 0)",
        ),
    ),
    rows(
        "flight_proves_everything",
        "a read takes the result of a read that began before it, whether that proves its demand or not",
        always(Flights._unproved, "proves(any_result)"),
        never(SourceLookups._from_source_row, "not any_decision.may_be_served"),
    ),
)
INTERRUPTIONS: Final = (
    rows(
        "flight_cancelled_with_a_reader",
        "a reader that goes away cancels a read of the source that others wait for",
        Replace(
            Flights._results,
            "await asyncio.wait({each.landed for each in any_flights.values()})",
            "await asyncio.gather(*(each.landed for each in any_flights.values()), return_exceptions=True)",
        ),
    ),
    rows(
        "answer_to_a_reader_that_left",
        "the late answer to a request that was cancelled ends the owner's connection",
        leave_out(OwnerClient._ask, "connection.pending.pop(number, None)"),
        Replace(client._Connection._resolve, "any_future is not None and not any_future.done()", "future is not None"),
    ),
    rows(
        "answers_in_the_order_of_questions",
        "an owner's answer is given to the request that has waited longest",
        Replace(
            client._Connection._resolve,
            "self.pending.pop(answer.id, None)",
            "self.pending.pop(min(self.pending, default=0), None)",
        ),
    ),
    rows(
        "broken_connection_answers_nobody",
        "who waits for an answer that has broken off waits for ever",
        Replace(client._Connection.connection_lost, "for any_future in any_pending.values():\n    ...", "pass"),
    ),
    rows(
        "late_loss_takes_the_session_back",
        "a 409 that comes late takes from the session what it has seen in the new epoch since",
        Replace(
            SessionState._adopt_lost, "any_mine == any_was if any_newer else any_mine.epoch <= any_was.epoch", "True"
        ),
    ),
)
TABLES: Final = (
    catalog(
        "own_write_offered",
        "a reader's own uncommitted write is offered as a fill",
        Replace(
            TableReads._fetch_one,
            "read_in_time(any_source, any_name, known=any_known)",
            "read_in_time(any_source, any_name, None if wanted.write_ids is None else str(wanted.write_ids))",
        ),
    ),
    catalog(
        "table_answer_not_in_the_token",
        "a table from the cache leaves the session's token as it was",
        Replace(TableReads._read, "token_after(any_token, ...)", "any_token"),
    ),
)
OPERATING: Final = (
    installation(
        "resolved_letters_are_told",
        "a front tells dead letters that an operator has resolved",
        leave_out(dead_letters._unresolved, "any_letters.pop(any_key, None)"),
    ),
    installation(
        "letters_of_any_keyspace",
        "a front looks for the dead letters of keyspaces that it does not serve",
        never(
            letters.kafka_of, "any_keyspace not in any_front.row_spaces and any_keyspace not in any_front.table_spaces"
        ),
    ),
    installation(
        "stream_until_anything",
        "a stream that is to end at a place that nobody knows ends now",
        never(streams.ends_now, "any_parameters.until not in ('', 'now', HANDOVER)"),
    ),
    installation(
        "letters_without_their_size",
        "the list of dead letters takes the bytes that it has left out for all there were",
        Replace(letters._told, "any_letter.size", "len(any_letter.value)"),
    ),
    installation(
        "front_is_ready_at_once",
        "a front is ready before its owners have anything of a source",
        Return(Readiness.missing, "[]"),
    ),
    installation(
        "front_is_never_ready",
        "a front waits for partitions that are ready",
        Replace(Readiness._missing_at_one_owner, "any_known.ready and any_missing", "True"),
    ),
    installation(
        "source_is_ready_at_once",
        "a source is ready before it publishes",
        Return(vars(SourceStatus)["not_ready"].fget, "''"),
    ),
    installation(
        "lag_runs_backwards",
        "a source's lag is negative",
        Replace(
            vars(SourceStatus)["lag_seconds"].fget,
            "self.clock() - self._caught_up_at",
            "self._caught_up_at - self.clock()",
        ),
    ),
    installation(
        "errors_are_not_described",
        "the description of the API lacks the errors of its routes",
        Replace(openapi._codes, "(*_EVERYWHERE, *any_route.errors)", "_EVERYWHERE"),
        Replace(app._description, "describe(ROUTES)", "describe(ROUTES)"),
    ),
    installation(
        "misspelled_parameter_is_passed_over",
        "an unknown parameter of a request is ignored, so that a misspelled token is none",
        Begin(
            route._pairs, "query = query if query.startswith((b'token', b'max', b'inc', b'comp', b'valid')) else b''"
        ),
    ),
)
RANGES: Final = (
    rows(
        "range_at_several_positions",
        "a front joins partitions that have no position in common",
        Return(vars(Stretch)["stands"].fget, "True"),
    ),
    rows(
        "one_position_is_no_stretch",
        "rows that are told at the position of their last change are called moved on the next page",
        Replace(
            vars(Stretch)["stands"].fget,
            "self.until.at_or_past(self.since)",
            "self.until.at_or_past(self.since) and self.until != self.since",
        ),
    ),
    rows(
        "range_of_some_partitions",
        "a front asks the first partition only, and the owner does not mind",
        Return(ranges._partitions, "[0]"),
        Return(answering._check_partitions, "None"),
    ),
    rows(
        "range_not_in_the_token",
        "a range from the cache leaves the session's token as it was",
        Replace(RangeReads._read, "any_found.token_after(any_token)", "any_token"),
    ),
    rows(
        "range_of_the_source_unproved",
        "a range from a replica that is behind is given",
        never(RangeReads._from_shard, "not any_decision.may_be_served"),
    ),
)
BUGS: Final = (*OFFERS, *SESSIONS, *PROOFS, *READS, *RANGES, *FLIGHTS, *INTERRUPTIONS, *TABLES, *OPERATING)
