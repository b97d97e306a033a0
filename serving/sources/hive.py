"""A Hive Metastore as the source of truth for a catalog. Read in threads, over a bounded number of connections.

Lists have connections of their own: many long ones don't hold up the reads of tables.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from consumers.owner.objects.filter import FilterError
from serving.client.privileges.answers import GrantedObject, Privilege, RoleGrant
from serving.errors import ReadError
from serving.sources.breaker import Breaker
from serving.sources.hive_objects import read_objects
from serving.sources.hive_privileges import read_privileges, read_role_principals, read_roles, read_roles_of
from serving.sources.hive_tables import event_of, read_lists, read_table
from serving.sources.privileges import Member, Principal, SourcePrivileges
from serving.sources.source import (
    NOTHING,
    Folded,
    SourceLists,
    SourceObjects,
    SourceTable,
    SourceThreads,
    WantedObjects,
)
from stream.sources.hive.live.metastore import Metastore, MetastoreSettings
from stream.sources.hive.messages import HiveMessageError
from stream.sources.hive.rpc.connection import MetastoreError, MetastoreTimeUp, MetastoreUnreachable
from stream.sources.hive.structs import ThriftError

Found = TypeVar("Found")
READS_MAX: Final = 8
LISTS_MAX: Final = 4
TIMEOUT_S: Final = 8.0
"""Of all calls of a read together; below the time that a front waits for its source."""


class HiveTables:
    """A `serving.sources.source.TableSource`, `ObjectSource`, `ListSource` and `PrivilegeSource` over metastores."""

    def __init__(self, settings: MetastoreSettings, shard: str) -> None:
        self.shard = shard
        self._settings = replace(settings, timeout_s=min(settings.timeout_s, TIMEOUT_S))
        self._threads = SourceThreads("metastore-read", threads=READS_MAX)
        self._list_threads = SourceThreads("metastore-list", threads=LISTS_MAX)
        self._of_thread = threading.local()
        self._opened: list[Metastore] = []
        self._breaker = Breaker("the metastore")

    async def read(self, name: str, own_list: str | None = None, known: Folded = NOTHING) -> SourceTable:
        """See `TableSource`."""
        began_ms, read = _now_ms(), partial(read_table, name=name, own_list=own_list, known=known)
        found = await self._read(self._threads, read)
        return found._replace(as_of_ms=began_ms)

    async def read_objects(
        self, wanted: WantedObjects, own_list: str | None = None, known: Folded = NOTHING
    ) -> SourceObjects:
        """See `ObjectSource`."""
        began_ms, read = _now_ms(), partial(read_objects, wanted=wanted, own_list=own_list, known=known)
        found = await self._read(self._threads if wanted.names else self._list_threads, read)
        return found._replace(as_of_ms=began_ms)

    async def read_lists(self, names: Sequence[str], txn: int = 0, txns: str = "") -> SourceLists:
        """See `ListSource`."""
        return await self._read(self._threads, partial(read_lists, names=names, txn=txn, txns=txns))

    async def log_end(self) -> int:
        """The id of the last event in the metastore's log."""
        return await self._read(self._threads, Metastore.last_event)

    async def own_answers(self) -> str:
        """What of the metastore's settings makes its answers depend on more than the catalog; "": nothing."""
        return await self._read(self._threads, Metastore.own_answers)

    async def read_roles(self) -> SourcePrivileges[str]:
        """See `PrivilegeSource`."""
        return await self._read(self._threads, read_roles)

    async def read_role_principals(self, role: str) -> SourcePrivileges[RoleGrant]:
        """See `PrivilegeSource`."""
        return await self._read(self._threads, partial(read_role_principals, role=role))

    async def read_roles_of(self, principal: Principal) -> SourcePrivileges[RoleGrant]:
        """See `PrivilegeSource`."""
        return await self._read(self._threads, partial(read_roles_of, principal=principal))

    async def read_privileges(
        self, of: Principal | Member, on: GrantedObject | None, known: str = ""
    ) -> SourcePrivileges[Privilege]:
        """See `PrivilegeSource`."""
        threads = self._threads if on is not None else self._list_threads
        return await self._read(threads, partial(read_privileges, of=of, on=on, known=event_of(known)))

    async def close(self) -> None:
        """See `TableSource`."""
        self._threads.close()
        self._list_threads.close()
        for metastore in self._opened:
            metastore.close()

    async def _read(self, threads: SourceThreads, read: Callable[[Metastore], Found]) -> Found:
        self._breaker.check()
        return await threads.run(lambda: self._run(read))

    def _run(self, read: Callable[[Metastore], Found]) -> Found:
        metastore = self._metastore()
        metastore.limit(TIMEOUT_S)
        try:
            found = read(metastore)
        except MetastoreUnreachable as error:
            if isinstance(error, MetastoreTimeUp):
                self._breaker.succeeded()  # it answers, if slowly: a smaller read may be done in time
            else:
                self._breaker.failed(str(error))
            raise ReadError("source_unreachable", str(error), hint=error.hint) from error
        except ReadError:
            self._breaker.succeeded()
            raise
        except (FilterError, MetastoreError, ThriftError, HiveMessageError) as error:
            self._breaker.succeeded()  # an error is an answer, too
            code = "bad_filter" if isinstance(error, FilterError) else "source_failed"
            raise ReadError(code, str(error), hint=error.hint) from error
        self._breaker.succeeded()
        return found

    def _metastore(self) -> Metastore:
        metastore: Metastore | None = getattr(self._of_thread, "metastore", None)
        if metastore is None:
            metastore = self._of_thread.metastore = Metastore(self._settings)
            self._opened.append(metastore)
        return metastore


def _now_ms() -> int:
    """The clock that a demanded time is told by: the front's. A metastore has all that was committed by now."""
    return int(time.time() * 1000)
