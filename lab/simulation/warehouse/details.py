"""Sessions that read what belongs to a table beside its partitions: constraints, and statistics of its column."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from lab.simulation.warehouse import judging
from lab.simulation.warehouse.changing import NAMES, VALUES
from lab.simulation.warehouse.judging import Answer, Listed
from lab.simulation.warehouse.metastore import Values
from lab.simulation.warehouse.reading import SESSIONS, Reading, demand_of
from lab.simulation.warehouse.statistics import OF_TABLE, TOGETHER, are_statistics, shown_by
from serving.client.answers import Objects
from serving.client.client import Session

STALENESS_MS: Final = (0, 300, 1_500, 20_000)
ANALYZED: Final = len(VALUES) + 2
"""What statistics may be asked for: those of each partition, of the table, and of all partitions together."""


def analyzed(which: int) -> Values | None:
    """What statistics are of."""
    return (*VALUES, OF_TABLE, TOGETHER)[which % ANALYZED]


class Details(Reading):
    """The ops of sessions that read these, or things that must not be old."""

    def op_bounded(self, session: int, name: int, what: int, staleness: int, patience: int) -> None:
        """A session reads what must hold all that was committed until a while ago."""
        reader, client = self.session(session % SESSIONS)
        table, bound_ms = NAMES[name % len(NAMES)], STALENESS_MS[staleness % len(STALENESS_MS)]
        listed = self.listed(table)

        def work() -> None:
            match what % 4:
                case 1:
                    self.read_partitions(reader, client, table, listed, 0, 0, bound_ms)
                case 2:
                    self.read_constraints(reader, client, table, listed, bound_ms)
                case 3:
                    self.read_catalog(reader, client, name, bound_ms)
                case _:
                    self.read_table(reader, client, table, listed, bound_ms)

        self.do(work, patience)

    def op_constraints(self, session: int, name: int, how: int, patience: int) -> None:
        """A session reads the constraints of a table."""
        reader, client = self.session(session % SESSIONS)
        table = NAMES[name % len(NAMES)]
        listed = self.brought(table, how, 0)
        self.do(lambda: self.read_constraints(reader, client, table, listed), patience)

    def read_constraints(
        self, reader: str, client: Session, name: str, listed: Listed | None, bound_ms: int | None = None
    ) -> Objects | None:
        """Reads constraints, and has them judged; None if there are none."""
        db, _, table = name.partition(".")
        get = partial(client.get_constraints, db, table, *demand_of(listed), max_staleness_ms=bound_ms)
        return self.judge_constraints(reader, name, listed, get, bound_ms)

    def judge_constraints(
        self, reader: str, name: str, listed: Listed | None, get: Callable[[], Objects], bound_ms: int | None = None
    ) -> Objects | None:
        """As `read_constraints`, by any call that gets them."""
        found = self.ask(reader, name, get, bound_ms)
        if found is None:
            return None
        asked, answer = found
        keys = _keys_of(answer.objects[0] if answer.objects else None)
        is_of = judging.are_constraints(name, answer.table_id or 0, keys)
        told = answer.served_from, answer.freshness, answer.why
        self.judge_answer(
            reader, asked, Answer(f"keys of {name}: {keys}", is_of, *told, name, answer.write_ids or ""), listed
        )
        return answer

    def op_statistics(self, session: int, name: int, how: int, which: int, patience: int) -> None:
        """A session reads statistics of a table, of a partition, or of all partitions together."""
        if self.analyzed is None:
            return
        reader, client = self.session(session % SESSIONS)
        table = NAMES[name % len(NAMES)]
        listed = self.brought(table, how, 0)
        self.do(lambda: self.read_statistics(reader, client, table, listed, analyzed(which)), patience)

    def read_statistics(
        self, reader: str, client: Session, name: str, listed: Listed | None, of: Values | None
    ) -> Objects | None:
        """Reads statistics, and has them judged; None if there is no answer."""
        db, _, table = name.partition(".")
        get = partial(client.get_statistics, db, table, *demand_of(listed), **wanted(of))
        return self.judge_statistics(reader, name, listed, get, of)

    def judge_statistics(
        self, reader: str, name: str, listed: Listed | None, get: Callable[[], Objects], of: Values | None
    ) -> Objects | None:
        """As `read_statistics`, by any call that gets them."""
        found = self.ask(reader, name, get)
        if found is None:
            return None
        asked, answer = found
        shown, hold = shown_by(answer.objects[0] if answer.objects else None), answer.stats_compliant
        text = listed.text if listed is not None else ""
        is_of = are_statistics(name, answer.table_id or 0, of, shown, hold, text)
        what = f"statistics of {name} {'together' if of is TOGETHER else of}: {shown}, which hold: {hold}"
        told = answer.served_from, answer.freshness, answer.why
        self.judge_answer(reader, asked, Answer(what, is_of, *told, name, answer.write_ids or ""), listed)
        return answer


def wanted(of: Values | None) -> dict[str, Any]:
    """The arguments of a request for statistics."""
    return {"aggregate": True} if of is TOGETHER else {"partition": of}


def _keys_of(image: dict[str, Any] | None) -> tuple[str, str, str]:
    """As `lab.simulation.warehouse.metastore.TableTruth.keys`."""
    [primary] = (image or {}).get("primaryKeys") or [{}]
    [foreign] = (image or {}).get("foreignKeys") or [{}]
    parent = f"{foreign['pktable_db']}.{foreign['pktable_name']}" if foreign else ""
    return primary.get("pk_name", ""), parent, foreign.get("pk_name", "")
