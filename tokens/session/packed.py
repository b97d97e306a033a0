"""The bytes of a session token: the components of a vector, packed (docs/internals/session-token.md).

A vector has one packing only. `unpack` refuses every other, so that equal vectors have equal text. No number in it
makes a reader allocate more than the bytes that follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..errors import TokenError
from ..integers import INT64_MAX, UINT32_MAX, UINT64_MAX, excerpt
from ..logs import EventPosition
from ..mariadb import MariadbPosition
from ..mysql import TAG_CHARS_MAX, Intervals, MysqlPosition, SourceId, checked_tag
from ..position import Position

UNCHANGED = "send back the token of an earlier answer, unchanged"
SHARD_BYTES_MAX = 1024
"""Of a shard's name. Names are packed as differences, so that without it a short token could hold huge ones."""
SHARDS_MAX = 4096
"""Of a vector."""
_NUMBER_BITS_MAX = 70
_TEXT, _MARIADB, _MYSQL, _EVENT = range(4)
_KIND_BITS = 2
_PACKED = (MariadbPosition, MysqlPosition, EventPosition)


def pack(components: Iterable[tuple[str, tuple[int, Position]]]) -> bytes:
    """The bytes of (shard, (epoch, position)) pairs, which are sorted by shard."""
    out = bytearray()
    uuids: dict[str, int] = {}
    before = b""
    for shard, (epoch, position) in components:
        name = shard.encode()
        shared = _shared(before, name)
        _put(out, shared)
        _put(out, len(name) - shared)
        out += name[shared:]
        _put(out, epoch)
        _pack_position(out, position, uuids)
        before = name
    return bytes(out)


def unpack(body: bytes) -> dict[str, tuple[int, Position]]:
    """The components that `pack` gives these bytes for. Raises `TokenError` if there are none."""
    reader = _Reader(body)
    components: dict[str, tuple[int, Position]] = {}
    before, end = b"", len(body)
    try:
        while reader.at < end:
            reader.component += 1
            if reader.component > SHARDS_MAX:
                raise reader.refusal(f"the token names more than {SHARDS_MAX} shards")
            before = _unpack_name(reader, before)
            epoch = reader.number("epoch", INT64_MAX)
            components[before.decode()] = (epoch, _unpack_position(reader))
    except IndexError:
        raise reader.refusal("it is cut off") from None
    except UnicodeDecodeError:
        raise reader.refusal("its shard is not UTF-8") from None
    return components


def _shared(before: bytes, name: bytes) -> int:
    """How many bytes both begin with."""
    if not before:
        return 0
    at = 0
    for one, other in zip(before, name, strict=False):
        if one != other:
            break
        at += 1
    return at


def _put(out: bytearray, value: int) -> None:
    """Appends a number: seven bits a byte, the lowest first; the top bit says that more follow."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _pack_position(out: bytearray, position: Position, uuids: dict[str, int]) -> None:
    if isinstance(position, MariadbPosition):
        domains = position.domains
        _put(out, len(domains) << _KIND_BITS | _MARIADB)
        for domain, (server, sequence) in sorted(domains.items()):
            _put(out, domain)
            _put(out, server)
            _put(out, sequence)
    elif isinstance(position, EventPosition):
        _put(out, _EVENT)
        _put(out, position.event_id)
    elif isinstance(position, MysqlPosition):
        _pack_mysql(out, position.sources, uuids)
    else:
        text = str(position).encode("utf-8", "surrogatepass")
        _put(out, len(text) << _KIND_BITS | _TEXT)
        out += text


def _pack_mysql(out: bytearray, sources: Mapping[SourceId, Intervals], uuids: dict[str, int]) -> None:
    """A server's UUID is written once in a token, and then referred to by its number."""
    _put(out, len(sources) << _KIND_BITS | _MYSQL)
    for (uuid, tag), intervals in sorted(sources.items()):
        number = uuids.get(uuid, 0)
        _put(out, number)
        if not number:
            uuids[uuid] = len(uuids) + 1
            out += bytes.fromhex(uuid.replace("-", ""))
        _put(out, len(intervals) << 1 | bool(tag))
        if tag:
            _put(out, len(tag))
            out += tag.encode()
        reached = -1
        for first, last in intervals:
            _put(out, first - reached - 2)
            _put(out, last - first)
            reached = last


class _Reader:
    """Reads what `pack` wrote, from ``at`` on. `IndexError`: the bytes end too early."""

    __slots__ = ("_body", "at", "component", "uuids")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.at = 0
        self.component = 0
        self.uuids: list[str] = []

    def refusal(self, why: str) -> TokenError:
        return TokenError(f"component {self.component} of the token: {why}", hint=UNCHANGED)

    def number(self, what: str, maximum: int) -> int:
        at = self.at
        value = self._body[at]
        if value > 0x7F:
            value, shift, more = value & 0x7F, 7, True
            while more:
                at += 1
                byte = self._body[at]
                value |= (byte & 0x7F) << shift
                shift += 7
                more = byte > 0x7F and shift < _NUMBER_BITS_MAX
            if not byte or byte > 0x7F:
                raise self.refusal(f"{what} is not written as a number")
        self.at = at + 1
        if value > maximum:
            raise self.refusal(f"{what} {value} is out of range")
        return value

    def raw(self, size: int) -> bytes:
        at = self.at
        end = self.at = at + size
        if end > len(self._body):
            raise IndexError
        return self._body[at:end]


def _unpack_name(reader: _Reader, before: bytes) -> bytes:
    shared = reader.number("its shard's common beginning", len(before))
    name = before[:shared] + reader.raw(reader.number("its shard's length", SHARD_BYTES_MAX - shared))
    if name <= before or name[: shared + 1] == before[: shared + 1]:
        raise reader.refusal("its shard is not in order")
    return name


def _unpack_position(reader: _Reader) -> Position:
    head = reader.number("its position's head", UINT64_MAX)
    kind, count = head & (1 << _KIND_BITS) - 1, head >> _KIND_BITS
    if kind == _MARIADB:
        return MariadbPosition(_domains(reader, count))
    if kind == _MYSQL:
        return MysqlPosition(_sources(reader, count))
    if kind == _EVENT and not count:
        return EventPosition(reader.number("its event id", INT64_MAX))
    try:
        text = reader.raw(count).decode("utf-8", "surrogatepass")
        position = Position.parse(text)
    except (TokenError, UnicodeDecodeError) as error:
        raise reader.refusal(str(error)) from None
    if kind != _TEXT or isinstance(position, _PACKED) or str(position) != text:
        raise reader.refusal(f"position {excerpt(text)} is not packed as Freshet does")
    return position


def _domains(reader: _Reader, count: int) -> dict[int, tuple[int, int]]:
    domains: dict[int, tuple[int, int]] = {}
    before = -1
    for _ in range(count):
        domain = reader.number("a MariaDB domain", UINT32_MAX)
        if domain <= before:
            raise reader.refusal(f"MariaDB domain {domain} is not in order")
        server = reader.number("a MariaDB server", UINT32_MAX)
        domains[domain] = (server, reader.number("a MariaDB sequence", UINT64_MAX))
        before = domain
    return domains


def _sources(reader: _Reader, count: int) -> dict[SourceId, Intervals]:
    sources: dict[SourceId, Intervals] = {}
    before: SourceId = ("", "")
    for _ in range(count):
        source = (_uuid(reader), "")
        head = reader.number("an interval count", UINT64_MAX)
        if head & 1:
            tag = reader.raw(reader.number("a tag's length", TAG_CHARS_MAX)).decode("latin-1")
            if checked_tag(tag) != tag:
                raise reader.refusal(f"tag {excerpt(tag)} is not in lower case")
            source = (source[0], tag)
        if source <= before:
            raise reader.refusal(f"server {source[0]} is not in order")
        sources[source] = _intervals(reader, head >> 1)
        before = source
    return sources


def _uuid(reader: _Reader) -> str:
    number = reader.number("a server's number", len(reader.uuids))
    if number:
        return reader.uuids[number - 1]
    digits = reader.raw(16).hex()
    uuid = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    if uuid in reader.uuids:
        raise reader.refusal(f"server {uuid} is written twice")
    reader.uuids.append(uuid)
    return uuid


def _intervals(reader: _Reader, count: int) -> Intervals:
    if not count:
        raise reader.refusal("a server has no interval")
    intervals: list[tuple[int, int]] = []
    reached = -1
    for _ in range(count):
        first = reached + 2 + reader.number("an interval's start", INT64_MAX)
        reached = first + reader.number("an interval's length", INT64_MAX)
        if reached > INT64_MAX:
            raise reader.refusal(f"interval end {reached} is out of range")
        intervals.append((first, reached))
    return tuple(intervals)
