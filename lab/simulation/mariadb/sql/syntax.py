"""Tokens and expressions of SQL, and the error for a statement that nobody taught the simulated server."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, NamedTuple, TypeAlias

Value: TypeAlias = int | float | Decimal | str | bytes | None
Name: TypeAlias = tuple[str, str]
"""Database ("" for the session's) and table."""


class UnknownStatement(Exception):
    """A statement that the simulated server does not know. Whoever sends a new one must teach it."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A value as it is written."""

    value: Value


@dataclass(frozen=True, slots=True)
class ColumnName:
    """A column of the row."""

    name: str


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable: ``@@name`` (``scope``: "", global or session), or ``@name`` (``scope`` @)."""

    scope: str
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function or an operator, by its name in lower case."""

    name: str
    arguments: tuple[Expression, ...]


Expression: TypeAlias = Literal | ColumnName | Variable | Call


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
      | (?P<hex>[xX]'[0-9A-Fa-f]*')
      | (?P<string>'(?:[^'\\]|''|\\.)*')
      | `(?P<quoted>(?:[^`]|``)*)`
      | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
      | (?P<variable>@@?[A-Za-z_][\w.]*)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<mark><=>|<>|!=|<=|>=|.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "Z": "\x1a", "b": "\b"}
_COMPARISONS: Final = frozenset({"=", "<>", "!=", "<", ">", "<=", ">=", "<=>"})


class Tokens:
    """A statement's tokens, consumed from left to right."""

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self._tokens: list[_Token] = []
        at = 0
        while at < len(sql):
            found = _TOKEN.match(sql, at)
            if found is None:
                raise UnknownStatement(sql)
            kind = found.lastgroup or ""
            if kind != "space":
                self._tokens.append(_Token(kind, found[kind], at))
            at = found.end()
        self._at = 0
        self._end = _Token("end", "", len(sql))

    @property
    def next(self) -> _Token:
        """The next token."""
        return self._tokens[self._at] if self._at < len(self._tokens) else self._end

    def unknown(self) -> UnknownStatement:
        """The error that the statement is not understood at this place."""
        at = self.next.start
        return UnknownStatement(f"{self.sql[:at]} ⟨here⟩ {self.sql[at:]}")

    def take(self) -> _Token:
        """Consume the next token, whatever it is."""
        token = self.next
        self._at += 1
        return token

    def is_next(self, *words: str) -> bool:
        """Whether these words or marks come next."""
        found = self._tokens[self._at : self._at + len(words)]
        return [(each.text.upper() if each.kind == "word" else each.text) for each in found] == list(words) and all(
            each.kind in ("word", "mark") for each in found
        )

    def skip(self, *words: str) -> bool:
        """Consume words or marks if they come next. Returns whether they did."""
        if not self.is_next(*words):
            return False
        self._at += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Consume words or marks that must come next."""
        if not self.skip(*words):
            raise self.unknown()

    def expect_end(self) -> None:
        """The statement must end here."""
        self.skip(";")
        if self.next.kind != "end":
            raise self.unknown()

    def identifier(self) -> str:
        """A name, quoted or not."""
        token = self.next
        if token.kind not in ("word", "quoted"):
            raise self.unknown()
        self._at += 1
        return token.text.replace("``", "`") if token.kind == "quoted" else token.text

    def table(self) -> Name:
        """A table's name, with its database or without."""
        first = self.identifier()
        return (first, self.identifier()) if self.skip(".") else ("", first)

    def number(self) -> int:
        """An integer."""
        if self.next.kind != "number":
            raise self.unknown()
        return int(self.take().text)

    def names(self) -> tuple[str, ...]:
        """A list of names in parentheses."""
        self.expect("(")
        found = [self.identifier()]
        while self.skip(","):
            found.append(self.identifier())
        self.expect(")")
        return tuple(found)

    def skip_parentheses(self) -> str:
        """Consume everything up to the closing parenthesis. Returns its text."""
        self.expect("(")
        start, depth = self.next.start, 1
        while depth:
            token = self.take()
            if token.kind == "end":
                raise self.unknown()
            depth += (token.text == "(") - (token.text == ")") if token.kind == "mark" else 0
        return self.sql[start : token.start].strip()

    # -- expressions ---------------------------------------------------------------------------------------------------

    def expression(self) -> Expression:
        """An expression: OR of AND of comparisons of sums."""
        return self._joined(self._and, "OR")

    def _and(self) -> Expression:
        return self._joined(self._negation, "AND")

    def _joined(self, part: Callable[[], Expression], word: str) -> Expression:
        parts = [part()]
        while self.skip(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Call(word.lower(), tuple(parts))

    def _negation(self) -> Expression:
        return Call("not", (self._negation(),)) if self.skip("NOT") else self._comparison()

    def _comparison(self) -> Expression:
        left = self._sum()
        if self.next.kind == "mark" and self.next.text in _COMPARISONS:
            return Call(self.take().text, (left, self._sum()))
        negated = self.skip("NOT")
        if self.skip("IN"):
            self.expect("(")
            found = Call("in", (left, *self._arguments()))
        elif self.skip("LIKE"):
            found = Call("like", (left, self._sum()))
        elif not negated and self.skip("IS"):
            negated = self.skip("NOT")
            self.expect("NULL")
            found = Call("isnull", (left,))
        elif negated:
            raise self.unknown()
        else:
            return left
        return Call("not", (found,)) if negated else found

    def _sum(self) -> Expression:
        found = self._product()
        while self.next.kind == "mark" and self.next.text in "+-":
            found = Call(self.take().text, (found, self._product()))
        return found

    def _product(self) -> Expression:
        found = self._single()
        while self.skip("*"):
            found = Call("*", (found, self._single()))
        return found

    def _single(self) -> Expression:
        token = self.next
        if self.skip("("):
            found = self.expression()
            self.expect(")")
            return found
        if self.skip("-"):
            return Call("negative", (self._single(),))
        if token.kind == "variable":
            return variable(self.take().text)
        if token.kind in ("number", "string", "hex"):
            return Literal(_literal(self.take()))
        if token.kind not in ("word", "quoted"):
            raise self.unknown()
        return self._named()

    def _named(self) -> Expression:
        token = self.take()
        if token.kind == "word":
            word = token.text.upper()
            if word in ("TRUE", "FALSE"):
                return Literal(int(word == "TRUE"))
            if word in ("NULL", "DEFAULT"):
                return Literal(None) if word == "NULL" else Call("default", ())
            if word.startswith("_") and self.next.kind == "hex":
                return Call("introduced", (Literal(token.text[1:].lower()), self._single()))
            if self.skip("("):
                return self._call(word.lower())
            if word == "CURRENT_TIMESTAMP":
                return Call("now", ())
        name = token.text.replace("``", "`")
        while self.skip("."):
            name = self.identifier()
        return ColumnName(name)

    def _call(self, name: str) -> Expression:
        if name == "cast":
            value = self.expression()
            self.expect("AS")
            return Call(name, (value, Literal(self._cast_type())))
        if name == "convert":
            value = self.expression()
            self.expect("USING")
            found = Call(name, (value, Literal(self.identifier().lower())))
            self.expect(")")
            return found
        if name == "values":
            found = Call(name, (Literal(self.identifier()),))
            self.expect(")")
            return found
        return Call("now" if name == "current_timestamp" else name, tuple(self._arguments()))

    def _cast_type(self) -> str:
        word = self.identifier().upper()
        if self.is_next("("):
            word += f"({self.skip_parentheses()})"
        self.expect(")")
        return word

    def _arguments(self) -> list[Expression]:
        """Arguments up to the closing parenthesis, which is consumed."""
        found: list[Expression] = []
        while not self.skip(")"):
            if found:
                self.expect(",")
            found.append(self.expression())
        return found


def variable(text: str) -> Variable:
    """``@@global.name``, ``@@name`` or ``@name``."""
    if not text.startswith("@@"):
        return Variable("@", text[1:].lower())
    scope, dot, name = text[2:].lower().rpartition(".")
    return Variable(scope if dot else "", name)


def _literal(token: _Token) -> Value:
    if token.kind == "hex":
        return bytes.fromhex(token.text[2:-1])
    if token.kind == "string":
        inner = token.text[1:-1].replace("''", "'")
        return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), inner, flags=re.DOTALL)
    if "e" in token.text or "E" in token.text:
        return float(token.text)
    return Decimal(token.text) if "." in token.text else int(token.text)


def printed(expression: Expression) -> str:
    """The expression as the server prints it: columns in backticks, one blank around operators."""
    match expression:
        case ColumnName(name):
            return f"`{name}`"
        case Literal(str(value)):
            return "'" + value.replace("'", "''") + "'"
        case Literal(value):
            return "NULL" if value is None else str(value)
        case Call("+" | "-" | "*" as operator, (left, right)):
            return f"{printed(left)} {operator} {printed(right)}"
        case Call(name, arguments):
            return f"{name}({','.join(map(printed, arguments))})"
    raise UnknownStatement(repr(expression))
