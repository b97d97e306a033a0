"""Judges whether an answer missed a write, by the catalog's own record of versions."""

from __future__ import annotations

from typing import NamedTuple

from lab.workload.catalog import WorkloadCatalog, version_of
from lab.workload.log import event_id_of
from tokens import ValidWriteIdList


class JudgeVerdict(NamedTuple):
    """``needed``: the newest version inside the demand (0: the table is gone). ``wrong``: why; "" if it is right."""

    needed: int
    got: int
    wrong: str


def newest_version(
    catalog: WorkloadCatalog, table_id: int, valid_write_ids: str | None = None, position: str | None = None
) -> int:
    """The newest version of a table that a reader must see; 0 if the table has been dropped.

    A demand includes the versions whose write id is valid in its list (also the reader's own, uncommitted ones), and
    those committed at or before its ``position``. It never includes aborted versions.
    """
    wanted = ValidWriteIdList.parse(valid_write_ids) if valid_write_ids else None
    seen = event_id_of(position) if position else 0
    with catalog.snapshot() as read:
        rows = read.rows(
            "SELECT version, write_id, committed_event FROM catalog_versions WHERE table_id=%s ORDER BY version DESC",
            table_id,
        )
    for version, write_id, committed in rows:
        by_list = wanted is not None and write_id and wanted.is_valid(int(write_id))
        by_position = committed is not None and int(committed) <= seen
        if by_list or by_position:
            return int(version)
    return int(rows[-1][0]) if rows else 0


def judge(
    catalog: WorkloadCatalog,
    table_id: int,
    image: bytes,
    valid_write_ids: str | None = None,
    position: str | None = None,
) -> JudgeVerdict:
    """Whether ``image``, the answer for ``table_id`` to this demand, includes every write inside the demand."""
    got = version_of(image)
    needed = newest_version(catalog, table_id, valid_write_ids, position)
    if got >= needed:
        return JudgeVerdict(needed, got, "")
    demand = f"list {valid_write_ids or '(none)'}, position {position or '(none)'}"
    return JudgeVerdict(
        needed, got, f"table {table_id} was answered with version {got}, the demand includes {needed} ({demand})"
    )
