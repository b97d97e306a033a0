"""The file of locations (L20): what was written is read back; anything else is ignored, and said."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from serving.locations.file import read_snapshot
from serving.locations.places import Key, Kind, Location, Replica, Version
from serving.locations.snapshot import FORMAT, Snapshot, decode_snapshot, encode_snapshot
from tests.serving.locations.places import led_by

LOCATIONS = [led_by("a", 5, "b", term=2), led_by("c", 1, key=Key("bänk", 3))._replace(gone=True)]
KEPT = (
    b'{"format":1,"cluster":"k"}\n'
    b'{"keyspace":"shop","partition":0,"epoch":5,"term":2,"instance":"a",'
    b'"leader":["a:1","t","w","a"],"followers":[["b:1","t","","b"]],"gone":false,"later":1}\n'
)
"""Written once, with a field of a later version."""


def test_what_was_written_is_read_back() -> None:
    """All partitions; the system's entities are asked for anew."""
    system = Location(Key("shop", 0, Kind.EVENTS), Version(), Replica("k:9092"))
    assert decode_snapshot(encode_snapshot("k", [*LOCATIONS, system])) == Snapshot("k", LOCATIONS)


def test_a_kept_file_is_still_read() -> None:
    """By every later version; fields that it does not know are ignored."""
    found = decode_snapshot(KEPT)
    leader = Replica("a:1", "t", "w", "a")
    assert found == Snapshot(
        "k", [Location(Key("shop", 0), Version(5, 2, "a"), leader, (Replica("b:1", "t", "", "b"),))]
    )


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"{}\n",
        b"[]\n",
        encode_snapshot("k", LOCATIONS)[:-1],
        KEPT.replace(b'"format":1', b'"format":%d' % (FORMAT + 1)),
        KEPT.replace(b'"partition":0', b'"partition":"0"'),
        KEPT.replace(b'["a:1"', b"[7"),
        b"\xff\xfe\n",
    ],
)
def test_a_damaged_file_is_ignored(tmp_path: Path, text: bytes) -> None:
    """It only saves time: a front starts without it. The log says so."""
    path = tmp_path / "locations"
    path.write_bytes(text)
    with capture_logs() as logged:
        assert read_snapshot(path) == Snapshot("", [])
    assert [each["event"] for each in logged] == ["location file is ignored"]


def test_a_file_that_is_not_there_is_nothing_to_speak_of(tmp_path: Path) -> None:
    """The first start has none."""
    with capture_logs() as logged:
        assert read_snapshot(tmp_path / "locations") == Snapshot("", [])
    assert logged == []
