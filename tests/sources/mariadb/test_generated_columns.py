"""A table is cached only if its virtual columns give every session the same value."""

from __future__ import annotations

import pytest

from stream.sources.generated_columns import SHOWN_CHARS, dependence, shown
from stream.sources.mariadb.connection import connect
from stream.sources.mariadb.information_schema.tables import read_table
from tests.sources.mariadb.conftest import Source

TYPES = {
    "a": "int",
    "b": "int",
    "u": "int unsigned",
    "s": "varchar",
    "c": "char",
    "d": "decimal",
    "dt": "datetime",
    "ts": "timestamp",
    "j": "longtext",
    "a`b": "int",
    "y": "year",
}

FUNCTIONS_OF_THE_ROW = """
1
`a`
`a` + `b` * 2 - -3 MOD 7
`a``b` DIV 2
case when `a` > 1 then 2 else `b` end
concat(`s`,'x\\'y\\\\z',_utf8mb4'xC3xBC')
concat(`a`,'-',`b`)
concat(`s`,' now() `ts` ')
json_value(`j`,'$.a')
json_unquote(json_extract(`j`,'$.a'))
cast(`s` as signed)
cast(`s` as decimal(5,2))
cast(`a` as char(5) charset utf8mb4)
convert(`s` using latin1)
if(`a` is null,`b`,ifnull(`a`,0))
`a` in (1,2,3)
`s` like 'a!%' escape '!'
lcase(`s`)
trim(both 'x' from `s`)
md5(`s`)
`a` & `b` | `a` ^ `b` << 2 >> 1 + ~`a`
year(`dt`)
extract(year from `dt`)
`s` collate utf8mb4_bin = 'x'
X'41' + 0
greatest(`a`,`b`,coalesce(`a`,1))
`d` * 1.5e0
(`a`,`b`) = (1,2)
""".strip().splitlines()

OTHERS = """
current_timestamp()
year(current_timestamp())
curdate()
current_user()
rand()
uuid()
@@server_id
user()
database()
connection_id()
concat(`ts`)
year(`ts`)
unix_timestamp(`ts`)
date_format(`dt`,'%M')
monthname(`dt`)
week(`dt`)
format(`a`,2)
`a` / `b`
`u` - 5
(`a` & 7) - 9
cast(`a` as unsigned) - 5
`dt` > '2020-01-01'
`dt` - 1
`dt` - `dt`
`dt` > `s`
greatest(`dt`,`s`)
year(`a`)
year(`dt`) + `a`
extract(month from `s`)
hour(20200101)
cast(`s` as date)
year('2024-02-31')
cast(`dt` as date) > 5
concat(`c`,'x')
`s` regexp '^a'
hex(concat(`a`))
lcase('A') = 'a'
concat(`a`) = 'x'
`unknown` + 1
`y` - 1
benchmark(1,2)
""".strip().splitlines()


@pytest.mark.parametrize(
    "text",
    ["'a key'", "'a ''key\\\\'", r"'a \'key'", "'a key", "_utf8mb4'a\nkey'", r"_utf8mb4'a\\'s key'", "0x6b6579,'key'"],
)
def test_no_text_of_an_expression_is_told(text: str) -> None:
    """The server shows it to who may see the table's definition, and a description is shown to all readers."""
    told = shown(f"aes_decrypt(`s`,  {text})")
    assert told.startswith("aes_decrypt(`s`, ")
    assert "key" not in told
    assert "6b65" not in told
    assert len(shown(f"concat({'`s`,' * SHOWN_CHARS})")) == SHOWN_CHARS


@pytest.mark.parametrize("expression", FUNCTIONS_OF_THE_ROW)
def test_an_expression_that_gives_every_session_the_same_is_recognised(expression: str) -> None:
    """Arithmetic, texts and conditions over a row's own values may be cached."""
    assert dependence("varchar", expression, TYPES) == ""


@pytest.mark.parametrize("expression", OTHERS)
def test_an_expression_that_may_depend_on_the_session_is_refused(expression: str) -> None:
    """What is not known to be harmless is not cached."""
    assert dependence("varchar", expression, TYPES) != ""


@pytest.mark.parametrize("data_type", ["date", "datetime", "timestamp", "time", "year", "uuid"])
def test_a_virtual_date_is_refused(data_type: str) -> None:
    """Rounding of fractions and zero dates follow the session's sql_mode."""
    assert data_type in dependence(data_type, "`a`", TYPES)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("column", "expression"),
    [
        ("DATETIME", "NOW()"),
        ("VARCHAR(99)", "CURRENT_USER()"),
        ("DOUBLE", "RAND()"),
        ("VARCHAR(40)", "CONCAT(ts)"),
        ("VARCHAR(40)", "DATE_FORMAT(dt, '%M')"),
        ("INT", "@@server_id"),
    ],
)
def test_a_table_whose_column_depends_on_the_session_is_read_through(
    source: Source, column: str, expression: str
) -> None:
    """The reason names the column and its expression. What a virtual column gives differs between sessions."""
    source.run(
        f"CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP NULL, dt DATETIME, x {column} AS ({expression}) VIRTUAL)"
    )
    info = source.table("t")
    assert not info.cacheable
    assert "column x" in info.problem
    assert "AS (" in info.problem
    assert info.describe().reason == info.problem


@pytest.mark.integration
def test_tables_with_harmless_or_stored_columns_are_cached(source: Source) -> None:
    """A default is stored with the row, and so is a stored column; an invisible column is a column."""
    source.run(
        "CREATE TABLE t (id INT PRIMARY KEY, at DATETIME DEFAULT NOW(), who VARCHAR(99) DEFAULT CURRENT_USER(),"
        " a INT INVISIBLE, twice INT AS (a * 2) VIRTUAL, k VARCHAR(20) AS (CONCAT(id, ':', a)) VIRTUAL,"
        " day DATE AS (DATE(at)) STORED)"
    )
    info = source.table("t")
    assert (info.problem, len(info.columns)) == ("", 7)


@pytest.mark.integration
def test_tables_that_are_no_plain_tables_are_read_through_or_unknown(source: Source) -> None:
    """A system-versioned table, a sequence, a YEAR(2) are not cached; a view is no table."""
    source.run(
        "CREATE TABLE versioned (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING",
        "CREATE SEQUENCE numbers",
        "CREATE TABLE years (id INT PRIMARY KEY, y YEAR(2))",
        "CREATE VIEW v AS SELECT id FROM years",
    )
    assert source.table("versioned").problem == "it is a system versioned"
    assert source.table("numbers").problem == "it is a sequence"
    assert "without its century" in source.table("years").problem
    assert read_table(source.session, source.schema.charsets, source.database, "v") is None


@pytest.mark.integration
def test_a_session_depends_on_no_global_default(source: Source) -> None:
    """Globals that shorten, slow or change answers have no effect on our sessions."""
    changed = {
        "sql_select_limit": "1",
        "max_statement_time": "1e-6",
        "lc_time_names": "'de_DE'",
        "time_zone": "'+05:00'",
        "sql_mode": "'ANSI_QUOTES,PAD_CHAR_TO_FULL_LENGTH'",
        "tx_isolation": "'READ-COMMITTED'",
        "autocommit": "0",
        "completion_type": "'CHAIN'",
        "system_versioning_asof": "'2001-01-01'",
        "tx_read_only": "1",
    }
    names = ", ".join(f"@@{name}" for name in changed)

    def seen() -> object:
        session = connect(source.settings)
        try:
            with session.cursor() as cursor:
                cursor.execute("SELECT seq FROM mysql.seq_1_to_3")
                rows = cursor.fetchall()
                cursor.execute(f"SELECT {names.replace('@@tx_read_only', '1')}")
                return rows, cursor.fetchall()
        finally:
            session.close()

    before = seen()
    kept = {}
    with source.session.cursor() as cursor:
        for name in changed:
            cursor.execute(f"SELECT @@GLOBAL.{name}")
            ((value,),) = cursor.fetchall()
            kept[name] = value.decode() if isinstance(value, bytes) else value
    try:
        source.run(*(f"SET GLOBAL {name} = {value}" for name, value in changed.items()))
        assert seen() == before
    finally:
        for name, value in kept.items():
            text = "DEFAULT" if name == "system_versioning_asof" else value
            quoted = text if str(text).replace(".", "").isdigit() or text == "DEFAULT" else f"'{text}'"
            source.run(f"SET GLOBAL {name} = {quoted}")
