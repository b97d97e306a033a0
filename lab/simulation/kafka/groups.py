"""Consumer groups of the classic protocol: the coordinator, and what each member's client does in the background.

librdkafka joins, sends heartbeats and gives up a membership in a thread of its own; the application learns of it in its
next poll. Here these are things that happen at certain times, and leave a `Change` for the poll to find.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from confluent_kafka import KafkaError

from lab.simulation.kafka.assignor import Place, assign
from lab.simulation.kafka.brokers import Brokers

HEARTBEAT_S: Final = 3.0
RETRY_S: Final = 0.5
JOIN_S: Final = 0.05
"""A client begins to join this soon after it has subscribed or lost its membership."""


class Event(Enum):
    """What a poll must call the application for."""

    ASSIGN = "assign"
    REVOKE = "revoke"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Change:
    """``places``: what is assigned, revoked or lost. ``rejoin``: join again when the application has taken it in."""

    event: Event
    places: frozenset[Place]
    rejoin: bool = False


@dataclass(eq=False)
class Member:
    """A client's membership. It survives the loss of the group's, under another id."""

    process: str
    instance: str
    session_timeout_s: float
    id: str = ""
    """As the coordinator knows it; empty: not a member now."""
    topics: frozenset[str] = frozenset()
    owned: Set[Place] = frozenset()
    """The assignment that the client has taken in, or is about to."""
    generation: int = -1
    changes: list[Change] = field(default_factory=list)
    is_calling: bool = False
    """The application has not yet taken in the last change."""
    is_joining: bool = False
    attempt: int = 0
    """Of joining: an older one has no effect any more."""
    is_closed: bool = False
    problem: KafkaError | None = None
    """A fatal error: another client has taken the instance's name."""
    silent_since: float = math.inf
    """When the last heartbeat was answered; infinite: they are answered."""


class Group:
    """A consumer group at its coordinator."""

    def __init__(self, brokers: Brokers, name: str) -> None:
        self.name = name
        self.generation = 0
        self.committed: dict[Place, int] = {}
        self._brokers = brokers
        self._members: dict[str, Member] = {}
        """By id."""
        self._clients: list[Member] = []
        """Those that are open, also without a membership."""
        self._joined: set[str] = set()
        self._is_preparing = False
        self._given: dict[str, Set[Place]] = {}
        """Id → assignment of the present generation."""

    # --- the client's side ---

    def subscribe(self, member: Member, topics: frozenset[str]) -> None:
        """The client joins, or joins again with other topics."""
        if member not in self._clients:
            self._clients.append(member)
            self.changed_reach()
        member.topics = topics
        self._join_after(member, self._brokers.rng.uniform(0, JOIN_S))

    def taken_in(self, member: Member, change: Change) -> None:
        """The application has done what ``change`` asks for."""
        member.is_calling = bool(member.changes)
        if not member.topics:
            if not member.changes:
                self._leave(member)
        elif change.rejoin or (change.event is Event.LOST and not member.is_joining):
            self._join_after(member, 0.0)

    def close(self, member: Member) -> None:
        """The client goes. A static member stays until its session times out."""
        member.is_closed = True
        if member in self._clients:
            self._clients.remove(member)
        if not member.id:
            return
        if member.instance:
            self._fall_silent(member)
        elif self._hears(member):
            self._remove(member)

    def unsubscribe(self, member: Member) -> None:
        """The client leaves, and joins no more. Its application is told that it has nothing any more.

        What it has not been told yet it is told before.
        """
        member.topics, member.is_joining = frozenset(), False
        member.attempt += 1
        member.changes += [Change(Event.REVOKE, frozenset(member.owned))] if member.owned else []
        member.is_calling = bool(member.changes)
        member.owned = frozenset()
        if not member.is_calling:
            self._leave(member)

    def _leave(self, member: Member) -> None:
        """LeaveGroup; without an answer the session has to time out."""
        member.generation = -1
        if not member.id:
            return
        if self._hears(member):
            self._remove(member)
        else:
            ghost = replace(member, changes=[], is_closed=True, silent_since=math.inf)
            self._members[member.id] = ghost
            member.id = ""
            self._fall_silent(ghost)

    def lose(self, member: Member) -> None:
        """The client gives its membership up by itself: it has not been heard, or its application does not poll.

        The coordinator keeps it until it finds that out, or is told.
        """
        if member.id:
            ghost = replace(member, changes=[], is_closed=True, silent_since=math.inf)
            self._members[member.id] = ghost
            if not member.instance and self._hears(member):
                self._remove(ghost)
            else:
                self._fall_silent(ghost)
            member.id = ""
        member.changes = [Change(Event.LOST, frozenset(member.owned))] if member.owned else []
        member.is_calling = bool(member.changes)
        member.owned, member.generation = frozenset(), -1
        if not member.is_calling:
            self._join_after(member, 0.0)

    def drop(self, member: Member, gone: frozenset[Place]) -> None:
        """The topics are others than before: what is ``gone`` is lost, and the group shares what is there."""
        if gone:
            member.owned = frozenset(member.owned) - gone
            member.changes.append(Change(Event.LOST, gone))
            member.is_calling = True
        else:
            self._join_after(member, 0.0)

    def _join_after(self, member: Member, delay_s: float) -> None:
        member.is_joining = True
        member.attempt += 1
        attempt = member.attempt
        self._brokers.after(delay_s, lambda: self._join(member, attempt))

    def _join(self, member: Member, attempt: int) -> None:
        """JoinGroup; again and again while no coordinator answers."""
        if member.is_closed or member.problem is not None or attempt != member.attempt:
            return
        if member.is_calling or not self._brokers.reaches(member.process, coordinator=True):
            self._brokers.after(RETRY_S, lambda: self._join(member, attempt))
            return
        if member.instance and self._replace(member):
            return
        if not member.id or member.id not in self._members:
            member.id = f"{member.instance or 'member'}-{self._brokers.rng.getrandbits(48):012x}"
            self._members[member.id] = member
        self._joined.add(member.id)
        self._prepare()

    def _replace(self, member: Member) -> bool:
        """A static member is back under another id: in a stable group it has its assignment without a rebalance."""
        before = next((each for each in self._members.values() if each.instance == member.instance), None)
        if before is None or before is member:
            return False
        del self._members[before.id]
        given, topics = self._given.pop(before.id, frozenset()), before.topics
        self._joined.discard(before.id)
        if not before.is_closed:
            reason = (
                "Fatal consumer error: Broker: Static consumer fenced by other consumer with same group.instance.id"
            )
            before.problem = KafkaError(KafkaError.FENCED_INSTANCE_ID, reason, fatal=True)
        before.id, before.silent_since = "", math.inf
        member.id = f"{member.instance}-{self._brokers.rng.getrandbits(48):012x}"
        self._members[member.id] = member
        if self._is_preparing or topics != member.topics:
            return False
        self._given[member.id] = given
        self._brokers.after(self._brokers.latency_s(), lambda: self._receive(member, self.generation))
        return True

    def _receive(self, member: Member, generation: int) -> None:
        """The answer to SyncGroup."""
        if member.is_closed or member.id not in self._given or generation != self.generation:
            return
        if not self._brokers.reaches(member.process, coordinator=True):
            self._join_after(member, RETRY_S)
            return
        member.is_joining = False
        member.generation = generation
        given = frozenset(self._given[member.id])
        added, revoked = given - member.owned, frozenset(member.owned) - given
        member.owned = given
        if revoked:
            member.changes.append(Change(Event.REVOKE, revoked))
        member.changes.append(Change(Event.ASSIGN, added, rejoin=bool(revoked)))
        member.is_calling = True

    # --- the coordinator's side ---

    @property
    def is_stable(self) -> bool:
        """Whether the group has members and does not rebalance."""
        return bool(self._members) and not self._is_preparing

    def described(self) -> list[tuple[Member, Set[Place]]]:
        """Each member with its assignment, as the coordinator has it."""
        return [(member, self._given.get(name, frozenset())) for name, member in sorted(self._members.items())]

    def _prepare(self) -> None:
        """A rebalance: waits until all members have joined. They learn of it with their next heartbeat."""
        if not self._is_preparing:
            self._is_preparing = True
            for member in self._members.values():
                if member.id not in self._joined:
                    self._tell(member)
        if self._joined >= self._members.keys():
            self._complete()

    def _tell(self, member: Member) -> None:
        def learn() -> None:
            if not self._is_preparing or member.id in self._joined or member.id not in self._members:
                return
            if member.is_calling or not self._hears(member):
                self._tell(member)
            elif not member.is_joining:
                self._join_after(member, 0.0)

        self._brokers.after(self._brokers.rng.uniform(0, HEARTBEAT_S), learn)

    def _complete(self) -> None:
        """All have joined: a new generation."""
        self._is_preparing = False
        self._joined.clear()
        self.generation += 1
        topics = self._brokers.topics
        wants = {each.id: frozenset(topics.keys() & each.topics) for each in self._members.values()}
        partitions = {name: len(topics[name].logs) for names in wants.values() for name in names}
        owned = {each.id: each.owned for each in self._members.values()}
        self._given = dict(assign(wants, owned, partitions))
        generation = self.generation
        for member in self._members.values():
            delay_s = self._brokers.latency_s()
            self._brokers.after(delay_s, lambda member=member: self._receive(member, generation))  # type: ignore[misc]

    def _remove(self, member: Member) -> None:
        """The member is out; the others share what it had."""
        if self._members.get(member.id) is not member:
            return
        del self._members[member.id]
        self._joined.discard(member.id)
        self._given.pop(member.id, None)
        member.id = ""
        if self._members:
            self._prepare()

    # --- heartbeats ---

    def forget(self, process: str) -> None:
        """The process is dead."""
        for member in [each for each in self._clients if each.process == process]:
            self._clients.remove(member)
            member.is_closed = True
            self._fall_silent(member)

    def changed_reach(self) -> None:
        """Somebody reaches the coordinator again, or no longer."""
        for member in [*self._clients, *(each for each in self._members.values() if each.is_closed)]:
            if not self._hears(member):
                self._fall_silent(member)
            else:
                member.silent_since = math.inf

    def _hears(self, member: Member) -> bool:
        return not member.is_closed and self._brokers.reaches(member.process, coordinator=True)

    def _fall_silent(self, member: Member) -> None:
        if member.silent_since != math.inf:
            return
        since = member.silent_since = self._brokers.now - self._brokers.rng.uniform(0, HEARTBEAT_S)
        left_s = max(since + member.session_timeout_s - self._brokers.now, 0.0)
        self._brokers.after(left_s, lambda: self._time_out(member, since))

    def _time_out(self, member: Member, since: float) -> None:
        """The session's time is over, for the client as for the coordinator, if that is there to count it."""
        if member.silent_since != since:
            return
        if self._brokers.down or self._brokers.coordinator_away:
            if member.is_closed:  # the next coordinator gives each session its whole time
                now = member.silent_since = self._brokers.now
                self._brokers.after(member.session_timeout_s, lambda: self._time_out(member, now))
        elif member.id:
            self._remove(member)
        if not member.is_closed and member.generation >= 0:
            self.lose(member)
