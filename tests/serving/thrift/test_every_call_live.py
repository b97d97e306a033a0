"""Each call that the Thrift front answers, beside a real metastore: the bytes are the metastore's own."""

from __future__ import annotations

import uuid

import pytest

from serving.thrift.calls import ANSWERED
from stream.sources.hive.rpc.thrift import long, record, text, texts
from stream.sources.hive.structs import I16, Struct
from tests.serving.thrift.engines import PROCESSOR, Engine, result_of
from tests.serving.thrift.test_thrift_live import Installation, direct, engine, from_cache, installation, request

__all__ = ["direct", "engine", "installation"]


@pytest.mark.parametrize("transactional", [False, True], ids=["external", "managed"])
def test_every_call_is_answered_as_the_metastore_answers(
    installation: Installation, engine: Engine, direct: Engine, transactional: bool
) -> None:
    """Calls that bring no list are made of an external table alone: a managed one is proved by its list."""
    catalog = installation.catalog
    name, parent = f"t{uuid.uuid4().hex[:8]}", f"t{uuid.uuid4().hex[:8]}"
    table_id = catalog.create(name, transactional=transactional, partitioned=True)
    catalog.create(parent, transactional=False)
    catalog.add_partitions(name, "2024-01-02", "2024-01-01", "a=b/c")
    catalog.add_primary_key(name, f"pk_{name}")
    catalog.add_primary_key(parent, f"pk_{parent}")
    catalog.add_foreign_key(name, parent, f"fk_{name}", f"pk_{parent}")
    listed = ""
    if transactional:
        catalog.write(name, v="2")
        listed = catalog.valid_write_ids(name)

    def with_list(number: int, found: Struct) -> Struct:
        return {1: record({**found, number: text(listed)} if listed else found)}

    of: Struct = {1: text(catalog.db), 2: text(name)}
    later: Struct = {1: text("hive"), 2: text(catalog.db), 3: text(name)}
    values, names = texts(["2024-01-02"]), texts(["p=2024-01-02", "p=none", "p=a%3Db%2Fc"])
    calls: dict[str, Struct] = {
        "get_table_req": request(catalog, name, *PROCESSOR, listed=listed),
        "get_partitions_by_names_req": with_list(8, {**of, 3: names, 5: texts(PROCESSOR), 10: long(table_id)}),
        "get_partition_names_ps_req": with_list(6, {**later, 4: values, 5: (I16, -1), 7: long(table_id)}),
        "get_partitions_req": with_list(5, {**later, 4: (I16, -1), 6: long(table_id)}),
        "get_partitions_ps_with_auth_req": with_list(
            8, {**later, 4: values, 5: (I16, -1), 6: text("me"), 7: texts(["us"]), 9: long(table_id)}
        ),
        "get_all_table_constraints": with_list(4, {**of, 3: text("hive"), 5: long(table_id)}),
    }
    plain: dict[str, Struct] = {
        "get_partition_names": {**of, 3: (I16, -1)},
        "get_partition_names_ps": {**of, 3: values, 4: (I16, -1)},
        "get_partitions_by_names": {**of, 3: names},
        "get_partitions": {**of, 3: (I16, -1)},
        "fetch_partition_names_req": {1: record({**later, 4: (I16, -1)})},
    }
    assert {*calls, *plain} == ANSWERED
    by_name = with_list(8, {**later, 6: text("me"), 7: texts(["us"]), 9: long(table_id), 13: names})
    again = [("get_partitions_ps_with_auth_req", by_name)]
    for call, asked in [*(calls if transactional else calls | plain).items(), *again]:
        reply = from_cache(installation, call, lambda call=call, asked=asked: engine.call(call, asked, 3))  # type: ignore[misc]
        assert reply == direct.call(call, asked, 3), call
        assert result_of(reply) is not None
