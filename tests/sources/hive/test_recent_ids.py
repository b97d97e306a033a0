"""Lists that were fetched a while ago are brought forward over what the log said since, in any interleaving."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.sources.hive import recent_ids
from stream.sources.hive.progress import DIRTY_MAX, Progress
from stream.sources.hive.recent_ids import RecentWriteIds
from stream.sources.hive.write_id_registry import WriteIdChange
from tokens.writeid_state import WriteIds

NAME = "d.t"


def applied(changes: list[WriteIdChange]) -> WriteIds:
    """What a server knows after these changes."""
    ids = WriteIds()
    for _, txn, write_id, kind in changes:
        if kind == "allocated":
            ids.allocate(txn, write_id)
        elif kind == "committed":
            ids.commit(write_id)
        else:
            ids.abort(write_id)
    return ids


@st.composite
def histories(draw: st.DrawFn) -> list[WriteIdChange]:
    """Allocations in order, each ended or not at some later place. Transaction n holds write id n."""
    opened: list[int] = []
    changes: list[WriteIdChange] = []
    last = 0
    for _ in range(draw(st.integers(0, 12))):
        if len(opened) > 0 and draw(st.booleans()):
            ending = opened.pop(draw(st.integers(0, len(opened) - 1)))
            changes.append(WriteIdChange(NAME, ending, ending, draw(st.sampled_from(["committed", "aborted"]))))
        else:
            last += 1
            opened.append(last)
            changes.append(WriteIdChange(NAME, last, last, "allocated"))
    return changes


def full(ids: WriteIds) -> tuple[int, list[int], list[int]]:
    """High-water mark, open and aborted ids."""
    return ids.hwm, [write_id for write_id, _ in ids.open], ids.aborted


@given(histories(), st.data())
def test_a_list_fetched_anywhere_ends_as_the_servers(changes: list[WriteIdChange], data: st.DataObject) -> None:
    """Noted at ``since``, fetched at some later event, published after the last one: the result is the server's list.

    What the log did not say before it was read (the holders) comes from a question to the server.
    """
    begin = data.draw(st.integers(0, len(changes)))
    since = data.draw(st.integers(begin, len(changes)))
    fetched_at = data.draw(st.integers(since, len(changes)))
    recent = RecentWriteIds(begin)
    allocated = {change.txn for change in changes[begin:] if change.kind == "allocated"}
    for event_id, change in enumerate(changes[begin:], begin + 1):
        if change.kind == "allocated" or change.txn in allocated:
            recent.note(event_id, [change])
        if change.kind != "allocated":
            recent.ended(event_id, change.txn, committed=change.kind == "committed")
    server = applied(changes[:fetched_at])
    listed = WriteIds()
    listed.replace(server.hwm, [write_id for write_id, _ in server.open], server.aborted)
    holders = {write_id: write_id for write_id, _ in server.open if write_id not in allocated}
    assert recent.brought_forward(NAME, listed, since, holders)
    assert full(listed) == full(applied(changes))


def test_a_list_from_before_what_is_kept_is_refused() -> None:
    """What was forgotten may be what the list lacks: it must be fetched again."""
    recent = RecentWriteIds(10)
    recent.note(11, [WriteIdChange(NAME, 1, 1, "allocated")])
    recent.forget(11)
    assert not recent.brought_forward(NAME, WriteIds(), 10, {})
    assert recent.brought_forward(NAME, WriteIds(), 11, {})
    recent.forget(5)
    assert not recent.brought_forward(NAME, WriteIds(), 10, {}), "it does not come back"


def test_ends_of_transactions_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most hold no ids, so that no change is noted with them: a sweep of hours would keep each of them."""
    monkeypatch.setattr(recent_ids, "KEPT_MAX", 10)
    recent = RecentWriteIds(0)
    for event_id in range(1, 101):
        recent.ended(event_id, event_id, committed=True)
        assert len(recent._ended) <= 10
    assert recent.has_ended(100)
    assert not recent.brought_forward(NAME, WriteIds(), 50, {}), "what ended since then is forgotten"
    assert recent.brought_forward(NAME, WriteIds(), 99, {})


def test_what_is_left_to_fetch_comes_back_from_the_cursor() -> None:
    """A restarted source knows how far the sweep was, and which tables were written since they were fetched."""
    progress = Progress()
    assert progress.sweeping, "a source without a cursor begins with everything"
    progress.swept = "d.m"
    progress.touch(["d.a", "d.b"])
    progress.done("d.a")
    again = Progress(progress.cursor())
    assert (again.sweeping, again.swept, [*again.dirty]) == (True, "d.m", ["d.b"])
    again.sweeping = False
    assert not Progress(again.cursor()).sweeping
    again.touch(f"d.t{number}" for number in range(DIRTY_MAX))
    assert Progress(again.cursor()).sweeping, "too many to name: everything is fetched"
    assert Progress("{damaged").sweeping


OF_EARLIER_VERSION = '{"sweeping": false, "objects": false, "details": %s, "partitions": %s, "defaults": true}'


@pytest.mark.parametrize(("detailed", "parted"), [("null", None), ('"d.m"', None), ('""', "d.m")])
def test_statistics_together_are_published_once_after_an_upgrade(detailed: str, parted: str | None) -> None:
    """A topic of an earlier version has none: the last sweep is made again, which goes on where it is cut off."""
    progress = Progress(OF_EARLIER_VERSION % (detailed, json.dumps(parted)))
    assert (progress.sweeping, progress.parted, progress.detailed) == (False, parted, "")
    is_all_else_published = (detailed, parted) == ("null", None)
    assert progress.adds_together == is_all_else_published
    if parted is not None:
        progress.note_belongings(None)
    for done in ("d.c", None):
        progress.note_belongings(done)
        again = Progress(progress.cursor())
        assert (again.parted, again.detailed) == (None, done)
        assert again.adds_together == (is_all_else_published and done is not None)


@pytest.mark.parametrize(
    ("detailed", "adds_together", "told"), [(None, False, True), ("d.m", True, True), (None, False, False)]
)
def test_partitions_are_published_once_more_after_an_upgrade(
    *, detailed: str | None, adds_together: bool, told: bool
) -> None:
    """A topic of an earlier version has those of an empty value by that: they would be absent by their present name."""
    found = {"sweeping": False, "details": detailed, "partitions": None, "adds_together": adds_together}
    progress = Progress(json.dumps(found | ({"together": True, "keys": {}} if told else {})))
    assert (progress.sweeping, progress.parted, progress.detailed) == (False, "", "")
    assert not progress.adds_together, "those of large tables are published again too"
    progress.note_belongings(None)
    again = Progress(progress.cursor())
    assert (again.parted, again.detailed, again.adds_together) == (None, "", False)
    again.note_belongings(None)
    assert Progress(again.cursor()).detailed is None


def test_tables_whose_statistics_together_nobody_tells_are_kept_apart() -> None:
    """A metastore that tells none of many tables must not have the whole catalog fetched at each restart."""
    progress = Progress()
    progress.sweeping, progress.parted, progress.detailed = False, None, None
    again = Progress(progress.cursor(["d.a"], ["d.c", "d.b"]))
    assert (again.sweeping, [*again.dirty], again.untold) == (False, ["d.a"], ("d.b", "d.c"))
    assert (again.detailed, again.adds_together) == (None, False)
    many = Progress(again.cursor((), [f"d.t{number}" for number in range(DIRTY_MAX + 1)]))
    assert (many.sweeping, many.parted, many.detailed, many.untold) == (False, None, "", ())
    assert many.adds_together, "the last sweep asks for them again, and for nothing that was told"
    many.begin_sweep()
    assert not Progress(many.cursor()).adds_together, "after a void everything is told again"


def test_a_busy_table_does_not_hold_up_the_others() -> None:
    """A table that is written all the time goes to the end each time."""
    progress = Progress()
    progress.touch(["d.busy", "d.quiet"])
    progress.touch(["d.busy"])
    assert [*progress.dirty] == ["d.quiet", "d.busy"]
