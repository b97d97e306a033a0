"""A change log in files: each event once and in order, whatever a crash leaves."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serving.changelog import files as change_log
from serving.changelog.errors import ChangeLogError
from serving.changelog.files import FILE_AGE_S_MAX, Heading, LogFiles, files_of
from serving.changelog.writing import QUIET_S, write_log
from serving.client import StreamEvent

HEADING = Heading("shop", ["shop.items"])


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
    with LogFiles(tmp_path, HEADING) as files:
        assert files.checkpoint == "1"
    (path,) = files_of(tmp_path, "shop")
    path.write_text("a note\nof somebody\n")
    with pytest.raises(ChangeLogError, match="is no change log"):
        LogFiles(tmp_path, HEADING)


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
