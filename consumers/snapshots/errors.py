"""The errors of snapshots (docs/internals/snapshots.md)."""

from __future__ import annotations

from consumers.store.errors import RetryableStoreError
from tokens.errors import FreshetError


class SnapshotError(FreshetError):
    """A snapshot, or the place that holds it, can't be used.

    Codes: ``snapshot_missing``, ``snapshot_incomplete``, ``snapshot_damaged``, ``snapshot_newer``,
    ``snapshot_differs``, ``snapshot_expired``, ``snapshot_unreachable``, ``snapshot_full``.
    """

    code = "snapshot_unreachable"


class PlaceAwayError(RetryableStoreError):
    """The place of snapshots fails, and the topic lacks what only they may have. It may answer a moment later."""

    code = "snapshot_unreachable"
