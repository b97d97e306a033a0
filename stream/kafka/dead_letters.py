"""Messages that could not be folded, kept with reason, offset and bytes in ``<prefix>.<keyspace>.dlq``.

Record key: ``topic/partition/offset`` of the message, so that folding it again after a crash adds no second letter.
Value: the message's bytes, unchanged. Headers: ``code``, ``reason``, ``topic``, ``partition``, ``offset``, ``size``.
A null value resolves the letter; its header ``put_back`` says that the message was written to its topic again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import zip_longest
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from stream.kafka.connection import KafkaCluster, KafkaUnreachable, call_kafka, client_settings, kafka_error
from stream.kafka.reader import end_offsets, read_range, read_ranges, start_offsets
from stream.kafka.topics import MESSAGE_BYTES_MAX, dead_letter_topic, describe_topic, events_topic
from stream.kafka.unfolded import GAP_MAX, Place, nothing_left_behind
from stream.wire.checks import check
from stream.wire.codec import CodecError, decode
from tokens.errors import FreshetError

VALUE_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 1024 * 1024
"""Of a larger message only the first bytes are kept, with the full size."""
REASON_CHARS_MAX: Final = 1000
SENT_IDS_MAX: Final = 100_000
PUT_BACK: Final = "put_back"
PORTION_BYTES: Final = 64 * 1024 * 1024
"""Bytes of letters that are put back before the next ones; far less than a producer's queue takes."""
PORTION_LETTERS: Final = 10_000
FLUSH_TIMEOUT_S: Final = 30.0
Kept = TypeVar("Kept")


class DeadLetterError(FreshetError):
    """A dead letter that cannot be kept or found; codes ``dead_letter_lost``, ``no_such_letter``."""

    code = "dead_letter_lost"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be folded, wholly or in part. ``size``: its full size; 0: the size of ``value``.

    ``digest``: of ``value``, if that is left out to save memory; else empty.
    """

    topic: str
    partition: int
    offset: int
    code: str
    reason: str
    value: bytes = b""
    size: int = 0
    digest: bytes = b""

    @property
    def place(self) -> Place:
        """Where the message lies in its topic."""
        return self.partition, self.offset

    @property
    def id(self) -> str:
        """``topic/partition/offset``"""
        return f"{self.topic}/{self.partition}/{self.offset}"

    def record(self) -> dict[str, Any] | None:
        """The message for people: its name and fields; None if this version can't decode it.

        Bytes are text if they are UTF-8, else hex.
        """
        try:
            name, fields = decode(self.value)
        except CodecError:
            return None
        return {"name": name, **{field: _text(content) for field, content in fields.items()}}

    @property
    def is_complete(self) -> bool:
        """Whether ``value`` holds all bytes of the message."""
        return self.size in (0, len(self.value))

    def problem(self) -> CodecError | None:
        """Why this version cannot decode the message; None if it can."""
        try:
            check(*decode(self.value))
        except CodecError as error:
            return error
        return None


def _text(content: Any) -> Any:
    if isinstance(content, bytes):
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content.hex()
    return [_text(each) for each in content] if isinstance(content, list) else content


class DeadLetterPublisher:
    """Sends one letter for each message, with its first reason. Call `flush` before the offsets are committed."""

    def __init__(self, kafka: KafkaCluster, keyspace: str) -> None:
        self.kafka = kafka
        self.topic = dead_letter_topic(kafka, keyspace)
        self.sent = 0
        self._sent_ids: dict[str, None] = {}
        self._failed: KafkaError | None = None
        self._producer = Producer(
            client_settings(
                kafka,
                **{
                    "enable.idempotence": True,
                    "compression.type": "lz4",
                    "linger.ms": 5,
                    "message.max.bytes": MESSAGE_BYTES_MAX,
                    "delivery.timeout.ms": int(FLUSH_TIMEOUT_S * 1000),
                },
            )
        )

    def send(self, letter: DeadLetter) -> bool:
        """Send a letter, unless it was sent before. Returns whether it is sent now; `flush` waits for delivery."""
        if letter.id in self._sent_ids:
            return False
        self._sent_ids[letter.id] = None
        if len(self._sent_ids) > SENT_IDS_MAX:
            del self._sent_ids[next(iter(self._sent_ids))]
        headers = {
            "code": letter.code,
            "reason": letter.reason[:REASON_CHARS_MAX],
            "topic": letter.topic,
            "partition": str(letter.partition),
            "offset": str(letter.offset),
            "size": str(letter.size or len(letter.value)),
        }
        self._produce(letter.id, letter.value[:VALUE_BYTES_MAX], headers)
        self.sent += 1
        return True

    def resolve(self, letter_id: str, *, is_put_back: bool = False) -> None:
        """Mark a letter as resolved: it is no longer listed."""
        self._produce(letter_id, None, {PUT_BACK: "yes"} if is_put_back else {})

    def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        """Wait until all letters are in the topic. Raises `KafkaUnreachable` or `KafkaRequestError`."""
        left = self._producer.flush(timeout_s)
        if self._failed is not None:
            raise kafka_error(self._failed, self.kafka, f"write to {self.topic}")
        if left:
            raise KafkaUnreachable(f"{left} dead letters were not written to {self.topic} within {timeout_s:g} s")

    def _produce(self, key: str, value: bytes | None, headers: dict[str, str]) -> None:
        record = {"partition": 0, "headers": headers or None, "on_delivery": self._delivered}
        try:
            _when_there_is_room(self._producer, partial(self._producer.produce, self.topic, value, key, **record))
        except KafkaException as error:
            raise DeadLetterError(f"{key} cannot be written to {self.topic}: {error.args[0].str()}") from error

    def _delivered(self, error: KafkaError | None, message: Message) -> None:  # noqa: ARG002 - the signature is librdkafka's
        self._failed = self._failed or error


def _when_there_is_room(producer: Producer, produce: Callable[[], None]) -> None:
    """Calls ``produce`` until the producer's queue takes the record."""
    while True:
        try:
            produce()
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def read_letters(kafka: KafkaCluster, keyspace: str, *, values: bool = True) -> list[DeadLetter]:
    """All unresolved letters of a keyspace, oldest first.

    ``values`` False leaves the bytes out; ``size`` is still set. Raises `TopicError` ``topic_missing``,
    `KafkaUnreachable`, `TopicReadError`.
    """
    return _unresolved(kafka, keyspace, "", lambda letter: letter if values else replace(letter, value=b""))


def _unresolved(kafka: KafkaCluster, keyspace: str, letter_id: str, kept: Callable[[DeadLetter], Kept]) -> list[Kept]:
    """What is ``kept`` of each unresolved letter, or of ``letter_id`` if given. Only one letter is whole at a time.

    Raises `DeadLetterError` ``no_such_letter``.
    """
    letters: dict[str, Kept] = {}
    for message in _messages(kafka, dead_letter_topic(kafka, keyspace)):
        key = (message.key() or b"").decode(errors="replace")
        if letter_id and key != letter_id:
            continue
        if message.value() is None:
            letters.pop(key, None)
        elif key not in letters and (letter := _letter(message)):
            letters[key] = kept(letter)
    if letter_id and not letters:
        raise DeadLetterError(
            f"no dead letter {letter_id} in {dead_letter_topic(kafka, keyspace)}",
            hint="`freshet dlq list` shows all dead letters",
            code="no_such_letter",
        )
    return list(letters.values())


def find_letter(kafka: KafkaCluster, keyspace: str, letter_id: str) -> DeadLetter:
    """The unresolved letter ``topic/partition/offset``; raises `DeadLetterError` ``no_such_letter``."""
    return _unresolved(kafka, keyspace, letter_id, lambda letter: letter)[0]


def _messages(kafka: KafkaCluster, topic: str) -> Iterator[Message]:
    describe_topic(kafka, topic)
    [start] = start_offsets(kafka, topic, [0]).values()
    [end] = end_offsets(kafka, topic, [0]).values()
    return read_range(kafka, topic, 0, start, end)


def _letter(message: Message) -> DeadLetter | None:
    """The letter in a record of the topic; None for a record that is not a letter."""
    headers = {name: (value or b"").decode(errors="replace") for name, value in message.headers() or ()}
    try:
        return DeadLetter(
            topic=headers["topic"],
            partition=int(headers["partition"]),
            offset=int(headers["offset"]),
            code=headers["code"],
            reason=headers["reason"],
            value=message.value() or b"",
            size=int(headers["size"]),
        )
    except (KeyError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class RetryResult:
    """What `retry` did with one letter. An empty ``problem`` means that its message was put back."""

    letter: DeadLetter
    problem: str


def retry(kafka: KafkaCluster, keyspace: str, letter_id: str = "", *, dry_run: bool = False) -> list[RetryResult]:
    """Put messages that this version can decode, and that their topic still has, back into it; resolve their letters.

    They are folded as late events, so newer entries stay. One stays a letter as long as another message behind it, up
    to the next marker, was not folded: what it says of a key would be taken for all that was before the marker. So the
    last ones go first. ``dry_run`` only reports. Raises `KafkaUnreachable`, `DeadLetterError`, `TopicReadError`.

    All may be more than the memory holds: the digest of each is kept, and what goes back is read from its topic.
    """
    own = events_topic(kafka, keyspace)
    seen = _unresolved(kafka, keyspace, letter_id, lambda letter: (_digested(letter), _obstacle(letter, own)))
    letters = [letter for letter, _ in seen]
    problems = {letter.id: problem for letter, problem in seen}
    able = [letter for letter in letters if not problems[letter.id]]
    true = _true_letters(kafka, own, able)
    problems |= {letter.id: _UNTRUE for letter in able if letter.id not in true}
    able = sorted((letter for letter in able if letter.id in true), key=lambda letter: letter.place, reverse=True)
    if able:
        found = nothing_left_behind(kafka, own, [letter.place for letter in able], _not_folded(kafka, keyspace))
        problems |= {letter.id: _FOLLOWED for letter in able if letter.place not in found}
    good = [letter for letter in able if not problems[letter.id]]
    if good and not dry_run:
        publisher = DeadLetterPublisher(kafka, keyspace)
        for portion in _portions(good):
            values = {}  # else those of the portion before are held while these are read
            values = dict(_borne_out(kafka, own, portion))
            problems |= {letter.id: _UNTRUE for letter in portion if letter.id not in values}
            there = [letter for letter in portion if letter.id in values]
            _put_back(kafka, there, values)
            for letter in there:
                publisher.resolve(letter.id, is_put_back=True)
            publisher.flush()
    return [RetryResult(letter, problems[letter.id]) for letter in letters]


def dismiss(kafka: KafkaCluster, keyspace: str, letter_id: str = "") -> list[DeadLetter]:
    """Resolve a letter without putting its message back, or all letters. Returns them.

    Raises `KafkaUnreachable`, `DeadLetterError` ``no_such_letter``.
    """
    letters = [find_letter(kafka, keyspace, letter_id)] if letter_id else read_letters(kafka, keyspace, values=False)
    if letters:
        publisher = DeadLetterPublisher(kafka, keyspace)
        for letter in letters:
            publisher.resolve(letter.id)
        publisher.flush()
    return letters


_UNTRUE: Final = "the topic does not have it at its place, or no longer: nothing proves that a source wrote it"


def _digested(letter: DeadLetter) -> DeadLetter:
    value = letter.value
    return replace(letter, value=b"", size=letter.size or len(value), digest=sha256(value).digest())


def _true_letters(kafka: KafkaCluster, topic: str, letters: Sequence[DeadLetter]) -> set[str]:
    """The ids of those whose bytes are still in the topic, at the place that they name."""
    return {letter_id for letter_id, _ in _borne_out(kafka, topic, letters)}


def _borne_out(kafka: KafkaCluster, topic: str, letters: Sequence[DeadLetter]) -> Iterator[tuple[str, bytes]]:
    """The ids and the bytes of those whose bytes are still in the topic, at the place that they name.

    Who may write letters, as consumers do, could else have an operator write events.
    """
    partitions = range(describe_topic(kafka, topic).partitions)
    lows, ends = start_offsets(kafka, topic, partitions), end_offsets(kafka, topic, partitions)
    by_place = {(letter.partition, letter.offset): letter for letter in letters}
    stretches: dict[int, list[tuple[int, int]]] = {}
    for partition, offset in sorted(by_place):
        if partition in lows and lows[partition] <= offset < ends[partition]:
            found = stretches.setdefault(partition, [])
            begun = found.pop()[0] if found and offset - found[-1][1] < GAP_MAX else offset
            found.append((begun, offset + 1))
    for at in zip_longest(*stretches.values()):
        ranges = {partition: each for partition, each in zip(stretches, at, strict=True) if each is not None}
        for message in read_ranges(kafka, topic, ranges):
            letter = by_place.get((message.partition() or 0, message.offset() or 0))
            if letter is not None and letter.digest == sha256(value := message.value() or b"").digest():
                yield letter.id, value


_FOLLOWED: Final = (
    "another message behind it, before the next marker, could not be folded and was not put back: "
    "nothing proves that it changed none of the same keys"
)


def _not_folded(kafka: KafkaCluster, keyspace: str) -> set[Place]:
    """Where each message lies of which there is a letter, resolved or not, and that was not put back."""
    own, places = events_topic(kafka, keyspace), dict[bytes, Place]()
    for message in _messages(kafka, dead_letter_topic(kafka, keyspace)):
        key, letter = message.key() or b"", _letter(message)
        if letter is not None and letter.topic == own:
            places[key] = letter.place
        elif any(name == PUT_BACK for name, _ in message.headers() or ()):
            places.pop(key, None)
    return set(places.values())


_ORDERED: Final = ("Marker", "SourceState")
"""Records that say how far a shard is: written again later, they would say it of another place."""


def _obstacle(letter: DeadLetter, own: str) -> str:
    if letter.topic != own:  # who may write letters only may not have an operator write elsewhere
        return f"it names the topic {letter.topic}, and letters of this keyspace are of {own}"
    if not letter.is_complete:
        return f"only {len(letter.value)} of its {letter.size} bytes were kept"
    problem = letter.problem()
    if problem:
        return f"{problem.code}: {problem}"
    name = decode(letter.value)[0]
    return f"a {name} cannot be written again later: the source has written newer ones" if name in _ORDERED else ""


def _portions(letters: Sequence[DeadLetter]) -> Iterator[list[DeadLetter]]:
    """Those that are put back and resolved together: what is done stays done if the next one fails."""
    portion: list[DeadLetter] = []
    size = 0
    for letter in letters:
        if portion and (size + letter.size > PORTION_BYTES or len(portion) == PORTION_LETTERS):
            yield portion
            portion, size = [], 0
        portion.append(letter)
        size += letter.size
    if portion:
        yield portion


def _put_back(kafka: KafkaCluster, letters: Sequence[DeadLetter], values: Mapping[str, bytes]) -> None:
    settings = client_settings(kafka, **{"enable.idempotence": True, "message.max.bytes": MESSAGE_BYTES_MAX})
    producer = Producer(settings)
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:  # noqa: ARG001 - the signature is librdkafka's
        if error is not None:
            failed.append(error)

    for letter in letters:
        record = {"partition": letter.partition, "on_delivery": delivered}
        produce = partial(producer.produce, letter.topic, values[letter.id], **record)
        call_kafka(kafka, f"put {letter.id} back", partial(_when_there_is_room, producer, produce))
    left = producer.flush(FLUSH_TIMEOUT_S)
    if failed:
        raise kafka_error(failed[0], kafka, "put dead letters back")
    if left:
        raise KafkaUnreachable(f"{left} messages were not put back after {FLUSH_TIMEOUT_S:g} s")
