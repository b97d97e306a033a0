"""Which virtual columns are functions of their row, whoever computes them. Pure.

A virtual column has no stored value: the session that writes the row computes it for the binlog, the session that reads
the row computes it again. So its expression must give the same for both, today and later. It is proved by what is known
to be harmless, since a list of what is harmful would never be complete. What depends on the session:

- functions of time, users, chance and variables, names of months and days;
- TIMESTAMP columns (the time zone); texts that become dates, and dates that become other dates (``sql_mode``);
- CHAR columns (``PAD_CHAR_TO_FULL_LENGTH``); differences of unsigned numbers (``NO_UNSIGNED_SUBTRACTION``); quotients
  (``div_precision_increment``);
- comparisons of texts of which none has the collation of a column (``collation_connection``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

TEXT = frozenset({"varchar", "tinytext", "text", "mediumtext", "longtext", "enum"})
BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
MOMENTS = frozenset({"date", "datetime", "time"})
NUMBERS = frozenset(
    f"{name}{sign}"
    for name in ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double")
    for sign in ("", " unsigned")
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PLAIN = _words(
    "and or not xor is null true false unknown div mod when then else end if ifnull coalesce abs ceiling floor round"
    " truncate sign both leading trailing from as escape cast signed unsigned integer decimal double charset convert"
    " using utf8mb4 utf8mb3 utf8 latin1 ascii binary json_valid + - * & | ^ ~ << >> ( ) , column text number"
)
_COMPARING = _words(
    "= <> < > <= >= <=> like in between nullif greatest least case field find_in_set locate instr replace"
    " substring_index strcmp"
)
_MAKING_TEXT = _words(
    "char concat concat_ws lcase ucase lower upper substr left right trim ltrim rtrim lpad rpad reverse insert elt"
    " replace substring_index json_unquote json_extract json_value"
)
_ON_BYTES = _words("md5 sha sha1 sha2 crc32 hex octet_length char_length bit_length to_base64 ord")
_ON_MOMENTS = _words("year month dayofmonth day hour minute second quarter extract")
_HARMLESS = _PLAIN | _COMPARING | _MAKING_TEXT | _ON_BYTES | _ON_MOMENTS
_UNSIGNED = _words("unsigned & | ^ ~ << >>")

_TOKEN = re.compile(
    r"\s*(?:`(?P<column>(?:[^`]|``)+)`"
    r"|(?P<text>(?:_[a-z0-9]+|[xX])?'(?:[^'\\]|\\.|'')*')"
    r"|(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\b"
    r"|(?:collate\s+[a-z0-9_]+)"
    r"|(?P<word>[A-Za-z_@][A-Za-z0-9_@.]*|<=>|<>|<=|>=|<<|>>|.))",
    re.DOTALL | re.IGNORECASE,
)

_TEXT = re.compile(r"'(?:[^']|'')*(?:'|\Z)|\b0x[0-9a-f]+", re.DOTALL | re.IGNORECASE)
SHOWN_CHARS = 200


def shown(expression: str) -> str:
    """An expression for people, with ``?`` for its texts: a key to decrypt by may be among them.

    What follows a backslash is left out: MySQL escapes what it shows once more, so a quote behind it may end a text.
    """
    begun, backslash, _ = expression.partition("\\")
    return (" ".join(_TEXT.sub("?", begun).split()) + "..." * bool(backslash))[:SHOWN_CHARS]


def dependence(data_type: str, expression: str, types: Mapping[str, str]) -> str:
    """What keeps a virtual column from being a function of its row, for people; "" if nothing does.

    ``expression``: as information_schema prints it. ``types``: data type of each column, with `` unsigned``.
    """
    if data_type not in TEXT | BYTES | NUMBERS | {"char"}:
        return f"its type is {data_type}"
    columns: list[str] = []
    words: set[str] = set()
    for kind, value in _tokens(expression):
        if kind == "column":
            columns.append(value)
        elif kind == "word" and value.lower() not in _HARMLESS:
            return value
        words.add(value.lower() if kind == "word" else kind)
    return _dependence(columns, [types.get(name, "unknown") for name in columns], words)


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    place, end = 0, len(expression.rstrip())
    while place < end:
        found = _TOKEN.match(expression, place)
        if found is None:  # the pattern matches any character, so this is only for blanks
            return
        place = found.end()
        kind = found.lastgroup
        if kind is not None:
            yield kind, found[kind].replace("``", "`") if kind == "column" else found[kind]


def _dependence(columns: Sequence[str], types: Sequence[str], words: set[str]) -> str:
    for name, data_type in zip(columns, types, strict=True):
        if data_type not in TEXT | BYTES | NUMBERS | MOMENTS:
            return f"column {name} of type {data_type}"
    kinds = set(types)
    is_text = bool(kinds) and kinds <= TEXT
    compares = bool(words & _COMPARING)
    if kinds & MOMENTS and ("text" in words or kinds & TEXT or "-" in words):
        return "a date or time beside texts or in a difference"
    if words & _ON_MOMENTS and not (kinds and kinds <= MOMENTS):
        return "a part of a date that is no column"
    if words & _ON_BYTES and not (kinds and kinds <= TEXT | BYTES):
        return "the bytes of a number"
    if "-" in words and (words & _UNSIGNED or any(name.endswith("unsigned") for name in kinds)):
        return "a difference of unsigned numbers"
    if compares and "text" in words and not kinds & TEXT:
        return "a comparison of constant texts"
    if compares and words & _MAKING_TEXT and not is_text:
        return "a comparison of a text that is made from numbers"
    return ""
