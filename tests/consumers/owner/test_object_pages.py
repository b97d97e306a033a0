"""Lists of objects with large images at their owner: a page ends by its bytes, too."""

from __future__ import annotations

import pytest

from consumers.owner.objects import answering
from consumers.owner.protocol import OwnerObjects
from stream.wire.keys import object_name
from tests.consumers.owner.test_owner_objects import LIST, Catalog, seen

SIZE = 100
NAMES = [object_name((f"d{number}", str(number))) for number in range(5)]


@pytest.fixture
def wide(held: Catalog, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """Table 7 with five partitions of a hundred bytes each, of which a page has room for two and a half."""
    monkeypatch.setattr(answering, "PAGE_BYTES_MAX", SIZE * 5 // 2)
    held.fill(0, kind="transactional", write_ids=LIST)
    held.set("begun")
    for number in range(5):
        held.object("image", f"d{number}", str(number), image=b"{}".ljust(SIZE))
    held.set("complete")
    return held


def pages(wide: Catalog) -> list[OwnerObjects]:
    """All of a list."""
    found = [wide.ask(write_ids=LIST, vector=seen(2))]
    while found[-1].after and len(found) < 10:
        found.append(wide.ask(write_ids=LIST, vector=seen(2), after=found[-1].after, version=found[-1].version))
    return found


def test_a_page_ends_where_its_bytes_do(wide: Catalog) -> None:
    """One of all would not fit into an answer, however often it is asked for; together they are the list."""
    found = pages(wide)
    assert [name for page in found for name in page.names] == NAMES
    assert [(page.served, page.count, len(page.images)) for page in found] == [(True, 2, 2), (True, 2, 2), (True, 1, 1)]


def test_a_page_has_one_object_however_large(wide: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any a reader would never come to the end."""
    monkeypatch.setattr(answering, "PAGE_BYTES_MAX", 1)
    assert [page.names for page in pages(wide)] == [[name] for name in NAMES]


def test_images_that_are_not_sent_do_not_count(wide: Catalog) -> None:
    """Names alone, a count, and what statistics are of."""
    wide.set("begun", "aggregate_statistics")
    wide.object("image", kind="aggregate_statistics")
    wide.set("complete", "aggregate_statistics")
    wanted = {"write_ids": LIST, "vector": seen(2)}
    named, counted = wide.ask(names_only=True, **wanted), wide.ask(count_only=True, **wanted)
    assert (named.names, named.after, counted.count, counted.after) == (NAMES, "", 5, "")
    found = wide.ask("aggregate_statistics", names=["[]"], **wanted)
    assert (found.served, found.compliant) == (True, [True])
