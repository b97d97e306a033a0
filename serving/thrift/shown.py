"""How a metastore shows a table to a kind of reader, as it was seen to do. Pure.

A metastore does not answer a table as it is stored: what an engine says of itself decides of ``accessType`` and of the
capabilities that a reader lacks (``MetastoreDefaultTransformer``), and its list decides whether the statistics hold
(``isStatsCompliant``). That is a function of the stored table and of the kind of reader. So the first of a kind is
answered by the metastore, and what it was shown is kept for that very version of the table.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

import xxhash

from stream.sources.hive.rpc.thrift import field
from stream.sources.hive.structs import BOOL, I64, MapValue, Struct, ThriftError, decode_struct
from tokens import ValidWriteIdList

COLUMNS_ACCURATE: Final = b"COLUMN_STATS_ACCURATE"
_PARAMETERS, _PARTITION_KEYS, _WRITE_ID, _COMPLIANT = 9, 8, 19, 20
_ACCESS, _READS, _WRITES = 22, 23, 24
FACTS_MAX: Final = 20_000
"""Tables of which it is kept what they tell."""
PARTITIONS_MAX: Final = 200_000
_STORAGE, _BUCKETS = 6, 6
"""Of ``Partition``, and of its ``StorageDescriptor``."""
_OF_READER: Final = frozenset({_PARAMETERS, _COMPLIANT, _ACCESS, _READS, _WRITES})
"""Fields of ``Table`` that depend on the reader. Of the parameters it is one alone."""


class Reader(NamedTuple):
    """What the metastore's answer depends on beside the table."""

    client: tuple[int, ...] = ()
    """Its ``ClientCapabilities``."""
    processor: tuple[str, ...] = ()
    """Its capabilities. Of who it says that it is (``processorIdentifier``), the metastore only logs."""


class Facts(NamedTuple):
    """What a stored table tells. ``digest``: of all of it."""

    digest: bytes
    write_id: int
    partition_keys: tuple[str, ...]


class Shown:
    """What tables were shown as: bounded, the ones that were used longest ago go first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held = 0
        self._results: OrderedDict[tuple[bytes, Reader, bool | None], bytes] = OrderedDict()
        self._facts: dict[bytes, Facts] = {}
        self._unbucketed: dict[bytes, bool] = {}

    def facts_of(self, table: bytes) -> Facts:
        """What a stored table tells. Raises `ThriftError`."""
        digest = xxhash.xxh3_128_digest(table)
        found = self._facts.get(digest)
        if found is None:
            if len(self._facts) >= FACTS_MAX:
                self._facts.clear()
            found = self._facts[digest] = _facts_of(digest, decode_struct(table))
        return found

    def is_unbucketed(self, partition: bytes) -> bool:
        """Whether a stored partition has no buckets: then it is shown to every reader as it is stored.

        Raises `ThriftError`.
        """
        digest = xxhash.xxh3_128_digest(partition)
        found = self._unbucketed.get(digest)
        if found is None:
            if len(self._unbucketed) >= PARTITIONS_MAX:
                self._unbucketed.clear()
            storage = field(decode_struct(partition), _STORAGE, {})
            found = self._unbucketed[digest] = field(storage, _BUCKETS, 0) <= 0
        return found

    def get(self, facts: Facts, reader: Reader, listed: ValidWriteIdList | None) -> bytes | None:
        """The call's result as it was shown to such a reader; None: nobody has seen it."""
        key = facts.digest, reader, _sees(facts, listed)
        found = self._results.get(key)
        if found is not None:
            self._results.move_to_end(key)
        return found

    def learn(
        self, stored: bytes, reader: Reader, listed: ValidWriteIdList | None, result: bytes, shown: Struct
    ) -> bool:
        """Keeps ``result``, the metastore's answer, if the table ``shown`` in it is ``stored`` as this reader sees it.

        Returns whether it is: it may be another version of the table. Raises `ThriftError`.
        """
        if not is_shown_as(decode_struct(stored), shown):
            return False
        facts = self.facts_of(stored)
        key = facts.digest, reader, _sees(facts, listed)
        self._held += len(result) - len(self._results.pop(key, b""))
        self._results[key] = result
        while self._held > self._bytes_max:
            self._held -= len(self._results.popitem(last=False)[1])
        return True


def _facts_of(digest: bytes, table: Struct) -> Facts:
    kind, write_id = table.get(_WRITE_ID, (I64, -1))
    keys = tuple(str(field(key, 1, "")).lower() for key in field(table, _PARTITION_KEYS, []))
    return Facts(digest, write_id if kind == I64 else -1, keys)


def _sees(facts: Facts, listed: ValidWriteIdList | None) -> bool | None:
    """Whether the write that set the table's statistics is valid for the reader; None: it gave no list."""
    return None if listed is None else facts.write_id < 1 or listed.is_valid(facts.write_id)


def is_shown_as(stored: Struct, shown: Struct) -> bool:
    """Whether two tables differ in nothing but in what depends on the reader.

    Of the parameters that is ``COLUMN_STATS_ACCURATE``: it is taken out where statistics do not hold, which
    ``isStatsCompliant`` says. Where it does not say so, the parameter was taken away by somebody else.
    """
    if any(stored.get(number) != shown.get(number) for number in (stored.keys() | shown.keys()) - _OF_READER):
        return False
    before, after = _parameters_of(stored), _parameters_of(shown)
    if shown.get(_COMPLIANT, (BOOL, True))[1] is False:
        accurate = before.pop(COLUMNS_ACCURATE, None)
        return after.pop(COLUMNS_ACCURATE, accurate) == accurate and before == after
    return before == after


def _parameters_of(table: Struct) -> dict[bytes, bytes]:
    _, found = table.get(_PARAMETERS, (0, None))
    if found is None:
        return {}
    if not isinstance(found, MapValue):
        raise ThriftError("the parameters of a table are no map")
    return dict(found.pairs)
