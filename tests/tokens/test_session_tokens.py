"""The packed form of a session token: small, one text for one vector, and refused rather than misread."""

from __future__ import annotations

import string
from base64 import urlsafe_b64decode, urlsafe_b64encode
from itertools import pairwise
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokens import strategies as some
from tokens import Position, TokenError, Vector
from tokens.session import texts
from tokens.session.packed import SHARD_BYTES_MAX, SHARDS_MAX, pack, unpack
from tokens.session.texts import TOKENS_MAX

P = Position.parse
UUID = some.UUIDS[0]
BASE64 = string.ascii_letters + string.digits + "-_"
vectors = st.dictionaries(some.shard_names, st.tuples(some.epochs, some.positions), max_size=4).map(Vector)


def key_ranges(count: int) -> list[str]:
    """The names of the shards of a keyspace that is split evenly."""
    bounds = ["", *(f"{at:02x}" for at in range(256 // count, 256, 256 // count)), ""]
    return [f"shop/{low}-{high}" for low, high in pairwise(bounds)]


def token_of(body: bytes) -> str:
    """A token with a right checksum around any bytes."""
    return "v2." + urlsafe_b64encode(body + crc32(body).to_bytes(4, "big")).decode().rstrip("=")


@pytest.mark.parametrize("server", [1, 3_232_235_777])
def test_sixty_four_shards_take_thirty_bytes_each(server: int) -> None:
    """A session over a keyspace of 64 shards fits into any header or URL, also where server ids are addresses."""
    places = {shard: (1, P(f"MariaDB/0-{server}-{10**9 + at}")) for at, shard in enumerate(key_ranges(64))}
    assert len(places) == 64
    assert len(str(Vector(places))) <= 30 * 64


def test_a_server_is_written_once() -> None:
    """The UUIDs of MySQL's servers are most of a set, and shards that one server holds share them."""
    places = {shard: (1, P(f"MySQL56/{UUID}:1-{10**9}")) for shard in key_ranges(64)}
    assert len(str(Vector(places))) <= 30 * 64


@given(vectors, st.data())
def test_an_altered_or_cut_token_is_refused(vector: Vector, data: st.DataObject) -> None:
    """A token that lost or changed a character is never read as another place in history."""
    text = str(vector)
    at = data.draw(st.integers(3, len(text) - 1))
    other = data.draw(st.sampled_from([char for char in BASE64 if char != text[at]]))
    for damaged in (text[:at], text[:at] + text[at + 1 :], text[:at] + other + text[at + 1 :], text + other):
        with pytest.raises(TokenError):
            Vector.parse(damaged)


@settings(max_examples=500)
@given(
    st.one_of(
        st.binary(max_size=40),
        vectors.map(lambda vector: pack(vector.items())).flatmap(
            lambda body: st.tuples(st.just(body), st.integers(0, max(len(body) - 1, 0)), st.integers(0, 255)).map(
                lambda drawn: drawn[0][: drawn[1]] + bytes([drawn[2]]) + drawn[0][drawn[1] + 1 :]
            )
        ),
    )
)
def test_whatever_is_read_has_no_other_text(body: bytes) -> None:
    """Bytes with a right checksum are refused, or they are exactly what the vector that they stand for prints."""
    try:
        vector = Vector.parse(token_of(body))
    except TokenError:
        return
    assert str(Vector(dict(vector.items()))) == token_of(body)


@pytest.mark.parametrize(
    ("body", "offender"),
    [
        (b"\0", "component 1"),
        (b"\x01\x01s\0\x05\0\1\5", "common beginning"),
        (b"\0\0\0\x05\0\1\5", "shard"),
        (b"\0\x01\xff\0\x05\0\1\5", "UTF-8"),
        (b"\0\x01s\x80\0\x05\0\1\5", "epoch"),
        (b"\0\x01s" + b"\xff" * 9 + b"\x01\x05\0\1\5", "epoch"),
        (b"\0\x01s" + b"\xff" * 30, "epoch"),
        (b"\0\x01s\0\x05\xff\xff\xff\xff\x7f\1\5", "MariaDB domain 34359738367"),
        (b"\0\x01s\0\x09\1\1\5\1\1\6", "domain 1 is not in order"),
        (b"\0\x01s\0\xfd\xff\xff\xff\x0f\0\1\5", "cut off"),
        (b"\0\x01s\0\x07\5", "position"),
        (b"\0\x01s\0\x00", "no position"),
        (b"\0\x01s\0\x30MariaDB/0-1-5"[:18], "component 1"),
        (b"\0\x01s\0\x34MariaDB/0-1-5", "not packed"),
        (b"\0\x01s\0\x24FilePos/a", "file:position"),
        (b"\0\x01s\0\x06\1\2", "server's number"),
        (b"\0\x01s\0\x06\0" + bytes(16) + b"\0", "no interval"),
        (b"\0\x01s\0\x06\0" + bytes(16) + b"\x03\x01B\0\0", "lower case"),
        (b"\0\x01s\0\x0a\0" + bytes(16) + b"\x02\0\0\0" + bytes(16) + b"\x02\5\0", "twice"),
        (b"\0\x01t\0\x05\0\1\5" + b"\0\x01s\0\x05\0\1\5", "component 2 of the token: its shard is not in order"),
    ],
)
def test_a_wrong_part_is_named(body: bytes, offender: str) -> None:
    """Whoever writes such tokens with a right checksum is told which part is wrong."""
    with pytest.raises(TokenError, match=offender):
        Vector.parse(token_of(body))


def test_a_token_never_grows_when_it_is_read() -> None:
    """Names that share long beginnings are bounded, one by one and in number."""
    name = b"s" * SHARD_BYTES_MAX
    first = bytes([0, *_number(len(name))]) + name + b"\0\x03\x01"
    with pytest.raises(TokenError, match="length"):
        unpack(first + bytes([*_number(len(name)), 1]) + b"t\0\x03\x01")
    every = {f"s{at:05}": (1, P("HiveEvent/1")) for at in range(SHARDS_MAX + 1)}
    with pytest.raises(TokenError, match=str(SHARDS_MAX)):
        unpack(pack(every.items()))
    with pytest.raises(TokenError, match="too large"):
        Vector(every)
    with pytest.raises(TokenError, match="longer than"):
        Vector({"ü" * SHARD_BYTES_MAX: (1, P("HiveEvent/1"))})


def _number(value: int) -> list[int]:
    return [value & 0x7F | 0x80, value >> 7]


def test_other_alphabets_and_spare_bits_are_refused() -> None:
    """Base64 has several texts for the same bytes; a token has one."""
    text = str(Vector({"shop/0": (1, P("MariaDB/0-1-5")), "~": (62, P("HiveEvent/2999"))}))
    raw = urlsafe_b64decode(text[3:] + "=" * (-len(text[3:]) % 4))
    assert token_of(raw[:-4]) == text
    for other in (text + "=", text + "==", text + "\n", text.replace("-", "+"), text.replace("_", "/"), f" {text}"):
        if other != text:
            with pytest.raises(TokenError):
                Vector.parse(other)


def test_several_tokens_are_one_demand() -> None:
    """A session that holds tokens it cannot merge sends them all, and all of them count."""
    shop, bank = Vector({"shop/0": (1, P("MariaDB/0-1-5"))}), Vector({"bank/0": (1, P("MariaDB/0-2-7"))})
    later = "time=5;shard=shop/0;epoch=1;position=MariaDB/0-1-9,1-1-3"
    both = Vector.parse_all(f" {shop}, {bank},{later} ,, v1.W10 ")
    assert both == bank.merge(Vector.parse(later))
    assert not Vector.parse_all("")
    assert not Vector.parse_all(" , ")
    with pytest.raises(TokenError, match="format v3"):
        Vector.parse_all(f"{shop},v3.AAAA")
    with pytest.raises(TokenError, match="damaged"):
        Vector.parse_all(f"{shop},rubbish")
    with pytest.raises(TokenError, match="tokens in one request"):
        Vector.parse_all(",".join([str(shop)] * (TOKENS_MAX + 1)))
    with pytest.raises(TokenError, match="flavors differ"):
        Vector.parse_all(f"{shop},time=5;shard=shop/0;epoch=1;position=HiveEvent/7")


def test_a_name_that_shares_more_than_it_says_is_refused() -> None:
    """``a/1`` after ``a/0`` shares two bytes. Written as sharing none or one, it would be a second text."""
    vector = Vector({"a/0": (1, P("MariaDB/0-1-5")), "a/1": (1, P("MariaDB/0-1-5"))})
    body = pack(vector.items())
    named = b"\x02\x011"
    assert body.count(named) == 1
    assert Vector.parse(token_of(body)) == vector
    for other in (b"\x00\x03a/1", b"\x01\x02/1"):
        with pytest.raises(TokenError, match="not in order"):
            Vector.parse(token_of(body.replace(named, other)))


@pytest.mark.parametrize("version", [0, 3, 9, 10, 11, 1000])
def test_a_format_of_any_other_number_is_kept_as_newer(version: int) -> None:
    """Formats are numbers, not texts: ``v10.`` is no older than ``v2.``."""
    assert texts.is_newer(f"v{version}.AAAA")
    assert not any(map(texts.is_newer, ("v1.W10", "v2.AAAA", "V3.AAAA", "3.AAAA", "")))
