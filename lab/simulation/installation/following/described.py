"""Whether a table's rows are told behind a commit, as the topic says: a stream that begins there does not hear it."""

from __future__ import annotations

from collections.abc import Iterable

from lab.simulation.installation.committed import CommittedRecord, Point
from lab.simulation.kafka.log import PartitionLog
from lab.simulation.naive.messages import Unreadable, read_message


def is_described_as_told(logs: Iterable[PartitionLog], record: CommittedRecord, table: str, at: Point) -> bool:
    """Whether the last description of ``table`` up to a commit is one of a table whose rows are told, or none is left.

    A table's schema is not known between a DDL and the position at which the server was asked for it.
    """
    last, is_told = (-1, -1), True
    for log in logs:
        for each in log.committed(log.start, log.end):
            try:
                name, told = read_message(each.value, {})
            except Unreadable:
                continue
            if name == "TableSchema" and told["table"] == table:
                place, gtid = (told["epoch"], told["ordinal"]), told["gtid"].partition("/")[2]
                number = record.of_commit(told["epoch"], gtid)
                commit = record.histories[number].by_gtid.get(gtid)
                if commit is not None and (number, commit) <= at and place > last:
                    last, is_told = place, told["cacheable"]
    return is_told
