"""Sessions that read at any server, and what they and others say of positions: judged by sets of transactions."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from typing import Final, NamedTuple

from lab.simulation.engine import Outcome, TracedRun
from lab.simulation.replicas.servers import FLAVORS, SERVERS, Shard, Transactions
from tokens import Demand, EventToken, Freshness, Order, Origin, Position, Tag, TokenError, Vector, decide
from tokens.comparison import Comparison, compare_texts

STALE: Final = "no stale answer"
RECOVERS: Final = "recovers by itself"
ORDER: Final = "the order is the truth"
TEXT: Final = "equal texts, equal values"
SESSIONS: Final = 2
TOLD_MAX: Final = 8
"""As many texts are kept, to be compared."""
NAMES: Final = ("ks/0", "ks/-80")


class Told(NamedTuple):
    """A text that somebody wrote down, and what it stands for: (shard, epoch) → transactions."""

    kind: str
    text: str
    places: dict[tuple[str, int], Transactions]


class Session:
    """Its token, and what it has truly seen of each shard: the epoch and the transactions."""

    def __init__(self) -> None:
        self.token = ""
        self.seen: dict[str, tuple[int, Transactions]] = {}


def true_order(one: Transactions, other: Transactions) -> Order:
    """By inclusion."""
    if one == other:
        return Order.SAME
    if one > other:
        return Order.NEWER
    return Order.OLDER if one < other else Order.UNKNOWN


class SessionsRun(TracedRun):
    """Two shards; the second one also has what it took from the first by filtered replication."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        """``shape``: the flavors of both shards."""
        super().__init__(outcome, trace)
        self.shards = [
            Shard(name, FLAVORS[flavor % len(FLAVORS)]) for name, flavor in zip(NAMES, shape[:2], strict=True)
        ]
        self.sessions = [Session() for _ in range(SESSIONS)]
        self.told: list[Told] = []
        self.taken: Transactions = frozenset()
        """What the second shard has taken from the first."""

    def close(self) -> None:
        """See `engine.HistoryRun.close`."""

    def tell(self, told: Told) -> None:
        """Keeps a text."""
        self.told = [*self.told, told][-TOLD_MAX:]

    def op_commit(self, shard: int, server: int, which: int, count: int) -> None:
        at = self.shards[shard]
        for _ in range(1 + count):
            at.commit(server, which)
        self.say(f"{at.name}: {at.text(at.has[server])} at server {server}")

    def op_apply(self, shard: int, to: int, origin: int, which: int, count: int) -> None:
        for _ in range(1 + count):
            self.shards[shard].apply(to, origin, which)

    def op_restore(self, shard: int, server: int) -> None:
        """History is lost: a new epoch begins, and who saw the old one must be told."""
        self.outcome.met["history lost", "all"] += 1
        self.shards[shard].restore(server)
        self.say(f"{NAMES[shard]} is restored to what server {server} has: epoch {self.shards[shard].epoch}")

    def op_read(self, session: int, shard: int, server: int, style: int) -> None:
        """A session reads at a server. Where that is fresh, it goes on with what it got."""
        at, reader = self.shards[shard], self.sessions[session]
        has = at.has[server]
        text = at.text(has, style)
        place = Position.parse(text)
        tag = Tag(at.name, at.epoch, place, place, None, topology=frozenset(NAMES))
        vector = Vector.parse_all(reader.token)
        found = decide(Demand(vector, given=bool(reader.token)), tag)
        self.outcome.answers[found.freshness] += 1
        self.say(f"session {session} has {vector!r}, reads at {at.name} {text}: {found.freshness}, {found.why}")
        epoch, seen = reader.seen.get(at.name, (at.epoch, frozenset()))
        is_lost = epoch != at.epoch
        if found.may_be_served and (is_lost or not seen <= has):
            self.complain(STALE, f"{text} is {found.freshness} for a session that has seen {sorted(seen - has)} more")
        elif not is_lost and seen <= has and not found.may_be_served:
            self.complain(RECOVERS, f"{text} has all that the session has seen, and is {found.freshness}: {found.why}")
        elif (found.freshness is Freshness.EVENTUAL) is bool(reader.seen) or found.history_lost is not is_lost:
            self.complain(ORDER, f"{found.freshness} ({found.why}) for a session that has seen {reader.seen}")
        if is_lost:
            reader.token = str(vector.without(at.name))
            del reader.seen[at.name]
        elif found.may_be_served:
            reader.token += f",{Vector().with_component(at.name, at.epoch, place)}"
            reader.seen[at.name] = (at.epoch, seen | has)

    def op_token(self, session: int, old: int) -> None:
        """The session's tokens become one: merged here, or written down in the first format."""
        reader = self.sessions[session]
        merged = Vector.parse_all(reader.token)
        if old and merged:
            rows = [[name, epoch, self._text(name, epoch, seen)] for name, (epoch, seen) in reader.seen.items()]
            reader.token = f"v1.{urlsafe_b64encode(json.dumps(rows).encode()).decode().rstrip('=')}"
        else:
            reader.token = str(merged)
        if Vector.parse(reader.token) != merged:
            self.complain(TEXT, f"{reader.token} is {Vector.parse(reader.token)!r}, not {merged!r}")
        places = {(name, epoch): seen for name, (epoch, seen) in reader.seen.items()}
        if places:
            self.tell(Told("vector", reader.token, places))

    def _text(self, name: str, epoch: int, transactions: Transactions) -> str:
        return next(at.text(transactions, epoch=epoch) for at in self.shards if at.name == name)

    def op_damage(self, session: int, at: int, to: int) -> None:
        """A character of a token is changed on its way: that is refused, or means the same."""
        merged = Vector.parse_all(self.sessions[session].token)
        text = str(merged)
        place = len("v2.") + at % max(1, len(text) - len("v2."))
        damaged = f"{text[:place]}{'AZaz09-_.'[to]}{text[place + 1 :]}"
        try:
            found = Vector.parse(damaged)
        except TokenError:
            return
        if damaged != text:
            self.complain(TEXT, f"{damaged} is read as {found!r}; {text} was damaged")

    def op_position(self, shard: int, server: int, style: int) -> None:
        """Somebody writes down where a server is."""
        at = self.shards[shard]
        self.tell(Told("position", at.text(at.has[server], style), {(at.name, at.epoch): at.has[server]}))

    def op_event(self, shard: int, server: int, time: int, take: int) -> None:
        """Somebody writes down an event's token; in the second shard with its origin, which may have moved on."""
        at = self.shards[shard]
        places = {(at.name, at.epoch): at.has[server]}
        origin = None
        if shard:
            if take:
                self.taken = self.shards[0].has[server]
            places[NAMES[0], self.shards[0].epoch] = self.taken
            origin = Origin(NAMES[0], Position.parse(self.shards[0].text(self.taken)), self.shards[0].epoch)
        token = EventToken(time, at.name, Position.parse(at.text(at.has[server])), origin, at.epoch)
        if EventToken.parse(str(token)) != token:
            self.complain(TEXT, f"{token} is read as {EventToken.parse(str(token))}")
        self.tell(Told("event token", str(token), places))

    def op_compare(self, one: int, other: int) -> None:
        """Two texts are compared, as by ``freshet compare``."""
        if not self.told:
            return
        a, b = self.told[one % len(self.told)], self.told[other % len(self.told)]
        kinds = {a.kind, b.kind}
        try:
            found = compare_texts(a.text, b.text)
        except TokenError as error:
            if len(kinds) == 1 or kinds == {"event token", "vector"}:
                self.complain(ORDER, f"{a.text} and {b.text} cannot be compared: {error}")
            return
        self.outcome.answers[f"{found.kind} {found.order.name.lower()}"] += 1
        if len(kinds) == 2 and kinds != {"event token", "vector"}:
            self.complain(ORDER, f"{a.text}, a {a.kind}, is compared with {b.text}, a {b.kind}")
        self._check_order(a, b, found)

    def _check_order(self, a: Told, b: Told, found: Comparison) -> None:
        if compare_texts(b.text, a.text).order is not found.order.reversed():
            self.complain(ORDER, f"{a.text} and {b.text} are {found.order.name} in one order, and not in the other")
        rule = {"position": _by_position, "event token": _by_event, "vector": _by_vector}[found.kind]
        expected = rule(a, b)
        if found.order is not expected or not found.why:
            what = f"is {found.order.name} ({found.why}), expected {expected.name}"
            self.complain(ORDER, f"{a.kind} {a.text} against {b.text} {what}")

    def op_sets(self, shard: int, one: int, other: int, style: int) -> None:
        """Positions of two servers are put together, and taken from each other."""
        at = self.shards[shard]
        mine, theirs = at.has[one], at.has[other]
        a, b = Position.parse(at.text(mine, style)), Position.parse(at.text(theirs))
        made: list[tuple[str, Position, Transactions]] = [("union", a.union(b), mine | theirs)]
        made += [("join", a.join(b), mine | theirs), ("the same", Position.parse(str(a)), mine)]
        if at.flavor == "MySQL56":
            made.append(("difference", a.difference(b), mine - theirs))
        if at.flavor in ("MySQL56", "MariaDB"):
            made.append(("appended", _appended(at, b, sorted(mine)), mine | theirs))
        for what, position, expected in made:
            if at.read(str(position)) != expected:
                self.complain(ORDER, f"the {what} of {a} and {b} is {position}, expected {at.text(expected)}")
            elif position != Position.parse(at.text(expected)):
                self.complain(TEXT, f"{position}, {what} of {a} and {b}, is not {at.text(expected)}")
        if a.contains(b) is not (mine >= theirs):
            self.complain(ORDER, f"{a} contains {b}: {a.contains(b)}")

    def finish(self) -> None:
        """Every server catches up: whatever a session has seen, it is fresh everywhere."""
        for number, at in enumerate(self.shards):
            at.has = [frozenset().union(*at.has)] * SERVERS
            for session in range(SESSIONS):
                self.op_read(session, number, 0, 0)
                self.op_read(session, number, session, 0)


def _appended(at: Shard, position: Position, transactions: Sequence[tuple[str, int]]) -> Position:
    for source, number in transactions:
        gtid = f"{source}:{number}" if at.flavor == "MySQL56" else f"{source}-{10 + int(source)}-{number}"
        position = position.append(gtid)
    return position


def _by_position(a: Told, b: Told) -> Order:
    """Positions name no shard: only their flavor keeps two logs apart, and their timeline two histories."""
    [((_, epoch), mine)], [((_, other), theirs)] = a.places.items(), b.places.items()
    flavors = [each.text.partition("/")[0] for each in (a, b)]
    if flavors[0] != flavors[1] or (flavors[0] == "Postgres" and epoch != other):
        return Order.UNKNOWN
    return true_order(mine, theirs)


def _by_event(a: Told, b: Told) -> Order:
    own = next(iter(a.places))
    if own == next(iter(b.places)):
        return true_order(a.places[own], b.places[own])
    answers = {true_order(a.places[place], b.places[place]) for place in a.places.keys() & b.places.keys()}
    return answers.pop() if len(answers) == 1 else Order.UNKNOWN


def _by_vector(a: Told, b: Told) -> Order:
    mine, theirs = (
        dict([next(iter(each.places.items()))]) if each.kind == "event token" else each.places for each in (a, b)
    )
    answers = set()
    for shard in {name for name, _ in (*mine, *theirs)}:
        ours, other = (
            {epoch: seen for (name, epoch), seen in each.items() if name == shard} for each in (mine, theirs)
        )
        if not ours or not other:
            answers.add(Order.OLDER if other else Order.NEWER)
        else:
            [epoch] = ours
            answers.add(true_order(ours[epoch], other[epoch]) if epoch in other else Order.UNKNOWN)
    answers.discard(Order.SAME)
    if not answers:
        return Order.SAME
    return answers.pop() if len(answers) == 1 else Order.UNKNOWN
