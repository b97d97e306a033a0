"""What commands end with and do where one of several things went wrong: the first and the last count alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from consumers.fold.state import FOLD_VERSION
from consumers.owner.protocol import OwnerError, PartitionStatus
from consumers.snapshots.errors import SnapshotError
from consumers.snapshots.finding import Found
from consumers.snapshots.pruning import Verdict
from consumers.store.directory import remove_unless_kept
from freshet import cli
from freshet.access.reloading import owner_access
from freshet.audit_metrics import AuditMetrics
from freshet.commands import export, lag, verify
from freshet.commands.sink import _reached
from freshet.lag.tables import TableLag
from freshet.sections.access import TokenSettings
from freshet.settings import load_settings
from serving.client import StreamEvent
from serving.sink.errors import SinkError
from stream.access.grants import digest_of
from stream.kafka.dead_letters import DeadLetter, RetryResult
from stream.kafka.topics import Topic
from tests.consumers.owning import vector
from tokens import Vector
from tokens.errors import FreshetError

SETTINGS = '[keyspaces.shop]\nsnapshots = "file:///snapshots"\n'


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs in a directory with a settings file of one keyspace."""
    monkeypatch.chdir(tmp_path)
    Path("freshet.toml").write_text(SETTINGS)


@pytest.mark.parametrize("which", range(3))
def test_one_damaged_snapshot_is_a_failure_wherever_it_is(
    which: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever runs the check by a timer looks at the exit code alone."""
    snapshots: list[Any] = [SimpleNamespace(fold_version=FOLD_VERSION - (number == 0)) for number in range(3)]
    found = [Found(f"shop/{number}", each) for number, each in enumerate(snapshots)]
    errors = {found[which].name: SnapshotError("its bytes differ")}
    monkeypatch.setattr("freshet.commands.snapshots._found", lambda *_: (None, found))
    monkeypatch.setattr(
        "consumers.snapshots.checking.check_snapshot", lambda _, each, __: iter([(0, errors.get(each.name)), (1, None)])
    )
    assert cli.run(["snapshots", "verify", "shop", "--json"]) == 1
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["good"] for each in told] == [number != which for number in range(3)]
    assert [each["state"] for each in told] == [False, True, True], "that of another fold version can't be read"
    errors.clear()
    assert cli.run(["snapshots", "verify", "shop"]) == 0
    assert ["its files alone" in line for line in capsys.readouterr().out.splitlines()] == [True, False, False]


@pytest.mark.parametrize("words", [["shop"], ["shpo"], ["shop", "gone"]])
def test_a_check_of_no_snapshot_is_a_failure(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A timer with a misspelled keyspace or place would report for good that all is well."""
    assert cli.run(["snapshots", "verify", *words, "--at", str(tmp_path / "nothing")]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "error[snapshot_missing]: no snapshot" in told.err


@pytest.mark.parametrize("command", ["snapshots make", "verify"])
def test_checkpoints_stay_while_they_are_read(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever has others made meanwhile would have them removed: it takes an hour to read a large one."""
    stores = {number: tmp_path / str(number) for number in range(2)}
    for each in stores.values():
        each.mkdir()
    stayed: list[bool] = []

    def read(*_: object, **__: object) -> Any:
        stayed.extend(not remove_unless_kept(each) for each in stores.values())
        return SimpleNamespace(name="n", entries=1, bytes=1, equal=True, as_json=dict)

    monkeypatch.setattr("freshet.owners.live_checkpoint", lambda *_: stores)
    monkeypatch.setattr("freshet.commands.verify.live_checkpoint", lambda *_: stores)
    monkeypatch.setattr("consumers.snapshots.writing.write_snapshot", read)
    monkeypatch.setattr("spark_jobs.output.find_stores", lambda *_: {})
    monkeypatch.setattr("spark_jobs.verify.verify_stores", read)
    words = ["--to=snapshots"] if command == "snapshots make" else ["--against=rebuilt", "--json"]
    assert cli.run([*command.split(), "shop", *words]) == 0
    assert stayed == [True, True]
    assert all(map(remove_unless_kept, stores.values()))


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_a_dry_run_removes_no_snapshot(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And without it only those go that nothing needs."""
    removed: list[str] = []
    found = [Found("shop/needed", None), Found("shop/old", None)]
    verdicts = [Verdict(each, each.name.endswith("needed"), "") for each in found]
    monkeypatch.setattr("freshet.commands.snapshots._found", lambda *_: (None, found))
    monkeypatch.setattr("stream.kafka.topics.describe_topic", lambda *_: Topic("t", "t1", 1))
    monkeypatch.setattr("stream.kafka.reader.start_offsets", lambda *_: {0: 0})
    monkeypatch.setattr("stream.kafka.reader.end_offsets", lambda *_: {0: 0})
    monkeypatch.setattr("consumers.snapshots.pruning.judge", lambda *_: verdicts)
    monkeypatch.setattr("consumers.snapshots.pruning.remove_snapshot", lambda _, each: removed.append(each.name))
    assert cli.run(["snapshots", "prune", "shop", *words]) == 0
    assert removed == ([] if words else ["old"])


@pytest.mark.parametrize(("problems", "code"), [(["", ""], 0), (["bad", ""], 1), (["", "bad"], 1), ([], 0)])
def test_one_letter_that_stays_is_told_by_the_exit_code(
    problems: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others were put back."""
    results = [RetryResult(DeadLetter("t", 0, at, "", ""), problem) for at, problem in enumerate(problems)]
    monkeypatch.setattr("freshet.commands.dlq.retry", lambda *_, **__: results)
    assert cli.run(["dlq", "retry", "shop"]) == code


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_a_dry_run_has_put_no_letter_back(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that reads what was done must not take what would be for it."""
    results = [RetryResult(DeadLetter("t", 0, at, "", ""), problem) for at, problem in enumerate(("", "bad"))]
    asked: list[bool] = []

    def retry(*_: object, dry_run: bool) -> list[RetryResult]:
        asked.append(dry_run)
        return results

    monkeypatch.setattr("freshet.commands.dlq.retry", retry)
    assert cli.run(["dlq", "retry", "shop", "--json", *words]) == 1
    assert [json.loads(line)["retried"] for line in capsys.readouterr().out.splitlines()] == [not words, False]
    assert asked == [bool(words)]


@pytest.mark.parametrize(
    ("words", "dismissed"), [([], None), (["t/0/1", "--all"], None), (["t/0/1"], "t/0/1"), (["--all"], "")]
)
def test_all_letters_are_dismissed_only_where_all_are_meant(
    words: list[str], dismissed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id that is left out, as by a variable that is not set, does not stand for all of them."""
    asked: list[str] = []

    def dismiss(_: object, keyspace: str, letter: str) -> list[DeadLetter]:
        assert keyspace == "shop"
        asked.append(letter)
        return []

    monkeypatch.setattr("freshet.commands.dlq.dismiss", dismiss)
    assert cli.run(["dlq", "dismiss", "shop", *words]) == (2 if dismissed is None else 0)
    assert asked == ([] if dismissed is None else [dismissed])


class Place:
    """A directory of the byte cache; of the one called ``damaged`` a block is."""

    closed: ClassVar[list[str]] = []
    damaged: ClassVar[str] = ""

    def __init__(self, path: Path, _: object) -> None:
        self.name = path.name

    def verify(self) -> tuple[int, int]:
        return 7, int(self.name == Place.damaged)

    def close(self) -> None:
        Place.closed.append(self.name)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Place]:
    """Two directories."""
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(Place, "closed", [])
    monkeypatch.setattr("serving.bytecache.shared.joined.Joined", Place)
    return Place


@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_directory_is_told_by_the_exit_code_wherever_it_is(
    number: int, places: type[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The byte cache may have several; the last one says nothing of the first."""
    monkeypatch.setattr(places, "damaged", str(number))
    assert cli.run(["bytes", "verify", "--bytes-dirs", "0,1"]) == 1
    assert places.closed == ["0", "1"]


def test_a_directory_that_is_not_there_leaves_no_other_one_open(places: type[Place]) -> None:
    """Who owns it for the moment of a command gives it back: a reader that waits for it would have no cache."""
    assert cli.run(["bytes", "verify", "--bytes-dirs", "0,none,1"]) == 1
    assert places.closed == ["0"]


def test_an_owner_that_does_not_answer_is_told_by_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where it was named, so that no partition is known to lack one."""
    assert cli.run(["lag", "shop", "--owner", "127.0.0.1:1", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["without_owner"], [*told["silent"]]) == ([], ["127.0.0.1:1"])


def test_a_partition_that_nobody_is_announced_for_is_told_by_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after the end of a consumer: until another one has caught up, nobody answers for what it had."""
    shown = [PartitionStatus("shop", each, 0, 0, 0, 0, True, "ready", [], 0, 0, 0, 0, "", "t") for each in (0, 2)]
    owner: Any = SimpleNamespace(status=lambda _: SimpleNamespace(partitions=shown))
    monkeypatch.setattr(lag, "owner_addresses", lambda *_: {0: "127.0.0.1:1", 2: "127.0.0.1:1"})
    monkeypatch.setattr(lag, "owner_connection", lambda *_: nullcontext(owner))
    monkeypatch.setattr(lag, "partitions_of", lambda *_: range(4))
    assert cli.run(["lag", "shop", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["without_owner"] == [1, 3]


@pytest.mark.parametrize("words", [[], ["--json"]])
@pytest.mark.parametrize("is_other_there", [True, False])
def test_an_owner_that_does_not_answer_is_named_beside_the_tables_too(
    is_other_there: bool, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code alone says nothing; and if nobody answers, it is not said that there are no tables."""
    statuses = [PartitionStatus("shop", 0, 5, 5, 5, 5, True, "live", [], 0, 0, 0, 0, "", "", tables={"shop.t": True})]

    @contextmanager
    def connection(_: object, address: str) -> Iterator[Any]:
        if address == "away:1" or not is_other_there:
            raise OwnerError(f"{address} does not answer", code="owner_unreachable")
        yield SimpleNamespace(status=lambda _: SimpleNamespace(partitions=statuses))

    def lags(_: object, __: str, found: dict[int, PartitionStatus]) -> list[TableLag]:
        return [TableLag(name, {}, 1, 1, None) for each in found.values() for name in each.tables]

    monkeypatch.setattr("freshet.commands.lag.owner_addresses", lambda *_: {0: "here:1", 1: "away:1"})
    monkeypatch.setattr("freshet.commands.lag.owner_connection", connection)
    monkeypatch.setattr("freshet.commands.lag.table_lags", lags)
    monkeypatch.setattr("freshet.commands.lag.partitions_of", lambda *_: range(2))
    assert cli.run(["lag", "shop", "--tables", *words]) == 1
    told = capsys.readouterr()
    assert "no owner answers for shop/1" in told.err
    assert "away:1 does not answer" in told.err
    assert ("here:1" in told.err) is not is_other_there
    assert ("shop.t" in told.out) is is_other_there
    assert "publishes no tables" not in told.out
    assert bool(told.out) is (is_other_there or bool(words))


def test_an_audit_without_a_verdict_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """An alert watches the failures: the time of the last success alone would tell of them late."""
    made: list[AuditMetrics] = []

    class Kept(AuditMetrics):
        def __init__(self, keyspace: str) -> None:
            super().__init__(keyspace)
            made.append(self)

    def audits(_: object, __: float, told: Any, ___: object) -> None:
        told(FreshetError("no Kafka"), 1.0)
        told(FreshetError("no Kafka"), 1.0)
        raise KeyboardInterrupt

    monkeypatch.setattr("freshet.audit_metrics.AuditMetrics", Kept)
    monkeypatch.setattr(verify, "audit_again_and_again", audits)
    request: Any = SimpleNamespace(keyspace="shop")
    with capture_logs():
        verify._stand(request, 1.0, None, as_json=True)
    shown = generate_latest(made[0]._registry).decode()
    assert 'freshet_verify_failures_total{keyspace="shop"} 2.0' in shown
    assert made[0]._not_ready() != ""


@pytest.mark.parametrize(
    ("words", "place"), [([], "file:///snapshots"), (["--snapshots", ""], ""), (["--snapshots", "s3://b"], "s3://b")]
)
def test_no_place_is_a_place_too(words: list[str], place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``--snapshots ""`` a table is folded from the topic's start, whatever is set."""
    given: list[Any] = []
    monkeypatch.setattr(export, "spark_settings", lambda *_, **__: None)
    monkeypatch.setattr(export, "_export_table", lambda *each, **_: given.append(each[3]))
    assert cli.run(["export", "shop", "--to", "out", "--table", "shop.t", *words]) == 0
    assert given == [(None, place)]


@pytest.mark.parametrize(
    "words",
    [
        ["export", "shop", "--to", "s3://bucket/x"],
        ["export", "shop", "--to", "out", "--table", "shop.t", "--base", "s3://bucket/x"],
        ["log", "shop", "--to", "s3://bucket/x"],
        ["consume", "--data-dir", "s3://bucket/x"],
        ["node", "--data-dir", "s3://bucket/x"],
    ],
)
def test_an_address_is_no_directory(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of ``s3://bucket`` a path makes ``s3:/bucket``, here: all would lie there, and the command report success."""
    monkeypatch.chdir(tmp_path)
    assert cli.run(words) == 2
    assert "s3://bucket/x is an address" in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "s3:").exists()


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize(("listener", "other"), [("serve", "consumer"), ("consumer", "serve")])
def test_a_secret_is_checked_by_the_listener_that_has_tokens(
    listener: str, other: str, is_alone: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine often has only fronts, or only owners. That the one refuses it says nothing of the other."""
    text = f'[{listener}.tokens.one]\nhash = "{digest_of(b"s")}"\n'
    text += "" if is_alone else f'[{other}.tokens.two]\nhash = "{digest_of(b"t")}"\n'
    Path("freshet.toml").write_text(text)
    monkeypatch.setattr("freshet.commands.token._secret", lambda: b"s")
    assert cli.run(["token", "check"]) == 0
    assert capsys.readouterr().out.startswith(f"{listener}: one, roles read")


def test_a_node_takes_over_the_tokens_of_owners_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owners are asked by other nodes' fronts: with their own tokens, not with those of readers."""
    told: list[Any] = []
    given: list[Any] = []

    class Opened:
        def __init__(self, _: object, tell: Any) -> None:
            told.append(tell)

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    def asked_for(settings: Any) -> Any:
        given.append(owner_access(settings))
        return given[0]

    monkeypatch.setattr("freshet.commands.node.owner_access", asked_for)
    monkeypatch.setattr("freshet.commands.node.open_front", Opened)
    monkeypatch.setattr("freshet.commands.node.run_server", lambda *_: None)
    tokens = '[{}.tokens.{}]\nhash = "{}"\n'
    first, second, reader = (digest_of(each) for each in (b"first", b"second", b"reader"))
    Path("freshet.toml").write_text(tokens.format("consumer", "one", first))
    assert cli.run(["node"]) == 0
    Path("freshet.toml").write_text(tokens.format("consumer", "one", second) + tokens.format("serve", "two", reader))
    told[0](load_settings())
    assert [each.digest for each in given[0].credentials] == [TokenSettings(hash=second).credential("one").digest]


@pytest.mark.parametrize(("at", "is_done"), [(4, False), (5, True), (6, True)])
def test_a_copy_has_all_once_it_is_where_the_keyspace_was(at: int, is_done: bool) -> None:
    """`sink --once` ends no sooner: what was committed before it was called is in the copy."""

    class Client:
        def stream(self, keyspace: str, **_: object) -> Iterator[StreamEvent]:
            assert keyspace == "shop"
            yield StreamEvent("watermark")
            yield StreamEvent("watermark", token=vector(5))
            raise AssertionError("it must not be read on")

    client: Any = Client()
    assert _reached(client, "shop", frozenset({"shop/0"}))(Vector.parse_known(vector(at))[0]) is is_done


@pytest.mark.parametrize(
    "error", [None, sa.exc.OperationalError("INSERT", {}, Exception("full")), SinkError("differs")]
)
def test_a_copy_is_left_in_order_however_its_sink_ends(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its connections are given back; what the database said is told without rows."""
    disposed: list[bool] = []

    def run(**_: object) -> None:
        if error is not None:
            raise error

    engine = SimpleNamespace(dispose=lambda: disposed.append(True))
    monkeypatch.setattr("freshet.commands.sink._engine", lambda *_: engine)
    monkeypatch.setattr("freshet.commands.sink.front_client", lambda *_: nullcontext())
    monkeypatch.setattr("freshet.commands.sink.Sink", lambda *_, **__: SimpleNamespace(run=run))
    assert cli.run(["sink", "shop", "sqlite://", "--table", "shop.t"]) == (0 if error is None else 1)
    assert disposed == [True]
    assert ("error[sink_failed]" in capsys.readouterr().err) is isinstance(error, sa.exc.SQLAlchemyError)
