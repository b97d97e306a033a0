"""Texts of readers and sources: lists, positions, event tokens, vectors, layouts, offsets."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

from spark_jobs.offsets import OffsetsError, parse_offsets
from stream.sources.mariadb.gtid import GtidPosition
from stream.wire.keys import Layout, LayoutError
from tests.fuzz.engine import Case, Misbehaved, Target, refused
from tests.fuzz.mutate import Rng, some_bytes, some_text, some_tree
from tokens import EventToken, Position, TokenError, ValidWriteIdList, Vector, decide
from tokens.comparison import compare_texts
from tokens.decision import Demand, Tag
from tokens.session.packed import pack
from tokens.writeid_kinds import CleanerWriteIdList, CompactorWriteIdList, TxnWriteIds

UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"
LISTS = (
    "db.t:12:7:7,8:12",
    "db.t:9223372036854775807:9223372036854775807::",
    "s1.fau:1:2::1",
    "[12:7,8]",
    "[12:]",
    "null:5:5:5:",
    "db.t:30000:1:" + ",".join(map(str, range(1, 200, 3))) + ":",
    "5$db.t:12:7:7,8:12$db.u:3:3:3:",
)
POSITIONS = (
    "MariaDB/0-1-5",
    "MariaDB/0-1-5,1-2-9,4294967295-4294967295-18446744073709551615",
    f"MySQL56/{UUID}:1-5:8",
    f"MySQL56/{UUID}:1-5,{UUID[:-1]}e:tag:7-9",
    "Postgres/2:16/B374D848",
    "FilePos/bin.000001:4",
    "HiveEvent/190",
    "0-1-5",
    "",
)
EVENTS = (
    "time=1700000000;shard=ks/0;position=MariaDB/0-1-5",
    f"time=1700000000;shard=ks/0;position=MySQL56/{UUID}:1-5;origin=old/0 MariaDB/1-1-3;epoch=2",
    str(EventToken(1, "a b", Position.parse("HiveEvent/7"), epoch=3)),
)
VECTORS = (
    str(Vector()),
    str(Vector({"shop/0": (1, Position.parse("MariaDB/0-1-5"))})),
    str(Vector({"shop/0": (1, Position.parse("MariaDB/0-1-5")), "ü/1": (7, Position.parse(f"MySQL56/{UUID}:1-5"))})),
    "v1.W1sic2hvcC8wIiwxLCJNYXJpYURCLzAtMS01Il1d",
)
PACKED = tuple(
    pack({"shop/-80": (1, one), "shop/80-": (2**40, Position.parse(other))}.items())
    for one in [Position.parse("MariaDB/0-1-5,1-2-9")]
    for other in (f"MySQL56/{UUID}:1-5:8,{UUID[:-1]}e:tag:7-9", "FilePos/bin.000001:4", "HiveEvent/190")
)
LAYOUTS = ("xxh3_64;partitions=4", "xxh3_64;partitions=1;prefix=db.orders:1,db.users:2")
PIECES = (
    *"/:,-;=@%#[]$+_ \t",
    *(
        "MariaDB/",
        "MySQL56/",
        "FilePos/",
        "HiveEvent/",
        "v1.",
        "v2.",
        "time=",
        "shard=",
        "position=",
        "origin=",
        "epoch=",
    ),
    *("0-1-5", UUID, "blue", "db.t", "W10", "prefix=", "partitions=", "null"),
)


def _drawing(corpus: Sequence[str]) -> Callable[[Rng], str]:
    return lambda rng: some_text(rng, corpus, PIECES)


def _write_ids() -> Case:
    reference = ValidWriteIdList.parse("db.t:12:7:7,8:12")

    def run(text: str) -> None:
        for kind in (CompactorWriteIdList, CleanerWriteIdList, TxnWriteIds):
            refused(TokenError, kind.parse, text)
        found = refused(TokenError, ValidWriteIdList.parse, text)
        if found is None:
            return
        printed = str(found)
        if str(ValidWriteIdList.parse(printed)) != printed and "null" not in printed.lower():
            raise Misbehaved(f"{printed!r} parses to another list")
        if not found.covers(found):
            raise Misbehaved(f"{printed!r} does not cover itself")
        found.covers(reference), reference.covers(found), found.range_valid(1, 2**62)
        tag = Tag("ks/0", 1, None, None, None, write_ids=reference)
        decide(Demand(write_ids=found, given=True), tag)

    return Case(_drawing(LISTS), run)


def _positions() -> Case:
    known = [Position.parse(text) for text in POSITIONS if "/" in text]

    def run(text: str) -> None:
        refused(TokenError, GtidPosition.parse, text)
        for flavor in (None, "MariaDB", "MySQL56", "FilePos", "HiveEvent"):
            found = refused(TokenError, Position.parse, text, flavor)
            if found is None:
                continue
            if Position.parse(str(found)) != found:
                raise Misbehaved(f"{found!r} prints {str(found)!r}, which is another position")
            for other in known:
                if found.order(other) is not other.order(found).reversed():
                    raise Misbehaved(f"the order of {found} and {other} is not antisymmetric")
                found.contains(other)

    return Case(_drawing(POSITIONS), run)


def _event_tokens() -> Case:
    def run(text: str) -> None:
        found = refused(TokenError, EventToken.parse, text)
        if found is not None and EventToken.parse(str(found)) != found:
            raise Misbehaved(f"{found!r} prints a text of another token")

    return Case(_drawing(EVENTS), run)


def _vectors() -> Case:
    known = Vector.parse(VECTORS[1])
    tag = Tag("shop/0", 1, Position.parse("MariaDB/0-1-5"), Position.parse("MariaDB/0-1-5"), None)

    def run(text: str) -> None:
        found = refused(TokenError, Vector.parse, text)
        if found is None:
            return
        printed = str(Vector(dict(found.items())))
        if Vector.parse(printed) != found:
            raise Misbehaved(f"{found!r} prints a text of another vector")
        if text.startswith("v2.") and text != printed:
            raise Misbehaved(f"{found!r} has two texts: {text} and {printed}")
        refused(TokenError, known.merge, found)
        decide(Demand(vector=found, given=True), tag)

    def draw(rng: Rng) -> str:
        form = rng.random()
        if form < 0.4:
            return some_text(rng, VECTORS, PIECES)
        if form < 0.7:
            return _sealed(some_bytes(rng, PACKED))
        return _packed(some_tree(rng, [["shop/0", 1, "MariaDB/0-1-5"], ["ü/1", 7, "HiveEvent/190"]]), rng)

    return Case(draw, run)


def _packed(tree: Any, rng: Rng) -> str:
    """A vector's text around content that may be anything."""
    text = json.dumps(tree, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")
    return "v1." + urlsafe_b64encode(text).decode().rstrip("=" if rng.random() < 0.9 else "x")


def _sealed(body: bytes) -> str:
    """A packed token with a right checksum, so that its content is what is read."""
    return "v2." + urlsafe_b64encode(body + crc32(body).to_bytes(4, "big")).decode().rstrip("=")


def _comparisons() -> Case:
    every = (*LISTS, *POSITIONS, *EVENTS, *VECTORS)

    def run(pair: tuple[str, str]) -> None:
        refused(TokenError, compare_texts, *pair)

    return Case(lambda rng: (some_text(rng, every, PIECES), rng.choice(every)), run)


def _layouts() -> Case:
    keys = (b"db.orders\0[1,2]", b"db.users\0[" + b"[" * 5_000, b"", b"\0", b"db.orders\0[\xff")

    def run(text: str) -> None:
        found = refused(LayoutError, Layout.parse, text)
        if found is not None:
            if Layout.parse(str(found)) != found:
                raise Misbehaved(f"{found!r} prints a text of another layout")
            for key in keys:
                found.partition_of(key)

    return Case(_drawing(LAYOUTS), run)


def _offsets() -> Case:
    good = {"0": 17, "1": 4, "2": 0}

    def draw(rng: Rng) -> str:
        text = json.dumps(some_tree(rng, good) if rng.random() < 0.7 else good)
        return text if rng.random() < 0.4 else some_text(rng, [text], ("[" * 5_000, "Infinity", "1e999", "NaN"))

    def run(text: str) -> None:
        refused(OffsetsError, parse_offsets, text)

    return Case(draw, run)


TARGETS = (
    Target("write_ids", "write-id lists, all kinds", _write_ids),
    Target("positions", "GTID sets and positions of each flavor", _positions),
    Target("event_tokens", "event tokens", _event_tokens),
    Target("vectors", "session vectors", _vectors),
    Target("comparisons", "freshet compare", _comparisons),
    Target("layouts", "layouts, and the partition of any key", _layouts),
    Target("offsets", "offsets of a rebuild or checkpoint, JSON", _offsets),
)
