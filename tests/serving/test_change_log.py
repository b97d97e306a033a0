"""A change log in files: each event once and in order, whatever a crash leaves."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from structlog.testing import capture_logs

from freshet.commands.log import _show
from serving.changelog import files as change_log
from serving.changelog.errors import ChangeLogError
from serving.changelog.files import FILE_AGE_S_MAX, Heading, LogFiles, files_of
from serving.changelog.writing import GIVE_UP_S, QUIET_S, write_log
from serving.client import FreshetClient, StreamEvent, Unreachable
from serving.client.retries import Retries

HEADING = Heading("shop", ["shop.items"], included=[])


def event(number: int) -> StreamEvent:
    return StreamEvent("transaction", str(number), token=f"t{number}", gtid="x" * (number % 40))


def logged(directory: Path) -> list[int]:
    """The numbers of the transactions in the files; every line must be whole."""
    found = []
    for path in files_of(directory, "shop"):
        heading, *events = path.read_bytes().splitlines()
        assert msgspec.json.decode(heading)["tables"] == ["shop.items"]
        found += [int(each.checkpoint) for each in map(msgspec.json.Decoder(StreamEvent).decode, events)]
    return found


class Killed(BaseException):
    """The process has gone."""


class Front:
    """A stream of ``last`` numbered events that kills its reader now and then."""

    def __init__(self, choose: random.Random, last: int, kill_share: float) -> None:
        self.choose, self.last, self.kill_share = choose, last, kill_share
        self.begun: list[str] = []

    def stream(self, _: str, begin: str, **__: Any) -> Iterator[StreamEvent]:
        self.begun.append(begin)
        at = 0 if begin == "earliest" else int(begin)
        while at < self.last:
            if self.choose.random() < self.kill_share:
                raise Killed
            at += 1
            yield event(at)
            if self.choose.random() < 0.2:
                yield StreamEvent("watermark", str(at))
        yield StreamEvent("end", str(at))


def transactions(directory: Path) -> list[int]:
    """As `logged`, without watermarks."""
    lines = [line for path in files_of(directory, "shop") for line in path.read_bytes().splitlines()[1:]]
    found = [msgspec.json.decode(line, type=StreamEvent) for line in lines]
    return [int(each.checkpoint) for each in found if each.kind == "transaction"]


@pytest.mark.parametrize("seed", range(20))
def test_each_event_is_logged_once_after_any_crashes(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed anywhere, with a tail that was torn or never came to the disk: the files hold the history, once."""
    choose = random.Random(seed)
    monkeypatch.setattr(change_log, "WRITE_BYTES", choose.choice([1, 100, 1_000]))
    front = Front(choose, 400, kill_share=0.02)
    crashes = 0
    while True:
        files = LogFiles(tmp_path, HEADING, file_bytes_max=choose.choice([300, 2_000, 10_000]))
        try:
            write_log(front, "shop", files, "earliest", tables=["shop.items"], once=True)  # type: ignore[arg-type]
            break
        except Killed:
            crashes += 1
            if choose.random() < 0.7:  # the machine, too: what was written last did not come to the disk whole
                path = files_of(tmp_path, "shop")[-1]
                size, heading = path.stat().st_size, len(path.read_bytes().splitlines(keepends=True)[0])
                with path.open("r+b") as file:
                    file.truncate(max(size - choose.randint(0, 200), heading))
                    file.seek(0, 2)
                    file.write(choose.choice([b"", b"\0" * 50, b'{"kind":"trans', b"\0\0\n\n"]))
        finally:
            files.close()
    assert crashes
    assert transactions(tmp_path) == list(range(1, 401))
    assert len(files_of(tmp_path, "shop")) > 1


def test_a_log_of_a_version_that_did_not_say_what_it_tells_goes_on(tmp_path: Path) -> None:
    """With any words; the next file says them."""
    with LogFiles(tmp_path, Heading("shop", ["shop.items"])) as files:
        files.append(event(1))
        files.sync()
    more = Heading("shop", ["shop.items"], included=["before", "keyless"])
    with LogFiles(tmp_path, more, file_bytes_max=1) as files:
        files.append(event(2))
        files.sync()
    with pytest.raises(ChangeLogError, match=r"is the log of shop\.items of shop, with --before --keyless$"):
        LogFiles(tmp_path, HEADING)


def test_a_log_goes_on_with_the_same_tables_only(tmp_path: Path) -> None:
    """Else what was not told before would be missing without a trace; and only one process writes."""
    with LogFiles(tmp_path, HEADING) as files:
        files.append(event(1))
        files.sync()
        with pytest.raises(ChangeLogError) as taken:
            LogFiles(tmp_path, HEADING)
        assert taken.value.code == "log_taken"
    with pytest.raises(ChangeLogError, match=r"is the log of shop\.items of shop") as refused:
        LogFiles(tmp_path, Heading("shop", []))
    assert refused.value.code == "log_refused"
    with pytest.raises(ChangeLogError, match=r"is the log of shop\.items of shop$"):
        LogFiles(tmp_path, Heading("shop", ["shop.items"], included=["keyless"]))
    with LogFiles(tmp_path, HEADING) as files:
        assert files.checkpoint == "1"
    (path,) = files_of(tmp_path, "shop")
    path.write_text("a note\nof somebody\n")
    with pytest.raises(ChangeLogError, match="is no change log"):
        LogFiles(tmp_path, HEADING)


def test_a_file_system_without_locks_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network's without its lock service. No file is left open by those who try."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ChangeLogError, match="does not lock the log of shop: No locks available") as refused:
        LogFiles(tmp_path, HEADING)
    assert refused.value.code == "log_failed"
    assert len(os.listdir("/proc/self/fd")) == before


def test_logs_whose_names_begin_alike_share_a_directory(tmp_path: Path) -> None:
    """``shop`` takes no file of ``shop-eu`` for its own: neither to go on in, nor to remove."""
    other = Heading("shop-eu", [])
    with LogFiles(tmp_path, HEADING, keep_s=0, file_bytes_max=1) as files, LogFiles(tmp_path, other) as others:
        for number in range(1, 4):
            others.append(event(100 + number))
            others.sync()
            files.append(event(number))
            files.sync()
    with LogFiles(tmp_path, HEADING) as files, LogFiles(tmp_path, other) as others:
        assert (files.checkpoint, others.checkpoint) == ("3", "103")
    (path,) = files_of(tmp_path, "shop-eu")
    assert len(path.read_bytes().splitlines()) == 4
    assert all(each.name.startswith("shop-0") for each in files_of(tmp_path, "shop"))


def test_a_file_that_is_there_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not where it comes between the look at the directory and the new file, from a host that sees no lock."""
    path = tmp_path / "shop-0000000000000001.jsonl"
    with LogFiles(tmp_path, HEADING) as files:
        path.write_text("of somebody else\n")
        monkeypatch.setattr(change_log, "files_of", lambda *_: [])
        with pytest.raises(ChangeLogError, match="is there already"):
            files.append(event(1))
    assert path.read_text() == "of somebody else\n"


FORMATS = [
    {"kind": "log", "version": 2},
    {"kind": "log", "version": 3, "tables": {"all": True}},
    {"kind": "tables", "version": 1},
]


@pytest.mark.parametrize("format_", FORMATS)
def test_a_log_of_another_format_is_refused_and_left_alone(format_: dict[str, object], tmp_path: Path) -> None:
    """As after a step back to an older version, whatever else the heading and the lines then are."""
    path = tmp_path / "shop-0000000000000001.jsonl"
    lines: list[object] = [{"keyspace": "shop", "tables": ["shop.items"], **format_}, {"checkpoint": {"text": "1"}}]
    written = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    path.write_bytes(written)
    with pytest.raises(
        ChangeLogError, match=f"format {format_['kind']}, version {format_['version']}, not log, version 1"
    ) as refused:
        LogFiles(tmp_path, HEADING)
    assert refused.value.code == "log_refused"
    assert path.read_bytes() == written


def damaged(directory: Path, number: int) -> bytes:
    """What the last file holds after a byte of its line ``number`` was lost."""
    path = files_of(directory, "shop")[-1]
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = b"\0" + lines[number - 1][1:]
    path.write_bytes(b"".join(lines))
    return b"".join(lines)


@pytest.mark.parametrize(("line", "mark_every"), [(51, 10), (2, 10), (2, 1_000)])
def test_a_damaged_line_that_was_synced_is_refused_and_nothing_is_changed(
    line: int, mark_every: int, tmp_path: Path
) -> None:
    """No crash does that, and what is behind it may be in no topic any more; so with the first line of all."""
    with LogFiles(tmp_path, HEADING) as files:
        for number in range(1, 100):
            files.append(event(number) if number % mark_every else StreamEvent("watermark", str(number)))
        files.sync()
    held = damaged(tmp_path, line)
    with pytest.raises(ChangeLogError, match=rf"^line {line} of .*shop-0+1\.jsonl can't be read") as refused:
        LogFiles(tmp_path, HEADING)
    assert refused.value.code == "log_refused"
    assert [path.read_bytes() for path in tmp_path.glob("shop-*")] == [held]


@pytest.mark.parametrize("line", [3, 40, 99])
def test_a_torn_end_is_set_aside_and_told_again(line: int, tmp_path: Path) -> None:
    """A crash of the machine may leave holes in the last lines: each time all of them are kept, and named."""
    for count in (1, 2):
        with LogFiles(tmp_path, HEADING) as files:
            for number in range(int(files.checkpoint or 0) + 1, 100):
                files.append(event(number))
            files.sync()
        held = damaged(tmp_path, line)
        with capture_logs() as logs, LogFiles(tmp_path, HEADING) as files:
            assert files.checkpoint == str(line - 2)
        (path,) = files_of(tmp_path, "shop")
        aside = path.with_suffix(f".torn-{count}")
        assert path.read_bytes() + aside.read_bytes() == held
        assert [(each["log_level"], each["line"], each["set_aside"]) for each in logs] == [
            ("warning", line, str(aside))
        ]
    assert logged(tmp_path) == list(range(1, line - 1))


def test_of_several_lines_that_can_not_be_read_the_first_one_is_named(tmp_path: Path) -> None:
    """A crash may leave several holes: from the first one on all is set aside."""
    with LogFiles(tmp_path, HEADING) as files:
        for number in range(1, 100):
            files.append(event(number))
        files.sync()
    for line in (60, 40):
        damaged(tmp_path, line)
    with capture_logs() as logs, LogFiles(tmp_path, HEADING) as files:
        assert files.checkpoint == "38"
    assert [each["line"] for each in logs] == [40]


@pytest.mark.parametrize("keep_s", [None, -1.0])
def test_a_new_file_goes_on_without_those_before_it(
    keep_s: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when it has its heading only, and those before it are moved away, as they may be, or removed."""
    second, write = tmp_path / "shop-0000000000000002.jsonl", os.write

    def write_until_full(descriptor: int, data: bytes) -> int:
        if second.exists():
            raise OSError(errno.ENOSPC, "full")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", write_until_full)
    number = 0
    with LogFiles(tmp_path, HEADING, keep_s=keep_s, file_bytes_max=300) as files:
        while not second.exists():
            number += 1
            files.append(event(number))
            with suppress(OSError):
                files.sync()
    monkeypatch.undo()
    assert len(second.read_bytes().splitlines()) == 1
    (tmp_path / "shop-0000000000000001.jsonl").unlink(missing_ok=keep_s is not None)
    for _ in range(2):
        with LogFiles(tmp_path, HEADING) as files:
            assert files.checkpoint == str(number - 1)


def test_a_log_never_begins_anew_in_a_later_file(tmp_path: Path) -> None:
    """A file that does not say where to go on is the first one, or not of a whole log."""
    heading = msgspec.json.encode(HEADING) + b"\n"
    (tmp_path / "shop-0000000000000002.jsonl").write_bytes(heading)
    with pytest.raises(ChangeLogError, match="does not say where the log goes on"):
        LogFiles(tmp_path, HEADING)
    (tmp_path / "shop-0000000000000002.jsonl").rename(tmp_path / "shop-0000000000000001.jsonl")
    with LogFiles(tmp_path, HEADING, file_bytes_max=1) as files:
        assert files.checkpoint == ""
        files.append(event(1))
        files.append(event(2))
        files.sync()
    assert logged(tmp_path) == [1, 2]


def test_files_end_after_a_day_and_old_ones_are_removed(tmp_path: Path) -> None:
    """Also of a process that is started again each hour. The last file stays: it says where to go on."""
    for number in range(1, 80):  # an hour each
        with LogFiles(tmp_path, HEADING, clock=partial(float, number * FILE_AGE_S_MAX / 24)) as files:
            files.append(event(number))
            files.sync()
    assert logged(tmp_path) == list(range(1, 80))
    paths = files_of(tmp_path, "shop")
    assert len(paths) == 4
    path_time = paths[-1].stat().st_mtime
    with LogFiles(tmp_path, HEADING, keep_s=10, clock=lambda: path_time + 60) as files:
        assert files.checkpoint == "79"
    assert files_of(tmp_path, "shop") == paths[-1:]


def test_a_quiet_log_keeps_its_checkpoint_young(tmp_path: Path) -> None:
    """Watermarks are logged after something was told, and else once in a while: not each of them."""
    now = 0.0

    class Quiet:
        def stream(self, _: str, __: str, **___: Any) -> Iterator[StreamEvent]:
            nonlocal now
            yield StreamEvent("watermark", "0")
            yield event(1)
            for number in range(2, 10):
                now += QUIET_S / 2
                yield StreamEvent("watermark", str(number))

    with LogFiles(tmp_path, HEADING) as files:
        write_log(Quiet(), "shop", files, "now", clock=lambda: now)  # type: ignore[arg-type]
    assert logged(tmp_path) == [0, 1, 2, 4, 6, 8]


@pytest.mark.parametrize("once", [True, False])
def test_a_log_that_has_an_end_does_not_wait_for_ever_for_a_front(once: bool, tmp_path: Path) -> None:
    """A script that waits for it learns that no front answers; a log that follows goes on by itself when one does."""
    now = 0.0

    def sleep(_: float) -> None:
        nonlocal now
        now += GIVE_UP_S / 10
        if now > 100 * GIVE_UP_S:
            raise Killed

    def away(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("away", request=request)

    transport, retries = httpx2.MockTransport(away), Retries(clock=lambda: now)
    with (
        FreshetClient("http://front", transport=transport, retries=retries, sleep=sleep) as client,
        LogFiles(tmp_path, HEADING) as files,
        pytest.raises(Unreachable if once else Killed),
    ):
        write_log(client, "shop", files, "earliest", once=once)
    assert (now <= 2 * GIVE_UP_S) == once


@pytest.mark.parametrize(("key", "sent"), [(None, None), ("", ""), ("7,a%2Cb", "7,a%2Cb")])
def test_a_history_is_asked_for_whenever_a_key_is_given(key: str | None, sent: str | None) -> None:
    """Without it the changes of all rows would be printed as those of the one with an empty key."""
    asked: list[str | None] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.params.get("key"))
        return httpx2.Response(200, content=b'{"kind":"end"}\n')

    with FreshetClient("http://front", transport=httpx2.MockTransport(answer)) as client:
        _show(client, "shop", "earliest", ["shop.items"], key, follow=False, included={})
    assert asked == [sent]


def test_a_full_disk_ends_the_log_and_loses_nothing(tmp_path: Path) -> None:
    """What was written half is cut off, and written whole by the next process."""
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from serving.changelog.files import Heading, LogFiles\n"
        "from tests.serving.test_change_log import HEADING, event\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "with LogFiles(Path(sys.argv[1]), HEADING) as files:\n"
        "    for number in range(1, 100):\n"
        "        files.append(event(number)); files.sync()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "File too large" in ended.stderr
    with LogFiles(tmp_path, HEADING) as files:
        assert 1 < int(files.checkpoint) < 99
        for number in range(int(files.checkpoint) + 1, 100):
            files.append(event(number))
        files.sync()
    assert logged(tmp_path) == list(range(1, 100))
