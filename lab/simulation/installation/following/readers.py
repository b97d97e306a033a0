"""Readers of the change stream: they keep copies of the rows, go away, and come back with their checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from lab.simulation.engine import Outcome
from lab.simulation.installation.committed import Point
from lab.simulation.installation.following.copies import TELLS_ALL, FollowedCopy
from lab.simulation.installation.following.described import is_described_as_told
from lab.simulation.installation.kafka_faults import EVENTS, KafkaFaults
from lab.simulation.installation.parts import FRONTS, Complain
from lab.simulation.installation.processes import SHARD
from lab.simulation.installation.writing import ACCOUNTS, KEYSPACE, ORDERS, PARTS
from lab.simulation.kernel.fronts import async_client, blocking_client
from lab.simulation.whole_processes.run import CLIENT
from lab.simulation.whole_processes.words import LOG_IS_ANOTHER
from serving.client.errors import ClientError
from serving.client.streaming import StreamEvent
from stream.changes.checkpoint import Checkpoint
from tokens import Vector

FOLLOWERS: Final = 2
"""The first reads in a task, the second in a thread."""
TOKEN: Final = "token"
"""For a beginning: that of a session, or now if none knows anything."""
BEGINNINGS: Final = (("now", "-1", "-20"), ("now", "-20", TOKEN))
"""Of each reader."""
HEARTBEAT_MS: Final = (300, 2_000, 10_000)
LOST: Final = frozenset({"checkpoint_lost", "stream_too_old"})
"""Codes after which a reader begins anew, as the page of the stream says, where Kafka has lost something.

``bad_checkpoint`` is none of them: nobody sends a checkpoint that no stream gave out.
"""
NO_BEGINNING: Final = frozenset({"stream_too_old", "bad_checkpoint"})
"""Codes for a second or a token that is older than the topic, or for a token that names no shard of the keyspace."""
EARLY: Final = frozenset({"unknown_keyspace", "no_owner"})
"""Codes that say that nothing is there yet."""


class Follower:
    """One reader. ``begin``: where its next stream begins. ``asked``: what else than all that is told of rows."""

    def __init__(self, copy: FollowedCopy, begin: str, heartbeat_ms: int, asked: Mapping[str, bool]) -> None:
        self.copy = copy
        self.begin = begin
        self.options = {"include_rows": True, "heartbeat_ms": heartbeat_ms, "include_before": True, **asked}
        self.round = 0
        """Counts its streams: one that it has left must not be heard any more."""
        self.reads = False

    def leave(self) -> None:
        """Reads no more."""
        self.round += 1
        self.reads = False

    def begin_anew(self) -> None:
        """Has nothing of before."""
        self.copy.forget()
        self.begin = "now"


class Following(KafkaFaults):
    """The ops of readers of the change stream."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self.followers: dict[int, Follower] = {}

    def op_follow(self, number: int, beginning: int, heartbeat: int, pause: int) -> None:
        """A reader begins to follow the changes; or leaves; or comes back, and goes on at its checkpoint."""
        number %= FOLLOWERS
        follower = self.followers.get(number)
        if follower is None:
            begin = BEGINNINGS[number][beginning % len(BEGINNINGS[number])]
            heartbeat_ms = HEARTBEAT_MS[heartbeat % len(HEARTBEAT_MS)]
            asked = {} if number else self.asked_of_streams
            copy = self.followed_copy(self.complain, f"reader {number}", asked.get("include_keyless", False))
            follower = self.followers[number] = Follower(copy, begin, heartbeat_ms, asked)
            if begin.startswith("-"):
                copy.has_begun = partial(self._has_come, self.kernel.now + 1 + int(begin))
        if follower.reads:
            self.say(f"reader {number} leaves")
            follower.leave()
        else:
            self.say(f"reader {number} follows from {follower.begin}")
            self.follow(number, follower)
        self.pause(pause)

    def followed_copy(self, complain: Complain, name: str, hears_notes: bool) -> FollowedCopy:
        """The copy of a reader that is told of all rows."""
        record, tables = self.truths[KEYSPACE].record, frozenset({ACCOUNTS.name, ORDERS.name, PARTS.name})

        def is_told(table: str, at: Point) -> bool:
            topic = self.kafka.topics.get(EVENTS)
            return topic is None or is_described_as_told(topic.logs, record, table, at)

        return FollowedCopy(record, SHARD, tables, complain, name, hears_notes, is_told=is_told)

    def _has_come(self, second: float) -> bool:
        """Whether a second that a front has named has come by the clock of the server, which stamps transactions."""
        return self.kernel.now - second >= self.clocks.lead_s(FRONTS, [SHARD])

    @property
    def asked_of_streams(self) -> dict[str, bool]:
        """What one of the readers asks for, and the other one does not."""
        asked = {"read_void": self.lean, "include_keyless": self.keyless}
        return {name: True for name, is_there in asked.items() if is_there}

    def follow(self, number: int, follower: Follower) -> None:
        """Has a reader read, in a task or a thread of the application."""
        follower.leave()
        follower.reads = True
        this = follower.round
        if number:
            self.kernel.spawn(CLIENT, lambda: self._follow_in_thread(follower, this))
        else:
            self.kernel.run_task(CLIENT, lambda: self._follow_in_task(follower, this))

    def _follow_in_thread(self, follower: Follower, this: int) -> None:
        client = blocking_client(self.kernel, self._ports(), **self.credentials.shown)
        while follower.round == this:
            try:
                if follower.begin == TOKEN:
                    follower.begin = self._token_of(0)
                    if follower.begin != "now":
                        follower.copy.begin_after(Vector.parse(follower.begin))
                for event in client.stream(KEYSPACE, follower.begin, give_up_s=None, **follower.options):
                    if follower.round != this:
                        return
                    self._told(follower, event)
            except ClientError as error:
                if follower.round == this:  # else it has left, and may have begun elsewhere since
                    self._ended(follower, error)
            self.kernel.wait(lambda: False, 0.5)

    async def _follow_in_task(self, follower: Follower, this: int) -> None:
        client = async_client(self.kernel, self._ports(), **self.credentials.shown)
        while follower.round == this:
            try:
                async for event in client.stream(KEYSPACE, follower.begin, give_up_s=None, **follower.options):
                    if follower.round != this:
                        return
                    self._told(follower, event)
            except ClientError as error:
                if follower.round == this:  # else it has left, and may have begun elsewhere since
                    self._ended(follower, error)
            await asyncio.sleep(0.5)

    def _token_of(self, session: int) -> str:
        """Of a session that is known to know something; "now" if none is."""
        if session not in self._sessions:
            return "now"
        try:
            return self._sessions[session][1].token or "now"
        except ClientError:
            return "now"

    def _told(self, follower: Follower, event: StreamEvent) -> None:
        self.record_commits()
        self._count(f"stream: {event.kind}")
        if self.tracing and event.kind != "watermark":
            changes = ", ".join(f"{each.kind} {each.table} {each.key} {each.op}" for each in event.changes)
            self.say(f"  {follower.copy.name}: {event.kind} {event.gtid} {event.token} {changes}")
        follower.copy.take(event)
        follower.begin = event.checkpoint

    def _ended(self, follower: Follower, error: ClientError) -> None:
        self._count(f"stream ended: {error.code}")
        self.say(f"{follower.copy.name}: the stream ends: {error.code}: {error}")
        has_begun = Checkpoint.is_text(follower.begin)
        if self.has_lost(error.code) or (error.code in NO_BEGINNING and not has_begun):
            follower.begin_anew()
        elif error.code not in EARLY:
            follower.copy.complain(TELLS_ALL, f"the stream ends for {error.code}: {error}")

    def has_lost(self, code: str) -> bool:
        """Whether a stream ends with ``code`` since Kafka has lost something in this history."""
        return code in LOST and bool(self.struck & LOG_IS_ANOTHER)

    def check_followers(self, within_s: float) -> str:
        """What the readers have not heard of, some time after the last commit; "" if they were told everything."""
        for number, follower in self.followers.items():
            if not follower.reads:
                self.follow(number, follower)
        self.record_commits()
        last = self.record.histories[-1].end

        def behind() -> list[str]:
            return [
                follower.copy.name
                for follower in self.followers.values()
                if follower.copy.told is None or follower.copy.told < last
            ]

        self.run_until(lambda: not behind(), within_s)
        return ", ".join(behind())
