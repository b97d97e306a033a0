"""What the heads of a shard say at a start: which entries can be used, and which slots are free. Pure.

Whole columns at a time: a directory may have millions of heads, and nothing is served from it before they are read.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xxhash

from serving.bytecache.disk.layout import (
    BLOCK,
    BLOCKS,
    EXTENT_BITS,
    HEAD_BITS,
    HEAD_BYTES,
    UNIT_BITS,
    cost_on_disk,
    pages,
)
from serving.bytecache.disk.names import CachedFile
from serving.bytecache.policy.pools import Value

HEAD_FIELDS: Final = np.dtype(
    {
        "names": ["number", "unit", "bits", "expires", "key", "value", "stored", "sequence", "check"],
        "formats": ["<u8", "<u8", "<u4", "<u4", "<u2", "u1", "<u4", "<u8", "<u8"],
        "offsets": [0, 8, 16, 20, 24, 26, 28, 32, 56],
        "itemsize": HEAD_BYTES,
    }
)
"""As `serving.bytecache.disk.layout.HEAD`."""
_CHECKED: Final = HEAD_BYTES - 8
_FULL: Final = [pages(BLOCK, sealed=False), pages(BLOCK, sealed=True)]
_Column = np.ndarray[Any, Any]


@dataclass(slots=True)
class KeptHeads:
    """Entries, the oldest first: key, slot, cost in bytes, value and scope of each.

    ``free``: slots below ``high``, ascending. ``dropped``: slots whose heads say something that can't be used.
    """

    keys: list[int]
    slots: list[int]
    costs: list[int]
    values: list[int]
    scopes: Sequence[str]
    dropped: list[int]
    free: list[int]
    high: int
    sequence: int


def kept_heads(
    heads: _Column, names: Mapping[int, CachedFile], keys: Container[int], *, sealed: bool, now: float
) -> KeptHeads:
    """``heads``: of `HEAD_FIELDS`. ``keys``: indexes of those at hand. ``sealed``: plain entries are not used."""
    whole = _whole(heads)
    numbers, which = np.unique(heads["number"][whole], return_inverse=True)
    files = [names.get(number) for number in numbers.tolist()]
    known = np.array([file is not None for file in files], bool)
    opens = [key for key in np.unique(heads["key"][whole]).tolist() if key in keys or not (key or sealed)]
    found = heads[whole]
    usable = (found["bits"] > 0) & (found["bits"] < 1 << BLOCKS) & (found["value"] < len(Value))
    usable &= np.isin(found["key"], opens) & ((found["expires"] == 0) | (found["expires"] > now))
    usable &= known[which] if len(which) else False
    kept = np.flatnonzero(usable)
    kept = kept[np.argsort(found["sequence"][kept], kind="stable")]
    entry_keys = _keys(found[kept])
    if len(set(entry_keys)) < len(kept):  # two heads of one key: the older one counts
        first = {key: i for i, key in reversed(list(enumerate(entry_keys)))}
        kept = kept[sorted(first.values())]
        entry_keys = _keys(found[kept])
    entries, of, slots = found[kept], [files[i] for i in which[kept].tolist()], whole[kept]
    high = int(slots.max()) + 1 if len(slots) else 0
    busy = np.zeros(len(heads), bool)
    busy[slots] = True
    empty = ~heads.view(np.uint8).reshape(-1, HEAD_BYTES).any(axis=1)
    return KeptHeads(
        keys=entry_keys,
        slots=slots.tolist(),
        costs=_costs(entries, of),
        values=entries["value"].tolist(),
        scopes=[file.scope for file in of if file is not None],
        dropped=np.flatnonzero(~busy & ~empty).tolist(),
        free=np.flatnonzero(~busy[:high]).tolist(),
        high=high,
        sequence=int(entries["sequence"][-1]) if len(entries) else 0,
    )


def _whole(heads: _Column) -> _Column:
    """The slots whose heads are in use, and verify."""
    used = np.flatnonzero(heads["number"])
    raw, check = heads.view(np.uint8).data, xxhash.xxh3_64_intdigest
    found = [check(raw[at : at + _CHECKED]) for at in (used << HEAD_BITS).tolist()]
    whole: _Column = used[np.array(found, np.uint64) == heads["check"][used]]
    return whole


def _keys(entries: _Column) -> list[int]:
    return [
        number << UNIT_BITS | unit
        for number, unit in zip(entries["number"].tolist(), entries["unit"].tolist(), strict=True)
    ]


def _costs(entries: _Column, files: Sequence[CachedFile | None]) -> list[int]:
    """As `cost_on_disk`, which is asked only where a file ends within the extent."""
    sizes = np.array([file.size for file in files if file is not None], np.int64)
    sealed = entries["key"] > 0
    costs = np.bitwise_count(entries["bits"]).astype(np.int64) * np.where(sealed, _FULL[1], _FULL[0])
    ends = (entries["unit"] >> 1).astype(np.int64) + 1 << EXTENT_BITS
    for i in np.flatnonzero(ends > sizes).tolist():
        entry = entries[i]
        costs[i] = cost_on_disk(int(entry["unit"]), int(entry["bits"]), int(sizes[i]), sealed=bool(sealed[i]))
    return costs.tolist()  # type: ignore[no-any-return]
