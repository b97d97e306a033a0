"""Readers who look back: at all that the topic tells of one row, of a range of keys, or of some columns, up to now.

Each is judged as a reader of the stream, of what it has asked for and of nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import httpx2
import msgspec

from lab.simulation.engine import Outcome
from lab.simulation.installation.committed import Image, RowName
from lab.simulation.installation.following.copies import TELLS_ALL, UNMATCHED, Chosen, FollowedCopy
from lab.simulation.installation.following.readers import Following
from lab.simulation.installation.processes import SHARD
from lab.simulation.installation.traffic import TIMEOUT_S
from lab.simulation.installation.writing import ACCOUNTS, KEYSPACE, ROWS, image_of
from lab.simulation.kernel.fronts import FrontTransport, blocking_client
from lab.simulation.whole_processes.run import CLIENT
from serving.client.errors import ClientError
from serving.client.streaming import StreamEvent
from stream.shards.map import IdRange
from stream.wire.keys import Layout, row_key

RANGE: Final = "30-c0"
OUR_FAULT: Final = frozenset({"bad_parameter", "bad_key", "unknown_column", "bad_checkpoint"})
"""Codes of a request that is wrong, as none of these is."""


class Look(NamedTuple):
    """``asked``: as of `serving.client.streaming.stream_request`. ``chosen``: what that is of the table."""

    asked: Mapping[str, Any]
    chosen: Chosen
    is_page: bool = False
    """Whether a web page asks, by server-sent events, and of nothing but whole rows."""


def _version(image: Image) -> Image:
    return None if image is None else image_of({"version": json.loads(image)["version"]})


def _looks(row: int, version: int) -> Sequence[Look]:
    ids, layout = IdRange.parse(RANGE), Layout(1)

    def in_range(name: RowName) -> bool:
        return layout.keyspace_id(row_key(ACCOUNTS.name, list(name[1])), 0) in ids

    def with_version(image: Image) -> Image:
        return image if image is None or json.loads(image)["version"] == version else UNMATCHED

    whole = {"include_rows": True}
    return (
        Look({**whole, "key": [row]}, Chosen(has=lambda name: name[1] == (row,))),
        Look({**whole, "key_range": RANGE}, Chosen(has=in_range)),
        Look({"columns": ["version"]}, Chosen(sees=_version)),
        Look({**whole, "where": {"version": version}}, Chosen(sees=with_version)),
        Look(whole, Chosen(), is_page=True),
    )


LOOKS: Final = len(_looks(0, 0))


class LookingBack(Following):
    """The op of who looks back."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self._looked: set[tuple[int, int]] = set()

    def op_look_back(self, row: int, way: int, patience: int) -> None:
        """Somebody reads what the topic tells of some rows, up to now."""
        look = row % ROWS, way % LOOKS
        self._looked.add(look)
        self._do(lambda: self._look_back(*look), patience)

    def _look_back(self, row: int, way: int) -> int:
        """The commit up to which everything is told; -1: the stream did not come so far."""
        look = _looks(row, self._attempts)[way]
        tables = frozenset({ACCOUNTS.name})
        name = f"who looks back at {look.asked}"
        copy = FollowedCopy(self.record, SHARD, tables, self.complain, name, chosen=look.chosen)
        try:
            for event in self._page() if look.is_page else self._stream(look.asked):
                self.record_commits()
                self._count(f"looked back: {event.kind}")
                copy.take(event)
                if event.kind == "end":
                    self.say(f"{name} is told everything up to {copy.told}")
                    return -1 if copy.told is None else copy.told
        except ClientError as error:
            self._count(f"looked back: {error.code}")
            if error.code in OUR_FAULT:
                self.complain(TELLS_ALL, f"{name} is refused for {error.code}: {error}")
        return -1

    def _stream(self, asked: Mapping[str, Any]) -> Iterator[StreamEvent]:
        client = blocking_client(self.kernel, self._ports(), **self.credentials.shown)
        return client.stream(
            KEYSPACE, "earliest", tables=[ACCOUNTS.name], until="now", give_up_s=TIMEOUT_S, heartbeat_ms=300, **asked
        )

    def _page(self) -> Iterator[StreamEvent]:
        """As a page's ``EventSource`` does, which connects again behind the last event that it has heard."""
        transport = FrontTransport(
            self.kernel, lambda: self.kernel.rng.choice(self._ports()), self.credentials.application
        )
        query = f"keyspace={KEYSPACE}&tables={ACCOUNTS.name}&include_rows=true&from=earliest&until=now"
        heard: list[str] = []
        for leaves_after in (2, None):  # it loses its first connection when it has heard so many events
            headers = {"accept": "text/event-stream", **({"last-event-id": heard[-1]} if heard else {})}
            request = httpx2.Request(
                "GET",
                f"http://front/v1/stream?{query}",
                headers=headers,
                extensions={"timeout": {"read": TIMEOUT_S}},
            )
            try:
                response = transport.handle_request(request)
            except (httpx2.HTTPError, OSError):
                return
            try:
                if response.status_code != httpx2.codes.OK:
                    return
                for fields in _sent(response.iter_bytes()):
                    event = msgspec.json.decode(fields["data"], type=StreamEvent)
                    if (fields["event"], fields.get("id", "")) != (event.kind, event.checkpoint):
                        self.complain(TELLS_ALL, f"a page is sent {fields}")
                    if event.kind == "error":
                        return
                    heard.append(event.checkpoint)
                    yield event
                    if event.kind == "end" or len(heard) == leaves_after:
                        break
            except (httpx2.HTTPError, OSError):
                pass
            finally:
                response.close()

    def check_followers(self, within_s: float) -> str:
        """See `Following.check_followers`; also who looks back is told everything then."""
        if behind := super().check_followers(within_s):
            return behind
        left, last = sorted(self._looked), self.record.histories[-1].end
        end = self.kernel.now + within_s

        def work() -> None:
            while left and self.kernel.now < end and not self.outcome.violations:
                if self._look_back(*left[0]) >= last:
                    left.pop(0)
                else:
                    self.kernel.wait(lambda: False, 1.0)

        if left:
            thread = self.kernel.spawn(CLIENT, work)
            self.run_until(lambda: thread.done, within_s + 2 * TIMEOUT_S)
        return ", ".join(f"look {way} back at row {row}" for row, way in left)


def _sent(pieces: Iterable[bytes]) -> Iterator[Mapping[str, str]]:
    """Server-sent events: field → value."""
    rest = b""
    for piece in pieces:
        *blocks, rest = (rest + piece).split(b"\n\n")
        for block in blocks:
            yield dict(line.split(": ", 1) for line in block.decode().split("\n"))
