"""Source, owner, front and client in one process: the real code of each, and between them what a version says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from consumers.owner.client import hello
from consumers.owner.framing import encode_frame
from serving.client import Session
from serving.client.sending.requests import arguments
from serving.client.wire import HttpRequest
from serving.http.app import make_app
from serving.http.front import make_front
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace
from stream.wire.batch import Framer
from stream.wire.events import VALUE, Column, DescribeTable, RowChange, SourceTransaction
from stream.wire.keys import Layout, row_key
from tests.consumers.histories import SHARD
from tests.consumers.owning import KEYSPACE, Owner
from tests.upgrades import next_version
from tokens import Vector

TABLE = "shop.items"
COMPONENTS = ("source", "consumer", "front", "client")


class Installation:
    """One of everything. ``upgraded``: the components that are of the next version."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.upgraded: set[str] = set()
        self.owner = Owner(directory)
        self.statuses: list[int] = []
        self._patch = monkeypatch
        self._framer = Framer(SHARD, Layout(1), nonce=7)
        self._framer.start_epoch("MariaDB/0-1-0", 1_700_000_000, "first_start")
        self._written = 0
        self._log: list[bytes] = []
        self._session: Session | None = None
        self.publish(DescribeTable(TABLE, (Column("id", "int", True), Column("v", "int", True)), ("id",)))

    def upgrade(self, component: str) -> None:
        """Replaces one component by the next version's."""
        self.upgraded.add(component)
        self._speak()
        if component == "source":
            self.append(*next_version.announcements(SHARD))

    def go_back(self, component: str) -> None:
        """Replaces one component by this version's again."""
        self.upgraded.remove(component)
        self._speak()

    def _speak(self) -> None:
        by_consumer = next_version.frame if "consumer" in self.upgraded else encode_frame
        by_front = next_version.frame if "front" in self.upgraded else encode_frame
        self._patch.setattr("consumers.owner.connection.encode_frame", by_consumer)
        self._patch.setattr("consumers.owner.client.encode_frame", by_front)
        greeting = next_version.hello if "front" in self.upgraded else hello
        self._patch.setattr("consumers.owner.client.hello", greeting)

    def publish(self, *changes: Any) -> str:
        """One transaction through publisher and fold; its position."""
        self._written += 1
        gtid = f"MariaDB/0-1-{self._written}"
        transaction = SourceTransaction(gtid, gtid, 1_700_000_000 + self._written, list(changes))
        self._framer.add(transaction, 0, len(changes))
        batch = self._framer.take()
        messages = [value for _, value in batch.records]
        self.append(*(next_version.topic(messages, SHARD) if "source" in self.upgraded else messages))
        return gtid

    def append(self, *messages: bytes) -> None:
        """Puts messages into the log; the consumer folds what it has not."""
        self._log += messages
        self.consume()

    def consume(self) -> None:
        """The consumer folds from where it is; as after its restart."""
        partition = self.owner.partition
        offset = partition.store.state.head.offset
        partition.store.fold(list(enumerate(self._log[offset:], offset)))
        partition.wake()

    def write(self, key: int, value: int) -> str:
        """Writes one row."""
        return self.publish(RowChange(row_key(TABLE, [key]), VALUE, b'{"id":%d,"v":%d}' % (key, value)))

    @property
    def session(self) -> Session:
        """The session of one reader, which outlives every upgrade. The next version's client reads it from its text."""
        if self._session is None:
            self._session = Session(self._send, Vector())
        return self._session

    def hand_over(self) -> None:
        """The reader continues in a new process, from its session's text."""
        self._session = Session(self._send, *Vector.parse_known(self.session.token))

    def _send(self, request: HttpRequest) -> tuple[int, bytes]:
        return asyncio.run(self._serve(request))

    async def _serve(self, request: HttpRequest) -> tuple[int, bytes]:
        host, port = await self.owner.server.start()
        front = make_front([RowSpace(KEYSPACE, Layout(1), "shop")], Locations(fixed={(KEYSPACE, 0): f"{host}:{port}"}))
        app = make_app(front)
        transport = httpx2.ASGITransport(next_version.NextFront(app) if "front" in self.upgraded else app)
        asked = arguments("http://front", request)
        if "client" in self.upgraded:
            asked["headers"] = {**(asked["headers"] or {}), "freshet-later": "x", "accept": "application/*"}
        try:
            async with httpx2.AsyncClient(transport=transport, base_url="http://front") as http:
                response = await asyncio.wait_for(http.request(**asked), 20)
        finally:
            for close in front.closers:
                await close()
            await self.owner.server.stop()
        self.statuses.append(response.status_code)
        return response.status_code, response.content
