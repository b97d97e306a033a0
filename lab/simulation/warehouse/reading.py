"""Sessions that read a catalog through the front, with write-id lists and tokens. Every answer is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from lab.simulation.engine import Outcome
from lab.simulation.kernel.fronts import blocking_client
from lab.simulation.warehouse import judging
from lab.simulation.warehouse.changing import FUNCTIONS, NAMES, VALUES, Changing
from lab.simulation.warehouse.judging import Answer, Listed, Version
from lab.simulation.warehouse.metastore import DATABASES, TableTruth, Values
from lab.simulation.warehouse.parts import FRONT_PORT, SHARD
from lab.simulation.whole_processes.run import CLIENT
from lab.simulation.whole_processes.words import EXPLAINS
from serving.client.answers import Objects, Table
from serving.client.client import Session
from serving.client.errors import ClientError

SESSIONS: Final = 2
PATIENCE_S: Final = (0.0, 0.05, 1.0, 60.0)
"""How long the history waits for what a session does, before it goes on to the next op."""
PAGES_MAX: Final = 10
READS_A_PAGE_IN_S: Final = 0.5
"""How long some readers take between two pages."""
WAYS: Final = 8
FILTERED: Final = (6, 7)
"""Of them."""
"""How a reader may choose partitions."""
Chosen = tuple[dict[str, Any], Callable[[TableTruth], Sequence[Values]]]
"""The arguments of a request, and which partitions it names."""

# --- filters of partitions, as a reader writes them, and as what they mean: that uses nothing of Freshet ---

Meaning = Callable[[str, int | None], bool]
"""Whether a partition passes, by its ``ds`` and ``hr``; None: the hour is no number."""
DEFAULT: Final = "__HIVE_DEFAULT_PARTITION__"
FILTERS: Final[tuple[tuple[str, Meaning], ...]] = (
    ("ds = 'x'", lambda ds, _: ds == "x"),
    ("ds != 'x' and hr >= 2", lambda ds, hr: ds != "x" and hr is not None and hr >= 2),
    ("hr IN (1, 10) OR `ds` = 'y'", lambda ds, hr: hr in (1, 10) or ds == "y"),
    ("hr NOT IN (2, -3)", lambda _, hr: hr not in (None, 2, -3)),
    ("hr BETWEEN 2 AND 10", lambda _, hr: hr is not None and 2 <= hr <= 10),
    ("(ds = 'x' OR ds = 'é') AND (hr) NOT BETWEEN 1 AND 2", lambda ds, hr: ds in ("x", "é") and hr not in (None, 1, 2)),
    ("10 > hr", lambda _, hr: hr is not None and hr < 10),
    ("ds LIKE '%x' or ds like '_'", lambda ds, _: ds.endswith("x") or len(ds) == 1),
    ("(STRUCT(ds, hr)) IN (STRUCT('x', 1), CONST STRUCT('y', 2))", lambda ds, hr: (ds, hr) in (("x", 1), ("y", 2))),
    (f"hr = '{DEFAULT}'", lambda _, hr: hr is None),
)
BAD_FILTERS: Final = ("ds = ", "nope = 1", "hr = 'x'", "ds = 'x' AND", "((ds = 'x')", "hr < 2 $", "hr NOT = 2")
"""None of these can be meant."""

Found = TypeVar("Found")


class Reading(Changing):
    """The ops of sessions."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self.under_way = 0
        self._names = 0
        self._sessions: dict[int, tuple[str, Session]] = {}
        self._lists: dict[str, Listed] = {}
        """Table → a list that readers have kept for some time."""

    def session(self, number: int) -> tuple[str, Session]:
        """A session and its name for the judge."""
        if number not in self._sessions:
            self._sessions[number] = self.new_session()
        return self._sessions[number]

    def new_session(self, token: str = "") -> tuple[str, Session]:
        """A session that has seen nothing."""
        self._names += 1
        return str(self._names), blocking_client(self.kernel, [FRONT_PORT]).session(token or None)

    def listed(self, name: str, own: int = 0) -> Listed | None:
        """The list that a reader gets of the metastore now; None for a table that has none.

        ``own``: its transaction, whose ids are no exceptions to it.
        """
        table = self.warehouse.states[-1].tables.get(name)
        if table is None or table.kind == "external":
            return None
        text = table.listed
        mine = self.warehouse.held_by(name, own) if own else 0
        if mine:
            *head, hwm, _, opened, aborted = text.split(":")
            left = [each for each in opened.split(",") if each and int(each) != mine]
            text = ":".join([*head, hwm, left[0] if left else str(2**63 - 1), ",".join(left), aborted])
        return Listed(name, table.table_id, text, len(self.warehouse.states) - 1, own if mine else 0)

    def do(self, work: Callable[[], object], patience: int) -> None:
        """Runs ``work`` in a thread of the application, and waits for it for a while."""
        self.under_way += 1

        def worked() -> None:
            work()
            self.under_way -= 1

        thread = self.kernel.spawn(CLIENT, worked)
        self.run_until(lambda: thread.done, PATIENCE_S[patience % len(PATIENCE_S)])

    def op_session(self, session: int, earlier: int) -> None:
        """A new session takes the place of one, with the token of another, or with none."""
        number = session % SESSIONS
        if earlier % 2 and self._sessions:
            name, client = self._sessions[sorted(self._sessions)[earlier // 2 % len(self._sessions)]]

            def take_over() -> None:
                try:
                    token = client.token
                except ClientError:
                    return
                self._sessions[number] = self.new_session(token)
                self.judge.handed_over(self._sessions[number][0], name, self.kernel.now)

            self.do(take_over, 3)
        else:
            self._sessions[number] = self.new_session()
        self.say(f"session {number} begins anew")

    def op_observe(self, session: int) -> None:
        """A session has changed the catalog, and asks the metastore for the event."""
        name, client = self.session(session % SESSIONS)
        client.observe(SHARD, f"HiveEvent/{len(self.warehouse.log)}")
        self.judge.wrote(name)
        self.say(f"session {name} knows of event {len(self.warehouse.log)}")

    def op_list(self, name: int) -> None:
        """A reader takes a list, and keeps it for a while."""
        found = self.listed(NAMES[name % len(NAMES)])
        if found is not None:
            self._lists[found.name] = found

    def brought(self, table: str, how: int, txn: int) -> Listed | None:
        """The list that a reader brings: a new one, one that it has kept, or that of its own transaction."""
        kept = self._lists.get(table)
        if how % 4 == 1 and kept is not None:
            return kept
        return self.listed(table, self.txn(txn) if how % 4 == 2 else 0)

    def op_table(self, session: int, name: int, how: int, txn: int, patience: int) -> None:
        """A session reads a table."""
        reader, client = self.session(session % SESSIONS)
        table = NAMES[name % len(NAMES)]
        listed = self.brought(table, how, txn)
        self.do(lambda: self.read_table(reader, client, table, listed), patience)

    def read_table(
        self, reader: str, client: Session, name: str, listed: Listed | None, bound_ms: int | None = None
    ) -> Table | None:
        """Reads a table, and has the answer judged; None if there is none."""
        db, _, table = name.partition(".")
        get = partial(client.get_table, db, table, *demand_of(listed), max_staleness_ms=bound_ms)
        return self.judge_table(reader, name, listed, get, bound_ms)

    def judge_table(
        self, reader: str, name: str, listed: Listed | None, get: Callable[[], Table], bound_ms: int | None = None
    ) -> Table | None:
        """As `read_table`, by any call that gets the table."""
        found = self.ask(reader, name, get, bound_ms)
        if found is None:
            return None
        asked, answer = found
        fields = ("dbName", "tableName", "id", "parameters", "creationMetadata")
        shown = {each: (answer.value or {}).get(each) for each in fields}
        what = f"{name} is {shown} with {answer.write_ids}, id {answer.table_id}"
        is_of = judging.is_table(name, answer.table_id, answer.value)
        self.judge_answer(reader, asked, Answer(
            what, is_of, answer.served_from, answer.freshness, answer.why, name, answer.write_ids or ""
        ), listed)  # fmt: skip
        return answer

    def op_partitions(self, session: int, name: int, how: int, way: int, more: int, patience: int) -> None:
        """A session reads partitions of a table: all, by name, by the first values or by a filter; in pages."""
        reader, client = self.session(session % SESSIONS)
        table = NAMES[name % len(NAMES)]
        listed = self.brought(table, how, 0)
        self.do(lambda: self.read_partitions(reader, client, table, listed, way, more), patience)

    def read_partitions(
        self,
        reader: str,
        client: Session,
        name: str,
        listed: Listed | None,
        way: int,
        more: int,
        bound_ms: int | None = None,
    ) -> Objects | None:
        """Reads partitions to the last page, and has them judged; None if there are none."""
        db, _, table = name.partition(".")
        text, table_id = demand_of(listed)
        get: Callable[..., Objects] = partial(
            client.get_partitions, db, table, text, table_id, max_staleness_ms=bound_ms
        )
        found: Objects | None = None
        for each in _filters(more) if way % WAYS in FILTERED else [more]:
            found = self.judge_partitions(reader, name, listed, get, (way, each), bound_ms)
        return found

    def judge_partitions(
        self,
        reader: str,
        name: str,
        listed: Listed | None,
        get: Callable[..., Objects],
        way: tuple[int, int],
        bound_ms: int | None = None,
    ) -> Objects | None:
        """As `read_partitions`, by any call that gets a page of what it is given options for."""
        options, selected = _way_of(*way)
        pages: list[Objects] = []
        first: judging.Asked | None = None

        def ask() -> Objects:
            return get(page=pages[-1].next_page if pages else "", **options)

        while not pages or (pages[-1].next_page and len(pages) < PAGES_MAX):
            found = self.ask(reader, name, ask, bound_ms)
            if found is None:
                return None
            first = first or found[0]
            pages.append(found[1])
            self.judge.page_came(reader)
            if found[1].next_page and way[1] % 2:
                self.kernel.wait(lambda: False, READS_A_PAGE_IN_S)
        if options.get("filter") in BAD_FILTERS:
            self.complain(EXPLAINS, f"{options['filter']!r} is taken for a filter")
        assert first is not None
        self.judge_answer(reader, first, _answer_of(name, pages, options, selected), listed)
        return pages[-1]

    def op_catalog(self, session: int, what: int, patience: int) -> None:
        """A session reads databases or functions: one, or all of them."""
        reader, client = self.session(session % SESSIONS)
        self.do(lambda: self.read_catalog(reader, client, what), patience)

    def read_catalog(self, reader: str, client: Session, what: int, bound_ms: int | None = None) -> Objects | None:
        """Reads databases or functions, and has them judged; None if there is no answer."""
        db, function = DATABASES[what // 4 % 2], FUNCTIONS[what // 4 % len(FUNCTIONS)]
        reads: tuple[Callable[..., Objects], ...] = (
            client.get_databases,
            partial(client.get_databases, db),
            partial(client.get_functions, db),
            partial(client.get_functions, *function),
        )
        get = partial(reads[what % 4], max_staleness_ms=bound_ms)
        found = self.ask(reader, "the catalog", get, bound_ms)
        if found is None:
            return None
        asked, answer = found
        versions = _versions(answer)
        existing = {name[-1]: at for name, at in versions.items()}
        is_of = (
            judging.are_databases(existing),
            judging.is_database(db, existing.get(db)),
            judging.are_functions(db, existing),
            judging.is_function(function, existing.get(function[1])),
        )[what % 4]
        text = ("databases", f"database {db}", f"functions of {db}", f"function {'.'.join(function)}")[what % 4]
        told = answer.served_from, answer.freshness, answer.why
        self.judge_answer(reader, asked, Answer(f"{text}: {versions}", is_of, *told, shows=bool(existing)), None)
        return answer

    def is_the_last(self, answer: Objects) -> bool:
        """Whether databases or functions are shown with the last change that no event tells, and none that is gone."""
        return all(
            at.unlogged == self.warehouse.unlogged[name][-1] and name not in self.warehouse.gone
            for name, at in _versions(answer).items()
        )

    def ask(
        self, reader: str, what: str, ask: Callable[[], Found], bound_ms: int | None = None
    ) -> tuple[judging.Asked, Found] | None:
        """What a session gets for a request, and when it asked; None if it gets an error, which is judged."""
        asked = self.judge.asked(reader, self.kernel.now, None if bound_ms is None else bound_ms / 1000)
        try:
            return asked, ask()
        except ClientError as error:
            self.outcome.answers[f"refused: {error.code}"] += 1
            self.say(f"session {reader}: reading {what}: {error.code}: {error}")
            self.judge.refused(reader, error.code)
            return None

    def judge_answer(self, reader: str, asked: judging.Asked, answer: Answer, listed: Listed | None) -> None:
        """Counts an answer, and has it judged."""
        self.outcome.answers[f"{answer.freshness} from the {answer.served_from}"] += 1
        self.say(f"session {reader}: {answer.what}: {answer.freshness} from the {answer.served_from}: {answer.why}")
        self.judge.answered(reader, asked, self.kernel.now, answer, listed)


def demand_of(listed: Listed | None) -> tuple[str | None, int]:
    """The list and the table id that a request has."""
    return (listed.text, listed.table_id) if listed is not None else (None, 0)


def _filters(more: int) -> Sequence[int]:
    """The filters that a session tries one after the other: some that it can mean, or all that nobody can."""
    if more == len(FILTERS):
        return range(len(FILTERS), len(FILTERS) + len(BAD_FILTERS))
    return [(more + step) % len(FILTERS) for step in (0, 3, 7)]


def _way_of(way: int, more: int) -> Chosen:
    """How partitions are chosen."""

    def every(table: TableTruth) -> Sequence[Values]:
        return [*table.partitions]

    match way % WAYS:
        case 1:
            return {"limit": 2}, every
        case 2:
            return {"names_only": True}, every
        case 3:
            return {"count": True}, every
        case 4:
            names = [VALUES[more % len(VALUES)], VALUES[(more + 1) % len(VALUES)]]
            return {"names": names}, lambda _: names
        case 5:
            prefix = ((VALUES[more % len(VALUES)][0],), ("", "1"))[more % 2]
            return {"values": prefix}, lambda table: [each for each in table.partitions if _begins(each, prefix)]
        case each if each in FILTERED:
            text, means = FILTERS[more % len(FILTERS)]
            if more >= len(FILTERS):
                text = BAD_FILTERS[more - len(FILTERS)]

            def passing(table: TableTruth) -> Sequence[Values]:
                return [
                    each for each in table.partitions if means(each[0], int(each[1]) if each[1].isdigit() else None)
                ]

            return {"filter": text}, passing
    return {}, every


def _begins(values: Values, prefix: Sequence[str]) -> bool:
    return all(want in ("", value) for want, value in zip(prefix, values, strict=False))


def _answer_of(
    name: str, pages: Sequence[Objects], options: dict[str, Any], selected: Callable[[TableTruth], Sequence[Values]]
) -> Answer:
    first, last = pages[0], pages[-1]
    freshness = "fresh" if all(page.freshness == "fresh" for page in pages) else first.freshness
    with_images = not options.get("names_only")
    names = [tuple(each) for page in pages for each in page.names]
    images = [each for page in pages for each in page.objects] if with_images else [None] * len(names)
    found = None if options.get("count") else dict(zip(names, images, strict=True))
    count = sum(page.count for page in pages)
    is_of = judging.are_partitions(name, last.table_id or 0, found, count, selected, with_images=with_images)
    shown = {values: (image or {}).get("parameters") for values, image in (found or {}).items()}
    what = f"{count} partitions of {name} ({options}): {shown} with {last.write_ids}"
    return Answer(what, is_of, first.served_from, freshness, first.why, name, last.write_ids or "")


def _versions(answer: Objects) -> dict[Values, Version]:
    """Databases or functions that are there, by name."""
    shown = zip(answer.names, answer.objects, strict=True)
    return {tuple(name): _version(image) for name, image in shown if image is not None}


def _version(image: dict[str, Any]) -> Version:
    if "className" in image:
        return Version(int(image["className"].removeprefix("v")), int(image["ownerName"]))
    return Version(int(image["parameters"]["version"]), int(image["description"]))
