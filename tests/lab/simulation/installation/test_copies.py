"""The judge of readers of the change stream: each way in which a copy goes wrong is told it once, by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lab.simulation.installation.committed import CommittedRecord, Point, RowName
from lab.simulation.installation.following.copies import TELLS_ALL, FollowedCopy
from lab.simulation.installation.following.described import is_described_as_told
from lab.simulation.installation.writing import NOTES, TABLE, image_of
from lab.simulation.kafka.log import Draft, PartitionLog
from serving.client.streaming import StreamChange, StreamEvent
from stream.wire.batch import Framer
from stream.wire.events import DescribeTable, ResumePoint, SourceTransaction
from stream.wire.keys import Layout
from tokens import EventToken, Position, Vector

SHARD = "shop/0"
A: RowName = (TABLE, (1,))
B: RowName = (TABLE, (2,))


class Story:
    """A source whose commits write one row each, and a reader."""

    def __init__(self) -> None:
        self.record = CommittedRecord()
        self.broken: list[str] = []
        tables, told = frozenset({TABLE}), lambda rule, what: self.broken.append(f"{rule}: {what}")
        self.copy = FollowedCopy(self.record, SHARD, tables, told, "reader")
        for number in range(1, 7):
            self.commit(number, A if number % 2 else B)

    def commit(self, number: int, row: RowName, version: int | None = None) -> None:
        """One commit; its version is its number."""
        image = image_of({"version": version or number})
        self.record.commit(float(number), {row: image}, gtid=f"0-1-{number}")

    def tell(self, number: int, row: RowName | None = None, version: int | None = None, **more: Any) -> None:
        """The commit comes as it was, or with another row or version, or as other changes."""
        key = (row or (A if number % 2 else B))[1]
        change = StreamChange("row", TABLE, list(key), "value", {"version": version or number})
        epoch = more.get("epoch", 1)
        token = EventToken(0, SHARD, Position.parse(f"MariaDB/0-1-{number}"), None, epoch)
        changes = more.get("changes", [change])
        told = {"epoch": epoch, "gtid": f"0-1-{number}", "changes": changes, "checkpoint": more.get("checkpoint", "")}
        self.copy.take(StreamEvent("transaction", token=str(token), **told))

    def replace(self) -> None:
        """The shard's history is replaced behind commit 4; the new one, of epoch 2, has another commit 5."""
        self.record.replace(9.0, 4, epoch=1)
        self.commit(5, A, 55)

    def watermark(self, number: int, epoch: int = 1) -> None:
        """All up to a commit has been told."""
        vector = Vector({SHARD: (epoch, Position.parse(f"MariaDB/0-1-{number}"))})
        self.copy.take(StreamEvent("watermark", token=str(vector)))


def as_it_was(story: Story) -> None:
    """Everything in its order, with a void in between."""
    for number in (1, 2, 3):
        story.tell(number)
    story.tell(4, changes=[StreamChange("void", TABLE)])
    story.tell(5)
    story.tell(6)
    story.watermark(6)


def replaced(story: Story) -> None:
    """The shard's history is replaced behind commit 4, and the reader is told so."""
    for number in (1, 2, 3, 4, 5):
        story.tell(number)
    story.replace()
    story.tell(4, epoch=2, changes=[StreamChange("epoch")])
    story.tell(5, version=55, epoch=2)
    story.watermark(5, epoch=2)


@pytest.mark.parametrize("tell", [as_it_was, replaced])
def test_a_reader_that_is_told_everything_is_content(tell: Callable[[Story], None]) -> None:
    """A judge that complains of what is right would hide what is wrong."""
    story = Story()
    tell(story)
    assert story.broken == []


def read_again(story: Story) -> None:
    """A source that was started again publishes a piece of a backfill once more, which no commit has written."""
    story.tell(1)
    story.tell(2)
    for checkpoint in ("a", "b"):
        story.tell(2, A, 1, checkpoint=checkpoint)


def begun_late(story: Story) -> None:
    """The second at which the stream begins comes behind commit 8, by the server's clock."""
    story.copy.has_begun = lambda: len(story.record.histories[-1].times) > 8
    story.copy.take(StreamEvent("heartbeat"))
    story.commit(7, A)
    story.commit(8, B)
    story.tell(8)


@pytest.mark.parametrize("tell", [read_again, begun_late])
def test_what_a_stream_may_tell_twice_or_leave_out(tell: Callable[[Story], None]) -> None:
    """A judge that complains of what the documentation allows would hide what is wrong."""
    story = Story()
    tell(story)
    assert story.broken == []


def left_out(story: Story) -> None:
    """A commit between two others is not told."""
    story.tell(1)
    story.tell(3)


def backwards(story: Story) -> None:
    """Commits come out of order."""
    for number in (1, 2, 3):
        story.tell(number)
    story.tell(2)


def twice(story: Story) -> None:
    """A commit comes again."""
    story.tell(1)
    story.tell(1)


def the_same_place_twice(story: Story) -> None:
    """A piece of a backfill comes again, and it is the same one: its checkpoint says so."""
    story.tell(1)
    story.tell(2)
    for _ in range(2):
        story.tell(2, A, 1, checkpoint="a")


def another_image(story: Story) -> None:
    """The row is not what was committed."""
    story.tell(1, version=7)


def another_row(story: Story) -> None:
    """The change is of another row."""
    story.tell(1)
    story.tell(2, row=A)


def early_watermark(story: Story) -> None:
    """All is said to be told, and is not."""
    story.tell(1)
    story.watermark(3)


def no_such_commit(story: Story) -> None:
    """Nobody has committed it."""
    story.tell(9)


def untold_epoch(story: Story) -> None:
    """The history was replaced, and the reader keeps what never happened."""
    for number in (1, 2, 3, 4, 5):
        story.tell(number)
    story.replace()
    story.watermark(4, epoch=2)


@pytest.mark.parametrize(
    "tell",
    [
        left_out,
        backwards,
        twice,
        the_same_place_twice,
        another_image,
        another_row,
        early_watermark,
        no_such_commit,
        untold_epoch,
    ],
)
def test_a_reader_that_is_told_wrongly_complains(tell: Callable[[Story], None]) -> None:
    """Each way to go wrong breaks the rule."""
    story = Story()
    tell(story)
    assert [each.split(":")[0] for each in story.broken][:1] == [TELLS_ALL]


def test_rows_without_a_key_are_judged_from_the_second_transaction_on() -> None:
    """The first that is told may have been committed when the reader came: nobody knows then what it should tell."""
    story, note = Story(), StreamChange("keyless", NOTES, [], "inserted", {"word": 1})
    story.copy.hears_notes = True
    story.tell(6, changes=[note])
    assert story.broken == []
    story.commit(7, A)
    story.tell(7, changes=[note])
    assert len(story.broken) == 1


def test_a_table_that_the_source_did_not_tell_when_the_stream_began_may_be_left_out() -> None:
    """What said so came before the beginning. Behind the description that ends it, no commit may be left out."""
    record, log = Story().record, PartitionLog()
    framer = Framer(SHARD, Layout(1), ResumePoint(SHARD, 1, 1, "MariaDB/0-1-0", 0, "MariaDB/0-1-0"))
    for number, is_told in ((1, True), (3, False), (5, True)):
        at = f"MariaDB/0-1-{number}"
        framer.add(SourceTransaction(at, at, 0, [DescribeTable(TABLE, (), ("id",), cacheable=is_told)]), 0, 1)
    log.append([Draft(None, value, (), 0) for _, value in framer.take().records])
    found = [is_described_as_told([log], record, TABLE, Point(0, commit)) for commit in range(1, 7)]
    assert found == [True, True, False, False, True, True]

    story = Story()
    story.copy.is_told = lambda table, at: is_described_as_told([log], story.record, table, at)
    for number, problems in ((3, 0), (5, 1)):
        story.copy.forget()
        story.copy.begin_after(Vector({SHARD: (1, Position.parse(f"MariaDB/0-1-{number}"))}))
        story.watermark(number + 1)
        assert len(story.broken) == problems
