"""What calls ask for that a cache may answer. A call with a field that is not known here is the metastore's. Pure.

The numbers are field numbers of ``hive_metastore.thrift`` (4.0.1 to 4.2.0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from serving.thrift.shown import Reader
from stream.sources.hive.rpc.thrift import field
from stream.sources.hive.structs import LIST, STRING, Struct
from tokens import TokenError, ValidWriteIdList

EVERY_ID: Final = 2**63 - 1
"""The high-water mark of a list by which every id is valid."""


class OfTable(NamedTuple):
    """A table as a call names it, with what it brings of a transaction. ``table_id`` 0: not given."""

    db: str
    table: str
    write_ids: ValidWriteIdList | None = None
    table_id: int = 0


class TableCall(NamedTuple):
    """A table itself. ``reader``: who asks."""

    of: OfTable
    reader: Reader


class PartitionsCall(NamedTuple):
    """Partitions by their names. ``processor``: the capabilities of who asks.

    ``with_privileges``, ``in_struct``: as in `ListCall`.
    """

    of: OfTable
    names: tuple[str, ...]
    processor: tuple[str, ...] = ()
    with_privileges: bool = False
    in_struct: bool = False


class ListCall(NamedTuple):
    """All partitions, or the names of all. ``values``: of the first columns, "" for any. ``limit`` -1: there is none.

    ``with_privileges``: those of who asks, if its partitions have any. ``in_struct``: the list is in one.
    """

    of: OfTable
    values: tuple[str, ...] = ()
    limit: int = -1
    names_only: bool = False
    with_privileges: bool = False
    in_struct: bool = False


class ConstraintsCall(NamedTuple):
    """All constraints of a table."""

    of: OfTable


Asked = TableCall | PartitionsCall | ListCall | ConstraintsCall


def asked_by(method: str, arguments: Struct, catalog: str) -> Asked | None:
    """What a call asks of ``catalog``; None: it is for the metastore.

    Raises ``TypeError``, ``ValueError``, ``AttributeError``, ``OverflowError`` and their subclasses for values of other
    types.
    """
    read = _READ.get(method)
    return read(arguments, catalog) if read is not None else None


def table_in(result: Struct) -> Struct | None:
    """The table in what ``get_table_req`` returned; None: there is none."""
    kind_and_value = result.get(0)
    if kind_and_value is None:
        return None
    found: Struct | None = field(kind_and_value[1], 1)
    return found


def _get_table_req(arguments: Struct, catalog: str) -> Asked | None:
    request: Struct = field(arguments, 1)
    if not request.keys() <= {1, 2, 3, 4, 6, 7, 8, 9, 10, 11} or _has(request, 7):  # 7: with column statistics
        return None
    of = _of_table(request, catalog, db=1, table=2, in_catalog=4, write_ids=6, table_id=11)
    if of is None:
        return None
    client = tuple(int(each) for each in field(field(request, 3, {}), 1, []))
    reader = Reader(client, _texts(request, 8))
    return TableCall(of, reader)


def _get_partitions_by_names(arguments: Struct, catalog: str) -> Asked | None:
    of = _plain_table(arguments, {1, 2, 3}, catalog)
    return None if of is None else PartitionsCall(of, _texts(arguments, 3))


def _get_partitions_by_names_req(arguments: Struct, catalog: str) -> Asked | None:
    request: Struct = field(arguments, 1)
    # 4: with column statistics, 9: with file metadata, 11: without columns, 12 and 13: with some of the parameters
    if not request.keys() <= {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13} or _has(request, 4, 9, 11, 12, 13):
        return None
    of = _of_table(request, catalog, db=1, table=2, in_catalog=0, write_ids=8, table_id=10)
    return None if of is None else PartitionsCall(of, _texts(request, 3), _texts(request, 5), in_struct=True)


def _get_partition_names(arguments: Struct, catalog: str) -> Asked | None:
    of = _plain_table(arguments, {1, 2, 3}, catalog)
    return None if of is None else ListCall(of, (), _limit(arguments, 3), names_only=True)


def _get_partition_names_ps(arguments: Struct, catalog: str) -> Asked | None:
    of = _plain_table(arguments, {1, 2, 3, 4}, catalog)
    return None if of is None else ListCall(of, _texts(arguments, 3), _limit(arguments, 4), names_only=True)


def _get_partition_names_ps_req(arguments: Struct, catalog: str) -> Asked | None:
    request: Struct = field(arguments, 1)
    if not request.keys() <= {1, 2, 3, 4, 5, 6, 7} or 4 not in request:
        return None
    of = _of_table(request, catalog, db=2, table=3, in_catalog=1, write_ids=6, table_id=7)
    if of is None:
        return None
    return ListCall(of, _texts(request, 4), _limit(request, 5), names_only=True, in_struct=True)


def _get_partitions(arguments: Struct, catalog: str) -> Asked | None:
    of = _plain_table(arguments, {1, 2, 3}, catalog)
    return None if of is None else ListCall(of, (), _limit(arguments, 3))


def _get_partitions_req(arguments: Struct, catalog: str) -> Asked | None:
    request: Struct = field(arguments, 1)
    # 7: without columns, 8 and 9: with some of the parameters
    if not request.keys() <= {1, 2, 3, 4, 5, 6, 7, 8, 9} or _has(request, 7, 8, 9):
        return None
    of = _of_table(request, catalog, db=2, table=3, in_catalog=1, write_ids=5, table_id=6)
    return None if of is None else ListCall(of, (), _limit(request, 4), in_struct=True)


def _fetch_partition_names_req(arguments: Struct, catalog: str) -> Asked | None:
    asked = _get_partitions_req(arguments, catalog)
    return asked._replace(names_only=True, in_struct=False) if isinstance(asked, ListCall) else None


def _get_partitions_ps_with_auth_req(arguments: Struct, catalog: str) -> Asked | None:
    request: Struct = field(arguments, 1)
    # 4: values, 10: without columns, 11 and 12: with some of the parameters, 13: names, in place of values
    if not request.keys() <= {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13} or _has(request, 10, 11, 12):
        return None
    of = _of_table(request, catalog, db=2, table=3, in_catalog=1, write_ids=8, table_id=9)
    if of is None or (4 in request) == (13 in request):
        return None
    if 13 in request:
        names = _texts(request, 13)
        return PartitionsCall(of, names, with_privileges=True, in_struct=True) if _limit(request, 5) == -1 else None
    return ListCall(of, _texts(request, 4), _limit(request, 5), with_privileges=True, in_struct=True)


def _get_all_table_constraints(arguments: Struct, catalog: str) -> Asked | None:
    request: Struct = field(arguments, 1)
    if not request.keys() <= {1, 2, 3, 4, 5}:
        return None
    of = _of_table(request, catalog, db=1, table=2, in_catalog=3, write_ids=4, table_id=5)
    return None if of is None else ConstraintsCall(of)


GET_TABLE_REQ: Final = "get_table_req"
_READ: Final[Mapping[str, Callable[[Struct, str], Asked | None]]] = {
    GET_TABLE_REQ: _get_table_req,
    "get_partitions_by_names": _get_partitions_by_names,
    "get_partitions_by_names_req": _get_partitions_by_names_req,
    "get_partition_names": _get_partition_names,
    "get_partition_names_ps": _get_partition_names_ps,
    "get_partition_names_ps_req": _get_partition_names_ps_req,
    "fetch_partition_names_req": _fetch_partition_names_req,
    "get_partitions": _get_partitions,
    "get_partitions_req": _get_partitions_req,
    "get_partitions_ps_with_auth_req": _get_partitions_ps_with_auth_req,
    "get_all_table_constraints": _get_all_table_constraints,
}
ANSWERED: Final = frozenset(_READ)
"""The calls that a cache may answer."""
STILL: Final = frozenset({
    "set_ugi", "getMetaConf", "get_config_value", "getVersion", "getName", "getStatus", "aliveSince",
    "get_delegation_token", "renew_delegation_token", "cancel_delegation_token", "get_metastore_db_uuid",
    "open_txns", "commit_txn", "abort_txn", "abort_txns", "get_open_txns", "get_open_txns_req", "get_open_txns_info",
    "get_valid_write_ids", "allocate_table_write_ids", "heartbeat", "heartbeat_txn_range", "unlock",
})  # fmt: skip
"""Calls that neither show an object, or an event, nor change one. A transaction's writes are known by its lists."""


def _plain_table(arguments: Struct, numbers: set[int], catalog: str) -> OfTable | None:
    """The table that a call without a request struct names."""
    if not arguments.keys() <= numbers or (db := _db(field(arguments, 1), "", catalog)) is None:
        return None
    return OfTable(db, _name(arguments, 2))


def _has(request: Struct, *numbers: int) -> bool:
    """Whether one of these flags is set, or one of these texts is not empty."""
    return any(field(request, number, default=False) for number in numbers)


def _limit(found: Struct, number: int) -> int:
    return int(field(found, number, -1))


def _of_table(
    request: Struct, catalog: str, *, db: int, table: int, in_catalog: int, write_ids: int, table_id: int
) -> OfTable | None:
    """The table of a request, whose parts have these numbers. None: it is of another catalog, or its list is odd.

    That is one of another table, or of none, which a metastore reads otherwise; and one by which all ids that there
    will ever be are valid, as HiveServer2 has it outside of transactions: no entry covers that.
    """
    name, own = _db(field(request, db), field(request, in_catalog, ""), catalog), _name(request, table)
    if name is None:
        return None
    listed, text = None, field(request, write_ids)
    if text is not None:
        try:
            listed = ValidWriteIdList.parse(text)
        except TokenError:
            return None
        if listed.table != f"{name}.{own}".lower() or listed.hwm >= EVERY_ID:
            return None
    return OfTable(name, own, listed, max(0, int(field(request, table_id, 0))))


def _db(text: str, in_catalog: str, catalog: str) -> str | None:
    """The database in ``text``, which may name its catalog (``@hive#db``). None: it is of another one, or not plain."""
    if text.startswith("@"):
        in_catalog, found, text = text[1:].partition("#")
        if not found:
            return None
    is_ours = (in_catalog or DEFAULT_CATALOG).lower() == catalog
    return text.lower() if is_ours and text and not any(each in text for each in "#!.") else None


DEFAULT_CATALOG: Final = "hive"
"""The one of who names none, as far as a metastore is not told otherwise."""


def _name(found: Struct, number: int) -> str:
    name = field(found, number)
    if not name or "." in name:
        raise ValueError("a call names no table")
    return str(name).lower()


def _texts(found: Mapping[int, tuple[int, Any]], number: int) -> tuple[str, ...]:
    kind, value = found.get(number, (LIST, None))
    if value is None:
        return ()
    if kind != LIST or (value.values and value.element != STRING):
        raise ValueError(f"field {number} is no list of texts")
    return tuple(str(each) for each in field(found, number))
