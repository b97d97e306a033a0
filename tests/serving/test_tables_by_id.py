"""Reads of catalog tables by id, over an owner that may not know yet what a table is called by now."""

from __future__ import annotations

import asyncio

import pytest

from consumers.owner.protocol import OwnerError
from serving.answers import RawTableAnswer
from serving.errors import ReadError
from serving.reads.demands import RequestedTable
from serving.sources.source import SourceTable
from tests.serving.fakes import AWAY, FakeOwner, FakeTableSource, at, seen
from tests.serving.test_table_reads import IMAGE, SHARD, Reads, external, served

BY_ID = RequestedTable("hive", "", "", None, 7)
ABSENT = SourceTable(0, "", None, "", at("0-1-9"))


def read(
    monkeypatch: pytest.MonkeyPatch, source: FakeTableSource, failure: OwnerError | None = None
) -> RawTableAnswer | ReadError:
    """Table id 7 past what its owner has folded, in which it is called db.t."""
    owner = FakeOwner(failure=failure)
    owner.table.name = "db.t"
    return asyncio.run(Reads(monkeypatch, owner).answer(source, BY_ID, seen(SHARD, "0-1-9")))


@pytest.mark.parametrize("there", [ABSENT, external("0-1-9", table_id=8)])
def test_a_name_that_a_table_has_no_more_tells_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, there: SourceTable
) -> None:
    """It was renamed: that there is none, or another one, of the name before is no answer about the table."""
    answer = read(monkeypatch, FakeTableSource(there))
    assert isinstance(answer, ReadError), answer
    assert (answer.code, "rename" in answer.hint) == ("source_behind", True)


def test_a_source_that_is_behind_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacks may be still to come there."""
    answer = read(monkeypatch, FakeTableSource(ABSENT._replace(position=at("0-1-5"))))
    assert isinstance(answer, ReadError)
    assert (answer.code, "rename" in answer.hint) == ("source_behind", False)


def test_a_table_of_the_id_is_answered_by_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the name that the owner has for it."""
    answer = read(monkeypatch, FakeTableSource(external("0-1-9")))
    assert (served(answer).served_from, bytes(served(answer).value)) == ("source", IMAGE)


def test_no_source_is_asked_for_a_table_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nobody answers who knows the name, a source would be asked for a table called nothing."""
    source = FakeTableSource(ABSENT)
    answer = read(monkeypatch, source, AWAY)
    assert isinstance(answer, ReadError), answer
    assert (answer.code, source.lists) == ("no_owner", [])
