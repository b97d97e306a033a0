"""Planted bugs in what operators do with dead letters and credentials, and see of the topics and in traces."""

from __future__ import annotations

from typing import Final

from consumers.owner import reporting
from consumers.owner.client import OwnerConnection
from consumers.owner.connection import begin_answer
from consumers.owner.server import OwnerServer
from lab.simulation.planted.planting import Replace, Return, installation, leave_out, never
from serving.client.aio import AsyncClient
from serving.client.client import FreshetClient
from serving.client.sending.credentials import Bearer
from serving.http.front import Front
from serving.http.guard import Guard
from serving.http.route import Route
from stream.access.grants import Access
from stream.changes import last
from stream.kafka import dead_letters

LETTERS: Final = (
    installation(
        "letter_is_believed",
        "a message is put back that the topic does not have at the place that its letter names",
        Replace(dead_letters.retry, "_true_letters(any_kafka, any_own, any_able)", "{letter.id for letter in able}"),
    ),
    installation(
        "letter_of_another_topic",
        "a message is put back into whatever topic its letter names",
        never(dead_letters._obstacle, "letter.topic != own"),
    ),
    installation(
        "letter_cut_short",
        "a message is put back of which a letter has only the beginning",
        never(dead_letters._obstacle, "not letter.is_complete"),
    ),
    installation(
        "marker_is_put_back",
        "a record that says how far a shard is is written again, behind newer ones",
        never(dead_letters._obstacle, "name in _ORDERED"),
    ),
    installation(
        "letter_outlives_its_message",
        "a letter whose message is put back stays unresolved",
        leave_out(
            dead_letters.retry,
            "for any_letter in any_portion:\n    any_publisher.resolve(any_letter.id, is_put_back=True)",
        ),
    ),
)
ACCESS: Final = (
    installation(
        "token_outlives_its_time",
        "a credential is accepted after its time",
        never(Access.of_shown, "grant.expires_s <= self._clock()"),
    ),
    installation(
        "secret_that_was_taken_away",
        "a secret is accepted after it was exchanged",
        Replace(
            Access.replace,
            "{each.digest: each.grant for each in self.credentials if each.digest}",
            "getattr(self, '_by_digest', {}) | {each.digest: each.grant for each in self.credentials if each.digest}",
        ),
    ),
    installation(
        "any_token_has_any_role",
        "whoever has a token may do everything",
        never(Route.admit, "needed is not None and not caller.may(needed)"),
    ),
    installation(
        "any_token_sees_all_keyspaces",
        "a token for one keyspace reads the others",
        Return(Front.seen_by, "self"),
    ),
    installation(
        "wrong_token_is_none",
        "who shows no token has the rights of a front without tokens",
        Replace(
            Guard._caller,
            "NOBODY, ReadError('unauthorized', any_a, hint=any_b)",
            "self._access.__class__().of(b''), None",
        ),
    ),
    installation(
        "client_keeps_its_secret",
        "a client goes on with the secret that it began with",
        Return(Bearer.renew, "False"),
    ),
    installation(
        "client_asks_for_one_secret",
        "a client asks for another secret only once in a call",
        Replace(FreshetClient._exchange, "renewals -= 1", "renewals = 0"),
        Replace(AsyncClient._exchange, "renewals -= 1", "renewals = 0"),
    ),
)
CHANGES: Final = (
    installation(
        "first_change_of_a_window",
        "the last change of a table is the first one of those that are read together",
        Replace(
            last.last_in,
            "later[table] = each._replace(table=table)",
            "later.setdefault(table, each._replace(table=table))",
        ),
    ),
    installation(
        "earlier_windows_win",
        "what is found further back takes the place of a later change",
        Replace(last.last_in, "later | found", "found | later"),
    ),
    installation(
        "last_change_of_the_last_partition",
        "of two partitions' last changes that of the last partition is told",
        Replace(last.latest, "table not in found or any_one > any_other", "True"),
    ),
    installation(
        "voids_are_no_changes",
        "a table that was called void has changed before",
        never(last._changes, "name == 'TableVoid'"),
    ),
)
OWNERS: Final = (
    installation(
        "operator_shows_nothing",
        "an operator's client does not tell an owner who it is",
        Replace(OwnerConnection.__init__, "self.request(identity.hello())", "self.request(Identity().hello())"),
    ),
    installation(
        "owner_reads_at_the_end",
        "an owner says that it reads at the end of the topic, as far as it has heard of that",
        Replace(reporting.partition_status, "partition.position", "partition.end"),
    ),
)
HANDING_OVER: Final = (
    installation(
        "verdict_is_forgotten",
        "an owner does not keep what an audit has found",
        leave_out(OwnerServer._note_verdicts, "partition.verdict = each"),
    ),
)
TRACES: Final = (
    installation(
        "owner_begins_a_trace",
        "the span of an owner's answer lies below no front's",
        Replace(begin_answer, "spans.begin(..., request.trace, told)", "spans.begin(f'owner {name}', '', told)"),
    ),
    installation(
        "span_says_a_key",
        "the span of an owner's answer has a key that was asked for",
        Replace(begin_answer, "len(request.keys)", "str(request.keys[0])"),
    ),
)
BUGS: Final = (*LETTERS, *ACCESS, *CHANGES, *OWNERS, *HANDING_OVER, *TRACES)
