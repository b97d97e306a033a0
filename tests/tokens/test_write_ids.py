"""Write-id lists: Hive's text, coverage against naive sets, and how a list changes."""

from __future__ import annotations

import pickle
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokens import strategies as some
from tokens import TokenError, ValidWriteIdList, hive_compare
from tokens.writeid_kinds import CleanerWriteIdList, CompactorWriteIdList, TxnWriteIds
from tokens.writeids import RangeAnswer

parse = ValidWriteIdList.parse
MAX = 2**63 - 1


@given(some.write_id_lists(tables=("db.t", "other", None)))
def test_printing_and_parsing_is_the_identity(write_ids: ValidWriteIdList) -> None:
    """A list survives printing and parsing, also with repeated ids and exceptions above the high-water mark."""
    again = parse(str(write_ids))
    assert (again.table, again.hwm, again.min_open) == (write_ids.table, write_ids.hwm, write_ids.min_open)
    assert again.exceptions == write_ids.exceptions
    assert all(again.is_aborted(i) == write_ids.is_aborted(i) for i in range(some.TOP + 2))
    assert pickle.loads(pickle.dumps(again)) == again


@given(some.write_id_lists(), some.write_id_lists())
def test_covers_is_set_inclusion_without_the_aborted(tag: ValidWriteIdList, wanted: ValidWriteIdList) -> None:
    """A tag covers a list iff each id valid in the list is valid in the tag or known there to be aborted."""
    aborted = {write_id for write_id in range(1, tag.hwm + 1) if tag.is_aborted(write_id)}
    lacking = sorted(some.valid_ids(wanted) - some.valid_ids(tag) - aborted)
    assert tag.covers(wanted) is (not lacking)
    missing = tag.missing(wanted)
    assert (missing and tuple(missing)) == ((lacking[0], len(lacking)) if lacking else None)


@given(some.write_id_lists(), some.write_id_lists(), some.write_id_lists())
def test_covers_is_reflexive_and_transitive(a: ValidWriteIdList, b: ValidWriteIdList, c: ValidWriteIdList) -> None:
    """Each list covers itself, and coverage is transitive if no id is known as aborted."""
    assert a.covers(a)
    if not (a.aborted_ids or b.aborted_ids or c.aborted_ids) and a.covers(b) and b.covers(c):
        assert a.covers(c)


@given(some.write_id_lists(), st.integers(-1, some.TOP + 2), st.integers(0, some.TOP))
def test_ranges_count_each_id_once(write_ids: ValidWriteIdList, low: int, size: int) -> None:
    """ALL, SOME or NONE for a range agrees with the answers for its single ids."""
    inside = range(low, low + size + 1)
    assert write_ids.range_valid(low, low + size) is _how_many([write_ids.is_valid(i) for i in inside])
    if low <= write_ids.hwm:
        assert write_ids.range_aborted(low, low + size) is _how_many([write_ids.is_aborted(i) for i in inside])
    else:
        assert write_ids.range_aborted(low, low + size) is RangeAnswer.NONE


@given(some.write_id_lists(), some.write_id_lists())
def test_hive_compare_tells_who_owns_the_smallest_difference(a: ValidWriteIdList, b: ValidWriteIdList) -> None:
    """On well-formed lists the sign says which list has the smallest id that only one of them sees."""
    a, b = (_well_formed(one) for one in (a, b))
    ours, theirs = some.valid_ids(a), some.valid_ids(b)
    different = sorted(ours ^ theirs)
    expected = 0 if not different else (1 if different[0] in ours else -1)
    assert hive_compare(a, b) == expected
    assert hive_compare(b, a) == -expected


@pytest.mark.parametrize(
    ("tag", "wanted", "covered"),
    [
        ("db.t:12:7:7,12:", "db.t:12:7:7,8,12:", True),
        ("db.t:12:7:7,8,12:", "db.t:12:7:7,12:", False),
        ("[12:7,12]", "[12:7,8,12]", True),
        ("[11:7,8]", "db.t:12:7:7,8,12:", True),
        ("[13:7,13]", "[13:7,12]", False),
        ("db.t:10:9223372036854775807::8", "db.t:10:9223372036854775807::", True),
        ("db.t:10:8:8:", "db.t:10:9223372036854775807::", False),
        ("db.t:10:9223372036854775807::11", "db.t:11:9223372036854775807::", False),
        ("db.t:5:9223372036854775807::", "db.u:5:9223372036854775807::", False),
        ("DB.T:5:9223372036854775807::3", "db.t:5:9223372036854775807::3", True),
        ("db.t:5:9223372036854775807::", "db.T:6:9223372036854775807::", False),
        ("db.t:5:9223372036854775807::", "db.t:0:9223372036854775807::", True),
        ("db.t:-3:9223372036854775807::", "db.t:0:9223372036854775807::", True),
        (f"db.t:{MAX}:1:1:", f"db.t:{MAX}:1:1:", True),
        (f"db.t:5:{MAX}::", f"db.t:{MAX}:{MAX}::", False),
        ("", f"db.t:{MAX}:{MAX}::", True),
        ("null:5:5:5:", "db.t:5:5:5:", True),
    ],
)
def test_coverage_that_is_easy_to_get_wrong(tag: str, wanted: str, covered: bool) -> None:
    """Coverage is right for the examples of HIVE-23571, forgotten aborts, other or missing names, and huge ids."""
    assert parse(tag).covers(parse(wanted)) is covered


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("[12:8,7]", "null:12:7:7,8:"),
        ("[12:]", f"null:12:{MAX}::"),
        ("db.t:+5:05", "db.t:5:5::"),
        ("NULL:5:7:::", "null:5:7::"),
        (":5:7", ":5:7::"),
        ("db.t:5:7:3,,:,", "db.t:5:7:3:"),
        ("db.t:5:7:3:2:more:fields", "db.t:5:7:3:2"),
        ("db.t:5:7::3,3", "db.t:5:7:3:3"),
        ("db.t:-0:-9223372036854775808", "db.t:0:-9223372036854775808::"),
        ("db.t:٥:７", "db.t:5:7::"),
        ("db.t:" + "0" * 5000 + "5:7", "db.t:5:7::"),
        ("", f"null:{MAX}:{MAX}::"),
        ("[a:5:7::", "[a:5:7::"),
    ],
)
def test_text_that_hive_tolerates_is_printed_canonically(text: str, printed: str) -> None:
    """Signs, leading zeros, other scripts' digits and missing or extra fields are read as by Hive's parser."""
    assert str(parse(text)) == printed


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("db.t", "1 of the 3"),
        ("db.t:5::", "2 of the 3"),
        (":::", "0 of the 3"),
        ("db.t: 5:7::", "' 5'"),
        ("db.t:5:7:3,,4:", "''"),
        ("db.t:5:7:3:x", "'x'"),
        ("db.t:9223372036854775808:7", "9223372036854775808"),
        ("db.t:5:-9223372036854775809", "-9223372036854775809"),
        ("db.t:5:7:1_0", "1_0"),
        ("db.t:5:7:𝟓", "𝟓"),
        ("[12:7,]", "''"),
        ("[12]", "1 of the 3"),
        ("db.t:+-5:7", "+-5"),
    ],
)
def test_a_refused_text_is_named(text: str, part: str) -> None:
    """The error says in one line which part of a list is wrong."""
    with pytest.raises(TokenError) as refused:
        parse(text)
    assert part in str(refused.value)
    assert "\n" not in str(refused.value)


def test_hive_compare_of_names() -> None:
    """Names compare without case, as UTF-16 text; a nameless list is an error, the short form matches any."""
    lists = [parse(f"{name}:5:7::") for name in ("DB.T", "db.t", "db.u", "db.tt", "db.\uffff", "db.\U00010000")]
    assert hive_compare(lists[0], lists[1]) == 0
    assert hive_compare(lists[1], lists[2]) == -1
    assert hive_compare(lists[3], lists[1]) == 1
    assert hive_compare(lists[4], lists[5]) == 0xFFFF - 0xD800
    assert hive_compare(parse("İ:5:7::"), parse("i:4:7::")) == 1
    with pytest.raises(TokenError):
        hive_compare(parse(""), parse(""))
    assert hive_compare(parse("[12:7,12]"), parse("[12:7,8,12]")) == 1


def test_hive_compare_wraps_where_java_wraps() -> None:
    """Differences of watermarks that need 65 bits come out with Java's sign: this rule is for compatibility."""
    low, high = parse("db.t:-9223372036854775808:7::"), parse("db.t:5:2:2,3:")
    assert hive_compare(high, low) == hive_compare(parse("db.t:5:7::"), low) == -1
    assert hive_compare(parse("db.t:-1:7::"), low) == 1


def test_a_cleaner_list_forgets_min_open_without_exceptions() -> None:
    """Like Hive, the cleaner's list keeps minOpen only if the list has an exception."""
    assert str(CleanerWriteIdList.parse("db.t:6:9::")) == f"db.t:6:{MAX}::"
    assert str(CleanerWriteIdList.parse("db.t:6:9:5:")) == "db.t:6:9:5:"
    assert str(CleanerWriteIdList.parse("db.t:6:9::5")) == "db.t:6:9::5", "an aborted one is one, too"


def test_a_huge_watermark_costs_nothing() -> None:
    """The cost of coverage depends on the number of exceptions, not on the number of ids."""
    tag = ValidWriteIdList("db.t", 7, range(1, 2000, 2))
    wanted = ValidWriteIdList("db.t", MAX, range(2**62, 2**62 + 2000))
    started = time.process_time()
    missing = tag.missing(wanted)
    assert time.process_time() - started < 0.5
    assert missing is not None
    assert tuple(missing) == (1, 4 + MAX - 7 - 2000)


def test_allocation_commit_and_abort_follow_the_log() -> None:
    """New ids are open, a commit takes one out, an abort marks it; absent ids and repeats change nothing."""
    write_ids = parse(f"db.t:0:{MAX}::").allocate(3)
    assert str(write_ids) == "db.t:3:1:1,2,3:"
    assert write_ids.allocate(2) is write_ids
    write_ids = write_ids.commit(1).abort(3)
    assert str(write_ids) == "db.t:3:2:2:3"
    assert str(write_ids.abort(3).abort(1).abort(9)) == "db.t:3:2:2:3"
    assert str(write_ids.commit(5)) == "db.t:5:2:2,4:3"
    assert str(write_ids.commit(2).commit(3)) == f"db.t:3:{MAX}::"
    with pytest.raises(TokenError) as refused:
        write_ids.allocate(10_000_001)
    assert refused.value.code == "write_id_jump"


@given(some.write_id_lists(), st.integers(1, some.TOP + 3))
def test_a_commit_adds_one_valid_id_and_nothing_else(write_ids: ValidWriteIdList, write_id: int) -> None:
    """COMMIT of w makes exactly w valid, wherever the high-water mark was."""
    tidy = _well_formed(write_ids)
    assert some.valid_ids(tidy.commit(write_id)) == some.valid_ids(tidy) | {write_id}
    assert some.valid_ids(tidy.allocate(write_id)) == some.valid_ids(tidy)
    assert some.valid_ids(tidy.abort(write_id)) == some.valid_ids(tidy)


def test_compactor_and_cleaner_lists() -> None:
    """The compactor sees every exception as aborted; both refuse a range that reaches above the high-water mark."""
    compactor = CompactorWriteIdList.parse("db.t:12:7:7:8")
    assert compactor.is_aborted(7)
    assert compactor.range_valid(1, 12) is RangeAnswer.ALL
    assert compactor.range_valid(1, 13) is RangeAnswer.NONE
    cleaner = CleanerWriteIdList.parse("db.t:12:7:7:8")
    assert not cleaner.is_aborted(7)
    assert cleaner.range_valid(1, 12) is RangeAnswer.SOME
    assert cleaner.range_valid(9, 13) is RangeAnswer.NONE
    assert str(compactor) == str(cleaner) == "db.t:12:7:7:8"
    assert compactor != cleaner


def test_the_lists_of_a_transaction() -> None:
    """Each table has one list, the last one wins, names are exact, and a missing transaction id is refused."""
    bundle = TxnWriteIds.parse("7$a.b:5:7::$a.b:6:7::$A.B:1:7::$")
    assert str(bundle) == "7$a.b:6:7::$A.B:1:7::"
    assert TxnWriteIds.parse(str(bundle)) == bundle
    assert bundle.get("a.c") is None
    assert len(TxnWriteIds.parse("")) == 0
    for wrong in ("$a.b:5:7::", "x$a.b:5:7::", "$"):
        with pytest.raises(TokenError):
            TxnWriteIds.parse(wrong)


def _how_many(answers: list[bool]) -> RangeAnswer:
    if all(answers):
        return RangeAnswer.ALL
    return RangeAnswer.SOME if any(answers) else RangeAnswer.NONE


def _well_formed(write_ids: ValidWriteIdList) -> ValidWriteIdList:
    """The same list as a server would write it: each exception once, none above the watermark."""
    hwm = max(0, write_ids.hwm)
    known = {write_id for write_id in write_ids.exceptions if write_id <= hwm}
    aborted = {write_id for write_id in known if write_ids.is_aborted(write_id)}
    return ValidWriteIdList(write_ids.table, hwm, known - aborted, aborted)


def test_a_bundle_finds_each_tables_list() -> None:
    """By its exact name; the later of two for one table counts."""
    bundle = TxnWriteIds.parse("7$db.t:13:9:9:$db.u:5:9::$db.t:14:9::")
    assert (str(bundle.get("db.t")), str(bundle.get("db.u"))) == ("db.t:14:9::", "db.u:5:9::")
    assert (bundle.get("DB.T"), bundle.get(None), len(bundle)) == (None, None, 2)
    assert [each.table for each in bundle] == ["db.t", "db.u"]


def test_a_cleaner_finds_nothing_valid_above_the_mark() -> None:
    """Below it its answers are the reader's."""
    cleaner, reader = (kind.parse("db.t:9:4:4:6") for kind in (CleanerWriteIdList, ValidWriteIdList))
    for low in range(1, 10):
        for high in range(low, 10):
            assert cleaner.range_valid(low, high) is reader.range_valid(low, high) is not None
        assert cleaner.range_valid(low, 10) is RangeAnswer.NONE


def test_a_bundle_begins_with_its_transaction() -> None:
    """Without one the error says what is missing."""
    with pytest.raises(TokenError, match="has no transaction id"):
        TxnWriteIds.parse("$db.t:5:9::")


@pytest.mark.parametrize("digits", ["\U0001d7cf1", "1\U0001d7cf", "\U0001d7cf"], ids=["first", "last", "alone"])
def test_digits_beyond_javas_characters_are_no_number(digits: str) -> None:
    """Java's parser sees two characters in a digit of another plane, and neither of them is one."""
    with pytest.raises(TokenError, match="is not a number"):
        ValidWriteIdList.parse(f"d.t:{digits}:9::")
    assert ValidWriteIdList.parse("d.t:\u0661:9::").hwm == 1
