"""Memoizes work that histories share: equal messages are decoded, checked and encoded once, and folded once.

Each result is a function of its key alone, so the outcome of a history does not depend on the memo. A change of the
code under test (a planted bug) must call `clear_memo` before and after.
"""

from __future__ import annotations

import marshal
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from consumers.fold import declared
from consumers.fold import messages as fold
from consumers.fold.state import Backfill, Changes, Dropped, Lineage, PartitionState, Scope, Topology, Void
from consumers.owner import evidence
from consumers.owner import rows as owner_rows
from consumers.owner import server as owner_server
from consumers.store import store
from serving.reads import proof
from stream.wire import batch, checks, codec, records
from stream.wire.announced import Announced
from tokens import position, vector, writeids

MESSAGES_MAX: Final = 32_768
FOLDS_MAX: Final = 4_096
KEPT_MAX: Final = 8_192
NESTED: Final = frozenset(
    {"RowFrame", "SourceState", "CommitTxn", "AbortTxn", "TableSchema", "Topology", "Scope", "BeforeImages"}
)
"""Records that contain lists. The fields of all other records are hashable."""
PLAIN: Final = 2
"""The version of `marshal` that encodes equal records of one kind as equal bytes."""


class _DecodedRecord(dict[str, Any]):
    """A decoded message, with the memoized results of `checks.check` and `codec.encode`."""

    refused: codec.CodecError | None = None
    checked = False
    encoded = b""


@lru_cache(maxsize=MESSAGES_MAX)
def decoded(value: bytes) -> tuple[str, _DecodedRecord]:
    """As `codec.decode` without announced schemas. The result is shared: callers must not change it."""
    name, record = codec.decode(value)
    return name, _DecodedRecord(record)


def _decode(value: bytes, texts: Mapping[bytes, Announced] | None = None) -> tuple[str, _DecodedRecord]:
    if texts and codec.is_of_unknown_schema(value):
        name, record = codec.decode(value, texts)
        return name, _DecodedRecord(record)
    return decoded(value)


def _check(name: str, record: _DecodedRecord) -> None:
    if not record.checked:
        try:
            checks.check(name, record)
        except codec.CodecError as error:
            record.refused = error
        record.checked = True
    if record.refused is not None:
        raise record.refused.with_traceback(None)


@lru_cache(maxsize=MESSAGES_MAX)
def _encoded(name: str, written: bytes) -> bytes:
    return codec.encode(name, marshal.loads(written))


_flat: dict[tuple[Any, ...], bytes] = {}


def _encode(name: str, record: Any) -> bytes:
    if not isinstance(record, _DecodedRecord):
        if name in NESTED:
            return _encoded(name, marshal.dumps(record, PLAIN))
        key = (name, *record.values())
        found = _flat.get(key)
        if found is None:
            if len(_flat) >= MESSAGES_MAX:
                _flat.clear()
            found = _flat[key] = codec.encode(name, record)
        return found
    if not record.encoded:
        record.encoded = codec.encode(name, record)
    return record.encoded


Lookups = tuple[tuple[bytes, bytes | None], ...]
"""(key, value) pairs that a fold looked up in the state before it."""
_folds: dict[tuple[Any, ...], tuple[Lookups, list[Changes]]] = {}
_real_fold_messages = fold.fold_messages


def _fold_messages(state: PartitionState, messages: Sequence[tuple[int, bytes | None]]) -> Iterable[Changes]:
    """As `fold.fold_messages`, whose result depends on the head, the messages, and the values that it looks up."""
    if type(messages) is not list:
        return _real_fold_messages(state, messages)
    head = state.head
    declared = ""
    if head.topologies or head.scopes or head.backfills or head.dropped:
        declared = repr((head.topologies, head.scopes, head.backfills, head.dropped))
    place = (head.offset, head.begin, head.layout, declared)
    key = (*place, *head.lineages.items(), None, *head.voids.items(), *messages)
    known = _folds.get(key)
    if known is not None:
        looked, changes = known
        for name, value in looked:
            if state.lookup(name) != value:
                break
        else:
            return changes
    return _fold_and_record(state, messages, key)


def _fold_and_record(
    state: PartitionState, messages: Sequence[tuple[int, bytes | None]], key: tuple[Any, ...]
) -> Iterator[Changes]:
    looked: dict[bytes, bytes | None] = {}
    written: set[bytes] = set()

    def lookup(name: bytes) -> bytes | None:
        value = state.lookup(name)
        if name not in written:
            looked[name] = value
        return value

    done = []
    for changes in _real_fold_messages(PartitionState(state.head, lookup), messages):
        written.update(changes.entries)
        written.update(changes.gone)
        done.append(changes)
        yield changes
    if len(_folds) >= FOLDS_MAX:
        _folds.clear()
    _folds[key] = tuple(looked.items()), _merge_changes(done)


def _merge_changes(done: list[Changes]) -> list[Changes]:
    """The changes merged into one step, unless there are dead letters or entries that go."""
    if len(done) < 2 or any(changes.rejections or changes.gone for changes in done):
        return done
    entries: dict[bytes, bytes] = {}
    lineages: dict[str, Lineage] = {}
    voids: dict[tuple[str, str], Void] = {}
    topologies: dict[str, Topology] = {}
    scopes: dict[str, Scope] = {}
    backfills: dict[tuple[str, str], Backfill] = {}
    dropped: dict[tuple[str, str], Dropped] = {}
    layout = ""
    for changes in done:
        entries.update(changes.entries)
        lineages.update(changes.lineages)
        voids.update(changes.voids)
        topologies.update(changes.topologies)
        scopes.update(changes.scopes)
        backfills.update(changes.backfills)
        dropped.update(changes.dropped)
        layout = changes.layout or layout
    messages = sum(changes.messages for changes in done)
    declared = (topologies, scopes, backfills, dropped)
    return [Changes(done[-1].offset, entries, lineages, voids, layout, (), messages, *declared)]


_demand_of = lru_cache(maxsize=1_024)(evidence.demand_of)


class ModelMemo:
    """A memo for the models. It is used only while ``on``, which is inside `sharing_work`."""

    def __init__(self) -> None:
        self.on = False
        self._made: dict[Hashable, Any] = {}

    def get(self, key: Hashable) -> Any:
        """The result for ``key``, or None. It is shared: callers must not change it."""
        return self._made.get(key) if self.on else None

    def put(self, key: Hashable, made: object) -> None:
        """Stores the result for ``key``."""
        if self.on:
            if len(self._made) >= KEPT_MAX:
                self._made.clear()
            self._made[key] = made

    def clear(self) -> None:
        """Removes all results."""
        self._made.clear()


kept: Final = ModelMemo()


def clear_memo() -> None:
    """Clears every result of the code under test. Call it when that code changes."""
    _folds.clear()
    _demand_of.cache_clear()
    for parsed in (position._parse_cached, vector._parse_cached, vector._parse_cached_long, writeids._parse_cached):
        parsed.cache_clear()
    for after in (proof._after_cached, proof._after_cached_long):
        after.cache_clear()
    kept.clear()


@contextmanager
def sharing_work() -> Iterator[None]:
    """Lets publishers, the fold and the owners' answers use the memo inside the context."""
    ours: dict[str, Any] = {
        "decode": _decode,
        "check": _check,
        "encode": _encode,
        "fold_messages": _fold_messages,
        "demand_of": _demand_of,
    }
    patched = [(module.__dict__, {name: ours[name] for name in ours if name in vars(module)}) for module in _MODULES]
    before = [(scope, {name: scope[name] for name in names}) for scope, names in patched]
    for scope, names in patched:
        scope.update(names)
    kept.on = True
    try:
        yield
    finally:
        kept.on = False
        for scope, names in before:
            scope.update(names)


_MODULES: Final = (fold, declared, evidence, owner_rows, owner_server, batch, records, store)
