"""The effect of a statement in the binlog on cached rows: none, some tables, or unknown. Pure.

This is not an SQL parser. It recognises the few forms of statements that name tables, and of these the few that change
no image (an index, a comment, a default): docs/decisions/0027-ddl-that-changes-no-image.md. Any other statement voids
everything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

Effect = Literal[
    "none", "begin", "tables", "database", "all", "commit", "rollback", "rollback_to", "xa_commit", "xa_rollback"
]

Name = tuple[str, str]
"""Database and table."""


@dataclass(frozen=True, slots=True)
class Statement:
    """The effect of one statement. ``tables``: those it names. ``xid``: (format, gtrid, bqual) of an XA statement.

    With the effect "none" ``tables`` are those that the server may copy for it. That changes no row, unless a stored
    column is computed anew and gets another value. ``if_missing``: it does nothing if its table is there.
    """

    effect: Effect
    tables: tuple[Name, ...] = ()
    reason: str = ""
    xid: tuple[int, bytes, bytes] = (0, b"", b"")
    if_missing: bool = False


class _Token(NamedTuple):
    kind: str  # "word" (bare), "name" (quoted), "string", "mark"
    text: str


_TOKEN = re.compile(
    r"""(?P<space>\s+|--(?=[\x00-\x20\x7f]|$)[^\n]*|\#[^\n]*|/\*(?!!|M!).*?(?:\*/|\Z)|/\*M?!\d*|\*/)
      | `(?P<back>(?:[^`]|``)*)`
      | "(?P<double>(?:[^"\\]|""|\\.)*)"
      | '(?P<single>(?:[^'\\]|''|\\.)*)'
      | (?P<open>[`"'].*)
      | (?P<word>[\w$@\x80-\U0010ffff]+)
      | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
"""Blanks are those of servers: to them a no-break space is part of a name."""

READ_CHARS_MAX = 1 << 20
"""A longer statement is not parsed: such DDL voids everything, like a change logged as a statement."""
_BEGINNING_CHARS = 4_096
_SHOWN_CHARS: Final = 80
_VALUES: Final = frozenset({"double", "single", "open"})

_NOTHING = Statement("none")
_BEGIN = Statement("begin")
_HARMLESS_FIRST = frozenset(
    {
        "START",
        "SAVEPOINT",
        "RELEASE",
        "GRANT",
        "REVOKE",
        "CHECK",
        "CHECKSUM",
        "FLUSH",
        "INSTALL",
        "UNINSTALL",
        "KILL",
        "USE",
        "COMMENT",
    }
)
_HARMLESS_OBJECTS = frozenset(
    {
        "VIEW",
        "PROCEDURE",
        "FUNCTION",
        "TRIGGER",
        "EVENT",
        "USER",
        "ROLE",
        "SERVER",
        "SEQUENCE",
        "PACKAGE",
        "TABLESPACE",
        "LOGFILE",
        "INSTANCE",
        "LIBRARY",
        "REFERENCE",  # SPATIAL REFERENCE SYSTEM
    }
)
_HARMLESS_CLAUSE = re.compile(
    r"""(?:ADD\ (?:(?:UNIQUE|FULLTEXT|SPATIAL)(?:\ (?:INDEX|KEY))?|INDEX|KEY)(?:\ IF\ NOT\ EXISTS)?(?:\ [\w`$]+)?
          (?:\ USING\ \w+)?\ \(\)(?:\ USING\ \w+|\ COMMENT\ ['`])*
      | ADD\ (?:CONSTRAINT\ (?:[\w`$]+\ )?)?CHECK\ \(\)
      | DROP\ (?:INDEX|KEY)\ (?:IF\ EXISTS\ )?[\w`$]+
      | RENAME\ (?:INDEX|KEY)\ [\w`$]+\ TO\ [\w`$]+
      | ALTER\ (?:INDEX|KEY)\ (?:IF\ EXISTS\ )?[\w`$]+\ (?:(?:NOT\ )?IGNORED|VISIBLE|INVISIBLE)
      | ALTER\ (?:COLUMN\ )?(?:IF\ EXISTS\ )?[\w`$]+\ DROP\ DEFAULT
      | ALTER\ (?:COLUMN\ )?(?:IF\ EXISTS\ )?[\w`$]+\ SET\ DEFAULT\ (?:-\ )?(?:[\w'`]+(?:\ \.\ \w+)?|\(\))
      | (?:DISABLE|ENABLE)\ KEYS
      | (?:(?:^|\ )(?:COMMENT|AUTO_INCREMENT|ROW_FORMAT|KEY_BLOCK_SIZE|STATS_PERSISTENT|STATS_AUTO_RECALC
             |STATS_SAMPLE_PAGES|PAGE_COMPRESSED|PAGE_COMPRESSION_LEVEL|ALGORITHM|LOCK)(?:\ =)?\ [\w'`]+)+
    )""",
    re.VERBOSE,
)
"""Of an ALTER TABLE, as `_clauses` writes it: it leaves all rows and columns as they are."""
_DML = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "CALL", "WITH", "DO", "SELECT", "EXECUTE"})


def classify(sql: str, database: str) -> Statement:
    """The effect of ``sql`` with ``database`` as the default database. Never raises."""
    is_complete = len(sql) <= READ_CHARS_MAX
    tokens = _Tokens(sql if is_complete else sql[:_BEGINNING_CHARS], database)
    first = tokens.word()
    handler = _BY_FIRST_WORD.get(first)
    try:
        if handler is not None and is_complete and not tokens.is_open:
            return handler(tokens, sql)
    except _NotUnderstood:
        return Statement("all", reason=f"a statement that was not understood: {_short(sql, has_numbers=False)}")
    if first == "BEGIN":
        return _BEGIN
    if first in _HARMLESS_FIRST:
        return _NOTHING
    if first in _DML:
        return Statement("all", reason=f"a change logged as a statement, not as rows: {_short(sql, has_numbers=False)}")
    return Statement("all", reason=f"a statement that was not understood: {_short(sql, has_numbers=False)}")


def _short(sql: str, *, has_numbers: bool = True) -> str:
    """How a statement begins, for people, with ``?`` for its values.

    A topic and logs are read by others than the server: a statement may concern a table that is not published, or name
    a password. ``has_numbers``: numbers are shown, but none in hexadecimal. What follows a backslash is left out,
    since it may end a text.
    """
    begun, backslash, _ = sql[:_BEGINNING_CHARS].partition("\\")
    parts = []
    for match in _TOKEN.finditer(begun):
        kind, text = match.lastgroup, match[0]
        is_value = kind in _VALUES or (kind == "word" and text[:2].lower() == "0x")
        if is_value or (kind == "word" and text[0].isdecimal() and not has_numbers):
            text = "?"
        parts.append(" " if kind == "space" else text)
    text = " ".join("".join(parts).split())
    is_whole = len(text) <= _SHOWN_CHARS and not backslash and len(sql) <= _BEGINNING_CHARS
    return text if is_whole else text[: _SHOWN_CHARS - 3] + "..."


class _NotUnderstood(Exception):
    pass


class _Tokens:
    def __init__(self, sql: str, database: str) -> None:
        self.database = database
        self.items = [token for token in map(_token, _TOKEN.finditer(sql)) if token is not None]
        self.at = 0
        self.is_open = bool(self.items) and self.items[-1].kind == "open"
        """A quote is not closed, so the rest of the text is unknown."""

    def peek(self) -> _Token:
        return self.items[self.at] if self.at < len(self.items) else _Token("end", "")

    def word(self) -> str:
        """Consume and return the next bare word in upper case; empty if something else comes next."""
        token = self.peek()
        if token.kind != "word":
            return ""
        self.at += 1
        return token.text.upper()

    def skip(self, *words: str) -> bool:
        """Consume the given bare words if they come next. Returns whether they did."""
        found = self.items[self.at : self.at + len(words)]
        if [(t.kind, t.text.upper()) for t in found] != [("word", word) for word in words]:
            return False
        self.at += len(words)
        return True

    def mark(self, text: str) -> bool:
        if self.peek() == _Token("mark", text):
            self.at += 1
            return True
        return False

    def name(self) -> Name:
        first = self._identifier()
        return (first, self._identifier()) if self.mark(".") else (self.database, first)

    def _identifier(self) -> str:
        token = self.peek()
        if token.kind not in ("word", "name", "double"):
            raise _NotUnderstood
        self.at += 1
        return token.text


def _token(match: re.Match[str]) -> _Token | None:
    kind = match.lastgroup
    text = match.group(kind) if kind else ""
    if kind == "back":
        return _Token("name", text.replace("``", "`"))
    if kind == "double":
        return _Token("double", text.replace('""', '"'))
    if kind == "single":
        return _Token("string", text)
    if kind == "word" and not text.isascii():
        return _Token("name", text)  # no keyword, though the upper case of "ındex" would be one
    return None if kind == "space" else _Token(kind or "", text)


def _create(tokens: _Tokens, sql: str) -> Statement:
    temporary = replaces = False
    while token := tokens.peek():
        if token.kind == "end":
            raise _NotUnderstood
        word = tokens.word()
        if not word:
            tokens.at += 1
        temporary |= word == "TEMPORARY"
        replaces |= word == "REPLACE"
        if word == "TABLE":
            if temporary:
                return _NOTHING
            if_missing = tokens.skip("IF", "NOT", "EXISTS") and not replaces
            return replace(_tables([tokens.name()], sql), if_missing=if_missing)
        if word == "INDEX":
            return _index(tokens, sql)
        if word in ("DATABASE", "SCHEMA") and replaces:
            return _database(tokens, sql)
        if word == "SEQUENCE" and replaces:  # MariaDB drops a table of this name for it
            return _tables([tokens.name()], sql)
        if word in _HARMLESS_OBJECTS or word in ("DATABASE", "SCHEMA"):
            return _NOTHING
    raise _NotUnderstood


def _database(tokens: _Tokens, sql: str) -> Statement:
    """The database is dropped, with its tables."""
    _ = tokens.skip("IF", "NOT", "EXISTS") or tokens.skip("IF", "EXISTS")
    return Statement("database", ((tokens.name()[1], ""),), _short(sql))


def _index(tokens: _Tokens, sql: str) -> Statement:
    while tokens.peek().kind != "end":
        if tokens.skip("ON"):
            found = _tables([tokens.name()], sql)
            return replace(found, effect="none") if _is_plain(tokens, sql) else found
        tokens.at += 1
    raise _NotUnderstood


def _is_plain(tokens: _Tokens, sql: str) -> bool:
    """Whether every server reads ``sql`` as it is read here, and it names no primary key and no JSON.

    What a backslash means in a string depends on the session, and what is in a comment with a ``!`` on the server. An
    index called PRIMARY is the primary key. A check by JSON_VALID makes a column of MariaDB one of JSON.
    """
    if "\\" in sql or "/*!" in sql or "/*M!" in sql:
        return False
    return all(token.kind == "string" or token.text.upper() not in ("PRIMARY", "JSON_VALID") for token in tokens.items)


def _clauses(tokens: _Tokens) -> list[str]:
    """What is left, cut at its commas: words in upper case, ` for a quoted name, ' for a string, () for parentheses."""
    found: list[list[str]] = [[]]
    depth = 0
    for token in tokens.items[tokens.at :]:
        depth += token == ("mark", "(")
        if depth == 0 and token == ("mark", ","):
            found.append([])
        elif depth == 0:
            found[-1].append({"name": "`", "double": "`", "string": "'"}.get(token.kind, token.text.upper()))
        elif token == ("mark", ")"):
            depth -= 1
            if depth == 0:
                found[-1].append("()")
    return [" ".join(words) for words in found] if depth == 0 else [""]


def _alter(tokens: _Tokens, sql: str) -> Statement:
    may_drop_rows = False
    while tokens.skip("ONLINE") or tokens.skip("IGNORE"):
        may_drop_rows |= tokens.items[tokens.at - 1].text.upper() == "IGNORE"
    if not tokens.skip("TABLE"):
        return _alter_other(tokens)
    tokens.skip("IF", "EXISTS")
    found = [tokens.name()]
    if not may_drop_rows and _is_plain(tokens, sql) and all(map(_HARMLESS_CLAUSE.fullmatch, _clauses(tokens))):
        return replace(_tables(found, sql), effect="none")
    depth = 0
    while tokens.peek().kind != "end":
        if tokens.mark("("):
            depth += 1
        elif tokens.mark(")"):
            depth -= 1
        elif depth == 0 and tokens.skip("RENAME"):
            if tokens.peek().text.upper() not in ("COLUMN", "INDEX", "KEY") or tokens.peek().kind != "word":
                _ = tokens.skip("TO") or tokens.skip("AS") or tokens.mark("=")
                found.append(tokens.name())
        elif depth == 0 and tokens.skip("TABLE"):
            found.append(tokens.name())
        else:
            tokens.at += 1
    return _tables(found, sql)


def _alter_other(tokens: _Tokens) -> Statement:
    while tokens.peek().kind != "end":
        word = tokens.word()
        if word in _HARMLESS_OBJECTS or word in ("DATABASE", "SCHEMA"):
            return _NOTHING
        if not word:
            tokens.at += 1
    raise _NotUnderstood


def _drop(tokens: _Tokens, sql: str) -> Statement:
    if tokens.skip("TEMPORARY") or tokens.skip("SPATIAL", "REFERENCE"):
        return _NOTHING
    word = tokens.word()
    if word in ("TABLE", "TABLES"):
        tokens.skip("IF", "EXISTS")
        return _tables(_names(tokens), sql)
    if word == "INDEX":
        return _index(tokens, sql)
    if word in ("DATABASE", "SCHEMA"):
        return _database(tokens, sql)
    if word in _HARMLESS_OBJECTS or (word == "PREPARE"):
        return _NOTHING
    raise _NotUnderstood


def _names(tokens: _Tokens) -> list[Name]:
    found = [tokens.name()]
    while tokens.mark(","):
        found.append(tokens.name())
    return found


def _rename(tokens: _Tokens, sql: str) -> Statement:
    word = tokens.word()
    if word == "USER":
        return _NOTHING
    if word not in ("TABLE", "TABLES"):
        raise _NotUnderstood
    tokens.skip("IF", "EXISTS")
    found = []
    while True:
        found.append(tokens.name())
        while tokens.peek().kind != "end" and not tokens.skip("TO"):
            tokens.at += 1
        found.append(tokens.name())
        if not tokens.mark(","):
            return _tables(found, sql)


def _maintain(tokens: _Tokens, sql: str) -> Statement:
    """ANALYZE, OPTIMIZE and REPAIR of tables. ``ANALYZE UPDATE …`` does what it analyzes, and is logged like that."""
    _ = tokens.skip("LOCAL") or tokens.skip("NO_WRITE_TO_BINLOG")
    if tokens.skip("VIEW"):
        return _NOTHING
    if tokens.word() not in ("TABLE", "TABLES"):
        raise _NotUnderstood
    return replace(_tables(_names(tokens), sql), effect="none")


def _truncate(tokens: _Tokens, sql: str) -> Statement:
    tokens.skip("TABLE")
    return _tables([tokens.name()], sql)


def _rollback(tokens: _Tokens, _: str) -> Statement:
    tokens.skip("WORK")
    return Statement("rollback_to") if tokens.skip("TO") else Statement("rollback")


def _set(tokens: _Tokens, sql: str) -> Statement:
    word = tokens.word()
    if word in ("PASSWORD", "DEFAULT", "ROLE"):
        return _NOTHING
    if word != "STATEMENT":
        raise _NotUnderstood
    while tokens.peek().kind != "end":
        if tokens.skip("FOR"):
            handler = _BY_FIRST_WORD.get(tokens.word())
            if handler is not None and handler is not _set:
                return handler(tokens, sql)
            raise _NotUnderstood
        tokens.at += 1
    raise _NotUnderstood


def _xa(tokens: _Tokens, sql: str) -> Statement:
    word = tokens.word()
    if word in ("START", "BEGIN"):
        return _BEGIN
    if word in ("END", "PREPARE"):
        return _NOTHING
    if word not in ("COMMIT", "ROLLBACK"):
        raise _NotUnderstood
    match = re.search(r"X'([0-9A-Fa-f]*)'(?:\s*,\s*X'([0-9A-Fa-f]*)'(?:\s*,\s*(\d+))?)?", sql)
    if match is None:
        return Statement("xa_commit" if word == "COMMIT" else "xa_rollback", xid=(-1, b"", b""))
    try:
        xid = (int(match[3] or 1), bytes.fromhex(match[1]), bytes.fromhex(match[2] or ""))
    except ValueError:
        raise _NotUnderstood from None
    return Statement("xa_commit" if word == "COMMIT" else "xa_rollback", xid=xid)


def _tables(names: list[Name], sql: str) -> Statement:
    return Statement("tables", tuple(dict.fromkeys(names)), _short(sql))


_BY_FIRST_WORD = {
    "ANALYZE": _maintain,
    "OPTIMIZE": _maintain,
    "REPAIR": _maintain,
    "CREATE": _create,
    "ALTER": _alter,
    "DROP": _drop,
    "RENAME": _rename,
    "TRUNCATE": _truncate,
    "COMMIT": lambda _tokens, _sql: Statement("commit"),
    "ROLLBACK": _rollback,
    "SET": _set,
    "XA": _xa,
}
