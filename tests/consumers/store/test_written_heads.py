"""Which part of the head a commit writes: what has changed since the one before, so that all of it is in the store."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.fold.state import Backfill, Changes, Dropped, Head, Lineage, Scope, Topology, Void, head_entries
from consumers.store.errors import DiskFullError
from consumers.store.store import PartitionStore, StoreView
from tests.consumers.storing import change, crash, open_at

numbers = st.integers(1, 3)
no_text = st.just("")
shards = st.sampled_from(["shop/0", "shop/1"])
scopes = st.tuples(st.sampled_from(["*", "shop.t", "shop.u", "shop.v"]), shards)
PARTS: dict[str, Any] = {
    "lineages": st.dictionaries(shards, st.builds(Lineage, numbers, numbers, numbers, no_text, numbers, no_text)),
    "voids": st.dictionaries(scopes, st.builds(Void, numbers, numbers, no_text), max_size=3),
    "topologies": st.dictionaries(
        shards,
        st.builds(Topology, numbers, numbers, st.just(("shop/0",)), st.just({"shop/1": 1}), st.just({}), st.just(())),
    ),
    "scopes": st.dictionaries(shards, st.builds(Scope, numbers, numbers)),
    "backfills": st.dictionaries(scopes, st.builds(Backfill, numbers, numbers, numbers, no_text, numbers)),
    "dropped": st.dictionaries(scopes, st.builds(Dropped, numbers, numbers, no_text)),
}
changed = st.sampled_from([*PARTS]).flatmap(lambda part: st.tuples(st.just(part), PARTS[part]))
ways = st.sampled_from(
    ["commit", "freeze", "write", "full before", "full after", "crash", "close", "checkpoint", "restored"]
)


def write_badly(store: PartitionStore, *, is_there: bool) -> None:
    """A commit that ends with an error, with its file in the store or without it."""
    ingest = store._rocks.ingest

    def fail(*arguments: Any) -> int:
        if is_there:
            ingest(*arguments)
        raise DiskFullError("full", hint="free some")

    with patch.object(store._rocks, "ingest", fail), suppress(DiskFullError):
        store.commit()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(changed, ways), max_size=25))
def test_after_any_schedule_the_store_has_the_whole_head(plan: list[Any]) -> None:
    """Of the offset that is durable: after commits that failed, crashes, and in copies and what is made of them."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "first"
        store, heads = open_at(directory), {0: Head()}
        copy: Path | None = None
        for number, step in enumerate(plan):
            if isinstance(step, tuple):
                part, values = step
                store.apply(Changes(store.state.head.offset + 1, {})._replace(**{part: values}))
                heads[store.state.head.offset] = store.state.head.copy()
            elif step in ("commit", "freeze", "write"):
                getattr(store, step)()
            elif step.startswith("full"):
                write_badly(store, is_there=step == "full after")
            elif step == "checkpoint":
                copy = Path(name) / str(number) / "shop" / "3"
                copy.parent.mkdir(parents=True)
                store.checkpoint(copy)
                with StoreView(copy) as view:
                    assert view.head == heads[store.committed_offset]
            else:
                store.close(commit=step == "close")
                if step == "restored" and copy is not None:
                    directory = copy.parents[1]
                store = open_at(directory)
                assert store.state.head == heads[store.committed_offset]
        store.close()
        with StoreView(store.directory) as view:
            assert view.head == store.state.head
            assert dict(view.items()) == (head_entries(view.head) if view.head.offset else {})


def test_a_commit_does_not_write_what_it_knows_to_be_there(tmp_path: Path) -> None:
    """The voids of ten thousand dropped tables cost each commit 60 ms, most of it between two messages."""
    store = open_at(tmp_path)
    voids = {(f"shop.gone{number}", "shop/0"): Void(1, number, "") for number in range(1_000)}
    store.apply(change(1, {}, voids=voids))
    assert (done := store.commit()) is not None
    assert done.rows > len(voids)
    store.apply(change(2, {}, voids={("shop.t", "shop/0"): Void(1, 2, "")}))
    assert (done := store.commit()) is not None
    assert done.rows == 6
    crash(store)
    again = open_at(tmp_path)
    assert len(again.state.head.voids) == 1_001
    again.close()
