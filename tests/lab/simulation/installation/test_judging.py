"""The judge of the world of installations: each rule is broken once, by a record that somebody wrote by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lab.simulation.installation.committed import CommittedRecord, Image, Point, RowName
from lab.simulation.installation.finding import FoundStretch
from lab.simulation.installation.judging import (
    BOUNDED,
    MONOTONIC,
    OWN_WRITES,
    RULES,
    STALE,
    UNCOMMITTED,
    Answer,
    SessionJudge,
)
from lab.simulation.whole_processes.words import EXPLAINS, NEVER_RAISES

A: RowName = ("shop.items", (1,))
B: RowName = ("shop.items", (2,))


class Story:
    """A source, a judge, and sessions whose reads take no time."""

    def __init__(self) -> None:
        self.record = CommittedRecord()
        self.broken: list[tuple[str, str]] = []
        self.judge = SessionJudge(self.record, lambda rule, what: self.broken.append((rule, what)))
        self.now = 0.0

    def commit(self, row: RowName, image: Image, writer: str = "") -> Point:
        """One commit, seen from now on; then time passes."""
        point = self.record.commit(self.now, {row: image}, writer)
        self.now += 1
        return point

    def lose(self, kept: int) -> None:
        """The source loses what came after commit ``kept``, and everyone knows it."""
        self.record.replace(self.now, kept)
        self.record.is_ambiguous = False

    def read(self, session: str, row: RowName, image: Image, freshness: str = "fresh", **fields: str) -> None:
        """An answer from the cache."""
        self.batch(session, self.answer(row, image, freshness, **fields))

    def answer(self, row: RowName, image: Image, freshness: str = "fresh", **fields: str) -> Answer:
        """An answer."""
        made = {"served_from": "cache", "why": "folded", **fields}
        return Answer(row, image, made["served_from"], freshness, made["why"])

    def batch(self, session: str, *answers: Answer, staleness_s: float | None = None) -> None:
        """One request; then time passes."""
        self.judge.answered(session, self.judge.asked(session, self.now, staleness_s), self.now, answers)
        self.now += 1

    def find(self, session: str, images: list[str], freshness: str = "fresh") -> None:
        """All rows of the table; then time passes."""
        found = FoundStretch("shop.items", images, "cache", freshness, "proved")
        self.judge.answered(session, self.judge.asked(session, self.now), self.now, [found])
        self.now += 1

    @property
    def rules(self) -> list[str]:
        """The broken rules."""
        return [rule for rule, _ in self.broken]


def stale(story: Story) -> None:
    """A session that was handed a token does not see what the one before it saw."""
    story.commit(A, "1")
    story.commit(A, "2")
    story.read("s", A, "2", "eventual")
    story.judge.handed_over("t", "s", story.now)
    story.read("t", A, "1")


def own_write_missing(story: Story) -> None:
    """A session reads the state before its own commit."""
    story.commit(A, "1")
    story.commit(A, "2", "s.1")
    story.judge.attempted("s", "s.1", story.now)
    story.read("s", A, "1")


def unsettled_commit_forgotten(story: Story) -> None:
    """A commit whose end the session did not hear of took place, and its next read is answered as if it had not."""
    story.commit(A, "1")
    story.judge.attempted("s", "s.1", story.now)
    story.commit(A, "2", "s.1")
    story.read("s", A, "1")


def goes_back(story: Story) -> None:
    """The second answer is older than the first one, of another row."""
    story.commit(A, "1")
    story.commit(B, "2")
    story.read("s", B, "2", "eventual")
    story.read("s", A, None)


def goes_back_behind_an_absence(story: Story) -> None:
    """The row is there again, although the session knows that it was deleted."""
    story.commit(A, "1")
    story.commit(A, None)
    story.read("s", A, None, "eventual")
    story.commit(B, "2")
    story.read("s", B, "2")
    story.read("s", A, "1")


def goes_back_behind_an_absence_at_once(story: Story) -> None:
    """The absence alone is something that the session has seen: the row was there, and now it is not."""
    story.commit(A, "1")
    story.commit(B, "2")
    story.read("s", A, "1", "eventual")
    story.commit(A, None)
    story.read("s", A, None)
    story.read("s", A, "1")


def batch_goes_back(story: Story) -> None:
    """After a batch whose first row was the newest one, the session is where its last row was."""
    story.commit(A, "1")
    story.commit(B, "2")
    story.commit(A, "3")
    story.batch("s", story.answer(A, "3", "eventual"), story.answer(B, "2", "eventual"))
    story.read("s", A, "1")


def too_old(story: Story) -> None:
    """A read that allows a second gets what was replaced two seconds ago; what was replaced just now it may get."""
    story.commit(A, "1")
    story.commit(A, "2")
    story.now += 0.5
    story.batch("", story.answer(A, "1"), staleness_s=2)
    story.batch("", story.answer(A, "1"), staleness_s=1)


def uncommitted(story: Story) -> None:
    """What was rolled back is answered."""
    story.commit(A, "1")
    story.read("s", A, "never", "eventual")


def from_the_future(story: Story) -> None:
    """What is committed only after the answer is answered."""
    story.commit(A, "1")
    story.read("s", A, "2", "eventual")
    story.commit(A, "2")


def back_to_a_lost_history(story: Story) -> None:
    """A session that continues in the new history gets a row of the lost one."""
    story.commit(A, "1")
    story.commit(A, "2")
    story.read("s", A, "2", "eventual")
    story.lose(kept=1)
    story.judge.refused("s", story.now, "history_lost")
    story.now += 1
    story.commit(A, "3")
    story.read("s", A, "2")


def loss_kept_secret(story: Story) -> None:
    """A session that has seen what was lost is answered out of the new history, without having been told."""
    story.commit(A, "1")
    story.commit(A, "2")
    story.read("s", A, "2", "eventual")
    story.lose(kept=1)
    story.read("s", A, "1")


def loss_invented(story: Story) -> None:
    """A session is told that history is lost, but it is not."""
    story.commit(A, "1")
    story.judge.refused("s", story.now, "history_lost")


def fresh_without_demand(story: Story) -> None:
    """A reader without a session demands nothing, so that nothing can be proved."""
    story.commit(A, "1")
    story.read("", A, "1", "fresh")


def eventual_with_demand(story: Story) -> None:
    """A session that has seen something is answered as if it had not."""
    story.commit(A, "1")
    story.read("s", A, "1", "eventual")
    story.read("s", A, "1", "eventual")


def eventual_after_a_handed_token(story: Story) -> None:
    """A session that began with another one's token has seen more since, and is answered as if it had not."""
    story.commit(A, "1")
    story.read("s", A, "1", "eventual")
    story.judge.handed_over("t", "s", story.now)
    story.read("t", A, "1")
    story.read("t", A, "1", "eventual")


def loss_unknown_to_the_session(story: Story) -> None:
    """A session that has seen the new history alone is told that another one is lost."""
    story.commit(A, "1")
    story.commit(A, "2")
    story.lose(kept=1)
    story.judge.attempts("s")
    story.commit(A, "3")
    story.read("s", A, "3", "eventual")
    story.judge.refused("s", story.now, "history_lost")


def page_of_two_moments(story: Story) -> None:
    """A page in the order of versions lacks a row that was there all the time, between two that it has."""
    for number in (1, 2, 3):
        story.commit(("shop.items", (number,)), f'{{"id": {number}, "version": {number}}}')
    images = ['{"id": 1, "version": 1}', '{"id": 3, "version": 3}']
    found = FoundStretch("shop.items", images, "cache", "eventual", "folded", by_version=True)
    story.judge.answered("", story.judge.asked("", story.now), story.now, [found])


def best_of_the_batch(story: Story) -> None:
    """An answer that is not proved is given although a session demands proof."""
    story.commit(A, "1")
    story.read("s", A, "1", "eventual")
    story.read("s", A, "1", "stale")


def wrong_origin(story: Story) -> None:
    """An answer of the source is said to come from the cache."""
    story.commit(A, "1")
    story.read("s", A, "1", "eventual", why="read from the source at 0-1-1: it holds")


def defect(story: Story) -> None:
    """A reader who does nothing wrong gets an internal error."""
    story.judge.refused("s", story.now, "internal")


def rows_of_two_moments(story: Story) -> None:
    """A range has one row as it is now, and another one as it was before."""
    story.commit(A, '{"id": 1}')
    story.commit(B, '{"id": 2}')
    story.commit(A, None)
    story.commit(B, None)
    story.find("", ['{"id": 2}'], "eventual")
    story.commit(A, '{"id": 1}')
    story.commit(B, '{"id": 2, "v": 1}')
    story.find("", ['{"id": 2, "v": 1}'], "eventual")


def range_goes_back(story: Story) -> None:
    """A session that has seen a row deleted gets a range with it."""
    story.commit(A, '{"id": 1}')
    story.commit(A, None)
    story.commit(B, '{"id": 2}')
    story.read("s", B, '{"id": 2}', "eventual")
    story.find("s", ['{"id": 1}'])


BROKEN: list[tuple[Callable[[Story], None], str]] = [
    (stale, STALE),
    (own_write_missing, OWN_WRITES),
    (unsettled_commit_forgotten, OWN_WRITES),
    (goes_back, MONOTONIC),
    (goes_back_behind_an_absence, MONOTONIC),
    (goes_back_behind_an_absence_at_once, MONOTONIC),
    (batch_goes_back, MONOTONIC),
    (too_old, BOUNDED),
    (uncommitted, UNCOMMITTED),
    (from_the_future, UNCOMMITTED),
    (back_to_a_lost_history, MONOTONIC),
    (loss_kept_secret, MONOTONIC),
    (loss_invented, EXPLAINS),
    (fresh_without_demand, EXPLAINS),
    (eventual_with_demand, EXPLAINS),
    (eventual_after_a_handed_token, EXPLAINS),
    (loss_unknown_to_the_session, EXPLAINS),
    (page_of_two_moments, UNCOMMITTED),
    (best_of_the_batch, EXPLAINS),
    (wrong_origin, EXPLAINS),
    (rows_of_two_moments, UNCOMMITTED),
    (range_goes_back, MONOTONIC),
    (defect, NEVER_RAISES),
]


@pytest.mark.parametrize(("tell", "rule"), BROKEN, ids=[tell.__name__ for tell, _ in BROKEN])
def test_a_record_that_breaks_a_rule_is_found(tell: Callable[[Story], None], rule: str) -> None:
    """Each mistake breaks its rule and no other."""
    story = Story()
    tell(story)
    assert story.rules == [rule], story.broken


def test_every_rule_is_broken_once() -> None:
    """There is a bad record for each rule of the judge."""
    assert {rule for _, rule in BROKEN} == set(RULES)


def test_a_faultless_record_breaks_no_rule() -> None:
    """Reads of cache and source, own writes, batches, absences, an old but allowed state, and a lost history."""
    story = Story()
    story.read("s", A, None, "eventual", why="no owner has named the epoch of the shard yet")
    story.commit(A, "1")
    story.read("s", A, "1", "eventual")
    story.commit(A, "2")
    story.read("s", A, "1")  # nothing that the session knows of is later
    story.commit(B, "3", "s.1")
    story.judge.attempted("s", "s.1", story.now)
    story.read("s", A, "2", served_from="source", why="read from the source at 0-1-3: it holds")
    story.commit(A, None)
    story.batch("s", story.answer(A, None), story.answer(B, "3"))
    story.read("", A, "2", "eventual")
    story.lose(kept=2)
    story.judge.refused("s", story.now, "history_lost")
    story.now += 1
    story.read("s", A, "2")
    story.read("s", B, None)
    assert story.broken == []


def test_a_loss_that_is_told_once_may_be_of_two_histories() -> None:
    """The epoch that a session is told of says which history it is in now; without one it is in the next."""
    for epoch, rules in ((0, ["monotonic reads"]), (2, ["monotonic reads"]), (3, [])):
        story = Story()
        story.commit(A, "1")
        story.commit(A, "2")
        story.read("s", A, "2", "eventual")
        story.record.replace(story.now, epoch=1)
        story.record.replace(story.now, 1, epoch=2)
        story.record.is_ambiguous = False
        story.judge.refused("s", story.now, "history_lost", epoch)
        story.now += 1
        story.read("s", A, "1")
        assert story.rules == rules


def test_nothing_can_have_moved_for_a_session_that_knows_the_last_commit() -> None:
    """All its answers are of one position, until something is committed; a token that it was handed may know less."""
    story = Story()
    story.commit(A, "1")
    story.read("s", A, "1", "eventual")
    asked = story.judge.asked("s", story.now)
    story.judge.handed_over("t", "s", story.now)
    assert story.judge.knows_the_last("s", asked)
    assert not story.judge.knows_the_last("t", story.judge.asked("t", story.now))
    story.commit(B, "2")
    assert not story.judge.knows_the_last("s", asked)


@pytest.mark.parametrize(
    ("descending", "images", "more", "holds"),
    [
        (False, ["2", "3"], False, True),
        (False, ["2"], True, True),
        (False, ["3"], False, False),
        (True, [], False, True),
    ],
)
def test_a_page_in_the_order_of_versions_goes_on_behind_the_one_before(
    descending: bool, images: list[str], more: bool, holds: bool
) -> None:
    """It has the next rows, none is left out, and it says whether others follow."""
    story = Story()
    for number in (1, 2, 3):
        story.commit(("shop.items", (number,)), f'{{"id": {number}, "version": {number}}}')
    rows = [f'{{"id": {number}, "version": {number}}}' for number in images]
    page = FoundStretch("shop.items", rows, "cache", "fresh", "", descending, by_version=True, behind=(1, 1), more=more)
    assert (page.first_in(story.record.histories[0], 3, story.now) is not None) is holds


@pytest.mark.parametrize("image", ["1", "2"])
def test_a_commit_that_the_session_did_not_hear_of_may_have_taken_place(image: Image) -> None:
    """As long as it has not, either state may be read; once it has, it must be."""
    story = Story()
    story.commit(A, "1")
    story.judge.attempted("s", "s.1", story.now)
    if image == "2":
        story.commit(A, "2", "s.1")
    story.read("s", A, image, "fresh")
    assert story.broken == []


def test_an_answer_needs_nothing_that_came_while_it_was_under_way() -> None:
    """Two threads share a session: what one of them saw meanwhile is not demanded of the other's request."""
    story = Story()
    story.commit(A, "1")
    story.read("s", A, "1", "eventual")
    earlier = story.judge.asked("s", story.now)
    story.commit(A, "2")
    story.read("s", A, "2")
    story.judge.answered("s", earlier, story.now, [story.answer(A, "1")])
    assert story.broken == []
    story.read("s", A, "1")
    assert story.rules == [MONOTONIC]


def test_nothing_is_demanded_while_two_histories_cannot_be_told_apart() -> None:
    """Between a loss and its being known everywhere an answer may be of either history, but it was committed."""
    story = Story()
    story.commit(A, "1")
    story.commit(A, "2")
    story.read("s", A, "2", "eventual")
    story.record.replace(story.now, kept=1)
    for image in ("1", "2"):
        story.read("s", A, image)
    story.record.is_ambiguous = False
    assert story.broken == []
    story.read("s", A, "1")
    assert story.rules == [MONOTONIC]


def test_a_write_that_is_under_way_may_be_demanded() -> None:
    """The session may know its commit already, while the thread that wrote has not gone on."""
    story = Story()
    story.commit(A, "1")
    story.judge.attempts("s")
    story.read("s", A, "1", "fresh")
    assert story.broken == []


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (FoundStretch("shop.items", ["1", "2"], "cache", "fresh", ""), True),
        (FoundStretch("shop.items", ["2", "1"], "cache", "fresh", ""), False),
        (FoundStretch("shop.items", ["2", "1"], "cache", "fresh", "", descending=True), True),
        (FoundStretch("shop.items", ["2"], "cache", "fresh", "", after=1), True),
        (FoundStretch("shop.items", ["1"], "cache", "fresh", "", until=1), True),
        (FoundStretch("shop.items", ["1"], "cache", "fresh", "", descending=True, after=2), True),
        (FoundStretch("shop.items", ["2"], "cache", "fresh", "", descending=True, until=2), True),
        (FoundStretch("shop.items", ["1"], "cache", "fresh", "", only=1), True),
        (FoundStretch("shop.items", (), "cache", "fresh", "", number=2), True),
        (FoundStretch("shop.items", (), "cache", "fresh", "", number=2, limit=1), False),
        (FoundStretch("shop.items", (), "cache", "fresh", "", number=1, limit=1), True),
    ],
)
def test_a_stretch_of_a_table_is_what_lies_between_its_ends(found: FoundStretch, holds: bool) -> None:
    """Pages in both directions, one row, and counts up to a limit."""
    story = Story()
    story.commit(A, "1")
    story.commit(B, "2")
    assert (found.first_in(story.record.histories[0], 2, story.now) is not None) is holds
