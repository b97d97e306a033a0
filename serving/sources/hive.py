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
from serving.sources.source import SourceLists, SourceObjects, SourceTable, SourceThreads, WantedObjects
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

    async def read(self, name: str, own_list: str | None = None, known: str = "") -> SourceTable:
        """See `TableSource`."""
        self._breaker.check()
        at, began_ms = event_of(known), _now_ms()
        read = partial(read_table, name=name, own_list=own_list, known=at)
        found = await self._threads.run(lambda: self._run(read))
        return found._replace(as_of_ms=began_ms)

    async def read_objects(self, wanted: WantedObjects, own_list: str | None = None, known: str = "") -> SourceObjects:
        """See `ObjectSource`."""
        self._breaker.check()
        threads, at, began_ms = self._threads if wanted.names else self._list_threads, event_of(known), _now_ms()
        read = partial(read_objects, wanted=wanted, own_list=own_list, known=at)
        found = await threads.run(lambda: self._run(read))
        return found._replace(as_of_ms=began_ms)

    async def read_lists(self, names: Sequence[str], txn: int = 0, txns: str = "") -> SourceLists:
        """See `ListSource`."""
        self._breaker.check()
        return await self._threads.run(lambda: self._run(lambda metastore: read_lists(metastore, names, txn, txns)))

    async def read_roles(self) -> SourcePrivileges[str]:
        """See `PrivilegeSource`."""
        self._breaker.check()
        return await self._threads.run(lambda: self._run(read_roles))

    async def read_role_principals(self, role: str) -> SourcePrivileges[RoleGrant]:
        """See `PrivilegeSource`."""
        self._breaker.check()
        return await self._threads.run(lambda: self._run(lambda metastore: read_role_principals(metastore, role)))

    async def read_roles_of(self, principal: Principal) -> SourcePrivileges[RoleGrant]:
        """See `PrivilegeSource`."""
        self._breaker.check()
        return await self._threads.run(lambda: self._run(lambda metastore: read_roles_of(metastore, principal)))

    async def read_privileges(
        self, of: Principal | Member, on: GrantedObject | None, known: str = ""
    ) -> SourcePrivileges[Privilege]:
        """See `PrivilegeSource`."""
        self._breaker.check()
        threads, at = self._threads if on is not None else self._list_threads, event_of(known)
        return await threads.run(lambda: self._run(lambda metastore: read_privileges(metastore, of, on, at)))

    async def close(self) -> None:
        """See `TableSource`."""
        self._threads.close()
        self._list_threads.close()
        for metastore in self._opened:
            metastore.close()

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
