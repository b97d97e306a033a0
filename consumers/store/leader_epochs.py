"""Keeps the leader epoch of a store's last folded message, so that Kafka can tell whether its log still has it.

A topic that lost its tail and was filled again has the store's offset, with another history before it. Kafka's leader
epochs tell them apart (KIP-320): librdkafka asks for the end of the assigned epoch before it fetches. The epoch is no
part of the folded state, which is a function of the log alone; it lies in a file beside it, valid for one offset. If a
crash leaves the file behind the store, nothing is asked; markers' continuity numbers still show the break. Checkpoints
have such a file too, and snapshots its number (`consumers.snapshots.manifest`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

FILE_NAME: Final = "leader-epoch.json"
UNKNOWN: Final = -1


def keep_leader_epoch(directory: Path, offset: int, leader_epoch: int) -> None:
    """Keeps the epoch of the message before ``offset``. If that fails, the file is old and counts as missing."""
    beside = directory / f"{FILE_NAME}.new"
    try:
        beside.write_text(json.dumps([offset, leader_epoch]))
        os.replace(beside, directory / FILE_NAME)
    except OSError:
        return


def kept_leader_epoch(directory: Path, offset: int) -> int:
    """The epoch of the message before ``offset``; `UNKNOWN` if it was not kept for this offset."""
    try:
        at, leader_epoch = json.loads((directory / FILE_NAME).read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):
        return UNKNOWN
    return leader_epoch if at == offset and isinstance(leader_epoch, int) else UNKNOWN
