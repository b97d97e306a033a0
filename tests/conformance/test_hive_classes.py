"""Random write-id lists parse, print, answer and compare as Hive's own classes do: those of the metastore's jars."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote_plus

import pytest

from freshet.local.artifacts import jars
from freshet.local.hive.home import COMPILER, metastore_home
from freshet.local.java import QUICK_START, find_java
from freshet.local.process import run_tool
from tokens import TokenError, ValidWriteIdList, hive_compare
from tokens.writeid_kinds import CleanerWriteIdList, CompactorWriteIdList, TxnWriteIds

pytestmark = pytest.mark.integration

CASES = 3000
TOP = 14
INT64_MAX = 2**63 - 1
TABLES = (*["db.t"] * 12, "db.u", "DB.T", "db.ü", "db.\U00010000", "db.İ", "null", "NULL", "", "a.b.c")
ODD_NUMBERS = (
    "",
    " ",
    "+5",
    "05",
    "-1",
    "-0",
    "+",
    "٣",
    "1_0",
    "1.0",
    "0x1",
    *map(str, (INT64_MAX, INT64_MAX + 1, -INT64_MAX - 1, -INT64_MAX - 2)),
)
MARKS = (":", "::", ",", ",,", "$", "\n", " ", "[", "]", "x")
KINDS = {"reader": ValidWriteIdList, "compactor": CompactorWriteIdList, "cleaner": CleanerWriteIdList}

Ask = Callable[[list[tuple[str, ...]]], list[str]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """A function: questions to ``HiveLists.java``, a line each, give its answers."""
    java, classes = find_java().path, tmp_path_factory.mktemp("classes")
    (compiler,) = (jar for jar in jars("hive") if jar.name.startswith(f"{COMPILER}-"))
    classpath = os.pathsep.join([str(classes), *map(str, (metastore_home() / "lib").glob("*.jar"))])
    source = Path(__file__).parent / "java" / "HiveLists.java"
    run_tool("ecj", [java, "-jar", str(compiler), "-17", "-nowarn", "-cp", classpath, "-d", str(classes), str(source)])

    def answers(questions: list[tuple[str, ...]]) -> list[str]:
        lines = "".join("\t".join(quote(part, safe="") for part in question) + "\n" for question in questions)
        command = [java, *QUICK_START, "-cp", classpath, "HiveLists"]
        done = subprocess.run(command, input=lines.encode(), stdout=subprocess.PIPE, check=True)
        return [unquote_plus(line) for line in done.stdout.decode().splitlines()]

    return answers


def _ids(dice: random.Random, top: int = TOP) -> list[int]:
    return [dice.randint(1, top) for _ in range(dice.choice((0, 0, 1, 2, 3, 5)))]


def _likely(dice: random.Random) -> str:
    """A list as servers write it: exceptions up to the high-water mark, each once, sorted or not."""
    hwm = dice.randint(0, TOP)
    exceptions = dice.sample(range(1, hwm + 1), min(hwm, dice.choice((0, 1, 2, 3, 5))))
    cut = dice.randint(0, len(exceptions))
    opened, aborted = exceptions[:cut], exceptions[cut:]
    least = dice.choice((min(opened, default=INT64_MAX), dice.randint(0, TOP)))
    return f"{dice.choice(TABLES)}:{hwm}:{least}:{','.join(map(str, opened))}:{','.join(map(str, aborted))}"


def _odd(dice: random.Random) -> str:
    """A list with repeated ids, exceptions above the high-water mark, odd numbers, or missing and further fields."""
    opened, aborted = (",".join(map(str, _ids(dice))) for _ in range(2))
    fields = [dice.choice(TABLES), str(dice.randint(-1, TOP)), str(dice.randint(-1, TOP)), opened, aborted, "x"]
    fields = fields[: dice.choice((1, 2, 3, 4, 5, 5, 5, 5, 6))]
    if dice.random() < 0.3 and len(fields) > 1:
        at = dice.randrange(1, len(fields))
        fields[at] = dice.choice((dice.choice(ODD_NUMBERS), f"{fields[at]},{dice.choice(ODD_NUMBERS)}"))
    text = ":".join(fields)
    if dice.random() < 0.2:
        at = dice.randint(0, len(text))
        text = text[:at] + dice.choice(MARKS) + text[at:]
    return text


def _transactions(dice: random.Random) -> list[str]:
    """All lists of some transactions. Hive can't print what it reads from an empty text, so there is none."""
    heads = ("7", "7", "7", "0", "-1", *ODD_NUMBERS)
    marks = ("", "$", "$", "$$")
    texts = []
    for _ in range(CASES):
        lists = [dice.choice((_likely, _odd))(dice) for _ in range(dice.randint(0, 3))]
        texts.append(dice.choice(heads) + "".join(dice.choice(marks) + text for text in [*lists, ""]))
    return [text or "7" for text in texts]


def _described(kind: type[ValidWriteIdList], text: str) -> str:
    """What `HiveLists.list` answers, by the list's own methods."""
    with suppress(TokenError):
        one = kind.parse(text)
        ids = (f"{one.is_valid(i):d}{one.is_aborted(i):d}{one.is_valid_base(i):d}" for i in range(TOP + 1))
        ranges = [(low, high) for low in range(1, TOP + 1) for high in range(low, TOP + 1)]
        answers = (f"{one.range_valid(*ends).name[0]}{one.range_aborted(*ends).name[0]}" for ends in ranges)
        least = "null" if one.min_open == INT64_MAX else one.min_open
        exceptions = f"[{','.join(map(str, one.exceptions))}]"
        table = "null" if one.table is None else one.table
        return f"{one} {table} {one.hwm} {least} {exceptions} {','.join(ids)} {','.join(answers)}"
    return "!"


def _counted_once(text: str) -> bool:
    """Whether Hive's ranges count each exception of the list once, and none above its high-water mark."""
    with suppress(TokenError):
        one = ValidWriteIdList.parse(text)
        return len(set(one.exceptions)) == len(one.exceptions) and max(one.exceptions, default=one.hwm) <= one.hwm
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_any_list_is_read_printed_and_asked_as_hives(ask: Ask, kind: str) -> None:
    """Fields, text and the answers for ids are Hive's for any text; so are ranges, if no id counts twice."""
    dice = random.Random(kind)
    texts = [dice.choice((_likely, _odd))(dice) for _ in range(CASES)]
    for text, hives in zip(texts, ask([(kind, text, str(TOP)) for text in texts]), strict=True):
        parts = None if _counted_once(text) else -1  # without the ranges, which stand last
        assert _described(KINDS[kind], text).split(" ")[:parts] == hives.split(" ")[:parts], (kind, text)


def test_any_two_lists_are_compared_as_by_hive(ask: Ask) -> None:
    """`hive_compare` is `TxnIdUtils.compare`, and 0 where that calls two lists of a table equivalent."""
    dice = random.Random(4)
    some = (_likely, _likely, _odd)
    pairs = [(dice.choice(some)(dice), dice.choice(some)(dice)) for _ in range(3 * CASES)]
    for (a, b), hives in zip(pairs, ask([("pair", a, b) for a, b in pairs]), strict=True):
        try:
            order = hive_compare(ValidWriteIdList.parse(a), ValidWriteIdList.parse(b))
        except TokenError:
            order = None
        assert ("!" if order is None else f"{order} {str(order == 0).lower()}") == hives, (a, b)


def test_all_lists_of_a_transaction_are_read_as_by_hive(ask: Ask) -> None:
    """A transaction's text, its lists by table and what Hive refuses in it are Hive's."""
    texts = _transactions(random.Random(5))
    for text, hives in zip(texts, ask([("txn", text, "db.t") for text in texts]), strict=True):
        try:
            lists = TxnWriteIds.parse(text)
        except TokenError:
            assert hives == "!", text
            continue
        found = f" {lists.get('db.t') or 'null'}"
        is_empty, _, rest = hives.partition(" ")
        assert is_empty == str(len(lists) == 0).lower(), text
        assert rest.endswith(found), text
        assert sorted(rest.removesuffix(found).split("$")) == sorted(str(lists).split("$")), text
