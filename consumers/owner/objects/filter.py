"""Filters of partitions in Hive's grammar (``PartitionFilter.g4`` of 4.0.1), over typed partition keys. Pure.

``ds >= '2024-01-01' AND (hr IN (1, 2) OR region LIKE 'e%')``. Keywords and key names are in any case. As in Hive, a
string's escapes stay as they are written, and ``LIKE`` is SQL's with ``ESCAPE '\\'``. Keys that are whole numbers or
dates are compared as such, and the default partition is no value of them: only ``= '__HIVE_DEFAULT_PARTITION__'`` finds
it. Texts and timestamps are compared as texts. Where a filter compares a timestamp, or a date with what is no date, the
metastore compares all dates of it as texts, and so does this. Keys of other types can only be compared for equality.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import date, datetime
from typing import Any, Final, NamedTuple

from tokens.errors import FreshetError
from tokens.integers import excerpt

DEFAULT_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
FILTER_CHARACTERS_MAX: Final = 65_536
DEPTH_MAX: Final = 100

Matches = Callable[[Sequence[str]], bool]
"""Whether a partition with these values, in the order of the keys, passes."""

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<string>(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")+)|(?P<quoted>`(?:``|[^`])*`)
    |(?P<timestamp>\d{4}-\d\d-\d\d\ \d\d:\d\d:\d\d)|(?P<date>\d{4}-\d\d-\d\d)|(?P<number>\d+(?![A-Za-z0-9_]))
    |(?P<word>[A-Za-z0-9_]+)|(?P<sign><=>|<>|!=|<=|>=|==|[=<>(),-]))""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_LETTERS: Final = re.compile(r"\\[%_\\]|.", re.DOTALL)
_SPACE: Final = re.compile(r"[ \r\n\t]*")
_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", re.ASCII)
_STORED_DATE: Final = re.compile(r"(\d{4})-(\d\d?)-(\d\d?)(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?", re.ASCII)
_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq, "==": operator.eq, "<>": operator.ne, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_REVERSED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "BETWEEN", "IN", "STRUCT", "CONST", "DATE", "TIMESTAMP", "LIKE"})
_INTEGERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_TEXTS: Final = frozenset({"string", "char", "varchar", "date", "timestamp"})


class FilterError(FreshetError, ValueError):
    """A filter that does not parse, or does not fit the keys. ``at``: the character, from 1. Code ``bad_filter``."""

    code = "bad_filter"

    def __init__(self, at: int, what: str) -> None:
        super().__init__(
            f"character {at} of the filter: {what}", hint="write it like ds >= '2024-01-01' AND hr IN (1, 2)"
        )
        self.at = at


class PartitionKey(NamedTuple):
    """A partition column: its name, and its Hive type as text."""

    name: str
    type: str


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Value(NamedTuple):
    """A literal: what it says, and where it stands."""

    text: str
    at: int


def parse_filter(text: str, keys: Sequence[PartitionKey]) -> Matches:
    """The filter as a function of a partition's values. Raises `FilterError`."""
    if len(text) > FILTER_CHARACTERS_MAX:
        raise FilterError(
            FILTER_CHARACTERS_MAX, f"it has {len(text)} characters, at most {FILTER_CHARACTERS_MAX} can be"
        )
    tokens = _tokens(text)
    parser = _Parser(tokens, keys)
    found = parser.parse()
    if parser.as_texts:
        texts = [key._replace(type="string") if key.type.lower() == "date" else key for key in keys]
        return _Parser(tokens, texts).parse()
    return found


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while True:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr] # it matches nothing, too
        if at == len(text):
            break
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise FilterError(at + 1, f"{excerpt(text[at : at + 1])} begins nothing that a filter has")
        kind, word = match.lastgroup, match.group(match.lastgroup)
        if kind == "word" and word.upper() in _KEYWORDS:
            kind, word = "sign", word.upper()
        found.append(_Token(kind, word, match.start(match.lastgroup) + 1))
        at = match.end()
    found.append(_Token("end", "", len(text) + 1))
    return found


class _Parser:
    """Reads from the first token to the last: one method a rule of the grammar.

    ``as_texts``: whether it has met what has all dates of the filter compared as texts.
    """

    def __init__(self, tokens: Sequence[_Token], keys: Sequence[PartitionKey]) -> None:
        self._tokens = tokens
        self._next = 0
        self._keys = {key.name.lower(): (place, key) for place, key in enumerate(keys)}
        self._depth = 0
        self.as_texts = False

    def parse(self) -> Matches:
        found = self._any()
        self._expect("end", "AND, OR or the end")
        return found

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> str:
        """The text of the next token if it is one of ``texts``, which is then passed; else ""."""
        token = self._token
        if token.kind != "sign" or token.text not in texts:
            return ""
        self._next += 1
        return token.text

    def _expect(self, kind: str, what: str) -> _Token:
        token = self._token
        if token.kind != kind:
            raise self._unexpected(what)
        self._next += 1
        return token

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise self._unexpected(text)

    def _unexpected(self, what: str) -> FilterError:
        token = self._token
        return FilterError(token.at, f"expected {what}, found {excerpt(token.text) if token.text else 'its end'}")

    def _any(self) -> Matches:
        parts = [self._all()]
        while self._take("OR"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else lambda values: any(part(values) for part in parts)

    def _all(self) -> Matches:
        parts = [self._one()]
        while self._take("AND"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else lambda values: all(part(values) for part in parts)

    def _one(self) -> Matches:
        at = self._next
        if self._take("("):
            if self._take("STRUCT"):
                return self._struct_in()
            if self._token.kind in ("word", "quoted") and self._tokens[self._next + 1].text == ")":
                self._next = at
                return self._condition()
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise FilterError(self._token.at, f"more than {DEPTH_MAX} parentheses inside each other")
            found = self._any()
            self._need(")")
            self._depth -= 1
            return found
        return self._condition()

    def _condition(self) -> Matches:
        if self._token.kind in ("string", "number", "date", "timestamp") or self._token.text in (
            "-",
            "DATE",
            "TIMESTAMP",
        ):
            value = self._constant()
            sign, at = self._comparison()
            return self._compared(*self._key(), _REVERSED.get(sign, sign), value, at)
        parenthesized = bool(self._take("("))
        place, key = self._key()
        if parenthesized:
            self._need(")")
        negated = bool(self._take("NOT"))
        if self._take("IN"):
            return self._in(place, key, negated)
        if self._take("BETWEEN"):
            return self._between(place, key, negated)
        if negated:
            raise self._unexpected("IN or BETWEEN")
        sign, at = self._comparison()
        return self._compared(place, key, sign, self._constant(), at)

    def _key(self) -> tuple[int, PartitionKey]:
        token = self._token
        if token.kind not in ("word", "quoted"):
            raise self._unexpected("a partition key")
        self._next += 1
        name = token.text if token.kind == "word" else token.text[1:-1].replace("``", "`")
        found = self._keys.get(name.lower())
        if found is None:
            raise FilterError(token.at, f"{excerpt(name)} is not a partition key; these are: {', '.join(self._keys)}")
        return found

    def _comparison(self) -> tuple[str, int]:
        at = self._token.at
        sign = self._take(*_COMPARE, "LIKE")
        if not sign:
            raise self._unexpected("a comparison")
        return sign, at

    def _constant(self) -> _Value:
        token = self._token
        if self._take("-"):
            number = self._expect("number", "a number")
            return _Value(f"-{number.text}", token.at)
        if kind := self._take("DATE", "TIMESTAMP"):
            literal = self._expect("string", f"a string after {kind}")
            return _moment(_Value(literal.text[1:-1], literal.at), kind.lower())
        if token.kind == "string":
            self._next += 1
            return _Value(token.text[1:-1], token.at)
        if token.kind in ("number", "date", "timestamp"):
            self._next += 1
            value = _Value(token.text, token.at)
            return value if token.kind == "number" else _moment(value, token.kind)
        raise self._unexpected("a value")

    def _constants(self) -> list[_Value]:
        self._need("(")
        found = [self._constant()]
        while self._take(","):
            found.append(self._constant())
        self._need(")")
        return found

    def _in(self, place: int, key: PartitionKey, negated: bool) -> Matches:
        """NOT IN differs from each value: the default partition of a typed key does not, as in Hive."""
        sign = "!=" if negated else "="
        texts: set[str] = set()
        read_as: dict[str, Any] = {}
        for value in self._constants():
            wanted = self._wanted(key, sign, value, value.at)
            if wanted is None:
                texts.add(value.text)
            else:
                read_as[value.text] = wanted
        return (_is_none_of if negated else _is_one_of)(place, _reader(key.type), texts, read_as)

    def _between(self, place: int, key: PartitionKey, negated: bool) -> Matches:
        low = self._constant()
        self._need("AND")
        high = self._constant()
        if negated:
            below, above = (self._compared(place, key, sign, end, end.at) for sign, end in (("<", low), (">", high)))
            return lambda values: below(values) or above(values)
        from_low, to_high = (self._compared(place, key, sign, end, end.at) for sign, end in ((">=", low), ("<=", high)))
        return lambda values: from_low(values) and to_high(values)

    def _struct_in(self) -> Matches:
        self._need("(")
        keys = [self._key()]
        while self._take(","):
            keys.append(self._key())
        self._need(")")
        self._need(")")
        negated = bool(self._take("NOT"))
        self._need("IN")
        self._need("(")
        sign, of_row, of_rows = ("!=", any, all) if negated else ("=", all, any)
        rows = [self._row(keys, sign)]
        while self._take(","):
            rows.append(self._row(keys, sign))
        self._need(")")
        return lambda values: of_rows(of_row(part(values) for part in row) for row in rows)

    def _row(self, keys: Sequence[tuple[int, PartitionKey]], sign: str) -> list[Matches]:
        self._take("CONST")
        self._need("STRUCT")
        at = self._token.at
        found = self._constants()
        if len(found) != len(keys):
            raise FilterError(at, f"{len(found)} values for {len(keys)} keys")
        return [self._compared(*key, sign, value, value.at) for key, value in zip(keys, found, strict=True)]

    def _compared(self, place: int, key: PartitionKey, sign: str, value: _Value, at: int) -> Matches:
        if sign == "LIKE":
            pattern = _like(value)
            return lambda values: pattern.fullmatch(values[place]) is not None
        compare = _COMPARE[sign]
        read, wanted, text = _reader(key.type), self._wanted(key, sign, value, at), value.text
        if read is None or wanted is None:
            return lambda values: compare(values[place], text)

        def matches(values: Sequence[str]) -> bool:
            found = read(values[place])
            return found is not None and compare(found, wanted)

        if read is _stored_date and compare is operator.eq:  # which the metastore asks of the partition's name, too
            return lambda values: values[place].startswith(text) and matches(values)
        return matches

    def _wanted(self, key: PartitionKey, sign: str, value: _Value, at: int) -> Any:
        """What values of a key are compared with, as it is read; None: they are compared with it as texts."""
        read = _reader(key.type)
        if read is None or value.text == DEFAULT_PARTITION:
            is_text = key.type.partition("(")[0].strip().lower() in _TEXTS
            if read is None and not is_text and _COMPARE[sign] not in _EQUALITY:
                raise FilterError(at, f"keys of type {key.type} can only be compared for equality")
            self.as_texts |= key.type.lower() == "timestamp"
            return None
        is_date = read is _stored_date
        wanted = _date(value.text) if is_date else read(value.text)
        if wanted is None and is_date:
            self.as_texts = True
        elif wanted is None:
            raise FilterError(value.at, f"{excerpt(value.text)} is no {key.type}, which {key.name} is")
        return wanted


def _is_one_of(place: int, read: Callable[[str], Any] | None, texts: Set[str], read_as: Mapping[str, Any]) -> Matches:
    """One look for each partition, however many values there are. ``read_as``: what their texts are read as."""
    if read is None or not read_as:
        return lambda values: values[place] in texts
    if read is _stored_date:
        digits = len("2024-01-01")

        def is_date(values: Sequence[str]) -> bool:
            text = values[place]
            wanted = read_as.get(text[:digits])  # the metastore asks for it in the partition's name, too
            return text in texts or (wanted is not None and read(text) == wanted)

        return is_date
    wanted = {*read_as.values()}
    return lambda values: values[place] in texts or read(values[place]) in wanted


def _is_none_of(place: int, read: Callable[[str], Any] | None, texts: Set[str], read_as: Mapping[str, Any]) -> Matches:
    """As `_is_one_of`. What can't be read differs from no value that is read."""
    if read is None or not read_as:
        return lambda values: values[place] not in texts
    unwanted = {None, *read_as.values()}
    return lambda values: values[place] not in texts and read(values[place]) not in unwanted


_EQUALITY: Final = (operator.eq, operator.ne)


def _moment(value: _Value, kind: str) -> _Value:
    """A literal that says that it is a date or a timestamp. Raises `FilterError` if it is none."""
    if (_date if kind == "date" else _timestamp)(value.text) is None:
        raise FilterError(value.at, f"{excerpt(value.text)} is no {kind}")
    return value


def _reader(hive_type: str) -> Callable[[str], Any] | None:
    """How a value of a key is read for comparing; None: it is compared as text."""
    if hive_type.lower() in _INTEGERS:
        return _integer
    return _stored_date if hive_type.lower() == "date" else None


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,19}", text) else None


def _date(text: str) -> date | None:
    """As a filter has to write it. Python's own reader takes days of a week as well."""
    try:
        is_plain = len(text) == len("2024-01-01") and text[4] == text[7] == "-"
        return date.fromisoformat(text) if is_plain else None
    except ValueError:
        return None


def _stored_date(text: str) -> date | None:
    """As the metastore's database reads it from a partition's value: 2024-1-1 is a date, and a time may follow it."""
    found = _date(text)
    if found is not None:
        return found
    parts = _STORED_DATE.fullmatch(text)
    try:
        return date(int(parts[1]), int(parts[2]), int(parts[3])) if parts is not None else None
    except ValueError:
        return None


def _timestamp(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if _TIMESTAMP.fullmatch(text) else None
    except ValueError:
        return None


def _like(value: _Value) -> re.Pattern[str]:
    """SQL's pattern. Between two `%` the first place that fits is taken for good: else time doubles with each `%`.

    After a backslash, `%`, `_` and a backslash are letters. Raises `FilterError` for a backslash before anything else.
    """
    parts: list[list[str]] = [[]]
    for letter in _LETTERS.findall(value.text):
        if letter == "\\":
            raise FilterError(value.at, r"a backslash in a pattern needs %, _ or \ after it")
        if letter == "%":
            parts.append([])
        else:
            parts[-1].append("." if letter == "_" else re.escape(letter[-1]))
    first, *others = map("".join, parts)
    if not others:
        return re.compile(first, re.DOTALL)
    inner = "".join(f"(?>.*?{part})" for part in others[:-1] if part)
    return re.compile(f"{first}{inner}.*{others[-1]}", re.DOTALL)
