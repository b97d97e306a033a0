"""Which manifest a store can go back to."""

from __future__ import annotations

from pathlib import Path

from consumers.store.rocks.small_files import manifest_before


def test_the_manifest_before_is_that_of_the_next_lower_number(tmp_path: Path) -> None:
    """Numbers grow by a digit some day: the newest one before is the greatest, not the last in the alphabet."""
    for number in ("999998", "999999", "1000000", "1000001", "1000002"):
        (tmp_path / f"MANIFEST-{number}").touch()
    found = []
    for number in ("1000001", "1000000", "999999", "999998"):
        (tmp_path / "CURRENT").write_text(f"MANIFEST-{number}\n")
        found.append(manifest_before(tmp_path))
    assert found == [
        ("MANIFEST-1000001", "MANIFEST-1000000"),
        ("MANIFEST-1000000", "MANIFEST-999999"),
        ("MANIFEST-999999", "MANIFEST-999998"),
        None,
    ]
