"""The naive fold of catalog tables and names, written from docs/concepts/catalog.md. Sets and dictionaries only."""

from __future__ import annotations

from typing import Any, Final, Protocol

from lab.simulation.naive import positions
from lab.simulation.naive.objects import NaiveObjects

Event = dict[str, Any]

TRANSACTIONAL: Final = "transactional"
UNKNOWN: Final = (0, 0)
"""(transaction, write id) of a writer of whom nothing was heard."""
GAP_MAX: Final = 10_000


class Around(Protocol):
    """What the fold of a table must know of its partition."""

    def lost_since(self, shard: str, table: str, epoch: int, ordinal: int) -> bool:
        """Whether a void at or after this place hides what happened to ``table``."""

    def low_water_of(self, shard: str) -> str:
        """The low-water of a shard; "" if it is unknown."""


class NaiveTable:
    """One table in one epoch."""

    def __init__(self, shard: str, epoch: int, partial: bool) -> None:
        self.shard, self.epoch, self.ordinal = shard, epoch, 0
        self.name, self.kind, self.exists, self.created = "", TRANSACTIONAL, False, 0
        self.hwm, self.committed, self.known = 0, False, True
        self.open: dict[int, int] = {}
        """Write id → transaction, 0 if it is unknown."""
        self.aborted: set[int] = set()
        self.image: bytes | None = None
        self.struct: bytes | None = None
        self.objects_void = 0
        """Ordinal at or below which nothing counts that belongs to the table."""
        self.lo = self.hi = ""
        self.image_ordinal = self.write_ordinal = self.list_ordinal = 0
        self.write_position = ""
        self.pending: set[tuple[int, int]] = set()
        self.staged: dict[int, tuple[int, bytes | None, bytes | None]] = {}
        """Transaction → (ordinal, image, struct)."""
        self.is_void = False
        self.partial = partial

    @property
    def is_dropped(self) -> bool:
        """Whether it was dropped, and not created again."""
        return self.created > 0 and not self.exists

    def reach(self, write_id: int) -> bool:
        """Ids that were skipped count as open. A gap too large is a list that is lost."""
        if write_id - self.hwm > GAP_MAX:
            self.known = False
            return False
        for skipped in range(self.hwm + 1, write_id):
            self.open[skipped] = 0
        self.hwm = max(self.hwm, write_id)
        return True

    def allocate(self, txn: int, write_id: int, *, again: bool = False) -> None:
        """``again``: the transaction's earlier ids count as valid."""
        if again and txn:
            self.open = {each: holder for each, holder in self.open.items() if holder != txn or each == write_id}
        if self.reach(write_id):
            self.aborted.discard(write_id)
            self.open[write_id] = txn

    def end(self, write_id: int, *, committed: bool) -> bool:
        """Whether the end of a write id agrees with what is known of it."""
        if committed and write_id in self.aborted:
            return False
        was_open = write_id in self.open or write_id > self.hwm
        if self.reach(write_id):
            self.open.pop(write_id, None)
            if committed:
                self.committed = True
            elif was_open:
                self.aborted.add(write_id)
        return True

    def replace_list(self, event: Event, committed: bool | None = None) -> None:
        """Takes the server's own list. Writers that it does not show as open have ended."""
        if event["write_ids"] is None:
            return
        hwm, still_open, aborted = _parsed_list(event["write_ids"])
        self.list_ordinal = event["ordinal"]
        self.hwm, self.known = hwm, True
        self.open = {each: self.open.get(each, 0) for each in still_open if each <= hwm}
        self.aborted = {each for each in aborted if each <= hwm}
        below = any(each < hwm for each in (*self.open, *self.aborted))
        self.committed = below if committed is None else committed
        unheard = {(0, each) for each, holder in self.open.items() if not holder} if UNKNOWN in self.pending else set()
        self.pending = {pair for pair in self.pending if pair[1] in self.open or pair[1] > hwm} | unheard
        self.staged = {txn: each for txn, each in self.staged.items() if txn in self.open.values()}

    def set_image(self, image: bytes, struct: bytes | None, lo: str, hi: str, ordinal: int) -> None:
        """An image is known again."""
        self.struct = struct
        self.image, self.lo, self.hi, self.image_ordinal, self.is_void = image, lo, hi, ordinal, False

    def note_write(self, event: Event) -> None:
        """An image counts only if it follows this event."""
        self.write_ordinal, self.write_position = event["ordinal"], event["gtid"]

    def note_name(self, event: Event) -> None:
        """The event shows that the table exists."""
        if not self.exists or event["change"] == "created":
            self.exists, self.created = True, event["ordinal"]
            self.objects_void = event["ordinal"]
        if event["change"] == "created":
            self.list_ordinal = event["ordinal"]
        self.name, self.kind = event["name"], event["kind"]


def _parsed_list(text: str) -> tuple[int, set[int], set[int]]:
    """hwm, open and aborted ids of ``db.table:hwm:minOpen:open,…:aborted,…``."""
    _, hwm, _, still_open, aborted = (text + "::").split(":")[:5]
    return int(hwm), {int(each) for each in still_open.split(",") if each}, {
        int(each) for each in aborted.split(",") if each
    }  # fmt: skip


class NaiveTables:
    """All tables and names of a partition."""

    def __init__(self, begin: int) -> None:
        self._begin = begin
        self.by_id: dict[int, NaiveTable] = {}
        self.names: dict[str, tuple[int, str, int, int]] = {}
        """Name → table id, shard, epoch, ordinal."""
        self.others = NaiveObjects()

    def fold(self, name: str, event: Event, around: Around) -> list[str]:
        """Folds a catalog event. Returns the codes of dead letters."""
        if name == "NameBinding":
            self._bind_names(event)
            return []
        if name in ("CatalogObject", "CatalogSet"):
            self.others.fold(name, event, self._is_dropped(event))
            return []
        if name in ("CommitTxn", "AbortTxn"):
            return self._end(event, around, committed=name == "CommitTxn")
        table = self._table(event)
        if table is None or (table.is_dropped and event.get("change") != "created"):
            return []
        if name == "AllocWriteId":
            table.allocate(event["txn"], event["write_id"], again=event["reallocated"])
            if (0, event["write_id"]) in table.pending:
                table.pending ^= {(0, event["write_id"]), (event["txn"], event["write_id"])}
        elif name == "WriteIdsReset":
            before = set(table.staged)
            writers = set(table.open) if self._has_lost(table, around) else set()
            table.replace_list(event, event["committed"])
            if table.hwm == 0 and table.pending:
                table.pending = {UNKNOWN}  # what it waits for has ids that are no more
            if before - set(table.staged) or writers - set(table.open):
                table.note_write(event)  # its writer ended without an event: nobody knows which image counts
        elif event["change"] == "dropped":
            table = self._dropped(table, event)
            self.others.forget_table(event["table_id"])
        else:
            self._change(table, event, around)
        table.ordinal = event["ordinal"]
        self.by_id[event["table_id"]] = table
        return []

    def _table(self, event: Event) -> NaiveTable | None:
        """The table to fold the event into; None if the event was folded before."""
        held = self.by_id.get(event["table_id"])
        if held is None or event["epoch"] > held.epoch:
            return NaiveTable(event["shard"], event["epoch"], self._begin > 0)
        return held if (event["epoch"], event["ordinal"]) > (held.epoch, held.ordinal) else None

    def _is_dropped(self, event: Event) -> bool:
        """Whether the event is of something that belongs to a dropped table."""
        held = self.by_id.get(event["table_id"])
        return held is not None and held.is_dropped and (held.shard, held.epoch) == (event["shard"], event["epoch"])

    def _held(self, table_id: int, event: Event) -> NaiveTable | None:
        held = self.by_id.get(table_id)
        if held is None or held.epoch != event["epoch"] or event["ordinal"] <= held.ordinal:
            return None
        return None if held.is_dropped else held

    def _dropped(self, held: NaiveTable, event: Event) -> NaiveTable:
        table = NaiveTable(held.shard, held.epoch, False)
        table.name, table.kind, table.created = event["name"], event["kind"], event["ordinal"]
        return table

    def _change(self, table: NaiveTable, event: Event, around: Around) -> None:
        if event["change"] == "image":
            self._take_image(table, event, around)
        elif event["change"] == "written" and event["staged"] and event["txn"]:
            self._stage(table, event)
        else:
            self._take_write(table, event, around)
        if table.partial:
            table.partial = event["change"] != "created" and not self._makes_whole(table, event, around)

    def _take_image(self, table: NaiveTable, event: Event, around: Around) -> None:
        lo, hi = event["lo"] or event["gtid"], event["hi"] or event["gtid"]
        if table.write_position and not positions.reaches(lo, table.write_position):
            return
        table.note_name(event)
        self._take_list(table, event, around)
        if table.kind != TRANSACTIONAL:
            table.pending = set()
        if event["image"] is not None:
            table.set_image(event["image"], event["struct"], lo, hi, event["ordinal"])

    def _take_list(self, table: NaiveTable, event: Event, around: Around) -> None:
        """If the table comes with the server's list: where something was lost, each open id may be a writer's."""
        if event["write_ids"] is not None:
            suspects = self._has_lost(table, around)
            table.replace_list(event)
            table.pending |= self._writers(table, 0, 0) if suspects else set()

    def _take_write(self, table: NaiveTable, event: Event, around: Around) -> None:
        table.note_name(event)
        self._take_list(table, event, around)
        table.note_write(event)
        if table.kind != TRANSACTIONAL:
            table.pending = set()
        else:
            table.pending |= self._writers(table, event["txn"], event["write_id"])
            if self._has_lost(table, around):
                table.pending |= {UNKNOWN} | self._writers(table, 0, 0)
            if not event["write_id"] and not table.known:
                table.pending.add(UNKNOWN)
        if event["image"] is not None:
            lo, hi = event["lo"] or event["gtid"], event["hi"] or event["gtid"]
            table.set_image(event["image"], event["struct"], lo, hi, event["ordinal"])

    def _writers(self, table: NaiveTable, txn: int, write_id: int) -> set[tuple[int, int]]:
        """Whose end the image must wait for: of a write that names no transaction, everybody's with an open id."""
        if write_id:
            if write_id > table.hwm:
                table.allocate(txn, write_id)
            if write_id > table.hwm:
                return {(txn, write_id)}
            return {(txn or table.open[write_id], write_id)} if write_id in table.open else set()
        return {(holder, each) for each, holder in table.open.items() if not txn or holder in (txn, 0)}

    def _stage(self, table: NaiveTable, event: Event) -> None:
        if not table.exists:
            table.note_name(event)
            table.note_write(event)
        if event["write_id"] > table.hwm:
            table.allocate(event["txn"], event["write_id"])
        table.staged[event["txn"]] = (event["ordinal"], event["image"], event["struct"])

    def _makes_whole(self, table: NaiveTable, event: Event, around: Around) -> bool:
        """Whether the event makes up for what was before this state began."""
        low_water = around.low_water_of(table.shard)
        if not low_water or table.image is None or table.image_ordinal != event["ordinal"]:
            return False
        if not positions.reaches(table.lo, low_water):
            return False
        return table.kind != TRANSACTIONAL or (event["write_ids"] is not None and all(table.open.values()))

    def _has_lost(self, table: NaiveTable, around: Around) -> bool:
        """Whether an event of the table may be lost that the server's list would make up for."""
        return not table.list_ordinal or around.lost_since(table.shard, table.name, table.epoch, table.list_ordinal)

    def _end(self, event: Event, around: Around, *, committed: bool) -> list[str]:
        letters = []
        ids = event["write_ids"]
        for table_id in dict.fromkeys(pair["table_id"] for pair in ids):
            table = self._held(table_id, event)
            if table is None:
                continue
            mine = [pair["write_id"] for pair in ids if pair["table_id"] == table_id]
            agreed = [table.end(write_id, committed=committed) for write_id in mine]
            over = {pair for pair in table.pending if pair[0] == event["txn"] or pair[1] in mine} - {UNKNOWN}
            table.pending -= over
            staged = table.staged.pop(event["txn"], None)
            if staged is not None and committed:
                ordinal, image, struct = staged
                if image is None:
                    table.note_write(event)
                else:
                    table.set_image(image, struct, event["gtid"], event["gtid"], ordinal)
            elif committed and table.kind == TRANSACTIONAL and self._has_lost(table, around):
                table.note_write(event)
            if not all(agreed):
                table.known, table.is_void = False, True
                letters.append("commit_of_aborted")
            table.ordinal = event["ordinal"]
        return letters

    def void(self, event: Event) -> None:
        """The table of this name is unknown until an image arrives; what is staged is lost."""
        bound = self.names.get(event["table"])
        table = self.by_id.get(bound[0]) if bound is not None else None
        if table is None or table.shard != event["shard"]:
            return
        if (event["epoch"], event["ordinal"]) <= (table.epoch, table.ordinal):
            return
        if event["epoch"] == table.epoch:
            table.ordinal = event["ordinal"]
        table.is_void, table.staged, table.list_ordinal = True, {}, 0
        table.objects_void = table.ordinal

    def _bind_names(self, event: Event) -> None:
        table_id, name, before = event["table_id"], event["name"], event["previous_name"]
        if before and before != name and (before not in self.names or self.names[before][0] == table_id):
            self._bind(before, 0, event)
        self._bind(name, table_id, event)
        table = self._held(table_id, event)
        if table is not None:
            table.name, table.ordinal = name, event["ordinal"]

    def _bind(self, name: str, table_id: int, event: Event) -> None:
        bound = (table_id, event["shard"], event["epoch"], event["ordinal"])
        held = self.names.get(name)
        if held is None or held[1] != bound[1] or held[2:] < bound[2:]:
            self.names[name] = bound
