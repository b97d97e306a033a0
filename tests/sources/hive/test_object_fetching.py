"""What is to be fetched of databases and functions, while the log goes on and the metastore fails."""

from __future__ import annotations

from typing import Any, cast

import pytest

from stream.sources.hive.live.connection import MetastoreUnreachable
from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.live.objects import Objects
from stream.wire.events import Change, ObjectImage, ObjectSet

WRITTEN = ObjectImage("database", 0, ("s",), "written")
ALL = ObjectSet("database", 0, "begun")


class Databases:
    """A metastore with one database, and a log in which the next look for its end may find something."""

    catalog = "hive"

    def __init__(self) -> None:
        self.objects = Objects(cast("Metastore", self), self.publish, self.position)
        self.published: list[Change] = []
        self.found: list[ObjectImage | Exception | None] = []
        self.end = 0

    def publish(self, changes: list[Change]) -> None:
        """Takes what is published."""
        self.published += changes

    def position(self) -> int:
        """The log's end, and what was read up to there."""
        self.end += 1
        found = self.found.pop(0) if self.found else None
        if isinstance(found, Exception):
            raise found
        if found is not None:
            self.objects.note(found)
        return self.end

    def databases(self) -> list[str]:
        """The names."""
        return ["s"]

    def database(self, _: str) -> dict[int, Any]:
        """The database."""
        return {}


@pytest.mark.parametrize("first", [WRITTEN, ALL])
def test_what_is_written_while_it_is_fetched_is_fetched_again(first: ObjectImage | ObjectSet) -> None:
    """The fold refuses the image that was read before the write."""
    databases = Databases()
    databases.objects.note(first)
    databases.found = [None, WRITTEN]
    assert databases.objects.step()
    assert databases.objects.is_due
    assert databases.objects.step()
    assert not databases.objects.is_due


@pytest.mark.parametrize("first", [WRITTEN, ALL])
@pytest.mark.parametrize("looks", [0, 1])
def test_a_fetch_that_failed_is_still_due(first: ObjectImage | ObjectSet, looks: int) -> None:
    """Whichever of its calls the metastore did not answer."""
    databases = Databases()
    databases.objects.note(first)
    databases.found = [*(None,) * looks, MetastoreUnreachable("no answer", hint="")]
    with pytest.raises(MetastoreUnreachable):
        databases.objects.step()
    assert databases.objects.is_due
