"""A source whose connector becomes one that can't be a source."""

from __future__ import annotations

import random
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from stream.kafka.connection import KafkaCluster, KafkaUnreachable
from stream.sources.debezium.connector import Connector, KafkaConnect
from stream.sources.debezium.errors import ConnectUnreachable, DebeziumError
from stream.sources.debezium.messages import xa_transaction
from stream.sources.debezium.places import PLACES, Places, read_places
from stream.sources.debezium.reader import DebeziumReader
from stream.sources.debezium.schema import DebeziumSchema
from stream.sources.debezium.source import ConnectorOptions, DebeziumSource, _Watch
from stream.sources.mariadb.binlog.progress import Progress
from stream.sources.mariadb.binlog.reading.transaction import OpenTransaction
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBUnreachable, SourceHistoryLost
from stream.sources.mariadb.gtid import GtidPosition, MysqlGtid
from stream.sources.mariadb.position import ServerPosition
from stream.sources.mariadb.schema import TableFilter
from stream.sources.mariadb.source import MariaDBSource, PublisherLike, SourceOptions
from stream.sources.mariadb.watch import DumpWatch
from stream.wire.events import DescribeTable, ResumePoint, SourceTransaction


@pytest.fixture
def source() -> DebeziumSource:
    """A source that has read some of its connector's topics."""
    connector = ConnectorOptions("pre", KafkaConnect("http://nowhere"), KafkaCluster("nowhere:1"))
    made = DebeziumSource(SourceOptions(ConnectionSettings(product="MySQL"), "s/0"), connector, lambda: None)  # type: ignore[arg-type,return-value]
    made._places = Places(5, {("pre", 0): 7})
    made.status.position, made.status.timestamp = "MySQL56/", 7
    return made


def test_what_a_connector_has_hidden_is_void_also_when_it_is_mended(
    source: DebeziumSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator who follows the hint and starts the source again would keep rows of before a TRUNCATE."""
    told: list[Any] = []
    publisher: Any = SimpleNamespace(annotate=told.append, start_new_epoch=lambda *words: told.append(words))
    source._publisher = publisher

    def bad(*_: object) -> Any:
        raise DebeziumError("it hides changes")

    monkeypatch.setattr(source, "_ask_connector", bad)
    with pytest.raises(DebeziumError):
        source._look()
    annotation, epoch = told
    places = read_places(annotation[PLACES], "pre")
    assert places is not None
    assert places.offsets == {("pre", 0): 7}
    assert epoch == ("MySQL56/", 7, "history_lost")
    monkeypatch.setattr(source, "_ask_connector", lambda *_: SimpleNamespace(fingerprint=5))
    with pytest.raises(SourceHistoryLost):
        source._check_choice(places)


def test_places_are_told_in_the_epoch_that_begins_there(source: DebeziumSource) -> None:
    """A source that is killed in between goes on in the old epoch: at the new places it would miss what is before."""
    told: list[Any] = []

    def begin(*words: object) -> ResumePoint:
        told.append(words)
        return ResumePoint("s/0", 2, 1, "MySQL56/", 9, "MySQL56/")

    publisher: Any = SimpleNamespace(annotate=told.append, start_new_epoch=begin)
    progress = Progress(ResumePoint("s/0", 1, 1, "MySQL56/", 7, "MySQL56/"))
    source._new_epoch(publisher, progress, ServerPosition("MySQL56/", 9), "history_lost")
    epoch, annotation = told
    assert epoch == ("MySQL56/", 9, "history_lost")
    assert annotation.keys() == {PLACES}


@pytest.mark.parametrize("described", [True, False])
def test_the_place_of_a_table_is_told_before_it_is_described(source: DebeziumSource, *, described: bool) -> None:
    """A source that is killed in between would find a table that is cached, and no place to read its changes from."""
    told: list[Any] = []
    publisher: Any = SimpleNamespace(annotate=told.append, publish=told.append)
    catalog: Any = SimpleNamespace(is_settled=True)
    changes = [DescribeTable("s.t", (), ("id",))] if described else []
    transaction = SourceTransaction("MySQL56/", "MySQL56/", 9, changes)
    source._give(publisher, catalog, transaction)
    assert told[-1] is transaction
    assert [each.keys() for each in told[:-1]] == [{PLACES}] * described


def test_a_connect_that_is_away_hides_nothing(source: DebeziumSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the connector writes nothing either, so what was read goes on to be right."""

    def away(*_: object) -> Any:
        raise ConnectUnreachable("away")

    monkeypatch.setattr(source, "_ask_connector", away)
    source._look()


@pytest.mark.parametrize(("answers_in_s", "is_seen"), [(0.01, True), (3.0, True), (inf, False)])
def test_a_connect_that_answers_late_or_never_takes_a_share_of_the_time(
    source: DebeziumSource, monkeypatch: pytest.MonkeyPatch, answers_in_s: float, is_seen: bool
) -> None:
    """It is asked between two transactions: the source would publish one of them in ten seconds."""
    now, looks = [0.0], list[tuple[float, bool]]()

    def ask(timeout_s: float = 10.0) -> Any:
        began = now[0]
        now[0] += min(timeout_s, answers_in_s)
        looks.append((now[0] - began, answers_in_s <= timeout_s))
        if answers_in_s > timeout_s:
            raise ConnectUnreachable("no answer")
        return SimpleNamespace(fingerprint=5)

    monkeypatch.setattr("stream.sources.debezium.source.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(source, "_ask_connector", ask)
    while now[0] < 1_000.0:
        source._look()
        now[0] += 0.1
    assert looks[0][0] <= 1.0
    assert sum(spent for spent, _ in looks) <= 110.0
    assert looks[-1][1] is is_seen


def test_rows_as_of_xa_are_not_judged_while_nobody_tells_how_the_connector_is_set(
    source: DebeziumSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been set to tell no ends, of which the same rows come: then a new epoch begins, and nothing ends."""

    def read(*_: Any) -> Any:
        raise xa_transaction("s.t")

    monkeypatch.setattr(MariaDBSource, "_read", read)
    nothing: Any = None
    for connector, found in (
        (ConnectUnreachable("it rebalances"), ConnectUnreachable),
        (SimpleNamespace(fingerprint=6), SourceHistoryLost),
        (SimpleNamespace(fingerprint=5), DebeziumError),
    ):

        def ask(_: float, connector: Any = connector) -> Any:
            if isinstance(connector, Exception):
                raise connector
            return connector

        monkeypatch.setattr(source, "_ask_connector", ask)
        with pytest.raises(found):
            source._read(nothing, nothing, nothing)


@pytest.mark.parametrize("tells_ends", [True, False])
def test_a_source_that_begins_again_goes_on_with_the_time_of_its_position(
    source: DebeziumSource, monkeypatch: pytest.MonkeyPatch, tells_ends: bool
) -> None:
    """The markers of an idle shard would say that nothing is known of it."""
    made: list[DebeziumReader] = []
    position, publisher = "MySQL56/", cast("PublisherLike", None)
    schema = DebeziumSchema(ConnectionSettings(), TableFilter(("s",)), lambda _: True)
    source._connector = Connector("c", ("", ""), tells_ends=tells_ends)

    def opened(*_: Any) -> Any:
        topics: Any = SimpleNamespace()
        made.append(source._reader_of(topics, schema, position))
        raise MariaDBUnreachable("that was all")

    monkeypatch.setattr(source, "_open_log", opened)
    for method in ("_check", "_describe", "_warn_of"):
        monkeypatch.setattr(source, method, lambda *_: None)
    monkeypatch.setattr(schema, "load", lambda: None)
    with pytest.raises(MariaDBUnreachable):
        source._read(publisher, schema, Progress(ResumePoint("s/0", 1, 5, position, 1_234, position)))
    [reader] = made
    assert reader._finished(OpenTransaction(MysqlGtid("uuid", "", 1), 1 << 20), 0).timestamp == 1_234


@pytest.mark.parametrize(("begun_at", "is_kept"), [("MySQL56/", True), ("MySQL56/uuid:1-9", False), ("", False)])
def test_places_of_an_epoch_that_did_not_begin_are_not_those_of_another(
    source: DebeziumSource, monkeypatch: pytest.MonkeyPatch, begun_at: str, is_kept: bool
) -> None:
    """It would be read on from behind what changed since the position that is published."""
    monkeypatch.setattr(MariaDBSource, "_follow", lambda *_: None)
    source._begun_at = begun_at
    resume = ResumePoint("s/0", 1, 5, "MySQL56/", 1_234, "MySQL56/")
    source._follow(cast("PublisherLike", None), resume)
    assert (source._places is not None) is is_kept


@pytest.mark.parametrize("would_void", [False, True])
def test_places_are_told_at_once_where_a_restart_would_void_more(
    source: DebeziumSource, monkeypatch: pytest.MonkeyPatch, would_void: bool
) -> None:
    """Else only once in a while: it is told with each transaction."""
    told: list[Any] = []
    publisher: Any = SimpleNamespace(annotate=told.append)
    nothing: Any = None
    reader = DebeziumReader.__new__(DebeziumReader)
    monkeypatch.setattr(MariaDBSource, "_stamp", lambda *_: None)
    monkeypatch.setattr(DebeziumReader, "would_void", would_void)
    monkeypatch.setattr(DebeziumReader, "note_places", lambda _: None)
    source._annotate_at = inf
    source._stamp(publisher, reader, nothing)
    assert [each.keys() for each in told] == [{PLACES}] * would_void


def test_no_client_of_kafka_is_left_where_topics_cannot_be_listed(
    source: DebeziumSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source tries again for as long as Kafka is away, and each time would leave one more."""
    closed: list[str] = []
    schema = DebeziumSchema(ConnectionSettings(), TableFilter(("s",)), lambda _: True)
    schema.catalog.describe_as({"s.gone": DescribeTable("s.gone", (), ("id",))})

    def away() -> Any:
        raise KafkaUnreachable("away")

    topics = SimpleNamespace(
        statements="pre",
        transactions="pre.transaction",
        topic_of=lambda name: f"pre.{name}",
        existing=away,
        close=lambda: closed.append("topics"),
    )
    session = SimpleNamespace(_force_close=lambda: closed.append("session"))
    module = "stream.sources.debezium.source"
    monkeypatch.setattr(f"{module}.connect", lambda _: session)
    monkeypatch.setattr(f"{module}.fetch_all", lambda *_: [[1]])
    monkeypatch.setattr(f"{module}.ConnectorTopics", lambda *_: topics)
    with pytest.raises(KafkaUnreachable):
        source._open_log(schema, "MySQL56/")
    assert closed == ["session", "topics"]


def test_an_epoch_begins_where_the_topics_end_and_nothing_is_prepared(
    source: DebeziumSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is prepared before its place may be committed behind it. No client of Kafka is left of the look."""
    asked: list[str] = []

    def answer(what: str, value: Any) -> Any:
        asked.append(what)
        return value

    topics = SimpleNamespace(
        statements="pre",
        transactions="pre.transaction",
        topic_of=lambda name: f"pre.{name}",
        existing=lambda: {"pre": 1, "pre.transaction": 1, "pre.s.t": 1},
        beginning=lambda found: answer("ends", {(name, 0): 3 for name in found}),
        close=lambda: asked.append("closed"),
    )
    at = ServerPosition("MariaDB/0-1-5", 9)
    module = "stream.sources.debezium.source"
    monkeypatch.setattr(f"{module}.ConnectorTopics", lambda *_: topics)
    monkeypatch.setattr(f"{module}.fetch_all", lambda *_: [("s", "t"), ("s", "u")])
    monkeypatch.setattr(f"{module}.check_nothing_is_prepared", lambda _: asked.append("prepared"))
    monkeypatch.setattr(f"{module}.end_of_log", lambda _: answer("logged", GtidPosition.parse(at.position)))
    monkeypatch.setattr(f"{module}.current_position", lambda _: answer("visible", at))
    monkeypatch.setattr(source, "_ask_connector", lambda *_: SimpleNamespace(fingerprint=6))
    assert source._begin(cast("Any", None)) is at
    assert asked == ["ends", "closed", "prepared", "logged", "visible", "prepared"]
    assert source._places == Places(6, {("pre", 0): 3, ("pre.transaction", 0): 3, ("pre.s.t", 0): 3})


def test_who_watches_the_server_looks_at_the_connector_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was set to hide changes would go on to be believed until the source begins again."""
    looked: list[str] = []
    monkeypatch.setattr(DumpWatch, "check", lambda *_: looked.append("server"))
    _Watch(ConnectionSettings(), 1, lambda: looked.append("connector")).check("MySQL56/")
    assert looked == ["server", "connector"]


def many(count: int, digits: int = 3) -> dict[tuple[str, int], int]:
    """The places in the topics of so many tables, whose names are as hard to compress as they get."""
    rng = random.Random(1)
    return {(f"pre.s.{rng.randbytes(15).hex()}", 0): 10**digits + rng.randrange(10**digits) for _ in range(count)}


def test_a_source_of_hundreds_of_tables_keeps_its_places(source: DebeziumSource) -> None:
    """Those of 400 tables had no room in its state, and it ended before it had published anything."""
    told: list[Any] = []
    publisher: Any = SimpleNamespace(annotate=told.append)
    source._places = Places(5, many(400))
    source._tell(publisher)
    assert read_places(told[0][PLACES], "pre") == source._places


def test_places_without_room_leave_those_of_before(source: DebeziumSource) -> None:
    """They are right, too. But not for a topic that is not in them, nor in an epoch that begins."""
    told: list[Any] = []
    words = {"start_new_epoch": lambda *_: told.append("epoch"), "annotate": told.append}
    source._publisher = publisher = cast("PublisherLike", SimpleNamespace(**words))
    known = many(600)
    source._places = Places(5, dict(list(known.items())[:400]))
    source._tell(publisher)
    source._places = Places(5, known)
    [kept], *topics = told, *known
    tables = [topic.removeprefix("pre.") for topic, _ in topics]
    with capture_logs() as logs:
        for described in ((), tables[:1], ["s.without_a_topic"]):
            source._tell(publisher, described)
    assert told == [kept]
    [warning] = logs
    assert "within the retention.ms" in warning["hint"]  # later the topics have nothing there any more
    with pytest.raises(DebeziumError, match="600 partitions"):
        source._tell(publisher, tables[-1:])
    source._void_what_follows(source._places)
    assert told[-1] == "epoch"
    assert read_places(told[-2][PLACES], "pre") == Places(-1)
    source._places, source._told = Places(5, known), ""
    with pytest.raises(DebeziumError, match="600 partitions"):
        source._tell(publisher)
