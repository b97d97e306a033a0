"""Tables and objects as Thrift: what the source wrote of them, in place of JSON, by the same proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consumers.owner.client import OwnerClient
from consumers.owner.protocol import FillTable, GetObjects, OwnerError
from stream.wire.keys import object_name
from tests.consumers.histories import event
from tests.consumers.owner.test_owner_objects import Catalog
from tests.consumers.owner.test_owner_tables import NAME, at, bind, catalog, image, mark, token
from tests.consumers.owning import KEYSPACE, Owner

LISTED = f"{NAME}:5:9223372036854775807::"


def there(ordinal: int, **fields: Any) -> bytes:
    """Partition ``d0`` of table 7."""
    record = {"kind": "partition", "table_id": 7, "name": object_name(("d0",)), "change": "image", "lo": "", "hi": ""}
    return catalog("CatalogObject", ordinal, record | {"image": b"{}", "struct": b"object"} | fields)


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    """Table 7 and a partition of it as JSON and as Thrift, and the watermark at 5."""
    owner = Owner(tmp_path)
    owner.fold(
        event("EpochStart", 1, gtid=at(1), position=at(0), reason="first_start"),
        mark(1),
        bind(2, 7),
        image(3, "created", b'{"v":1}', write_ids=LISTED, struct=b"table"),
        there(4),
        mark(5),
    )
    return owner


def objects(**wanted: Any) -> GetObjects:
    """Partition ``d0``, by the list."""
    names = [object_name(("d0",))]
    return GetObjects(
        0, KEYSPACE, "partition", NAME, write_ids=LISTED, vector=token(5), names=names, as_struct=True, **wanted
    )


def test_a_table_is_given_as_thrift_in_place_of_json(owner: Owner) -> None:
    """Whoever does not ask so gets none."""

    async def use(client: OwnerClient) -> None:
        found = await client.get_table(KEYSPACE, NAME, LISTED, 7, token(5), as_struct=True)
        assert (found.served, found.freshness, found.struct, found.image) == (True, "fresh", b"table", None)
        found = await client.get_table(KEYSPACE, NAME, LISTED, 7, token(5))
        assert (found.struct, found.image) == (None, b'{"v":1}')

    owner.run(use)


def test_what_is_not_proved_is_given_in_no_form(owner: Owner) -> None:
    """A list that the owner has not folded."""

    async def use(client: OwnerClient) -> None:
        later = LISTED.replace(":5:", ":6:")
        found = await client.get_table(KEYSPACE, NAME, later, 7, token(5), as_struct=True)
        assert (found.served, found.struct, found.image) == (False, None, None)

    owner.run(use)


def test_a_fill_has_no_thrift(owner: Owner) -> None:
    """It is JSON of the source, beside a folded struct of another version."""
    owner.fold(image(6, "written", None), mark(6))

    async def use(client: OwnerClient) -> None:
        stamp = (await client.get_table(KEYSPACE, NAME, LISTED, 7, token(6))).stamp
        offer = FillTable(0, KEYSPACE, 0, 7, NAME, "transactional", b'{"v":3}', LISTED, at(7), at(7), stamp)
        assert (await client.fill_table(offer)).accepted
        found = await client.get_table(KEYSPACE, NAME, LISTED, 7, token(7), as_struct=True)
        assert (found.served, found.filled, found.struct, found.image) == (True, True, None, None)

    owner.run(use)


def test_a_list_without_an_id_is_of_the_table_that_has_the_name(owner: Owner) -> None:
    """For Thrift alone, which demands the end of the log; anybody else has to say which table the list is of."""

    async def use(client: OwnerClient) -> None:
        found = await client.get_table(KEYSPACE, NAME, LISTED, 0, token(5), as_struct=True)
        assert (found.served, found.freshness, found.table_id, found.struct) == (True, "fresh", 7, b"table")
        listed = await client.get_objects(objects())
        assert (listed.served, listed.freshness, listed.table_id, listed.structs) == (True, "fresh", 7, [b"object"])
        other = await client.get_table(KEYSPACE, NAME, LISTED, 8, token(5), as_struct=True)
        assert (other.served, other.struct) == (False, None)
        with pytest.raises(OwnerError) as refused:
            await client.get_table(KEYSPACE, NAME, LISTED, 0, token(5))
        assert refused.value.code == "missing_write_ids"
        plain = objects()
        plain.as_struct = False
        with pytest.raises(OwnerError) as refused:
            await client.get_objects(plain)
        assert refused.value.code == "missing_write_ids"

    owner.run(use)


def test_objects_are_given_as_thrift_in_place_of_json(held: Catalog) -> None:
    """In the order of their names: None is one that does not exist, or that was published without. Names have none."""
    held.fill(2)
    held.object("image", "d1", "1", struct=b"one")
    names = [object_name((f"d{number}", str(number))) for number in (1, 0, 9)]
    found = held.ask(names=names, as_struct=True)
    assert (found.served, found.names, found.count) == (True, names, 2)
    assert (found.structs, found.images) == ([b"one", None, None], [])
    assert held.ask(names=names).structs == []
    assert held.ask(as_struct=True).structs == [None, b"one"]
    only = held.ask(names_only=True, as_struct=True)
    assert (len(only.names), only.structs, only.images) == (2, [], [])
