"""The true history of rows: a plain list of the committed versions of each row, with positions."""

from __future__ import annotations

from bisect import bisect_right

Image = bytes | None


class CommitHistory:
    """One history of a shard: commits 1, 2, 3…; index 0 is the initial state. ``number`` counts histories."""

    def __init__(self, number: int, start: str) -> None:
        self.number = number
        self.positions = [start]
        """The position after each commit, as text."""
        self.index_of = {start: 0}
        self.versions: dict[int, list[tuple[int, Image]]] = {}
        """Row slot → (commit, image from that commit on)."""
        self.written: dict[bytes, int] = {}
        """Image → the commit that wrote it. All images differ."""

    @property
    def end(self) -> int:
        """The index of the last commit."""
        return len(self.positions) - 1

    def put(self, slot: int, index: int, image: Image) -> None:
        """Records that the row has ``image`` from commit ``index`` on."""
        self.versions.setdefault(slot, []).append((index, image))
        if image is not None:
            self.written[image] = index

    def state(self, slot: int, index: int) -> Image:
        """The row's image as of commit ``index``."""
        versions = self.versions.get(slot, [])
        at = bisect_right(versions, index, key=lambda version: version[0])
        return versions[at - 1][1] if at else None

    def changed_since(self, slot: int, index: int) -> bool:
        """Whether a commit after ``index`` wrote the row."""
        versions = self.versions.get(slot)
        return versions is not None and versions[-1][0] > index

    def first_at(self, slot: int, image: Image, demanded: int) -> int | None:
        """The commit from which the row had ``image``, if it had it at or after commit ``demanded``; else None."""
        versions = self.versions.get(slot, [])
        since: int = 0
        now: Image = None
        for at, found in versions:
            if now == image and demanded < at and since < at:
                return since
            since, now = at, found
        return since if now == image else None

    def fork(self, index: int) -> CommitHistory:
        """A new history that shares the commits up to ``index``."""
        new = CommitHistory(self.number + 1, self.positions[0])
        new.positions = self.positions[: index + 1]
        new.index_of = {text: at for at, text in enumerate(new.positions)}
        for slot, versions in self.versions.items():
            kept = [version for version in versions if version[0] <= index]
            if kept:
                new.versions[slot] = kept
        new.written = {image: at for image, at in self.written.items() if at <= index}
        return new
