"""What the source knows of rows with foreign keys, without a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from stream.sources.mariadb import live_schema
from stream.sources.mariadb.backfill.plan import Chunk
from stream.sources.mariadb.backfill.reading import Wanted
from stream.sources.mariadb.backfill.rereading import Rereading
from stream.sources.mariadb.binlog.catalog import Catalog
from stream.sources.mariadb.cascades.children import Children, Knowledge
from stream.sources.mariadb.cascades.family import Family
from stream.sources.mariadb.cascades.foreign_keys import Cascades, ForeignKey, cascades_of
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.schema import ColumnInfo, TableFilter, TableInfo
from stream.wire.events import ABSENT, VALUE, VOID, ResumePoint, RowChange, VoidTable
from stream.wire.keys import row_key

P, C = "d.p", "d.c"
AT = GtidPosition.parse("MariaDB/0-1-1")


def table(name: str, *, exact: bool = True) -> TableInfo:
    """Columns ``id`` and ``p``."""
    database, _, short = name.partition(".")
    return TableInfo(database, short, (ColumnInfo("id", "int", True), ColumnInfo("p", "int", exact)), ("id",))


def known(*, exact: bool = True, parent: bool = True, on_delete: str = "CASCADE") -> Family:
    """Children 10 and 11 of parent 1, and 20 of parent 2; all is known of them."""
    infos = {name: table(name, exact=exact) for name in ((P, C) if parent else (C,))}
    catalog = Catalog()
    catalog.describe_as({name: info.describe() for name, info in infos.items()})
    catalog.resume(infos, AT)
    return family_of([ForeignKey(P, C, ("id",), ("p",), on_delete, "RESTRICT")], catalog.get, {10: 1, 11: 1, 20: 2})


def family_of(
    keys: Sequence[ForeignKey], info_of: Callable[[str], TableInfo | None], parents: Mapping[int, int]
) -> Family:
    """That of foreign keys, which knows all rows of the child: number → parent."""
    family = Family()
    family.look_at(cascades_of(keys), info_of)
    family.children.begin(C)
    family.fill(C, [RowChange(key, VALUE, image) for key, image in (row(C, *each) for each in parents.items())])
    family.children.complete(C)
    return family


def row(name: str, number: int, parent: int = 0) -> tuple[bytes, bytes]:
    """A row's key and image."""
    return row_key(name, [number]), b'{"id":%d,"p":%d}' % (number, parent)


def delete_parent(
    family: Family, number: int = 1, *, void: tuple[str, ...] = (), is_enforced: bool = True
) -> dict[str, set[bytes]]:
    """What the deletion of a parent is known to change."""
    relative = family.relative(P)
    if relative is not None:
        family.changed(relative, row(P, number), None)
    found = family.narrow({C}, {P: True, C: False}, void, is_enforced=is_enforced)
    family.clear()
    return found


def test_rows_that_refer_to_a_deleted_row_are_found() -> None:
    """These and no others, and once they are gone they are not found again."""
    family = known()
    assert delete_parent(family) == {C: {row_key(C, [10]), row_key(C, [11])}}
    assert {name: set(keys) for name, keys in family.commit().items()} == {C: {row_key(C, [10]), row_key(C, [11])}}
    assert delete_parent(family) == {C: set()}
    assert delete_parent(family, 2) == {C: {row_key(C, [20])}}


def test_rows_of_the_open_transaction_are_found() -> None:
    """What it put refers at once, what it changed or deleted refers no more, and nothing stays if it never happened."""
    family = known()
    relative = family.relative(C)
    assert relative is not None
    family.changed(relative, None, row(C, 12, 1))
    family.changed(relative, row(C, 10, 1), row(C, 10, 2))
    family.changed(relative, row(C, 11, 1), None)
    family.clear()
    assert delete_parent(family) == {C: {row_key(C, [12])}}
    family.discard()
    assert delete_parent(family) == {C: {row_key(C, [10]), row_key(C, [11])}}


def test_a_row_that_the_statement_logs_and_cascades_is_not_known() -> None:
    """Nothing says which came first."""
    family = known()
    relative = family.relative(C)
    assert relative is not None
    family.changed(relative, None, row(C, 12, 1))
    assert delete_parent(family) == {}


def test_a_parent_whose_rows_are_not_told_voids_the_table() -> None:
    """It is not published, it could not be decoded, or it is void."""
    assert delete_parent(known(parent=False)) == {}
    family = known()
    family.miss(P)
    assert delete_parent(family) == {}
    assert delete_parent(known(), void=(P,)) == {}


def test_a_table_of_which_not_all_is_known_is_void() -> None:
    """Before it is read, while it is, after a void, and where equal texts are not equal values."""
    family = known()
    family.children.forget(C)
    assert delete_parent(family) == {}
    family.children.begin(C)
    assert delete_parent(family) == {}
    assert delete_parent(known(exact=False)) == {}
    assert delete_parent(known(), void=(C,)) == {}


def test_without_enforced_foreign_keys_nothing_is_taken_for_changed() -> None:
    """The rows are void, to be sure, and refer as before."""
    family = known()
    assert len(delete_parent(family, is_enforced=False)[C]) == 2
    family.commit()
    assert len(delete_parent(family)[C]) == 2


def test_a_table_that_is_named_without_a_foreign_key_that_explains_it_is_void() -> None:
    """Something else has changed it."""
    family = known()
    assert family.narrow({C}, {C: False}, (), is_enforced=True) == {}


def test_a_table_that_is_too_large_is_not_known() -> None:
    """The file is bounded; and a row that can't be decoded may refer to anything."""
    children = Children(rows_max=3)
    children.follow({C: (("p",),)})
    children.begin(C)
    children.fill(C, [(b"%d" % at, (b"1",)) for at in range(5)])
    assert children.knowledge(C) is Knowledge.NOTHING
    assert list(children.unknown({C})) == []
    family = known()
    family.children.begin(C)
    family.fill(C, [RowChange(row_key(C, [1]), VOID)])
    family.children.complete(C)
    assert family.children.knowledge(C) is Knowledge.NOTHING


def test_a_table_gets_too_large_by_its_changes() -> None:
    """The source goes on: that of a table, or of a transaction, is dropped, and that of others is kept."""
    for children in (Children(rows_max=3), Children(pending_max=3)):
        children.follow({C: (("p",),), P: (("p",),)})
        for name in (C, P):
            children.begin(name)
            children.complete(name)
        for at in range(5):
            children.put(C, b"%d" % at, (b"1",))
        children.put(P, b"0", (b"1",))
        children.commit()
        assert children.knowledge(C) is Knowledge.NOTHING
        assert children.referring(P, 0, b"1") == {b"0": (b"1",)}


def test_a_row_that_was_cascaded_and_put_again_takes_what_referred_to_it_along() -> None:
    """``REPLACE INTO tree VALUES (1, NULL), (2, NULL)``: 2 is gone with 1, and 3 with 2, of which nothing is logged."""
    infos = {C: table(C)}
    family = family_of([ForeignKey(C, C, ("id",), ("p",), "CASCADE", "RESTRICT")], infos.get, {1: 0, 2: 1, 3: 2})
    relative = family.relative(C)
    assert relative is not None
    family.changed(relative, row(C, 3, 2), None)  # a row that is replaced alone
    family.changed(relative, None, row(C, 3, 2))
    assert family.narrow({C}, {C: True}, (), is_enforced=True) == {C: set()}
    family.clear()
    family.changed(relative, row(C, 1, 0), None)
    family.changed(relative, None, row(C, 1, 0))
    family.changed(relative, None, row(C, 2, 0))
    assert family.narrow({C}, {C: True}, (), is_enforced=True) == {}


def test_a_value_that_passes_through_two_parents_is_not_known() -> None:
    """One statement makes 1 to 2, and 2 to 3 or to nothing: the children of 1 are not those of 2 in the end."""
    infos = {name: table(name) for name in (P, C)}
    for last in (row(P, 3), None):
        family = family_of([ForeignKey(P, C, ("id",), ("p",), "CASCADE", "CASCADE")], infos.get, {10: 1})
        relative = family.relative(P)
        assert relative is not None
        family.changed(relative, row(P, 1), row(P, 2))
        family.changed(relative, row(P, 2), last)
        assert family.narrow({C}, {P: True, C: False}, (), is_enforced=True) == {}


@pytest.mark.parametrize("is_there", [False, True])
def test_a_table_between_two_that_is_not_published_voids_what_is_below_it(is_there: bool) -> None:
    """MySQL does not name it, and a row may go by it that does not refer to the deleted one itself."""
    hidden = {"d.hidden": replace(table("d.hidden"), problem="column v has type geometry")} if is_there else {}
    infos = {name: table(name) for name in (P, C)} | hidden
    ways = ((P, C), (P, "d.hidden"), ("d.hidden", C))
    family = family_of([ForeignKey(*way, ("id",), ("p",), "CASCADE", "RESTRICT") for way in ways], infos.get, {})
    relative = family.relative(P)
    assert relative is not None
    family.changed(relative, row(P, 1), None)
    assert family.narrow({C}, {P: True}, (), is_enforced=True) == {}


class Chunks:
    """A reading whose chunk the test gives."""

    def __init__(self) -> None:
        self.first: Chunk | None = None
        self.failed: MariaDBError | None = None
        self.wanted: list[Wanted] = []

    def want(self, wanted: Wanted | None) -> None:
        """What is wanted, in order."""
        self.wanted += [wanted] if wanted else []

    def close(self) -> None:
        """Nothing is open."""


def rereading() -> tuple[Rereading, Chunks]:
    """Rows 10 and 11 are being read."""
    catalog, chunks = Catalog(), Chunks()
    catalog.describe_as({C: table(C).describe()})
    made = Rereading(chunks, catalog)
    made.add({C: [row_key(C, [10]), row_key(C, [11])]})
    assert not list(made.step("MariaDB/0-1-1", 1, lambda _: True))
    assert len(chunks.wanted[0].keys) == 2
    rows = (RowChange(row_key(C, [10]), VALUE, b"{}"), RowChange(row_key(C, [11]), ABSENT))
    chunks.first = Chunk(table(C).describe(), rows, AT, AT, None)
    return made, chunks


def test_rows_that_are_read_again_are_published_where_the_source_has_read_past_them() -> None:
    """Not before; a row that changed meanwhile is left out, and a void table's rows are."""
    made, _ = rereading()
    assert not list(made.step("MariaDB/0-1-2", 1, lambda _: False))
    made.notice([RowChange(row_key(C, [10]), ABSENT)])
    [said] = made.step("MariaDB/0-1-3", 1, lambda _: True)
    assert said.changes == [RowChange(row_key(C, [11]), ABSENT)]
    assert said.position == "MariaDB/0-1-3"
    made, _ = rereading()
    made.notice([VoidTable(C, "DDL")])
    assert not list(made.step("MariaDB/0-1-3", 1, lambda _: True))


def test_rows_that_are_void_again_are_read_again() -> None:
    """What was read before does not count, and a reading that failed leaves them to readers."""
    made, chunks = rereading()
    made.notice([RowChange(row_key(C, [10]), VOID), RowChange(row_key(C, [11]), VOID)])
    made.add({C: [row_key(C, [10])]})
    assert not list(made.step("MariaDB/0-1-5", 1, lambda _: True))
    assert chunks.wanted[-1].keys == (row_key(C, [10]),)
    assert str(chunks.wanted[-1].since) == "MariaDB/0-1-5"
    chunks.first, chunks.failed = None, MariaDBError("locked")
    assert not list(made.step("MariaDB/0-1-6", 1, lambda _: True))
    assert len(chunks.wanted) == 2


def begun_again(words: Mapping[str, str], *, epoch: int = 1) -> tuple[Rereading, Chunks]:
    """A source that begins with the state of another one."""
    catalog, chunks = Catalog(), Chunks()
    catalog.describe_as({C: table(C).describe()})
    made = Rereading(chunks, catalog)
    made.resume(ResumePoint("s/0", epoch, 1, "MariaDB/0-1-9", 1, "MariaDB/0-1-9", annotations=dict(words)))
    assert not list(made.step("MariaDB/0-1-9", 1, lambda _: True))
    return made, chunks


def test_a_source_goes_on_with_the_rows_that_another_one_was_about_to_read() -> None:
    """Also with those that it was reading; not in a new epoch, and not once they are published."""
    first, _ = begun_again({})
    first.add({C: [row_key(C, [10]), row_key(C, [11])]})
    assert not list(first.step("MariaDB/0-1-9", 1, lambda _: True))
    first.add({C: [row_key(C, [12])]})
    words = first.new_words()
    assert not first.new_words()
    made, chunks = begun_again(words)
    assert chunks.wanted[-1].keys == tuple(row_key(C, [number]) for number in (10, 11, 12))
    assert not made.new_words()
    chunks.first = Chunk(table(C).describe(), (RowChange(row_key(C, [10]), ABSENT),), AT, AT, None)
    assert list(made.step("MariaDB/0-1-9", 1, lambda _: True))
    assert list(made.new_words().values()) == [""]
    other, chunks = begun_again(words, epoch=2)
    assert not chunks.wanted
    assert list(other.new_words().values()) == [""]


def test_the_words_about_rows_to_read_again_are_bounded() -> None:
    """A cascade of a million rows must not make a state that no message can hold."""
    made, _ = begun_again({})
    made.add({C: [row_key(C, [number]) for number in range(1_000_000, 1_010_000)]})
    [text] = made.new_words().values()
    assert 3_000 < len(text) <= 4_100


def test_rows_that_were_being_read_when_the_connection_broke_are_read_again() -> None:
    """By the next connection, before those that wait."""
    made, chunks = begun_again({})
    made.add({C: [row_key(C, [10])]})
    assert not list(made.step("MariaDB/0-1-9", 1, lambda _: True))
    made.add({C: [row_key(C, [11])]})
    made.again()
    assert not list(made.step("MariaDB/0-1-9", 1, lambda _: True))
    assert chunks.wanted[-1].keys == (row_key(C, [10]), row_key(C, [11]))


def test_a_full_disk_takes_all_that_is_known_and_the_next_backfill_brings_it_back() -> None:
    """The table is void where its rows would have been; the source goes on."""
    family = known()
    family.children._opened().execute("PRAGMA max_page_count = 40")  # SQLite says of it what it says of a full disk
    family.children.begin(C)
    for number in range(100):
        family.fill(
            C,
            [
                RowChange(row_key(C, [each]), VALUE, row(C, each, 7)[1])
                for each in range(number * 100, number * 100 + 100)
            ],
        )
    family.children.complete(C)
    assert family.children.knowledge(C) is Knowledge.NOTHING
    assert not list(family.children.unknown([C]))  # it is not read for this alone: the disk would be full again
    assert delete_parent(family, 7) == {}
    family.children.begin(C)
    family.fill(C, [RowChange(key, VALUE, image) for key, image in (row(C, 10, 1), row(C, 11, 1))])
    family.children.complete(C)
    assert delete_parent(family) == {C: {row_key(C, [10]), row_key(C, [11])}}


def test_a_file_that_cannot_be_read_narrows_nothing() -> None:
    """A damaged file must not say that no row refers to a parent."""
    family = known()
    family.children._opened().execute("DROP TABLE t1")
    assert delete_parent(family) == {}
    assert family.children.knowledge(C) is Knowledge.NOTHING


def test_a_row_that_was_read_again_refers_to_what_it_has() -> None:
    """A session without foreign keys may have left a row that the source thinks gone: a later cascade finds it."""
    family = known()
    assert delete_parent(family) == {C: {row_key(C, [10]), row_key(C, [11])}}
    family.commit()
    family.read_again([RowChange(*row(C, 10, 1)[:1], VALUE, row(C, 10, 1)[1]), RowChange(row_key(C, [11]), ABSENT)])
    assert delete_parent(family) == {C: {row_key(C, [10])}}


def test_foreign_keys_of_a_table_that_ddl_names_count_from_where_the_server_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have been taken away and made again alike: in between rows went by others, or by none."""
    ends = iter(["MariaDB/0-1-5", "MariaDB/0-1-7", "MariaDB/0-1-9"])
    found = cascades_of([ForeignKey(P, C, ("id",), ("p",), "CASCADE", "RESTRICT")])
    schema = LiveSchema(ConnectionSettings(port=1), TableFilter(("d",)))
    monkeypatch.setattr(schema, "_retried", lambda ask: ask(None))
    monkeypatch.setattr(live_schema, "read_cascades", lambda *_: found)
    monkeypatch.setattr(live_schema, "end_of_log", lambda _: GtidPosition.parse(next(ends)))
    for names, known_at in ((None, "MariaDB/0-1-5"), ({"d.other"}, "MariaDB/0-1-5"), ({C}, "MariaDB/0-1-9")):
        schema.reread_cascades(names)
        assert schema.has_cascades_of(GtidPosition.parse(known_at))
    assert not schema.has_cascades_of(GtidPosition.parse("MariaDB/0-1-8"))


def test_foreign_keys_that_cannot_be_read_now_are_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long CREATE TABLE … SELECT locks its table: the source waited for that, gave up, and began anew."""
    waits, now = list[int](), [100.0]
    answers: list[Any] = [cascades_of([ForeignKey(P, C, ("id",), ("p",), "CASCADE", "RESTRICT")]), None, None]
    schema = LiveSchema(ConnectionSettings(port=1), TableFilter(("d",)))

    def read_cascades(_: object, __: object, wait_s: int) -> Cascades:
        waits.append(wait_s)
        found: Cascades | None = answers.pop(0)
        if found is None:
            raise pymysql.err.OperationalError(1205, "Lock wait timeout exceeded")
        return found

    server: Any = SimpleNamespace(get_server_info=lambda: "11.4.5-MariaDB")
    position = GtidPosition.parse("MariaDB/0-1-5")
    monkeypatch.setattr(schema, "_retried", lambda ask: ask(server))
    monkeypatch.setattr(live_schema, "read_cascades", read_cascades)
    monkeypatch.setattr(live_schema, "end_of_log", lambda _: position)
    monkeypatch.setattr("stream.sources.mariadb.live_schema.time.monotonic", lambda: now[0])
    schema.reread_cascades()
    before = schema.cascades
    schema.reread_cascades({"d.n"})
    assert (schema.cascades, schema.unread, schema.has_cascades_of(position)) == (before, frozenset({"d.n"}), False)
    schema.reread_cascades({"d.m"})
    schema.reread_unread()
    assert (schema.unread, answers) == (frozenset({"d.n", "d.m"}), [])
    now[0] += 2
    answers.append(before)
    schema.reread_unread()
    assert (schema.unread, schema.has_cascades_of(position)) == (frozenset(), True)
    schema.reread_unread()
    assert waits == [1, 1, 0, 0]


def test_a_statement_that_a_crash_cut_off_changes_nothing_below() -> None:
    """Its rows never were deleted. Taken for gone, they would not be found once they are."""
    family = known()
    relative = family.relative(P)
    assert relative is not None
    family.changed(relative, row(P, 1), None)
    family.discard()
    assert delete_parent(family, 2) == {C: {row_key(C, [20])}}
    family.commit()
    assert delete_parent(family, 1) == {C: {row_key(C, [10]), row_key(C, [11])}}


def test_a_deletion_that_sets_null_is_an_update_for_the_tables_below() -> None:
    """It goes on by whatever rule they have for that."""
    keys = [
        ForeignKey(P, C, ("id",), ("p",), "SET NULL", "RESTRICT"),
        ForeignKey(C, "d.g", ("p",), ("p",), "RESTRICT", "CASCADE"),
    ]
    assert cascades_of(keys).on_delete == {P: {C, "d.g"}}
