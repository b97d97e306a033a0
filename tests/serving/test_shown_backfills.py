"""What a front tells of backfills: Kafka is asked once for many readers, and again once it may answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from consumers.owner.protocol import Statuses
from serving.errors import ReadError
from serving.http.app import make_app
from serving.http.front import make_front
from serving.http.status import backfills
from serving.http.status.answers import BackfillState
from serving.http.status.backfills import KEPT_S, Backfills
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace
from stream.kafka.connection import KafkaCluster, KafkaUnreachable
from stream.wire.keys import Layout
from tests.serving.asking import ask_app
from tests.serving.fakes import FakeOwner, Network
from tests.serving.test_status import told

READING = BackfillState("shop/0", "shop.items", 7, is_read=False)


class Kafka:
    """Answers with a table that is read, or not at all. Its clock is the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_up, self.asked, self.now = True, 0, 100.0
        monkeypatch.setattr(backfills, "_read", self.read)
        self.shown = Backfills(KafkaCluster("127.0.0.1:1"), lambda: self.now)

    def read(self, *_: Any) -> list[BackfillState]:
        self.asked += 1
        if not self.is_up:
            raise KafkaUnreachable("no broker answers")
        return [READING]

    async def told(self) -> list[BackfillState] | str:
        """What a reader gets, or the code of its error."""
        try:
            return await self.shown.of("shop", ["shop/0"])
        except ReadError as error:
            return error.code


@pytest.mark.parametrize("is_up", [True, False])
def test_kafka_is_asked_again_after_a_while_whatever_it_has_answered(
    monkeypatch: pytest.MonkeyPatch, is_up: bool
) -> None:
    """Readers that come at once, or soon, share an answer. An outage is not told for long behind its end."""
    kafka = Kafka(monkeypatch)
    kafka.is_up = is_up

    async def story() -> list[Any]:
        found = await asyncio.gather(*(kafka.told() for _ in range(3)))
        kafka.is_up = True
        kafka.now += KEPT_S
        found.append(await kafka.told())
        assert kafka.asked == 1
        kafka.now += 0.5
        return [*found, await kafka.told()]

    first = [READING] if is_up else "stream_unavailable"
    assert asyncio.run(story()) == [first] * 4 + [[READING]]
    assert kafka.asked == 2


def test_a_reader_that_leaves_takes_no_answer_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for the same one: its request may have ended by its own time."""
    kafka = Kafka(monkeypatch)

    async def story() -> list[BackfillState] | str:
        leaving, staying = (asyncio.create_task(kafka.told()) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        return await staying

    assert asyncio.run(story()) == [READING]
    assert kafka.asked == 1


class Filling(FakeOwner):
    """An owner of a table that is read from its beginning."""

    async def status(self, _: str) -> Statuses:
        """As `consumers.owner.client.OwnerClient.status`."""
        return Statuses(0, True, "", [told(0, 1.0, tables={"shop.items": False})])


def test_the_page_is_there_where_nobody_tells_how_far_backfills_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at when Kafka is away, too."""
    Network(monkeypatch, {"a:1": Filling()})
    front = make_front([RowSpace("shop", Layout(1))], Locations(fixed={("shop", 0): "a:1"}))
    page = ask_app(make_app(front), "GET", "/")
    assert (page.status_code, "shop.items" in page.text) == (200, True)
