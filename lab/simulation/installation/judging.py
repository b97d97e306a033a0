"""Judges what sessions got by what was committed. It reads no token and no position, and calls none of the product.

A session's truth is what it wrote and saw, so an answer whose token says too little is found out by a later one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from lab.simulation.installation.committed import CommittedRecord, Image, Point, RowName

STALE: Final = "no stale answer"
OWN_WRITES: Final = "read your writes"
MONOTONIC: Final = "monotonic reads"
UNCOMMITTED: Final = "nothing uncommitted"
EXPLAINS: Final = "explanation true"
NEVER_RAISES: Final = "never raises"
RULES: Final = (STALE, OWN_WRITES, MONOTONIC, UNCOMMITTED, EXPLAINS, NEVER_RAISES)

NO_EPOCH: Final = "no owner has named the epoch"
"""In the reason of an answer that the session's token cannot include."""
FROM_SOURCE: Final = "read from the source at"
DEFECTS: Final = frozenset({"internal", "bad_answer", "bad_token", "bad_parameter", "bad_body", "method_not_allowed"})
"""Codes that no reader gets who does nothing wrong."""


class Answer(NamedTuple):
    """One row as a reader got it, alone or in a batch."""

    row: RowName
    image: Image
    served_from: str
    freshness: str
    why: str


class _Seen(NamedTuple):
    ended: float
    rule: str
    point: Point


class _Attempt(NamedTuple):
    ended: float
    writer: str


class _Lost(NamedTuple):
    ended: float


class _Handed(NamedTuple):
    ended: float
    session: str


_Event = _Seen | _Attempt | _Lost | _Handed
_Owed = tuple[str, Point]
"""The rule that a session's next answer would break, and the commit that it must be at or after."""


class SessionJudge:
    """Checks every answer of one shard. ``complain(rule, what)`` records a violation.

    A session may be shared between threads: an answer must have what the session saw and wrote before it was asked for.
    """

    def __init__(self, record: CommittedRecord, complain: Callable[[str, str], None]) -> None:
        self._record = record
        self._complain = complain
        self._events: dict[str, list[_Event]] = defaultdict(list)
        self._writing: set[str] = set()

    def attempts(self, session: str) -> None:
        """The session's connection tries to commit: from now on its reads may have a demand."""
        self._writing.add(session)

    def attempted(self, session: str, writer: str, ended: float) -> None:
        """The session's connection has tried to commit, and has returned or failed. ``writer``: as in the record.

        If the source committed it, the session must see it, or be told at each read that it cannot.
        """
        self._events[session].append(_Attempt(ended, writer))

    def handed_over(self, session: str, earlier: str, time: float) -> None:
        """The session begins with the token that an ``earlier`` one has at this time."""
        self._events[session].append(_Handed(time, earlier))

    def refused(self, session: str, ended: float, code: str) -> None:
        """The session got an error."""
        if code in DEFECTS:
            self._complain(NEVER_RAISES, f"session {session} got the error {code}")
        if code == "history_lost":
            if not self._record.number_at(ended):
                self._complain(EXPLAINS, f"session {session} was told that history is lost, but none is")
            self._events[session].append(_Lost(ended))

    def answered(self, session: str, began: float, ended: float, answers: Sequence[Answer]) -> None:
        """The session got an answer, or all rows of a batch. ``session``: "" for a read without a session."""
        known = self._before(session, ended)
        owed = self._owed(session, began)
        for answer in answers:
            self._check_explanation(session, answer, known, owed)
            seen = self._check_state(session, answer, owed, ended)
            if session and seen is not None and NO_EPOCH not in answer.why:
                self._events[session].append(_Seen(ended, MONOTONIC, seen))

    def _before(self, session: str, time: float) -> list[_Event]:
        return sorted((event for event in self._events[session] if event.ended <= time), key=lambda event: event.ended)

    def _owed(self, session: str, time: float) -> list[_Owed]:
        """What an answer to a request at ``time`` must include."""
        owed: list[_Owed] = []
        for event in self._before(session, time):
            match event:
                case _Seen(_, rule, point):
                    owed.append((rule, point))
                case _Attempt(_, writer):
                    own = self._record.committed_by(writer, time)
                    owed += [(OWN_WRITES, own)] if own is not None else []
                case _Handed(ended, earlier):
                    owed += [(STALE, point) for _, point in self._owed(earlier, ended)]
                case _Lost(ended):
                    owed = [(rule, self._record.after_loss(point, ended)) for rule, point in owed]
        return owed

    def _check_explanation(self, session: str, answer: Answer, known: Sequence[_Event], owed: Sequence[_Owed]) -> None:
        """``known``: what had happened to the session when it got the answer."""
        wanted = {"fresh", "eventual"}
        if not known and session not in self._writing:
            wanted = {"eventual"}
        elif owed and NO_EPOCH not in answer.why and not any(isinstance(event, _Lost | _Handed) for event in known):
            wanted = {"fresh"}
        if answer.freshness not in wanted or not answer.why:
            what = f"is called {answer.freshness!r} ({answer.why}), expected {' or '.join(sorted(wanted))}"
            self._complain(EXPLAINS, f"{_text(session, answer)} {what}")
        if answer.served_from != ("source" if answer.why.startswith(FROM_SOURCE) else "cache"):
            self._complain(EXPLAINS, f"{_text(session, answer)} is said to come from the {answer.served_from}")

    def _check_state(self, session: str, answer: Answer, owed: Sequence[_Owed], ended: float) -> Point | None:
        """The earliest commit that the answer may be of. None if it breaks a rule."""
        demanded = owed if answer.freshness == "fresh" else ()
        found = self._earliest(answer, (point for _, point in demanded), ended)
        if found is not None:
            return found
        text = _text(session, answer)
        if self._earliest(answer, (), ended) is None:
            self._complain(UNCOMMITTED, f"{text}, which was not committed by then")
            return None
        broken = [rule for rule, point in demanded if self._earliest(answer, (point,), ended) is None]
        rule = next((rule for rule in (OWN_WRITES, MONOTONIC) if rule in broken), STALE)
        wanted = ", ".join(f"{point.history}/{point.commit} ({rule})" for rule, point in demanded)
        self._complain(rule, f"{text}; wanted a state at or after {wanted}; {self._versions(answer.row)}")
        return None

    def _earliest(self, answer: Answer, points: Iterable[Point], ended: float) -> Point | None:
        wanted = list(points)
        for number in range(self._record.number_at(ended) + 1):
            commits = [self._record.in_history(point, number) for point in wanted]
            if None in commits:
                continue
            demanded = max((commit for commit in commits if commit is not None), default=0)
            found = self._record.histories[number].first_with(answer.row, answer.image, demanded, ended)
            if found is not None:
                return Point(number, found)
        return None

    def _versions(self, row: RowName) -> str:
        return "; ".join(
            f"history {number}: {', '.join(f'{commit}: {image}' for commit, image in history.versions.get(row, []))}"
            for number, history in enumerate(self._record.histories)
        )


def _text(session: str, answer: Answer) -> str:
    return f"session {session or 'none'} got {answer.image or 'no row'} for {answer.row} from the {answer.served_from}"
