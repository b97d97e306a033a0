"""What commands make of the settings for what they run: each value reaches the place that is meant."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
import tomli_w
from pydantic import SecretStr

from consumers.process.run import OwnerSettings
from freshet import cli
from freshet.access.reloading import front_access
from freshet.commands.consume import consumption_settings, owner_settings
from freshet.commands.serve import _front, space_of
from freshet.commands.source import monitored, replicas_of, server_of
from freshet.keyspaces import full_table_name
from freshet.sections.access import OwnCertificate, TlsSettings, TokenSettings
from freshet.sections.limits import LimitsSettings
from freshet.sections.sources import MariaDBSourceSettings
from freshet.settings import (
    DAY_MS,
    ConsumerSettings,
    KafkaSettings,
    ServeSettings,
    Settings,
    SourceProcessSettings,
    load_settings,
)
from freshet.settings_errors import SettingsError
from serving.http.limits import CallerLimits, RequestLimits
from serving.reads.spaces import RowSpace
from stream.access.certificates import Certificates
from stream.access.grants import digest_of
from stream.kafka.advice import Advice
from stream.kafka.connection import KafkaCluster
from stream.sources.hive.live.following import FollowOptions
from stream.sources.hive.live.metastore import MetastoreSettings
from stream.sources.hive.rpc.transport import Access
from stream.sources.mariadb.connection import ConnectionSettings
from stream.sources.status import SourceStatus
from stream.wire.batch import BatchLimits

ROWS = {"kind": "mariadb", "databases": ["shop"]}
CONNECTOR = {"topic_prefix": "pre", "connect_url": "http://connect:8083"}
SOURCES: dict[str, dict[str, Any]] = {
    "source mariadb": {"source": ROWS},
    "source mysql": {"source": ROWS | {"kind": "mysql"}},
    "source debezium": {"source": ROWS | {"kind": "debezium"} | CONNECTOR},
    "source hive": {"kind": "catalog", "source": {"kind": "hive"}},
    "source workload": {"kind": "catalog", "source": {"kind": "workload"}},
}


class Started:
    """What the commands of sources would run, each with how it makes a publisher; and the topics that were made."""

    def __init__(self) -> None:
        self.sources: list[tuple[Any, Callable[[], Any]]] = []
        self.topics: list[tuple[Any, ...]] = []
        self.found: list[str] = []
        """What is wrong with the topic."""

    def advice(self, retention_ms: int) -> list[Advice]:
        return [Advice("kept_too_short", each, f"retention.ms={retention_ms}") for each in self.found]

    def run(self, source: Any, *_: object) -> None:
        self.sources.append((source, source._new_publisher))

    def run_workload(self, source: Any, new_publisher: Callable[[], Any], _: object) -> None:
        self.sources.append((source, new_publisher))

    def make_topics(self, _: object, keyspace: str, partitions: int, *, retention_ms: int) -> None:
        self.topics.append((keyspace, partitions, retention_ms))

    def make_requests_topic(self, _: object, keyspace: str) -> None:
        self.topics.append((keyspace,))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    """Nothing runs. The current directory is empty."""
    found = Started()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("freshet.commands.source.run_source", found.run)
    monkeypatch.setattr("lab.workload.run.run", found.run_workload)
    monkeypatch.setattr("stream.kafka.topics.ensure_topics", found.make_topics)
    monkeypatch.setattr("stream.kafka.topics.ensure_requests_topic", found.make_requests_topic)
    monkeypatch.setattr("stream.kafka.advice.advise", lambda _, __, retention_ms: found.advice(retention_ms))
    monkeypatch.setattr("stream.publish.publisher.Publisher", lambda *given, **more: (given, more))
    return found


def write(**settings: Any) -> None:
    """The settings of the current directory."""
    Path("freshet.toml").write_text(tomli_w.dumps(settings))


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("command", SOURCES)
def test_a_new_epoch_is_begun_by_the_source_and_allowed_to_its_publisher(
    command: str, is_new: bool, started: Started
) -> None:
    """States that contradict each other stop the publisher, which the hint of that error says to end so."""
    write(keyspaces={"k": SOURCES[command]})
    assert cli.run([*command.split(), "k", *(["--new-epoch"] if is_new else [])]) == 0
    [(source, make)] = started.sources
    _, publisher = make()
    assert publisher["new_epoch"] is is_new
    assert (source.new_epoch if command == "source workload" else source._new_epoch_for == "asked_for") is is_new


@pytest.mark.parametrize("command", SOURCES)
def test_a_publisher_and_its_topics_are_as_the_settings_say(command: str, started: Started) -> None:
    """A topic that is kept for less than was meant loses what nobody can publish again."""
    batches = {"batch_interval_ms": 12, "batch_bytes": 34_567, "frame_bytes_max": 4_321, "frame_rows_max": 765}
    keyspace = SOURCES[command] | {"partitions": 3, "retention_ms": 2 * DAY_MS, "invalidate": ["shop.carts"]}
    write(keyspaces={"k": keyspace}, publisher=batches | {"declare_every_s": 98})
    assert cli.run([*command.split(), "k"]) == 0
    [(_, make)] = started.sources
    given, publisher = make()
    assert started.topics == [("k", 3, 2 * DAY_MS), ("k",)]
    assert given[1:3] == ("k", "k/0")
    assert str(given[3]).endswith("partitions=3")
    assert publisher["batch_interval_s"] == 0.012
    assert publisher["limits"] == BatchLimits(rows_max=765, bytes_max=4_321, batch_bytes=34_567)
    assert (publisher["declare_every_s"], publisher["invalidated"]) == (98, ["shop.carts"])


def test_a_source_warns_once_of_a_topic_that_is_not_as_the_settings_say(started: Started) -> None:
    """A retention in the settings changes no topic that exists: who has raised it must be told."""
    write(keyspaces={"k": {"source": ROWS, "retention_ms": 2 * DAY_MS}})
    assert cli.run(["source", "mariadb", "k"]) == 0
    [(_, make)] = started.sources
    with structlog.testing.capture_logs() as logged:
        make()
        for started.found in ["one"], ["one"], ["one", "two"]:
            make()
    told = [(each["event"], each["code"], each["hint"]) for each in logged]
    assert told == [(each, "kept_too_short", f"retention.ms={2 * DAY_MS}") for each in ("one", "two")]


def test_a_metastore_is_followed_as_the_settings_say(started: Started) -> None:
    """Seconds beside seconds are soon the wrong ones."""
    login = {"ssl_ca": "ca", "ssl_verify_host": False, "ssl_cert": "cert", "ssl_key": "key", "user": "u"}
    times = {"call_timeout_s": 11.0, "poll_interval_ms": 1_200, "txn_list_age_s": 14.0, "reconcile_every_s": 15.0}
    uris = ["thrift://a:1", "thrift://b:2"]
    source = {"kind": "hive", "uris": uris, "catalog": "c", "bootstrap_threads": 13, "password": "p"} | login | times
    write(keyspaces={"k": {"kind": "catalog", "source": source}})
    assert cli.run(["source", "hive", "k"]) == 0
    [(following, _)] = started.sources
    access = Access("ca", False, "cert", "key", "u", "p")
    metastore = MetastoreSettings((("a", 1), ("b", 2)), "c", 11.0, access)
    assert following._options == FollowOptions(metastore, "k/0", 13, 14.0, 15.0, 1.2)


@pytest.mark.parametrize(("keyspace", "catalog"), [("Hive", None), ("k", "Hive")])
def test_a_catalog_with_a_capital_letter_is_followed_as_its_events_name_it(
    keyspace: str, catalog: str | None, started: Started
) -> None:
    """They have lower case, as the metastore does: none of them would be this catalog's, and each table stale."""
    source = {"kind": "hive"} | ({"catalog": catalog} if catalog else {})
    write(keyspaces={keyspace: {"kind": "catalog", "source": source}})
    assert cli.run(["source", "hive", keyspace]) == 0
    [(following, _)] = started.sources
    assert following._options.settings.catalog == "hive"


def test_a_server_and_its_replicas_are_reached_as_the_settings_say() -> None:
    """A replica without a port listens where its server does."""
    source = MariaDBSourceSettings(
        kind="mysql",
        databases=["shop"],
        host="h",
        port=1,
        user="u",
        password=SecretStr("p"),
        ssl_ca="ca",
        ssl_verify_host=False,
        ssl_cert="cert",
        ssl_key="key",
        replicas=["r:2", "s"],
    )
    more: dict[str, Any] = {"ssl_ca": "ca", "ssl_verify_host": False, "ssl_cert": "cert", "ssl_key": "key"}
    own = ConnectionSettings("h", 1, "u", "p", product="MySQL", **more)
    assert server_of(source) == own
    settings = Settings(keyspaces={"k": {"source": source.model_dump()}})  # type: ignore[dict-item]
    assert replicas_of(settings, "k", "k/0") == (replace(own, host="r", port=2), replace(own, host="s"))


@pytest.mark.parametrize(("standby", "follower"), [(True, False), (False, True)])
def test_an_owner_answers_as_the_settings_say(standby: bool, follower: bool) -> None:
    """One that was to follow would be found by no front."""
    consumer = ConsumerSettings(
        group="g",
        owner_host="h",
        owner_port=1,
        metrics_port=2,
        owner_announced="a:3",
        tls=TlsSettings(certificate="cert", key="key", ca="ca"),
        plain=True,
        standby=standby,
        follower=follower,
    )
    told = owner_settings(Settings(zone="z", consumer=consumer))
    files = Certificates("cert", "key", "ca")
    wanted = OwnerSettings(
        "h", 1, told.access, 2, "a:3", told.version, "", standby, follower, "z", "", files, True, told.follow
    )
    assert told == replace(wanted, traced=told.traced)


def test_a_keyspace_that_is_named_twice_is_consumed_once() -> None:
    """Both would fold into the same stores."""
    settings = Settings(keyspaces={"shop": {}, "lake": {}})  # type: ignore[dict-item]
    assert consumption_settings(settings, ["shop", "lake", "shop"]).keyspaces == ("shop", "lake")
    assert consumption_settings(settings).keyspaces == ("shop", "lake")


@pytest.mark.parametrize(("workers", "count"), [(1, 1), (3, 3), ("auto", 999)])
def test_work_is_shared_by_as_many_processes_as_are_wanted(
    workers: int | str, count: int, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One needs no supervisor; of a machine's cores those count that this process may use."""
    del started
    ran: list[int] = []
    write(keyspaces={"k": {}}, consumer={"workers": workers})
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(999), raising=False)
    monkeypatch.setattr("freshet.commands.consume.run_consumer", lambda *_: ran.append(1))
    monkeypatch.setattr("freshet.commands.consume.run_workers", lambda number, *_: ran.append(number))
    assert cli.run(["consume"]) == 0
    assert ran == [count]
    if workers != 1:
        assert cli.run(["node"]) == 1, "it is one process"


@pytest.mark.parametrize("announced", ["", "https://front.internal"])
def test_a_nodes_owner_is_found_by_its_front_and_heeds_new_tokens(
    announced: str, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of any node find the others by what is announced. A token that was taken away is none there, too."""
    del started
    told: list[Callable[[Settings], None]] = []
    owners: list[OwnerSettings] = []

    def opened(_: Settings, tell: Callable[[Settings], None]) -> Any:
        told.append(tell)
        return nullcontext()

    def run(_: object, beside: Callable[[str], Any]) -> None:
        beside("http://127.0.0.1:8480")

    monkeypatch.setattr("freshet.commands.node.open_front", opened)
    monkeypatch.setattr("freshet.commands.node.run_server", lambda _, run_both: run_both())
    monkeypatch.setattr("freshet.together.node.run_node", run)
    monkeypatch.setattr("freshet.commands.node.ConsumerProcess", lambda _, owner: owners.append(owner))

    def tokens(secret: bytes) -> dict[str, Any]:
        return {"tokens": {"one": {"hash": digest_of(secret)}}}

    write(keyspaces={"k": {}}, consumer=tokens(b"first"), serve={"announced": announced})
    assert cli.run(["node"]) == 0
    [owner], [tell] = owners, told
    assert owner.front == (announced or "http://127.0.0.1:8480")
    for secret in (b"first", b"second"):
        write(keyspaces={"k": {}}, consumer=tokens(secret))
        tell(load_settings())
        assert owner.access.of(secret).name == "one"


def test_kafka_is_reached_as_the_settings_say() -> None:
    """With fewer replicas than were meant events are lost with a broker; another prefix is another installation."""
    assert KafkaSettings(bootstrap="b:1", prefix="p", replication_factor=3).cluster == KafkaCluster("b:1", {}, "p", 3)
    assert KafkaSettings(extra={"socket.timeout.ms": "9000"}).cluster.extra == {"socket.timeout.ms": "9000"}


def test_a_front_takes_the_names_and_tokens_of_its_settings() -> None:
    """By a name of a proxy that is not known nobody is answered, and without its tokens anybody would be."""
    one = TokenSettings(hash=digest_of(b"s"))
    serve = ServeSettings(hosts=["Cache.internal"], tokens={"one": one})
    access = front_access(Settings(serve=serve, consumer=ConsumerSettings(owner_token=SecretStr("t"))))
    assert access.names == {"cache.internal"}
    assert access.credentials == (one.credential("one"),)


def test_the_one_secret_may_do_no_more_than_the_token_that_it_is() -> None:
    """A front and its owners share a file: the secret that fronts show to owners is a reader's there."""
    serve = ServeSettings(tokens={"reader": TokenSettings(hash=digest_of(b"s"))}, bearer_token=SecretStr("s"))
    assert front_access(Settings(serve=serve)).of(b"s").roles == {"read"}
    serve = ServeSettings(tokens={"reader": TokenSettings(hash=digest_of(b"s"))}, bearer_token=SecretStr("t"))
    assert front_access(Settings(serve=serve)).of(b"t").roles == {"admin"}


def test_a_front_is_bounded_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that nobody asked for is not the longest that may be asked for."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr("serving.http.front.make_front", lambda *_, **more: made.append(more))
    limits = LimitsSettings(
        in_flight=9,
        in_flight_of_caller=8,
        streams_of_caller=7,
        files_of_caller=6,
        rate_per_s=5,
        burst=4,
        request_timeout_s=3,
    )
    serve = ServeSettings(limits=limits, max_wait_ms_limit=300, default_wait_ms=20, serve_stale_if_down=True)
    unused: Any = None
    _front(Settings(serve=serve), unused, unused, unused)
    [front] = made
    assert front["limits"] == RequestLimits(in_flight_max=9, wait_ms_max=300, wait_ms_default=20, request_s_max=3.0)
    assert front["callers"] == CallerLimits(5.0, 4.0, 8, 7, 6)
    assert (front["stale_if_down"], front["resolves_letters"], front["files"]) == (True, False, None)


@pytest.mark.parametrize(("databases", "full"), [(["shop"], "shop.t"), (["shop", "bank"], "t")])
def test_a_table_without_its_database_is_of_the_only_one(databases: list[str], full: str) -> None:
    """Where there are several, the first would answer with the rows of another table of that name."""
    settings = Settings(keyspaces={"k": {"source": {"kind": "mariadb", "databases": databases}}})  # type: ignore[dict-item]
    assert full_table_name(settings, "k", "t") == full
    assert full_table_name(settings, "k", "a.t") == "a.t"
    space = space_of(settings, "k", settings.keyspaces["k"])
    assert isinstance(space, RowSpace)
    assert space.database == full.rpartition(".")[0]


class Monitoring:
    """A server of metrics that notes what is done to it, or can't listen."""

    server_address = "127.0.0.1", 9470

    def __init__(self, error: OSError | None = None) -> None:
        self.steps: list[str] = []
        self.given: list[Any] = []
        self._error = error

    def serve(self, place: tuple[str, int], *given: Any, access: Any, files: Any, **_: object) -> Monitoring:
        self.given += [place, given[1](), access.is_open, files]
        if self._error is not None:
            raise self._error
        return self

    def shutdown(self) -> None:
        self.steps.append("shut down")

    def server_close(self) -> None:
        self.steps.append("closed")


def test_a_sources_metrics_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it ends, its port is free again: whoever supervises it starts it at once."""
    served = Monitoring()
    monkeypatch.setattr("stream.monitoring.serve_monitoring", served.serve)
    with monitored(Settings(), "k", SourceStatus(), "k/0"):
        assert served.given == []
    at = SourceProcessSettings(metrics_port=9470, metrics_token=SecretStr("t"), tls=OwnCertificate(certificate="cert"))
    with suppress(KeyError), monitored(Settings(source=at), "k", SourceStatus(), "k/0"):
        assert served.given == [("127.0.0.1", 9470), SourceStatus().not_ready, False, Certificates("cert")]
        assert served.steps == []
        raise KeyError
    assert served.steps == ["shut down", "closed"]
    monkeypatch.setattr("stream.monitoring.serve_monitoring", Monitoring(OSError("in use")).serve)
    with pytest.raises(SettingsError, match=r"cannot listen on 127\.0\.0\.1:9470: in use"):
        monitored(Settings(source=at), "k", SourceStatus(), "k/0").__enter__()
