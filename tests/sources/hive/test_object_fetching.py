"""What is to be fetched of databases and functions, while the log goes on and the metastore fails."""

from __future__ import annotations

from math import inf
from typing import Any, cast

import pytest

from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.live.objects import LOOK_AGAIN_S, Objects
from stream.sources.hive.recent_drops import RecentDrops
from stream.sources.hive.refusals import RETRY_MAX_S, RETRY_S, Refusals
from stream.sources.hive.rpc.connection import MetastoreRefused, MetastoreTimeout, MetastoreUnreachable
from stream.sources.hive.rpc.thrift import text
from stream.sources.hive.structs import ThriftError
from stream.wire.events import DROPS_KEPT, Change, ObjectImage, ObjectSet

WRITTEN = ObjectImage("database", 0, ("s",), "written")
ALL = ObjectSet("database", 0, "begun")


class Databases:
    """A metastore with some databases, and a log in which the next look for its end may find something."""

    catalog = "hive"

    def __init__(self) -> None:
        self.drops = RecentDrops()
        self.now_s = 0.0
        self.comment = b"first"
        self.names = ["s"]
        self.named: list[tuple[str, str]] = []
        """Its functions."""
        self.objects = Objects(cast("Metastore", self), self.publish, self.position, self.drops, lambda: self.now_s)
        self.fails: Exception | None = None
        """Of each look at a database."""
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
        return [*self.names]

    def database(self, db: str) -> dict[int, Any] | None:
        """The database."""
        if self.fails is not None:
            raise self.fails
        return {2: text(self.comment.decode())} if db in self.names else None

    def function(self, db: str, name: str) -> dict[int, Any] | None:
        """The function."""
        return dict(self.functions()).get((db, name))

    def functions(self) -> list[tuple[tuple[str, str], dict[int, Any]]]:
        """By database and name."""
        return [(each, {1: text(each[1]), 2: text(each[0])}) for each in self.named]

    def catalog_object(self) -> None:
        """Not told."""

    def last_event(self) -> int:
        """The log's end. Whatever else it fails in, this it answers."""
        return self.end


def run(databases: Databases) -> list[Change]:
    """Does all that is due; what was published meanwhile, and is taken away."""
    while databases.objects.step():
        pass
    found = list(databases.published)
    databases.published.clear()
    return found


def dropped(changes: list[Change]) -> list[tuple[str, tuple[str, ...]]]:
    """Kind and name of what the changes say is gone."""
    return [(each.kind, each.name) for each in changes if isinstance(each, ObjectImage) and each.change == "dropped"]


def images(databases: Databases) -> list[bytes | None]:
    """Those that were published, and are taken away."""
    found = [each.image for each in databases.published if isinstance(each, ObjectImage)]
    databases.published.clear()
    return found


def test_what_no_event_tells_of_is_looked_for_now_and_then() -> None:
    """An ALTER DATABASE of the comment is not logged: what differs is published, what does not is not."""
    databases = Databases()
    databases.objects.note(ALL)
    while databases.objects.step():
        pass
    assert images(databases) == [b'{"description":"first"}']
    databases.comment = b"second"
    assert not databases.objects.step(), "it is not time"
    for expected in ([b'{"description":"second"}'], []):
        databases.now_s += LOOK_AGAIN_S
        while databases.objects.step():
            pass
        assert images(databases) == expected
    databases.fails, databases.comment = MetastoreRefused("get_database_req", 2, "MetaException"), b"third"
    databases.now_s += LOOK_AGAIN_S
    while databases.objects.step():
        pass
    assert images(databases) == [], "a metastore that refuses holds up nothing"
    databases.fails = None
    databases.now_s += LOOK_AGAIN_S
    while databases.objects.step():
        pass
    assert images(databases) == [b'{"description":"third"}']


def test_what_went_without_an_event_is_looked_for_now_and_then() -> None:
    """The drop of a remote database is not logged: it would be listed for ever. What went with an event is no news."""
    databases = Databases()
    databases.names, databases.named = ["r", "s", "t"], [("s", "f"), ("s", "g")]
    for kind in ("database", "function"):
        databases.objects.note(ObjectSet(kind, 0, "void"))
    run(databases)
    databases.names, databases.named = ["s"], [("s", "g")]
    databases.objects.note(ObjectImage("database", 0, ("t",), "dropped"))
    databases.now_s += LOOK_AGAIN_S
    assert dropped(run(databases)) == [("database", ("r",)), ("function", ("s", "f"))]
    databases.now_s += LOOK_AGAIN_S
    assert run(databases) == []


def test_a_database_that_goes_while_databases_are_compared_is_gone() -> None:
    """It was listed, and is not there when it is its turn."""
    databases = Databases()
    databases.objects.note(ALL)
    run(databases)
    databases.now_s += LOOK_AGAIN_S
    assert databases.objects.step()
    databases.names = []
    assert dropped(run(databases)) == [("database", ("s",))]


def test_the_first_look_after_a_restart_publishes_all_once() -> None:
    """What was published before and is gone since cannot be known; a set that is whole anew does not have it."""
    databases = Databases()
    databases.named = [("s", "f")]
    assert run(databases) == []
    databases.now_s += LOOK_AGAIN_S
    found = run(databases)
    whole = [(each.kind, each.change) for each in found if isinstance(each, ObjectSet)]
    assert whole == [(kind, change) for kind in ("database", "function") for change in ("begun", "complete")]
    assert [each.name for each in found if isinstance(each, ObjectImage)] == [("s",), ("s", "f")]
    for _ in range(2):
        databases.now_s += LOOK_AGAIN_S
        assert run(databases) == []


def test_functions_go_with_their_database() -> None:
    """Later versions than 4.0.1 log no DROP_FUNCTION for them. Where one was logged, nothing is asked for."""
    databases = Databases()
    databases.named = [("s", "f"), ("s", "g"), ("t", "f")]
    databases.objects.note(ObjectSet("function", 0, "void"))
    run(databases)
    databases.named = [("t", "f")]
    databases.objects.note(ObjectImage("function", 0, ("s", "g"), "dropped"))
    databases.objects.note(ObjectImage("database", 0, ("s",), "dropped"))
    assert dropped(run(databases)) == [("function", ("s", "f"))]


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


@pytest.mark.parametrize("first", [WRITTEN, ALL])
@pytest.mark.parametrize("void", ["everything", "the set"])
def test_what_was_read_before_a_void_is_not_published_after_it(first: ObjectImage | ObjectSet, void: str) -> None:
    """The fold would take it for newer than the event that could not be read. It is read again."""
    databases = Databases()
    databases.objects.note(first)
    read = databases.database

    def voided(name: str) -> dict[int, Any] | None:
        found = read(name)
        if void == "everything":
            databases.objects.want_catalog()
        else:
            databases.objects.note(ObjectSet("database", 0, "void"))
        databases.database = read  # type: ignore[method-assign]
        return found

    databases.database = voided  # type: ignore[method-assign, assignment]
    assert databases.objects.step()
    assert not [each for each in databases.published if isinstance(each, ObjectImage)]
    assert databases.objects.is_due
    databases.objects._sets &= {"database"}
    while databases.objects.is_due:
        databases.objects.step()
    assert next(each.change for each in databases.published if isinstance(each, ObjectImage)) == "image"


@pytest.mark.parametrize("first", [WRITTEN, ALL])
def test_what_was_read_before_too_many_drops_is_read_again(first: ObjectImage | ObjectSet) -> None:
    """The fold could not tell its image from one of a dropped database, and would wait for another."""
    databases = Databases()
    databases.objects.note(first)
    databases.drops.note(9, [ObjectImage("database", 0, (f"d{each}",), "dropped") for each in range(DROPS_KEPT + 1)])
    assert databases.objects.step()
    assert databases.objects.is_due
    assert not [each for each in databases.published if isinstance(each, ObjectImage)]
    databases.end = 9
    assert databases.objects.step()
    assert not databases.objects.is_due
    assert [each.change for each in databases.published if isinstance(each, ObjectImage)] == ["image"]


def test_drops_count_by_set() -> None:
    """Drops of another table, or of one that is gone, hold nothing up."""
    drops = RecentDrops()
    drops.note(5, [ObjectImage("partition", 7, (str(each),), "dropped") for each in range(DROPS_KEPT)])
    assert drops.allow("partition", 7, 1)
    drops.note(6, [ObjectImage("partition", 7, ("last",), "dropped")])
    assert not drops.allow("partition", 7, 4)
    assert drops.allow("partition", 7, 5)
    assert drops.allow("partition", 8, 1)
    drops.forget(7)
    assert drops.allow("partition", 7, 1)


@pytest.mark.parametrize(
    "error",
    [
        MetastoreRefused("get_database_req", 2, "MetaException"),
        MetastoreTimeout("get_database_req: the metastore at a:1 did not answer in time"),
        ThriftError("the answer is larger than 536870912 bytes"),
    ],
    ids=["refused", "late", "too large"],
)
@pytest.mark.parametrize("first", [WRITTEN, ALL])
def test_what_is_refused_holds_up_nothing_and_is_asked_for_again(
    first: ObjectImage | ObjectSet, error: Exception
) -> None:
    """One damaged database must not stop the tables' bootstrap, which goes on only when `step` returns."""
    databases = Databases()
    databases.fails = error
    databases.objects._look_at_s = inf
    databases.objects.note(first)
    for _ in range(3):
        assert databases.objects.step()
        assert not databases.objects.step(), "not at once"
        assert databases.objects.is_due, "a restart asks at once"
        databases.now_s += RETRY_MAX_S
    databases.fails = None
    assert databases.objects.step()
    assert not databases.objects.is_due
    assert "image" in [each.change for each in databases.published]  # type: ignore[union-attr]


def test_the_wait_after_a_refusal_doubles_up_to_a_bound() -> None:
    """A metastore that lacks a call for good is not asked without end; one that was busy is asked soon."""
    now_s = 0.0
    refusals = Refusals[str](lambda: now_s)
    waits: list[float] = []
    for _ in range(8):
        refusals.note("x")
        asked_s = now_s
        while not refusals.due():
            now_s += RETRY_S / 2
        waits.append(now_s - asked_s)
    assert waits == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0, 600.0]
    assert refusals.due() == [], "it is being asked for"
    now_s += RETRY_MAX_S
    assert refusals.due() == ["x"], "nobody said what came of it"
    refusals.forget("x")
    now_s += RETRY_MAX_S
    assert refusals.due() == []
