"""What is folded from the catalog's log is the catalog: lists to the letter, images, names, and who may be served."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from consumers.fold.catalog_state import decode_table
from consumers.owner.tables import answer_from_state, view_table
from lab.workload.catalog import WorkloadCatalog, version_of
from lab.workload.events import WorkloadTranslator, bootstrap
from lab.workload.judge import judge
from lab.workload.log import WorkloadLog, event_id_of
from lab.workload.traffic import Traffic, Worker
from stream.sources.mariadb.connection import ConnectionSettings
from tests.lab.workload.folded import Folded
from tokens import Demand, ValidWriteIdList


def _agrees(folded: Folded, catalog: WorkloadCatalog) -> None:
    """Every table of the truth has its list, image and name in the fold, and is servable."""
    for name, table_id, kind in catalog.tables():
        state = folded.table(table_id)
        truth = catalog.read_table(*name.split("."))
        assert state is not None
        assert truth is not None
        assert folded.bound(name) == {table_id}
        assert (state.name, state.kind, state.exists) == (name, kind, True)
        assert state.image == truth.image
        if kind == "transactional":
            assert state.ids.text(name) == truth.write_ids
        assert state.waits_for() == ""


def _drain(folded: Folded, tail: WorkloadLog, translator: WorkloadTranslator) -> None:
    while rows := tail.read():
        folded.publish(translator.translate(row) for row in rows)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_fold_of_the_log_is_the_truth_after_each_step(
    new_session: Callable[[], WorkloadCatalog], server: ConnectionSettings, database: str, seed: int
) -> None:
    """Two workers' transactions, step by step: the folded tables equal the truth, also inside transactions."""
    catalog = new_session()
    catalog.create_schema()
    folded = Folded()
    folded.start("HiveEvent/0")
    rng = random.Random(seed)
    workers = [Worker(new_session(), random.Random(f"{seed}/{number}"), 5) for number in range(2)]
    with WorkloadLog(server, database, 0) as tail:
        translator = WorkloadTranslator(tail.pairs_of)
        held = catalog.open_txn()
        for step in range(60):
            rng.choice(workers).step()
            if step % 10 == 5:
                transactional = [name for name, _, kind in catalog.tables() if kind == "transactional"]
                name = rng.choice(transactional)
                catalog.alloc_write_id(held, name)
                catalog.write_table(name, {"held": step}, held)
            if step % 10 == 9:
                (catalog.commit if rng.random() < 0.5 else catalog.abort)(held)
                held = catalog.open_txn()
            _drain(folded, tail, translator)
            _agrees(folded, catalog)
    assert not folded.dead


def test_a_bootstrap_in_the_middle_is_the_fold_of_the_whole_log(
    new_session: Callable[[], WorkloadCatalog], server: ConnectionSettings, database: str
) -> None:
    """A source that starts late, with transactions open and writes staged, comes to the truth all the same."""
    catalog = new_session()
    catalog.create_schema()
    worker = Worker(new_session(), random.Random(7), 5)
    for _ in range(30):
        worker.step()
    opened = [catalog.open_txn() for _ in range(3)]
    name = next(name for name, _, kind in catalog.tables() if kind == "transactional")
    for txn in opened:
        catalog.alloc_write_id(txn, name)
    catalog.write_table(name, {"staged": True}, opened[0])
    with catalog.snapshot() as read:
        begun = bootstrap(read)
    folded = Folded()
    folded.start(begun.position)
    folded.publish([begun.transaction])
    _agrees(folded, catalog)
    with WorkloadLog(server, database, event_id_of(begun.position)) as tail:
        translator = WorkloadTranslator(tail.pairs_of, begun.transaction.opened)
        catalog.commit(opened[0])
        catalog.abort(opened[1])
        catalog.rename_table(name, "new.name")
        catalog.commit(opened[2])
        _drain(folded, tail, translator)
    _agrees(folded, catalog)
    state = folded.table(catalog.table_id("new.name"))
    assert state is not None
    assert b"staged" in (state.image or b"")


def test_no_answer_from_the_fold_misses_a_write_inside_its_demand(
    new_session: Callable[[], WorkloadCatalog], server: ConnectionSettings, database: str
) -> None:
    """While workers write, what the fold serves under lists and positions of the moment is never judged wrong."""
    catalog = new_session()
    catalog.create_schema()
    folded = Folded()
    folded.start("HiveEvent/0")
    rng = random.Random(11)
    served = refused = 0
    with (
        Traffic(server, database, seed=5, tables=4, rate=400, workers=3),
        WorkloadLog(server, database, 0) as tail,
    ):
        translator = WorkloadTranslator(tail.pairs_of)
        while served < 150 or refused < 20:
            for row in tail.read(rng.randint(1, 4)):
                folded.publish([translator.translate(row)])
            name, table_id, kind = rng.choice(catalog.tables() or [("", 0, "external")])
            state = folded.bytes_of(table_id)
            if not table_id or state is None or kind != "transactional":
                continue
            truth = catalog.read_table(*name.split("."))
            if truth is None or truth.table_id != table_id:
                continue
            wanted = Demand(write_ids=ValidWriteIdList.parse(truth.write_ids), table_id=table_id)
            known = decode_table(state)
            answer = view_table(folded.states[0].head, known, table_id, b"")
            answer_from_state(answer, known, wanted)
            if answer.served and answer.image is not None:
                served += 1
                assert not judge(catalog, table_id, answer.image, truth.write_ids).wrong
            else:
                refused += 1
    assert not folded.dead


def test_traffic_ends_what_it_began(
    new_session: Callable[[], WorkloadCatalog], server: ConnectionSettings, database: str
) -> None:
    """Stopped traffic leaves no transaction open, keeps the wanted number of tables, and counts what it did."""
    catalog = new_session()
    with Traffic(server, database, seed=3, tables=6, rate=500, workers=3) as traffic:
        while traffic.counts().done["commit"] < 40:
            assert not traffic.counts().errors
            catalog.position()
    assert 6 - 3 < len(catalog.tables()) < 6 + 3
    with catalog.snapshot() as read:
        assert read.rows("SELECT COUNT(*) FROM catalog_txns WHERE state='open'")[0][0] == 0
        for (image,) in read.rows("SELECT image FROM catalog_tables"):
            assert version_of(bytes(image)) >= 1
