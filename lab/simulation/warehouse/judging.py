"""Judges what readers of a catalog get by the states that the metastore was in. It calls nothing of the product.

A state's number is its place in `Warehouse.states`. An answer must be of some state: not after it came, not before what
its reader had seen, nor before what the reader's write-id list says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lab.simulation.hive.judging import read_list, too_many
from lab.simulation.warehouse.metastore import State, TableTruth, Values, Warehouse
from lab.simulation.whole_processes.words import DEFECTS, EXPLAINS, FROM_SOURCE, NEVER_RAISES, NO_EPOCH

STALE: Final = "no stale answer"
OWN_WRITES: Final = "read your writes"
MONOTONIC: Final = "monotonic reads"
COVERED: Final = "the list is covered"
UNCOMMITTED: Final = "nothing uncommitted"
BOUNDED: Final = "no older than allowed"
RULES: Final = (STALE, OWN_WRITES, MONOTONIC, COVERED, UNCOMMITTED, BOUNDED, EXPLAINS, NEVER_RAISES)
A_MS: Final = 0.001
"""What is lost where seconds become milliseconds."""
IS_DOWN: Final = "the source is down"
"""How the explanation of an answer begins that the metastore was not asked for, since it is away."""
_LOST: Final = -1


class Listed(NamedTuple):
    """A write-id list that a reader brings, as of the state of this number. ``own``: its transaction, if it has one.

    ``text`` "": the table has none, and the reader's transaction has written it in that state.
    """

    name: str
    table_id: int
    text: str
    state: int
    own: int = 0


class Asked(NamedTuple):
    """When a request was made: the time, how much its session had seen before, and the number of the state.

    ``bound_s``: how much older than the request the answer may be, in seconds; None: it does not say.
    """

    time: float
    events: int
    state: int
    bound_s: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What an answer says of itself. ``is_of``: whether it is what the catalog was in a state; ``what``: in words.

    ``table``: the name of the table that it is of; "": of none. ``write_ids``: the list that it came with.
    """

    what: str
    is_of: Callable[[State], bool]
    served_from: str
    freshness: str
    why: str
    table: str = ""
    write_ids: str = ""
    shows: bool = True
    """Whether it shows any object."""


class CatalogJudge:
    """Checks every answer. ``complain(rule, what)`` records a violation. ``may_lose``: whether an epoch has ended.

    ``may_be_stale``: whether the cache answers while the metastore is away. Such an answer says so, and proves nothing.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        complain: Callable[[str, str], None],
        may_lose: Callable[[], bool],
        *,
        may_be_stale: bool = False,
    ) -> None:
        self._may_be_stale = may_be_stale
        self._warehouse = warehouse
        self._complain = complain
        self._may_lose = may_lose
        self._events: dict[str, list[tuple[str, int]]] = defaultdict(list)
        """Session → (rule, state) of what it has seen or written."""
        self._amid_pages: set[str] = set()
        """Sessions that have seen the first pages of an answer, which is judged once all are there."""

    def wrote(self, session: str) -> None:
        """The session has changed the catalog just now, and knows at which event."""
        self._events[session].append((OWN_WRITES, len(self._warehouse.states) - 1))

    def page_came(self, session: str) -> None:
        """The session has seen a part of an answer: it may demand more than this judge knows of."""
        self._amid_pages.add(session)

    def handed_over(self, session: str, earlier: str, time: float) -> None:
        """The session begins with the token that an ``earlier`` one has now."""
        self._amid_pages |= {session} if earlier in self._amid_pages else set()
        owed = self._owed(earlier, self.asked(earlier, time))
        self._events[session] += [(STALE, state) for _, state in owed]

    def asked(self, session: str, time: float, bound_s: float | None = None) -> Asked:
        """A request begins."""
        return Asked(time, len(self._events[session]), len(self._warehouse.states) - 1, bound_s)

    def refused(self, session: str, code: str) -> None:
        """The session got an error."""
        if code in DEFECTS:
            self._complain(NEVER_RAISES, f"session {session} got the error {code}")
        if code == "history_lost":
            if not self._may_lose():
                self._complain(EXPLAINS, f"session {session} was told that history is lost, but none is")
            self._events[session].append((STALE, _LOST))

    def answered(self, session: str, asked: Asked, ended: float, answer: Answer, listed: Listed | None = None) -> None:
        """A request was answered."""
        owed = self._owed(session, asked)
        if asked.bound_s is not None:
            owed.append((BOUNDED, self._last_by(asked.time - asked.bound_s - A_MS)))
        self._check_explanation(session, answer, owed, listed)
        demanded = list(owed) if answer.freshness == "fresh" else []
        if listed is not None and answer.freshness == "fresh":
            demanded.append((STALE, self.demanded_by(listed)) if listed.text else (OWN_WRITES, listed.state))
            self._check_covered(session, answer, listed)
        found = self.first_of(answer, max((state for _, state in demanded), default=0), ended, listed)
        if found is None:
            self._complain_of(session, answer, demanded, ended, listed)
        elif session and NO_EPOCH not in answer.why:
            if asked.bound_s is not None:  # what proves a time is not seen: the answer's token tells no event for that
                seen = max((state for rule, state in demanded if rule != BOUNDED), default=0)
                found = self.first_of(answer, seen, ended, listed) or 0
            self._events[session].append((MONOTONIC, found))

    def _owed(self, session: str, asked: Asked) -> list[tuple[str, int]]:
        owed: list[tuple[str, int]] = []
        for rule, state in self._events[session][: asked.events]:
            owed = [] if state == _LOST else [*owed, (rule, state)]
        return owed

    def _last_by(self, time: float) -> int:
        """The last state that was there at a time."""
        return max(bisect_right(self._warehouse.states, time, key=lambda state: state.time) - 1, 0)

    def demanded_by(self, listed: Listed) -> int:
        """The last write of the table by a transaction that the list counts as committed."""
        hwm, exceptions, _ = read_list(listed.text)
        return max(
            (
                write.state
                for write in self._warehouse.writes
                if write.table_id == listed.table_id
                and 0 < write.write_id <= hwm
                and write.write_id not in exceptions
                and write.state <= listed.state
            ),
            default=0,
        )

    def _check_explanation(
        self, session: str, answer: Answer, owed: Sequence[tuple[str, int]], listed: Listed | None
    ) -> None:
        wanted = {"fresh", "eventual"}
        # without write ids it is of a state in which the table had no list: then a list proves nothing
        is_listed = listed is not None and bool(answer.write_ids)
        if (owed or is_listed) and NO_EPOCH not in answer.why:
            wanted = {"fresh"}
        elif not self._events[session] and listed is None and session not in self._amid_pages:
            wanted = {"eventual"}
        is_shown = answer.what.startswith("function") or (answer.what.startswith("database") and answer.shows)
        if is_shown and answer.served_from == "cache":
            wanted = {"eventual"}  # the log does not say that one was altered
        if self._may_be_stale and answer.why.startswith(IS_DOWN):
            wanted = {"stale"}
        if answer.freshness not in wanted or not answer.why:
            expected = " or ".join(sorted(wanted))
            what = f"is called {answer.freshness!r} ({answer.why}), expected {expected}"
            self._complain(EXPLAINS, f"session {session}: {answer.what} {what}")
        if answer.served_from != ("source" if answer.why.startswith(FROM_SOURCE) else "cache"):
            self._complain(EXPLAINS, f"session {session}: {answer.what} is said to come from the {answer.served_from}")

    def _check_covered(self, session: str, answer: Answer, listed: Listed) -> None:
        if not answer.write_ids or not listed.text:
            return
        hwm, exceptions, _ = read_list(listed.text)
        own_hwm, own_exceptions, aborted = read_list(answer.write_ids)
        for write_id in sorted(own_exceptions - aborted):
            if write_id <= hwm and write_id not in exceptions:
                self._complain(COVERED, f"session {session}: {answer.what}: {listed.text} counts {write_id} as valid")
        if hwm > own_hwm and any(each not in exceptions for each in range(max(own_hwm + 1, hwm - 50), hwm + 1)):
            self._complain(COVERED, f"session {session}: {answer.what}: {listed.text} goes beyond it")

    def first_of(self, answer: Answer, demanded: int, ended: float, listed: Listed | None) -> int | None:
        """The number of the first state at or after ``demanded`` of which the answer may be."""
        for number, state in self._states(demanded, ended):
            if answer.is_of(state) and self._is_committed(state, answer, listed):
                return number
        return None

    def _states(self, demanded: int, ended: float) -> Iterator[tuple[int, State]]:
        for number in range(demanded, len(self._warehouse.states)):
            state = self._warehouse.states[number]
            if state.time > ended:
                return
            yield number, state

    def _is_committed(self, state: State, answer: Answer, listed: Listed | None) -> bool:
        """The cache gives nothing that an open transaction has written, and no list counts ids that are not valid."""
        table = state.tables.get(answer.table)
        if table is None:
            return True
        if answer.served_from == "cache" and table.pending:
            return False
        own = listed is not None and listed.own
        return not answer.write_ids or bool(own) or not too_many(answer.write_ids, table.listed)

    def _complain_of(
        self, session: str, answer: Answer, demanded: Sequence[tuple[str, int]], ended: float, listed: Listed | None
    ) -> None:
        text = f"session {session or 'none'}: {answer.what} from the {answer.served_from} ({answer.why})"
        if self.first_of(answer, 0, ended, listed) is None:
            self._complain(UNCOMMITTED, f"{text}, which was never so, or not committed")
            return
        broken = {rule for rule, state in demanded if self.first_of(answer, state, ended, listed) is None}
        rule = next((rule for rule in (OWN_WRITES, MONOTONIC, BOUNDED) if rule in broken), STALE)
        at = max(state for _, state in demanded)
        now = self._warehouse.states[at].tables.get(answer.table)
        self._complain(rule, f"{text}; it was asked for as of state {at} or later: {now}; the list: {listed}")


# --- answers as predicates of a state ---


def is_table(name: str, table_id: int, image: Mapping[str, Any] | None) -> Callable[[State], bool]:
    """Whether a table is so in a state; None: it is not there."""

    def holds(state: State) -> bool:
        table = state.tables.get(name)
        if image is None or table is None:
            return image is None and table is None
        shown = f"{image.get('dbName')}.{image.get('tableName')}"
        return (
            table.table_id == table_id == image.get("id")
            and shown == name
            and image.get("parameters") == table.parameters
            and (image.get("creationMetadata") or {}).get("validTxnList", "0") == str(table.built)
        )

    return holds


def are_partitions(
    name: str,
    table_id: int,
    found: Mapping[Values, Mapping[str, Any] | None] | None,
    count: int,
    selected: Callable[[TableTruth], Sequence[Values]],
    *,
    with_images: bool = True,
) -> Callable[[State], bool]:
    """Whether a table's partitions are so in a state. ``found``: None if only their number was asked for."""

    def holds(state: State) -> bool:
        table = state.tables.get(name)
        if table is None:
            return count == 0 and not found
        if table_id and table.table_id != table_id:
            return False
        chosen = selected(table)
        existing = [values for values in chosen if values in table.partitions]
        if len(existing) != count or (found is not None and sorted(found) != sorted(chosen)):
            return False
        return (
            found is None
            or not with_images
            or all(_is_partition(found[values], values, table.partitions.get(values)) for values in chosen)
        )

    return holds


def are_constraints(name: str, table_id: int, keys: tuple[str, str, str]) -> Callable[[State], bool]:
    """Whether a table has these keys in a state. ``keys``: as `TableTruth.keys`."""

    def holds(state: State) -> bool:
        table = state.tables.get(name)
        if table is None:
            return not any(keys)
        return table.keys == keys and table_id in (0, table.table_id)

    return holds


def _is_partition(image: Mapping[str, Any] | None, values: Values, version: int | None) -> bool:
    if image is None or version is None:
        return image is None and version is None
    return tuple(image.get("values", ())) == values and (image.get("parameters") or {}).get("version") == str(version)


class Version(NamedTuple):
    """What an answer shows of a database or function: its last change, and the last one that no event tells."""

    logged: int
    unlogged: int


def are_databases(found: Mapping[str, Version]) -> Callable[[State], bool]:
    """Whether the databases are so in a state."""
    return lambda state: (
        state.databases.keys() <= found.keys() and all(is_database(db, at)(state) for db, at in found.items())
    )


def is_database(db: str, version: Version | None) -> Callable[[State], bool]:
    """Whether a database is so in a state; None: it is not there."""
    return lambda state: _was_so(version, state.databases.get(db), state, (db,))


def are_functions(db: str, found: Mapping[str, Version]) -> Callable[[State], bool]:
    """Whether the functions of a database are so in a state."""
    return lambda state: (
        {name for of, name in state.functions if of == db} <= found.keys()
        and all(is_function((db, name), at)(state) for name, at in found.items())
    )


def is_function(name: tuple[str, str], version: Version | None) -> Callable[[State], bool]:
    """Whether a function is so in a state; None: it is not there."""
    return lambda state: _was_so(version, state.functions.get(name), state, name)


def _was_so(version: Version | None, logged: int | None, state: State, name: Values) -> bool:
    """What no event tells may be as it was at any time since the object's last event: nothing proves it.

    That is so of its end, too: what went without an event may still be shown.
    """
    if version is None:
        return logged is None
    return version.logged in (logged, state.gone.get(name)) and version.unlogged in state.unlogged.get(name, ())
