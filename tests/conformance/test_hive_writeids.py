"""Write-id lists parse, print, answer and compare as Hive 4.0.1's own classes do."""

from __future__ import annotations

import pytest

from tests.conformance.samples import Row, row_id, rows
from tokens import TokenError, ValidWriteIdList, hive_compare
from tokens.writeid_kinds import CleanerWriteIdList, CompactorWriteIdList, TxnWriteIds

ROWS = rows("hive_writeids")
KINDS = {"compactor": CompactorWriteIdList, "cleaner": CleanerWriteIdList}


def _of(*kinds: str) -> list[Row]:
    return [row for row in ROWS if row["k"] in kinds]


def test_every_kind_of_row_is_judged() -> None:
    """The tests of this file cover every row of the sample."""
    assert {row["k"] for row in ROWS} <= {"pair", "list", "parse", "parse_err", "compactor", "cleaner", "ctor", "txnw"}


@pytest.mark.parametrize("row", _of("pair"), ids=row_id)
def test_hive_compare_is_hives_compare(row: Row) -> None:
    """`hive_compare` returns what TxnIdUtils.compare returns, both ways, and raises where that throws."""
    a, b = ValidWriteIdList.parse(row["a"]), ValidWriteIdList.parse(row["b"])
    if "err" in row:
        with pytest.raises(TokenError):
            hive_compare(a, b)
        return
    assert (hive_compare(a, b), hive_compare(b, a)) == (row["cmp"], row["rev"])
    assert (hive_compare(a, b) == 0) is row["eq"]


@pytest.mark.parametrize("row", [row for row in _of("pair") if "only_b" in row], ids=row_id)
def test_a_list_covers_another_iff_nothing_valid_is_missing(row: Row) -> None:
    """A cache tagged ``a`` serves ``b`` iff ``a`` knows every id valid only in ``b`` as aborted."""
    for tag, wanted, missing in ((row["a"], row["b"], row["only_b"]), (row["b"], row["a"], row["only_a"])):
        cached, requested = ValidWriteIdList.parse(tag), ValidWriteIdList.parse(wanted)
        if (cached.table or "").lower() != (requested.table or "").lower():
            assert not cached.covers(requested)
            continue
        unknown = [write_id for write_id in missing if not (write_id <= cached.hwm and cached.is_aborted(write_id))]
        assert cached.covers(requested) is (not unknown)
        found = cached.missing(requested)
        assert (found and tuple(found)) == ((unknown[0], len(unknown)) if unknown else None)


@pytest.mark.parametrize("row", _of("list", "parse", "ctor", "compactor", "cleaner"), ids=row_id)
def test_a_list_parses_prints_and_answers_like_hives(row: Row) -> None:
    """Canonical text, fields, and the answers for ids and ranges are those of Hive's class."""
    parsed = KINDS.get(row["k"], ValidWriteIdList).parse(row["s"])
    assert str(parsed) == (row["s"] if row["canon"] is True else row["canon"])
    min_open = None if parsed.min_open == 2**63 - 1 else parsed.min_open
    assert (parsed.table, parsed.hwm, min_open) == (row["table"], row["hwm"], row["minOpen"])
    assert list(parsed.exceptions) == row["invalid"]
    for write_id, valid, aborted, base in row["probes"]:
        answers = (parsed.is_valid(write_id), parsed.is_aborted(write_id), parsed.is_valid_base(write_id))
        assert answers == (bool(valid), bool(aborted), bool(base)), write_id
    for low, high, valid, aborted in row["ranges"]:
        answer = parsed.range_valid(low, high), parsed.range_aborted(low, high)
        assert tuple(one.value[0].upper() for one in answer) == (valid, aborted), (low, high)


@pytest.mark.parametrize("row", _of("parse_err"), ids=row_id)
def test_what_hive_refuses_is_refused(row: Row) -> None:
    """A text on which Hive's parser throws is a `TokenError`."""
    with pytest.raises(TokenError):
        ValidWriteIdList.parse(row["s"])


@pytest.mark.parametrize("row", _of("txnw"), ids=row_id)
def test_the_lists_of_a_transaction(row: Row) -> None:
    """A transaction's lists are found by the exact table name, and print as they were."""
    lists = TxnWriteIds.parse(row["s"])
    assert (len(lists) == 0) is row["empty"]
    assert sorted(str(lists).split("$")) == sorted(row["canon"].split("$"))
    for table, text in row["get"].items():
        found = lists.get(table)
        assert (found and str(found)) == text
