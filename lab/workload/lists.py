"""The write-id list that a metastore would return, built from its rows. Pure.

This follows ``TxnHandler.getValidWriteIdsForTable`` and ``TxnCommonUtils.createValidReadTxnList`` of Hive 4.0.1 line by
line. The fold computes the same lists in another way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tokens.writeids import NO_OPEN_ID, list_text


def server_list(
    name: str,
    rows: Iterable[tuple[int, int]],
    next_write_id: int,
    open_txns: Collection[int],
    aborted_txns: Collection[int],
    last_txn: int,
    own_txn: int = 0,
) -> str:
    """The list of the table ``name`` as text.

    ``rows``: its (write id, transaction) pairs. ``own_txn`` (0: no transaction) sees its own ids as valid, and the ids
    of later transactions as open.
    """
    txn_hwm = min(own_txn, last_txn) if own_txn else last_txn
    pairs = sorted(rows)
    hwm = max((write_id for write_id, txn in pairs if txn <= txn_hwm), default=0) or next_write_id - 1
    opened: list[int] = []
    aborted: list[int] = []
    found_valid = False
    for write_id, txn in pairs:
        if write_id > hwm:
            continue
        if txn > txn_hwm or (txn in open_txns and txn != own_txn):
            opened.append(write_id)
        elif txn in aborted_txns:
            aborted.append(write_id)
        else:
            found_valid = True
    min_open = opened[0] if opened else NO_OPEN_ID
    if not found_valid and (opened or aborted):
        hwm = min(opened + aborted)
        opened, aborted = ([hwm], []) if hwm == min_open else ([], [hwm])
    return list_text(name, hwm, min_open, opened, aborted)
