"""Positions: text, set inclusion, order and joins of each flavor, checked against naive sets."""

from __future__ import annotations

import pickle
from contextlib import suppress
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokens import strategies as some
from tokens import NO_POSITION, Order, Position, TokenError
from tokens.mariadb import MariadbPosition
from tokens.mysql import MysqlPosition

A = "00010203-0405-0607-0809-0a0b0c0d0e0f"
parse = Position.parse


@given(some.positions)
def test_printing_and_parsing_is_the_identity(position: Position) -> None:
    """A position survives printing, parsing and pickling."""
    again = parse(str(position))
    assert again == position
    assert str(again) == str(position)
    assert hash(again) == hash(position)
    assert pickle.loads(pickle.dumps(position)) == position


@given(some.positions, some.positions, st.integers(0, 120).map(str), st.sampled_from(["", "0", "12"]))
def test_what_a_last_number_says_has_passed_has(a: Position, b: Position, number: str, more: str) -> None:
    """Of two places whose texts differ in it only, and of others."""
    known = str(a)
    ends = [at for at, letter in enumerate(known, 1) if letter in "-/:"] or [0]
    numbers = [known[:end] + each for end in ends for each in (number, more + known[end:])]
    for text in (str(b), known + more, *numbers):
        with suppress(TokenError):
            position = parse(text)
            assert a.at_or_past(position) or not a.has_passed_text(text), (a, text)


@pytest.mark.parametrize(
    ("known", "passed"),
    [
        ("MariaDB/0-1-10", "MariaDB/0-1-9"),
        ("MariaDB/0-1-10", "MariaDB/0-1-10"),
        ("MariaDB/0-1-5,1-2-20", "MariaDB/0-1-5,1-2-19"),
        (f"MySQL56/{A}:1-100", f"MySQL56/{A}:1-99"),
        ("HiveEvent/12", "HiveEvent/9"),
    ],
)
def test_a_last_number_is_enough_for_most_places(known: str, passed: str) -> None:
    """Of the binlogs and of Hive: so most rows of a batch cost no parsing."""
    assert parse(known).has_passed_text(passed)
    assert known == passed or not parse(passed).has_passed_text(known)


@pytest.mark.parametrize(
    ("known", "other"),
    [
        ("MariaDB/0-1-10", "MariaDB/0-2-10"),
        ("MariaDB/0-1-10", "MariaDB/0-1-10,1-1-1"),
        ("MariaDB/0-1-10", "MariaDB/0-1-\u0665"),
        ("MariaDB/0-1-10", ""),
        ("", "MariaDB/0-1-10"),
        ("", ""),
        (f"MySQL56/{A}:9", f"MySQL56/{A}:3"),
        (f"MySQL56/{A}:1-3:9", f"MySQL56/{A}:1-3:7"),
        (f"MySQL56/{A}:1-3:9", f"MySQL56/{A}:1-7"),
        ("Postgres/0/16", "Postgres/0/9"),
        ("FilePos/b.000002:9", "FilePos/b.000001:9"),
        ("HiveEvent/10", "MariaDB/0-1-1"),
    ],
)
def test_other_places_are_for_their_order_to_say(known: str, other: str) -> None:
    """Another server, another domain, a set with gaps, digits that are none of ours."""
    assert not parse(known).has_passed_text(other)


@given(some.mysql_texts(), some.mysql_texts())
def test_mysql_sets_compare_and_combine_as_sets(a: str, b: str) -> None:
    """Containment, equality, order, union, join, difference and size equal those of plain sets of numbers."""
    left, right = parse(a), parse(b)
    ours, theirs = some.mysql_numbers(a), some.mysql_numbers(b)
    assert isinstance(left, MysqlPosition)
    assert left.contains(right) is (ours >= theirs)
    assert (left == right) is (ours == theirs)
    assert some.mysql_numbers(str(left.union(right))) == ours | theirs
    assert left.join(right) == left.union(right)
    assert some.mysql_numbers(str(left.difference(right))) == ours - theirs
    assert left.count == len(ours)
    assert left.order(right) is _set_order(ours, theirs)


@given(some.mysql_positions, st.sampled_from(some.SOURCES), st.integers(1, some.TOP + 2))
def test_appending_to_a_mysql_set_adds_one_number(position: Position, source: str, number: int) -> None:
    """After appending, the set has exactly one more number, and its intervals are merged."""
    after = position.append(f"{source}:{number}")
    assert some.mysql_numbers(str(after)) == some.mysql_numbers(str(position)) | {(source, number)}
    assert after == position.union(parse(f"MySQL56/{source}:{number}"))
    assert after == parse(str(after))


@given(some.mariadb_positions, some.mariadb_positions)
def test_mariadb_order_says_newer_only_if_every_domain_is_as_far(a: Position, b: Position) -> None:
    """NEWER or SAME requires each domain to be further or at the same GTID; a tie of two servers is UNKNOWN."""
    ours, theirs = (dict(_gtids(position)) for position in (a, b))
    reached = all(
        domain in ours and (ours[domain][1] > sequence or ours[domain] == (server, sequence))
        for domain, (server, sequence) in theirs.items()
    )
    assert a.at_or_past(b) is (reached and not _tie(ours, theirs))
    if _tie(ours, theirs):
        assert a.order(b) is Order.UNKNOWN


@given(st.one_of(*(st.tuples(kind, kind) for kind in (some.mysql_positions, some.mariadb_positions, some.positions))))
def test_order_is_antisymmetric_and_agrees_with_equality(pair: tuple[Position, Position]) -> None:
    """Swapping the sides reverses the answer; SAME means equal; NEWER implies containment."""
    a, b = pair
    assert a.order(b) is b.order(a).reversed()
    assert (a.order(b) is Order.SAME) is (a == b)
    if a.at_or_past(b):
        assert a.contains(b)
    if a.flavor != b.flavor:
        assert a.order(b) is Order.UNKNOWN
        assert not a.contains(b)


@pytest.mark.parametrize(
    "kind",
    [
        some.mysql_positions,
        some.mariadb_positions,
        some.postgres_positions,
        some.file_positions,
        some.event_positions,
    ],
)
@given(data=st.data())
def test_order_is_transitive(kind: st.SearchStrategy[Position], data: st.DataObject) -> None:
    """If a is at or past b and b at or past c, then a is at or past c, unless a MariaDB tie makes it unknown."""
    a, b, c = sorted((data.draw(kind) for _ in range(3)), key=str, reverse=data.draw(st.booleans()))
    if a.at_or_past(b) and b.at_or_past(c):
        assert a.at_or_past(c)


@pytest.mark.parametrize(
    "kind", [some.mysql_positions, some.mariadb_positions, some.postgres_positions, some.event_positions]
)
@given(data=st.data())
def test_join_is_a_least_upper_bound(kind: st.SearchStrategy[Position], data: st.DataObject) -> None:
    """Joins are commutative, associative, idempotent, and contain both sides."""
    a, b, c = (data.draw(kind) for _ in range(3))
    assert a.join(b) == b.join(a)
    assert a.join(b).join(c) == a.join(b.join(c))
    assert a.join(a) == a
    assert a.join(b).join(b) == a.join(b)
    assert a.join(b).contains(a)
    assert NO_POSITION.join(a) == a.join(NO_POSITION) == a


@given(st.one_of(*(st.tuples(kind, kind, kind) for kind in (some.mariadb_positions, some.postgres_positions))))
def test_a_position_past_a_join_is_past_both_sides(places: tuple[Position, Position, Position]) -> None:
    """A position that proves a join proves both sides, also if two servers tie, or two timelines meet."""
    place, a, b = places
    if place.at_or_past(a.join(b)):
        assert place.at_or_past(a)
        assert place.at_or_past(b)


@given(some.file_positions, some.file_positions, some.file_positions)
def test_file_joins_agree_or_are_refused_in_any_order(a: Position, b: Position, c: Position) -> None:
    """Binlog positions of one base name can be joined in any order; others are refused in any order."""

    def joined(*places: Position) -> str:
        try:
            result = places[0]
            for place in places[1:]:
                result = result.join(place)
            return str(result)
        except TokenError:
            return "refused"

    assert joined(a, b, c) == joined(c, b, a) == joined(b, c, a)


@pytest.mark.parametrize(
    ("a", "b", "answer"),
    [
        ("FilePos/bin.1000000:4", "FilePos/bin.999999:9", Order.NEWER),
        ("FilePos/bin.000001:4", "FilePos/relay.000001:9", Order.UNKNOWN),
        ("FilePos/bin.000001:4", "FilePos/bin:9", Order.UNKNOWN),
        ("FilePos/bin:4", "FilePos/bin:9", Order.OLDER),
        ("HiveEvent/190", "HiveEvent/89", Order.NEWER),
        ("Postgres/16/9", "Postgres/9/FFFFFFFF", Order.NEWER),
        ("Postgres/2:16/9", "Postgres/2:16/A", Order.OLDER),
        ("Postgres/2:16/9", "Postgres/1:16/8", Order.UNKNOWN),
        ("Postgres/2:16/9", "Postgres/16/8", Order.UNKNOWN),
        ("Postgres/4294967295:16/9", "Postgres/4294967295:16/8", Order.UNKNOWN),
        ("MariaDB/0-1-5", "MariaDB/0-2-5", Order.UNKNOWN),
        ("MariaDB/0-1-6", "MariaDB/0-2-5", Order.NEWER),
        ("MariaDB/0-1-5,1-1-9", "MariaDB/0-2-5,1-1-8", Order.UNKNOWN),
        ("MariaDB/", "MariaDB/0-1-1", Order.OLDER),
        ("MariaDB/", "MySQL56/", Order.UNKNOWN),
        ("", "MariaDB/", Order.UNKNOWN),
        ("", "", Order.SAME),
        (f"MySQL56/{A}:1-3:4-9", f"MySQL56/{A}:1-9", Order.SAME),
        (f"MySQL56/{A}:1-9:blue:1", f"MySQL56/{A}:1-9", Order.NEWER),
        (f"MySQL56/{A}:blue:1", f"MySQL56/{A}:1", Order.UNKNOWN),
    ],
)
def test_orders_that_are_easy_to_get_wrong(a: str, b: str, answer: Order) -> None:
    """File numbers compare as numbers, ties and other logs are unknown, intervals merge, and tags are separate."""
    assert parse(a).order(parse(b)) is answer
    assert parse(b).order(parse(a)) is answer.reversed()


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (f"MySQL56/{A.upper()}:Blue:3:1-2:red:7:8-7:9,{A}:4", f"MySQL56/{A}:4:blue:1-3:red:7:9"),
        (f"MySQL56/{A}:blue:5-4", "MySQL56/"),
        ("FilePos/a/b:0x_1f", "FilePos/a/b:31"),
        ("FilePos/a:0", "FilePos/a:0"),
        ("FilePos/a:017", "FilePos/a:15"),
        ("HiveEvent/0190", "HiveEvent/190"),
        ("Postgres/00000016/0b374d84", "Postgres/16/B374D84"),
        ("Postgres/02:0/0", "Postgres/2:0/0"),
        ("MariaDB/0-1-7,0-2-5", "MariaDB/0-2-5"),
        ("MariaDB/0-1-" + "0" * 5000 + "7", "MariaDB/0-1-7"),
    ],
)
def test_text_is_printed_canonically(text: str, printed: str) -> None:
    """The printed text is lower case, sorted, merged and decimal, with the last GTID of a repeated domain."""
    assert str(parse(text)) == printed


def test_a_servers_uuid_is_the_same_in_upper_case() -> None:
    """Servers and tools print it either way: a session in one spelling is covered by an entry in the other."""
    lower, upper = parse(f"MySQL56/{A}:1-5,{A}:blue:1"), parse(f"MySQL56/{A.upper()}:1-5,{A.upper()}:BLUE:1")
    assert (lower, hash(lower), str(lower)) == (upper, hash(upper), str(upper))
    assert lower.contains(upper)
    assert upper.contains(lower)
    assert lower.order(upper) is Order.SAME
    for gtid in (f"{A.upper()}:6", f"{A.upper()}:Blue:2"):
        appended = lower.append(gtid)
        assert appended == lower.append(gtid.lower()) == lower.union(parse(f"MySQL56/{gtid}"))
        assert appended.order(upper) is Order.NEWER
    assert lower.append(f"{A.upper()}:5") == lower


@pytest.mark.parametrize("text", ["16/B374D84", "3:16/B374D84", "Postgres/3:16/B374D84", "HiveEvent/5", ""])
def test_a_place_in_a_write_ahead_log_needs_no_flavor_where_it_is_the_default(text: str) -> None:
    """Its slash is not that behind a flavor; one that is named wins."""
    whole = text if not text or text.startswith(("Postgres", "HiveEvent")) else f"Postgres/{text}"
    assert parse(text, "Postgres") == parse(whole)
    if whole != text:
        with pytest.raises(TokenError, match="unknown flavor"):
            parse(text, "MariaDB")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("0-1-5", "0-1-5"),
        ("mariadb/0-1-5", "mariadb"),
        ("MariaDB/0-1-5,0-1", "0-1"),
        ("MariaDB/0-1-١", "١"),
        ("MariaDB/0-1-1_0", "1_0"),
        ("MariaDB/4294967296-1-1", "4294967296"),
        ("MariaDB/1-4294967296-1", "4294967296"),
        ("MariaDB/1-1-18446744073709551616", "18446744073709551616"),
        (f"MySQL56/{A}:1,{A[:-1]}:1", A[:-1]),
        (f"MySQL56/{A}:1::2", "''"),
        (f"MySQL56/{A}:9223372036854775808", "9223372036854775808"),
        (f"MySQL56/{A}:0", "0"),
        (f"MySQL56/{A}:blue", "blue"),
        (f"MySQL56/{A}:blue:red:1", "blue"),
        (f"MySQL56/{A}:{'x' * 33}:1", "x" * 33),
        ("FilePos/a:1_", "1_"),
        ("FilePos/a:-1", "-1"),
        ("FilePos/a:0x", "0x"),
        ("Postgres/", "''"),
        ("Postgres/16", "16"),
        ("Postgres/16/", "16/"),
        ("Postgres/0x16/1", "0x16/1"),
        ("Postgres/123456789/1", "123456789/1"),
        ("Postgres/0:16/1", "timeline 0"),
        ("Postgres/:16/1", "''"),
        ("Postgres/1:2:16/1", "1:2"),
        ("HiveEvent/", "''"),
        ("HiveEvent/-1", "-1"),
    ],
)
def test_a_refused_text_is_named(text: str, part: str) -> None:
    """The error says in one line which part of a position is wrong."""
    with pytest.raises(TokenError) as refused:
        parse(text)
    assert part in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.code == "bad_token"


def test_appending_takes_one_gtid_with_or_without_flavor() -> None:
    """A GTID moves a position forward, never back; sets and other flavors are refused."""
    at = parse("MariaDB/0-1-5")
    assert at.append("0-2-6") == at.append("MariaDB/0-2-6") == parse("MariaDB/0-2-6")
    assert at.append("0-2-4") is at
    assert str(at.append("1-1-1")) == "MariaDB/0-1-5,1-1-1"
    assert str(parse("HiveEvent/7").append("9")) == "HiveEvent/9"
    assert str(parse("Postgres/1:0/7").append("1:0/9")) == "Postgres/1:0/9"
    assert str(parse("Postgres/1:0/7").append("Postgres/2:0/5")) == "Postgres/4294967295:0/7"
    assert str(NO_POSITION.append("HiveEvent/7")) == "HiveEvent/7"
    for wrong in ("0-2-6,1-1-1", f"MySQL56/{A}:1", ""):
        with pytest.raises(TokenError):
            at.append(wrong)
    with pytest.raises(TokenError):
        NO_POSITION.append("0-1-5")


def _set_order(ours: frozenset[tuple[str, int]], theirs: frozenset[tuple[str, int]]) -> Order:
    if ours == theirs:
        return Order.SAME
    if ours > theirs:
        return Order.NEWER
    return Order.OLDER if ours < theirs else Order.UNKNOWN


def _gtids(position: Position) -> list[tuple[int, tuple[int, int]]]:
    body = str(position).removeprefix("MariaDB/")
    numbers = [tuple(map(int, gtid.split("-"))) for gtid in body.split(",") if gtid]
    return [(domain, (server, sequence)) for domain, server, sequence in numbers]


def _tie(ours: dict[int, tuple[int, int]], theirs: dict[int, tuple[int, int]]) -> bool:
    return any(
        domain in ours and ours[domain][1] == sequence and ours[domain][0] != server
        for domain, (server, sequence) in theirs.items()
    )


FILES = ("odd", "even", "7", "bin", "bin.", ".5", ".6", "bin.x", "bin.y", "bin.1a", "bin.٣", "bin.٤", "bin.9", "bin.10")
NUMBERED = {".5": ("", 5), ".6": ("", 6), "bin.9": ("bin", 9), "bin.10": ("bin", 10)}


@pytest.mark.parametrize(("file", "other"), list(permutations(FILES, 2)))
def test_only_numbered_files_of_one_log_are_in_order(file: str, other: str) -> None:
    """Nobody knows which of two other files was written first, so neither contains the other's positions."""
    earlier, later = parse(f"FilePos/{file}:9"), parse(f"FilePos/{other}:1")
    mine, theirs = NUMBERED.get(file), NUMBERED.get(other)
    if mine is None or theirs is None or mine[0] != theirs[0]:
        assert earlier.order(later) is Order.UNKNOWN
        assert not earlier.contains(later)
        return
    assert earlier.order(later) is (Order.NEWER if mine[1] > theirs[1] else Order.OLDER)
    assert earlier.contains(later) is (mine[1] > theirs[1])


@pytest.mark.parametrize("file", FILES)
def test_within_one_file_offsets_are_in_order(file: str) -> None:
    """Whatever the file is called."""
    assert parse(f"FilePos/{file}:9").order(parse(f"FilePos/{file}:10")) is Order.OLDER


@pytest.mark.parametrize(
    "position",
    [parse(text) for text in ("MariaDB/0-1-5", f"MySQL56/{A}:1", "Postgres/1:0/9", "FilePos/b.1:4", "HiveEvent/0")],
)
def test_no_position_is_contained_in_all_and_proves_nothing(position: Position) -> None:
    """Its text is empty; it is ordered against nothing but itself, and joins change nothing."""
    nil = parse("")
    assert (nil, str(nil), bool(nil), hash(nil)) == (NO_POSITION, "", False, hash(NO_POSITION))
    assert nil is not None
    assert position.contains(nil)
    assert (nil.contains(nil), nil.contains(position)) == (True, False)
    assert (nil.order(position), position.order(nil), nil.order(nil)) == (Order.UNKNOWN, Order.UNKNOWN, Order.SAME)
    assert nil.join(position) == position.join(nil) == nil.union(position) == position
    assert not nil.at_or_past(position)


SMALL_SETS = [
    {domain: place for domain, place in enumerate(places) if place is not None}
    for places in product([None, *product((1, 2), (1, 2, 3))], repeat=2)
]


def test_mariadb_sets_are_united_by_domain() -> None:
    """The higher sequence of each domain counts; of two servers' equal ones the position's own."""
    for ours, theirs in product(SMALL_SETS, repeat=2):
        newer = {domain: place for domain, place in theirs.items() if domain not in ours or place[1] > ours[domain][1]}
        assert MariadbPosition(ours).union(MariadbPosition(theirs)) == MariadbPosition(ours | newer)


def test_a_mariadb_set_is_never_moved_back_by_a_gtid() -> None:
    """A GTID that is not above its domain's last one changes nothing, whichever server it names."""
    for ours, server, sequence in product(SMALL_SETS, (1, 2), (1, 2, 3)):
        reached = ours[0][1] if 0 in ours else 0
        expected = ours | ({0: (server, sequence)} if sequence > reached else {})
        assert MariadbPosition(ours).append(f"0-{server}-{sequence}") == MariadbPosition(expected)


def test_a_position_of_no_flavor_has_no_text() -> None:
    """Only the flavors read texts: what is of none is refused, not read as nothing."""
    with pytest.raises(TokenError, match="is not a position"):
        Position.parse_set("1-2-3")


@given(st.sets(st.integers(1, 12), min_size=1), st.integers(1, 4))
def test_a_mysql_set_is_extended_by_the_numbers_that_follow(numbers: set[int], more: int) -> None:
    """As if they were added one after the other; what else is in the set stays."""
    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    before = MysqlPosition.parse_set(f"{uuid}:{':'.join(map(str, numbers))}:a:7,{uuid.replace('3', '4')}:1-2")
    assert isinstance(before, MysqlPosition)
    last, expected = before.intervals((uuid, ""))[-1][1], before
    for number in range(last + 1, last + 1 + more):
        expected = expected.with_number((uuid, ""), number)
    assert before.extended((uuid, ""), last + more) == expected


@pytest.mark.parametrize(
    ("gtid", "appended"),
    [
        ("MySQL56/00010203-0405-0607-0809-0a0b0c0d0e0f:+5", "MySQL56/00010203-0405-0607-0809-0a0b0c0d0e0f:5"),
        ("MySQL56/00010203-0405-0607-0809-0a0b0c0d0e0f:++5", ""),
        ("MySQL56/00010203-0405-0607-0809-0a0b0c0d0e0f:3 ", ""),
        ("MySQL56/ 00010203-0405-0607-0809-0a0b0c0d0e0f:3", ""),
        ("MariaDB/2-1-3 ", ""),
        ("MariaDB/2-1-+3", ""),
    ],
)
def test_the_numbers_of_a_single_gtid_are_read_as_go_reads_them(gtid: str, appended: str) -> None:
    """Vitess reads a MySQL's with ParseInt and a MariaDB's with ParseUint, and trims neither."""
    if appended:
        assert str(NO_POSITION.append(gtid)) == appended
    else:
        with pytest.raises(TokenError):
            NO_POSITION.append(gtid)
