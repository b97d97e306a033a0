"""A sample of every message of the owner protocol. ``python -m tests.consumers.owner.frames`` keeps their frames."""

from __future__ import annotations

import json
from pathlib import Path

from consumers.fold.shards import Kin
from consumers.owner.framing import PREFIX_BYTES, encode_frame
from consumers.owner.protocol import (
    OLDEST,
    VERSION,
    Answer,
    Checkpoint,
    CheckpointPlace,
    Checkpoints,
    Describe,
    Description,
    Drain,
    Failure,
    Fill,
    Filled,
    FillTable,
    Get,
    GetObjects,
    GetRange,
    GetTable,
    Hello,
    OwnerObjects,
    OwnerRow,
    OwnerTable,
    PartitionStatus,
    RangeRows,
    Request,
    Rows,
    SchemaColumn,
    ShardKin,
    ShardStatus,
    Standing,
    Status,
    Statuses,
    Verdict,
    Verified,
    Wait,
    Waited,
    Welcome,
)

AT = "MariaDB/0-1-5"
VECTOR = "v1.W1sic2hvcC8wIiwxLCJNYXJpYURCLzAtMS01Il1d"
LIST = "shop.items:5:9223372036854775807::"
KIN = Kin(frozenset({"shop/0"}), {"shop/old": 3})
ROW = OwnerRow(
    1, b'{"id":7}', "fresh", "why", True, False, "shop/0", 1, AT, AT, 9, AT, AT, b"stamp", True, "code", KIN, 9, True
)
STANDING = Standing("a:1", "one", "t", "west", 3, 1, ["one", "two"])
PARTITION = PartitionStatus(
    "shop",
    0,
    9,
    8,
    10,
    11,
    True,
    "ready",
    [ShardStatus("shop/0", 1, 4, AT, 9, AT, 0.5, 9_000, 0.2)],
    3,
    2,
    1,
    400,
    "layout",
    "t",
    1.5,
    {"shop.items": True},
    STANDING,
    Verdict(3, 9, True, 1_000),
)

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
REQUESTS: tuple[Request, ...] = (
    Hello(1, VERSION, "secret", OLDEST),
    Get(2, "shop", 3, [b"shop.items\0[7]"], VECTOR, 50, {"shop.items": b"meaning1"}, "t1", 9, "front", True, TRACE),
    GetTable(3, "hive", "shop.items", LIST, 7, VECTOR, 50, "t1", TRACE, 1_700_000_000_000, True),
    GetObjects(
        10,
        "hive",
        "partition",
        "shop.items",
        7,
        LIST,
        VECTOR,
        ['["1"]'],
        ["1"],
        "a = 1",
        '["0"]',
        "1.5",
        9,
        True,
        True,
        50,
        "t1",
        TRACE,
        1_700_000_000_000,
        True,
    ),
    Wait(4, "shop", 3, VECTOR, 50, "t1"),
    Fill(5, "shop", 3, b"shop.items\0[7]", b'{"id":7}', AT, AT, 9, b"stamp", b"meaning1", "t1"),
    FillTable(6, "hive", 3, 7, "shop.items", "transactional", b"{}", LIST, AT, AT, b"stamp", "t1", AT),
    Checkpoint(7, "shop", 3),
    Status(8, "shop", "t1"),
    Verified(15, "shop", [Verdict(3, 9, True, 1_000)]),
    Drain(14),
    Describe(9, "shop", "shop.items", "t1"),
    GetRange(
        10,
        "shop",
        3,
        4,
        b"shop.items\0[7]",
        1,
        b"shop.items\0[7,2]",
        True,
        10,
        5,
        VECTOR,
        50,
        b"meaning1",
        "t1",
        9,
        ["name"],
        b'["x"]',
        ["total"],
        b"[9]",
        "shop/-80",
        TRACE,
    ),
)
ANSWERS: tuple[Answer, ...] = (
    Welcome(1, VERSION, "me"),
    Rows(2, [ROW]),
    OwnerTable(
        3,
        7,
        3,
        b"{}",
        LIST,
        "fresh",
        "why",
        True,
        False,
        "hive/0",
        1,
        AT,
        AT,
        AT,
        AT,
        b"stamp",
        True,
        True,
        "code",
        KIN,
        "shop.items",
        9,
        b"\x00",
    ),
    OwnerObjects(
        10,
        7,
        3,
        "fresh",
        "why",
        True,
        False,
        "hive/0",
        1,
        AT,
        AT,
        AT,
        ['["1"]'],
        [b"{}"],
        LIST,
        1,
        '["1"]',
        "1.5",
        [True],
        False,
        "code",
        KIN,
        9,
        [b"\x00", None],
    ),
    Waited(4, True, VECTOR, [ShardKin("shop/0", 1, KIN)]),
    Filled(5, True, "filled"),
    Checkpoints(6, [CheckpointPlace(3, "/checkpoints/3", 9)]),
    Statuses(7, True, "me", [PARTITION], True),
    Description(
        8, True, "layout", "shop.items", [SchemaColumn("id", "int", True, "bigint(20)")], ["id"], True, "", "shop/0", 1
    ),
    Failure(9, "not_owner", "message", "hint", STANDING),
    RangeRows(10, [b"k"], [b"{}"], 1, True, "fresh", "why", True, False, "shop/0", 1, AT, AT, 9, "code", KIN),
)


def main() -> None:
    """Adds the frames of this version to the kept ones."""
    path = Path(__file__).with_name("frames.json")
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[str(VERSION)] = {
        type(each).__name__: encode_frame(each)[PREFIX_BYTES:].hex() for each in (*REQUESTS, *ANSWERS)
    }
    path.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
