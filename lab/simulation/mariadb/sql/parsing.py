"""Statements of SQL as values. A statement of another form is an `UnknownStatement`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, TypeAlias

from lab.simulation.mariadb.sql.definitions import SCHEMA_CHANGES, SchemaChange, schema_change
from lab.simulation.mariadb.sql.syntax import Call, Expression, Literal, Name, Tokens, Variable, variable

OPTIONS_OF_SHOW: Final = (
    "GLOBAL VARIABLES",
    "VARIABLES",
    "STATUS",
    "ALL SLAVES STATUS",
    "REPLICA STATUS",
    "WARNINGS",
    "MASTER STATUS",
    "BINARY LOG STATUS",
    "BINARY LOGS",
    "DATABASES",
)


@dataclass(frozen=True, slots=True)
class Selected:
    """An element of a select list. ``label``: its text."""

    expression: Expression
    label: str


@dataclass(frozen=True, slots=True)
class Select:
    """A SELECT from one table or none. ``columns`` is empty for ``*``. ``limit`` 0: none. ``locks``: FOR UPDATE.

    ``descending``: columns of ``order`` whose greatest values come first. ``counts``: its answer is how many rows it
    finds. ``some``: it selects from the rows that this one finds.
    """

    columns: tuple[Selected, ...]
    table: Name | None = None
    where: Expression | None = None
    order: tuple[str, ...] = ()
    limit: int = 0
    locks: bool = False
    descending: frozenset[str] = frozenset()
    counts: bool = False
    some: Select | None = None


@dataclass(frozen=True, slots=True)
class Union:
    """SELECTs joined by UNION ALL."""

    selects: tuple[Select, ...]


@dataclass(frozen=True, slots=True)
class Insert:
    """INSERT or REPLACE. ``columns`` is empty for all. ``updates``: ON DUPLICATE KEY UPDATE."""

    table: Name
    columns: tuple[str, ...]
    rows: tuple[tuple[Expression, ...], ...]
    replaces: bool = False
    updates: tuple[tuple[str, Expression], ...] = ()


@dataclass(frozen=True, slots=True)
class Update:
    """UPDATE of one table."""

    table: Name
    changes: tuple[tuple[str, Expression], ...]
    where: Expression | None


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE from one table."""

    table: Name
    where: Expression | None


@dataclass(frozen=True, slots=True)
class Begin:
    """BEGIN or START TRANSACTION."""

    read_only: bool = False
    consistent: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """COMMIT or ROLLBACK."""

    commits: bool


@dataclass(frozen=True, slots=True)
class Set:
    """SET of variables. ``statement``: SET STATEMENT … FOR that statement only."""

    values: tuple[tuple[Variable, Expression], ...]
    statement: Statement | None = None


@dataclass(frozen=True, slots=True)
class Show:
    """A SHOW. ``table``: of SHOW CREATE TABLE. ``like``, ``where``: which rows."""

    what: str
    table: Name = ("", "")
    like: str = "%"
    where: Expression | None = None


@dataclass(frozen=True, slots=True)
class Xa:
    """An XA statement. ``verb``: START, END, PREPARE, COMMIT, ROLLBACK, RECOVER."""

    verb: str
    gtrid: bytes = b""
    bqual: bytes = b""
    one_phase: bool = False


@dataclass(frozen=True, slots=True)
class Administration:
    """FLUSH BINARY LOGS, RESET MASTER, USE."""

    what: str
    database: str = field(default="")


Statement: TypeAlias = (
    Select | Union | Insert | Update | Delete | Begin | End | Set | Show | Xa | Administration | SchemaChange
)


@lru_cache(maxsize=4096)
def parsed(sql: str) -> Statement:
    """The statement. Raises `UnknownStatement`."""
    tokens = Tokens(sql)
    found = _statement(tokens)
    tokens.expect_end()
    return found


def _statement(tokens: Tokens) -> Statement:
    if tokens.is_next("SELECT") or tokens.is_next("("):
        return _selects(tokens)
    word = tokens.take().text.upper()
    if word in ("INSERT", "REPLACE"):
        return _insert(tokens, replaces=word == "REPLACE")
    if word in SCHEMA_CHANGES:
        return schema_change(tokens, word)
    known = _BY_WORD.get(word)
    if known is None:
        raise tokens.unknown()
    return known(tokens)


def _selects(tokens: Tokens) -> Select | Union:
    found = [_select(tokens)]
    while tokens.skip("UNION", "ALL"):
        found.append(_select(tokens))
    return found[0] if len(found) == 1 else Union(tuple(found))


def _select(tokens: Tokens) -> Select:
    enclosed = tokens.skip("(")
    tokens.expect("SELECT")
    if tokens.skip("COUNT", "(", "*", ")"):
        return _count(tokens)
    columns: list[Selected] = []
    if not tokens.skip("*"):
        while True:
            start = tokens.next.start
            expression = tokens.expression()
            columns.append(Selected(expression, tokens.sql[start : tokens.next.start].strip()))
            if not tokens.skip(","):
                break
    table, some = None, None
    if tokens.skip("FROM"):
        some = _some(tokens) if tokens.is_next("(") else None
        table = some.table if some else tokens.table()
    if tokens.skip("FORCE", "INDEX"):
        tokens.names()
    where = tokens.expression() if tokens.skip("WHERE") else None
    order: dict[str, bool] = {}
    if tokens.skip("ORDER", "BY"):
        while not order or tokens.skip(","):
            name = tokens.identifier()
            order[name] = tokens.skip("DESC")
    limit = int(tokens.take().text) if tokens.skip("LIMIT") else 0
    locks = tokens.skip("FOR", "UPDATE")
    if enclosed:
        tokens.expect(")")
    descending = frozenset(name for name, down in order.items() if down)
    return Select(tuple(columns), table, where, tuple(order), limit, locks, descending, some=some)


def _some(tokens: Tokens) -> Select:
    """A SELECT in parentheses with a name, from which another one selects."""
    found = _select(tokens)
    tokens.expect("AS")
    tokens.identifier()
    return found


def _count(tokens: Tokens) -> Select:
    """``COUNT(*)`` of a table's rows, or of what another SELECT finds."""
    tokens.expect("FROM")
    if tokens.is_next("("):
        return replace(_some(tokens), columns=(), counts=True)
    table = tokens.table()
    if tokens.skip("FORCE", "INDEX"):
        tokens.names()
    return Select((), table, tokens.expression() if tokens.skip("WHERE") else None, counts=True)


def _insert(tokens: Tokens, *, replaces: bool) -> Insert:
    tokens.skip("INTO")
    table = tokens.table()
    columns = tokens.names() if tokens.is_next("(") else ()
    if not tokens.skip("VALUES"):
        tokens.expect("VALUE")
    rows = []
    while True:
        tokens.expect("(")
        row = [tokens.expression()]
        while tokens.skip(","):
            row.append(tokens.expression())
        tokens.expect(")")
        rows.append(tuple(row))
        if not tokens.skip(","):
            break
    updates = _assignments(tokens) if tokens.skip("ON", "DUPLICATE", "KEY", "UPDATE") else ()
    return Insert(table, columns, tuple(rows), replaces, updates)


def _assignments(tokens: Tokens) -> tuple[tuple[str, Expression], ...]:
    found = []
    while True:
        name = tokens.identifier()
        tokens.expect("=")
        found.append((name, tokens.expression()))
        if not tokens.skip(","):
            return tuple(found)


def _update(tokens: Tokens) -> Update:
    table = tokens.table()
    tokens.expect("SET")
    changes = _assignments(tokens)
    return Update(table, changes, tokens.expression() if tokens.skip("WHERE") else None)


def _delete(tokens: Tokens) -> Delete:
    tokens.expect("FROM")
    return Delete(tokens.table(), tokens.expression() if tokens.skip("WHERE") else None)


def _start(tokens: Tokens) -> Begin:
    tokens.expect("TRANSACTION")
    if tokens.skip("READ", "ONLY"):
        return Begin(read_only=True)
    return Begin(consistent=tokens.skip("WITH", "CONSISTENT", "SNAPSHOT"))


def _set(tokens: Tokens) -> Set:
    if tokens.skip("STATEMENT"):
        values = _settings(tokens)
        tokens.expect("FOR")
        return Set(values, _statement(tokens))
    if tokens.skip("SESSION", "TRANSACTION", "ISOLATION", "LEVEL"):
        level = tokens.take().text.upper()
        while tokens.next.kind == "word":
            level += f"-{tokens.take().text.upper()}"
        return Set(((Variable("session", "tx_isolation"), Literal(level)),))
    return Set(_settings(tokens))


def _settings(tokens: Tokens) -> tuple[tuple[Variable, Expression], ...]:
    found: list[tuple[Variable, Expression]] = []
    while True:
        found += _setting(tokens)
        if not tokens.skip(","):
            return tuple(found)


_WORDS: Final = frozenset({"ON", "OFF", "ROW", "STATEMENT", "MIXED", "FULL", "OWN_GTID"})
"""Values that are no expressions."""


def _setting(tokens: Tokens) -> list[tuple[Variable, Expression]]:
    if tokens.skip("NAMES"):
        found: list[tuple[Variable, Expression]] = [(Variable("", "names"), Literal(tokens.identifier().lower()))]
        if tokens.skip("COLLATE"):
            found.append((Variable("", "collation_connection"), Literal(tokens.identifier().lower())))
        return found
    if tokens.next.kind == "variable":
        name = variable(tokens.take().text)
    else:
        scope = "global" if tokens.skip("GLOBAL") else "session" if tokens.skip("SESSION") else ""
        name = Variable(scope, tokens.identifier().lower())
    tokens.expect("=")
    if tokens.next.kind == "word" and tokens.next.text.upper() in _WORDS:
        return [(name, Literal(tokens.take().text.upper()))]
    return [(name, tokens.expression())]


def _show(tokens: Tokens) -> Show:
    if tokens.skip("CREATE", "TABLE"):
        return Show("CREATE TABLE", tokens.table())
    for what in OPTIONS_OF_SHOW:
        if tokens.skip(*what.split()):
            break
    else:
        raise tokens.unknown()
    if tokens.skip("LIKE"):
        return Show(what, like=tokens.take().text[1:-1])
    return Show(what, where=tokens.expression() if tokens.skip("WHERE") else None)


def _xa(tokens: Tokens) -> Xa:
    verb = tokens.take().text.upper()
    if verb == "RECOVER":
        return Xa(verb)
    parts = [_xid_part(tokens)]
    while tokens.skip(","):
        parts.append(_xid_part(tokens))
    gtrid, bqual = (*parts, b"")[:2]
    return Xa("START" if verb == "BEGIN" else verb, gtrid, bqual, tokens.skip("ONE", "PHASE"))


def _xid_part(tokens: Tokens) -> bytes:
    found = tokens.expression()
    value = found.value if isinstance(found, Literal) else None
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise tokens.unknown()
    return value


def _flush(tokens: Tokens) -> Administration:
    tokens.expect("BINARY", "LOGS")
    return Administration("FLUSH BINARY LOGS")


def _reset(tokens: Tokens) -> Administration:
    tokens.expect("MASTER")
    return Administration("RESET MASTER")


def _begin(tokens: Tokens) -> Begin:
    tokens.skip("WORK")
    return Begin()


_BY_WORD: Final[dict[str, Callable[[Tokens], Statement]]] = {
    "UPDATE": _update,
    "DELETE": _delete,
    "START": _start,
    "BEGIN": _begin,
    "COMMIT": lambda _: End(commits=True),
    "ROLLBACK": lambda _: End(commits=False),
    "SET": _set,
    "SHOW": _show,
    "XA": _xa,
    "FLUSH": _flush,
    "RESET": _reset,
    "USE": lambda tokens: Administration("USE", tokens.identifier()),
}


def conditions(where: Expression | None) -> tuple[Expression, ...]:
    """The conditions that must all hold."""
    if where is None:
        return ()
    return where.arguments if isinstance(where, Call) and where.name == "and" else (where,)
