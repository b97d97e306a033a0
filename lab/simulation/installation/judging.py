"""Judges what sessions got by what was committed. It reads no token and no position, and calls none of the product.

A session's truth is what it wrote and saw, so an answer whose token says too little is found out by a later one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from lab.simulation.installation.committed import CommittedRecord, History, Image, Point, RowName
from lab.simulation.whole_processes.words import DEFECTS, EXPLAINS, FROM_SOURCE, NEVER_RAISES, NO_EPOCH

STALE: Final = "no stale answer"
OWN_WRITES: Final = "read your writes"
MONOTONIC: Final = "monotonic reads"
BOUNDED: Final = "no older than allowed"
UNCOMMITTED: Final = "nothing uncommitted"
RULES: Final = (STALE, OWN_WRITES, MONOTONIC, BOUNDED, UNCOMMITTED, EXPLAINS, NEVER_RAISES)


class Answer(NamedTuple):
    """One row as a reader got it, alone or in a batch."""

    row: RowName
    image: Image
    served_from: str
    freshness: str
    why: str

    @property
    def said(self) -> str:
        """What the reader got, in words."""
        return f"{self.image or 'no row'} for {self.row} from the {self.served_from}"

    def first_in(self, history: History, demanded: int, time: float) -> int | None:
        """The earliest commit at or after ``demanded``, seen by ``time``, of which the answer may be."""
        return history.first_with(self.row, self.image, demanded, time)

    def versions_in(self, history: History) -> str:
        """What it might have been."""
        return ", ".join(f"{commit}: {image}" for commit, image in history.versions.get(self.row, []))


class Judged(Protocol):
    """What a reader got: a row, or a stretch of a table."""

    @property
    def served_from(self) -> str:
        """The cache or the source."""

    @property
    def freshness(self) -> str:
        """As the answer has it."""

    @property
    def why(self) -> str:
        """As the answer has it."""

    @property
    def said(self) -> str:
        """See `Answer`."""

    def first_in(self, history: History, demanded: int, time: float) -> int | None:
        """See `Answer`."""

    def versions_in(self, history: History) -> str:
        """See `Answer`."""


class Asked(NamedTuple):
    """When a request was made: the time, and how much its session had seen and done before.

    ``until``: the answer must hold what was committed by then; None: no time is demanded.
    """

    time: float
    events: int
    is_ambiguous: bool
    until: float | None = None


class _Seen(NamedTuple):
    rule: str
    point: Point


class _Unsettled(NamedTuple):
    """Something that the session may demand from now on. ``writer``: of a commit, if there will be one.

    ``history``: the earliest one that it may be of.
    """

    writer: str
    history: int


class _Lost(NamedTuple):
    time: float
    epoch: int


class _Handed(NamedTuple):
    session: str
    asked: Asked


_Event = _Seen | _Unsettled | _Lost | _Handed


class SessionJudge:
    """Checks every answer of one shard. ``complain(rule, what)`` records a violation.

    A session may be shared between threads: an answer must have what the session saw and wrote before it was asked for.
    """

    def __init__(self, record: CommittedRecord, complain: Callable[[str, str], None]) -> None:
        self._record = record
        self._complain = complain
        self._events: dict[str, list[_Event]] = defaultdict(list)
        self.clocks_differ_s = 0.0
        """By how much the server's clock is ahead of a front's, at most: an answer to a bound may be older by that."""
        self.others: list[SessionJudge] = []
        """Those of other shards. What a session has seen there is in its token too."""

    def attempts(self, session: str) -> None:
        """The session's connection begins to write: what it commits may be demanded before `attempted` is called."""
        self._events[session].append(self._unsettled())

    def may_have_seen(self, session: str) -> None:
        """Of a batch some row was refused. The session's token holds what the others were, which nobody was given."""
        self._events[session].append(self._unsettled())

    def attempted(self, session: str, writer: str, ended: float) -> None:
        """The session's connection has tried to commit, and has returned or failed. ``writer``: as in the record.

        If the source has committed it, or does so yet, the session must see it, or be told at each read that it cannot.
        """
        own = self._record.committed_by(writer, ended)
        self._events[session].append(self._unsettled(writer) if own is None else _Seen(OWN_WRITES, own))

    def _unsettled(self, writer: str = "") -> _Unsettled:
        return _Unsettled(writer, len(self._record.histories) - 1 - self._record.is_ambiguous)

    def handed_over(self, session: str, earlier: str, time: float) -> None:
        """The session begins with the token that an ``earlier`` one has now."""
        self._events[session].append(_Handed(earlier, self.asked(earlier, time)))

    def refused(self, session: str, ended: float, code: str, epoch: int = 0) -> None:
        """The session got an error. ``epoch``: the one that a 409 names; 0: none."""
        if code in DEFECTS:
            self._complain(NEVER_RAISES, f"session {session} got the error {code}")
        if code == "history_lost":
            if not self._may_have_lost(session, self._record.number_at(ended)):
                self._complain(EXPLAINS, f"session {session} was told that history is lost, but none is that it knows")
            self._events[session].append(_Lost(ended, epoch))

    def _may_have_lost(self, session: str, number: int) -> bool:
        """Whether a session knows anything of a history before ``number``."""
        for event in self._events[session]:
            match event:
                case _Seen(_, point) if point.history < number:
                    return True
                case _Unsettled(_, history) if history < number:
                    return True
                case _Handed(earlier, _) if self._may_have_lost(earlier, number):
                    return True
        return False

    def asked(self, session: str, time: float, staleness_s: float | None = None) -> Asked:
        """A request begins. ``session``: "" for a read without a session."""
        until = None if staleness_s is None else time - staleness_s - self.clocks_differ_s
        return Asked(time, len(self._events[session]), self._record.is_ambiguous, until)

    def answered(self, session: str, asked: Asked, ended: float, answers: Sequence[Judged]) -> None:
        """The request was answered: with one row, all rows of a batch, or a stretch of a table."""
        is_ambiguous = asked.is_ambiguous or self._record.is_ambiguous
        owed = [] if is_ambiguous else self._owed(session, asked)
        for answer in answers:
            must_be_fresh = not is_ambiguous and self.must_be_fresh(session, asked)
            self._check_explanation(session, answer, must_be_fresh, asked.until is not None)
            bound = []
            if asked.until is not None and not is_ambiguous and answer.freshness == "fresh":
                bound = [_Seen(BOUNDED, self._record.committed_until(asked.until))]
            if self._breaks_a_rule(session, answer, [*owed, *bound], ended):
                continue
            # What a bound proves is not what the session has seen: its token stands for no time.
            seen = self._earliest(answer, self._demanded(answer, owed), ended)
            if session and seen is not None and NO_EPOCH not in answer.why:
                self._events[session].append(self._unsettled() if is_ambiguous else _Seen(MONOTONIC, seen))

    def stood(self, session: str, asked: Asked, ended: float, answer: Judged) -> None:
        """Several answers are of one state, at or after what the first of them was asked for."""
        if not (asked.is_ambiguous or self._record.is_ambiguous):
            self._breaks_a_rule(session, answer, self._owed(session, asked), ended)

    def owes(self, session: str, asked: Asked) -> bool:
        """Whether the session had seen or written anything that an answer must include."""
        return bool(self._owed(session, asked))

    def must_be_fresh(self, session: str, asked: Asked) -> bool:
        """Whether only a fresh answer was demanded, as far as the session can know."""
        return bool(self._knows(session, asked))

    def knows_the_last(self, session: str, asked: Asked) -> bool:
        """Whether a request demands the last commit that there is: all answers since then are of one position."""
        latest = len(self._record.histories) - 1
        last = Point(latest, self._record.histories[latest].end)
        return not self._record.is_ambiguous and any(seen.point == last for seen in self._knows(session, asked))

    def _knows(self, session: str, asked: Asked) -> list[_Seen]:
        """What the session's token must have held: all since it was last handed one, or was told of a loss."""
        events = self._events[session]
        last = (number for number, event in enumerate(events, 1) if isinstance(event, _Lost | _Handed))
        return self._owed(session, asked, max(last, default=0))

    def _owed(self, session: str, asked: Asked, since: int = 0) -> list[_Seen]:
        """What an answer to a request must include, of the events from number ``since`` on."""
        owed: list[_Seen] = []
        for event in self._events[session][since : asked.events]:
            match event:
                case _Seen():
                    owed.append(event)
                case _Unsettled(writer, _):
                    own = self._record.committed_by(writer, asked.time)
                    owed += [_Seen(OWN_WRITES, own)] if own is not None else []
                case _Handed(earlier, at):
                    owed += [_Seen(STALE, point) for _, point in self._owed(earlier, at)]
                case _Lost(time, epoch):
                    owed = [_Seen(rule, self._record.after_loss(point, time, epoch)) for rule, point in owed]
        return owed

    def _check_explanation(self, session: str, answer: Judged, must_be_fresh: bool, is_bounded: bool) -> None:
        events, wanted = self._events[session], {"fresh", "eventual"}
        if is_bounded:
            wanted = {"fresh"} if NO_EPOCH not in answer.why else {"eventual"}
        elif not events and not any(other._events[session] for other in self.others):  # nor while it was under way
            wanted = {"eventual"}
        elif must_be_fresh:
            wanted = {"fresh"}
        if answer.freshness not in wanted or not answer.why:
            what = f"is called {answer.freshness!r} ({answer.why}), expected {' or '.join(sorted(wanted))}"
            self._complain(EXPLAINS, f"{_text(session, answer)} {what}")
        if answer.served_from != ("source" if answer.why.startswith(FROM_SOURCE) else "cache"):
            self._complain(EXPLAINS, f"{_text(session, answer)} is said to come from the {answer.served_from}")

    @staticmethod
    def _demanded(answer: Judged, owed: Sequence[_Seen]) -> list[Point]:
        return [point for _, point in owed] if answer.freshness == "fresh" else []

    def _breaks_a_rule(self, session: str, answer: Judged, owed: Sequence[_Seen], ended: float) -> bool:
        """Complains if no commit that the answer owes gives it."""
        demanded = owed if answer.freshness == "fresh" else ()
        if self._earliest(answer, self._demanded(answer, owed), ended) is not None:
            return False
        text = _text(session, answer)
        if self._earliest(answer, (), ended) is None:
            self._complain(UNCOMMITTED, f"{text}, which was not committed by then")
            return True
        broken = [rule for rule, point in demanded if self._earliest(answer, (point,), ended) is None]
        rule = next((rule for rule in (OWN_WRITES, MONOTONIC, BOUNDED) if rule in broken), STALE)
        wanted = ", ".join(f"{point.history}/{point.commit} ({rule})" for rule, point in demanded)
        self._complain(rule, f"{text}; wanted a state at or after {wanted}; {self._versions(answer)}")
        return True

    def _earliest(self, answer: Judged, points: Iterable[Point], ended: float) -> Point | None:
        wanted = list(points)
        for number in range(self._record.number_at(ended) + 1):
            commits = [self._record.in_history(point, number) for point in wanted]
            if None in commits:
                continue
            demanded = max((commit for commit in commits if commit is not None), default=0)
            found = answer.first_in(self._record.histories[number], demanded, ended)
            if found is not None:
                return Point(number, found)
        return None

    def _versions(self, answer: Judged) -> str:
        return "; ".join(
            f"history {number}: {answer.versions_in(history)}" for number, history in enumerate(self._record.histories)
        )


def _text(session: str, answer: Judged) -> str:
    return f"session {session or 'none'} got {answer.said}"
