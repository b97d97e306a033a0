"""Checkpoints are opaque, keep what they say, and refuse what is none."""

from __future__ import annotations

from contextlib import suppress

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stream.changes.checkpoint import TEXT_MAX, Checkpoint, CheckpointError, Place, anchor_of

numbers = st.integers(0, 2**63 - 1)
anchors = st.integers(0, 2**64 - 1)


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    """Of both versions."""
    offsets = draw(st.lists(numbers, min_size=1, max_size=20))
    named = draw(st.dictionaries(st.text(min_size=1, max_size=10), st.builds(Place, numbers, numbers), max_size=4))
    found = draw(st.lists(anchors, min_size=len(offsets), max_size=len(offsets)))
    keyspace, topic = draw(st.text(min_size=1, max_size=10)), draw(st.text(max_size=22))
    return Checkpoint(keyspace, topic, tuple(offsets), named, tuple(found) if any(found) else ())


@given(checkpoints())
def test_a_checkpoint_reads_back_as_it_was(checkpoint: Checkpoint) -> None:
    """The text is in use wherever readers keep it, for as long as they do."""
    assert Checkpoint.parse(str(checkpoint)) == checkpoint


def test_a_kept_checkpoint_still_reads() -> None:
    """Readers keep checkpoints in files: a text that was ever given out stays readable."""
    text = "c1.5Xgm6pSkc2hvcKlUMENUckFPWlKTAM0BLAeBpnNob3AvMJIBzSOP"
    kept = Checkpoint("shop", "T0CTrAOZR", (0, 300, 7), {"shop/0": Place(1, 9103)})
    assert (str(kept), Checkpoint.parse(text)) == (text, kept)
    anchored = Checkpoint("shop", "T0CTrAOZR", (0, 300, 7), {"shop/0": Place(1, 9103)}, (0, 2**64 - 1, 5))
    text = "c2.CaOU0pWkc2hvcKlUMENUckFPWlKTAM0BLAeBpnNob3AvMJIBzSOPkwDP__________8F"
    assert (str(anchored), Checkpoint.parse(text)) == (text, anchored)


@given(checkpoints(), st.data())
def test_a_damaged_checkpoint_is_refused(checkpoint: Checkpoint, data: st.DataObject) -> None:
    """One that lost or changed a character would go on somewhere else, and miss what is between."""
    text = str(checkpoint)
    at = data.draw(st.integers(3, len(text) - 1))
    other = data.draw(st.sampled_from("ABCxyz019-_"))
    damaged = data.draw(st.sampled_from([text[:at], text[:at] + other + text[at + 1 :], text[:at] + text[at + 1 :]]))
    found = None
    with suppress(CheckpointError):
        found = Checkpoint.parse(damaged)
    assert found in (None, checkpoint)  # the same, if only bits differ that no byte has


@pytest.mark.parametrize("text", ["", "now", "c1.", "c2.AAAA", "c3.AAAA", "c1.é", "c1." + "A" * 70_000, "v2.AAZzaG9w"])
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    """With one line that says why."""
    with pytest.raises(CheckpointError) as refused:
        Checkpoint.parse(text)
    assert "\n" not in str(refused.value)
    assert refused.value.hint


def test_a_checkpoint_has_a_limit() -> None:
    """One above it is not even looked into, whatever it says."""
    name = "a" * (TEXT_MAX * 3 // 4)
    lengths = {len(str(Checkpoint(name[cut:], "id", (0,)))): cut for cut in range(200)}
    below = max(length for length in lengths if length <= TEXT_MAX)
    longest = Checkpoint(name[lengths[below] :], "id", (0,))
    assert Checkpoint.parse(str(longest)) == longest
    above = min(length for length in lengths if length > TEXT_MAX)
    with pytest.raises(CheckpointError, match="too long"):
        Checkpoint.parse(str(Checkpoint(name[lengths[above] :], "id", (0,))))
    with pytest.raises(CheckpointError, match="does not begin like one"):
        Checkpoint.parse("now")


def test_every_message_has_an_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 says that an anchor is not known. Checkpoints are kept, so the digest that stands for it stays the same."""
    assert anchor_of(b"a message") == xxhash.xxh3_64_intdigest(b"a message")
    monkeypatch.setattr(xxhash, "xxh3_64_intdigest", lambda _: 0)
    assert anchor_of(b"a message") == 1


def test_a_checkpoint_takes_the_later_of_two_places() -> None:
    """A reader that was further than the offsets say goes on there."""
    checkpoint = Checkpoint("shop", "id", (1, 2), {"a": Place(1, 5), "b": Place(2, 1)})
    later = checkpoint.at_or_past({"a": Place(1, 9), "b": Place(1, 99), "c": Place(1, 1)})
    assert later.places == {"a": Place(1, 9), "b": Place(2, 1), "c": Place(1, 1)}
    assert later.offsets == checkpoint.offsets
