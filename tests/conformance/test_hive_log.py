"""Replaying the log of a real Hive Metastore 4.0.1 gives the lists that the metastore itself returned."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from consumers.process.replay import replay
from freshet.cli import app
from tests.conformance.samples import DATA, Row, rows
from tokens import ValidWriteIdList

LOG = rows("hive_log")


def _answers() -> dict[int, list[Row]]:
    """The metastore's answers by the last event before them (a failed call logs no event)."""
    found: dict[int, list[Row]] = {}
    for row in rows("hive_answers"):
        found.setdefault(row["after_event"], []).append(row["tables"])
    return found


def test_every_list_and_table_id_is_the_metastores_own() -> None:
    """After each event every existing transactional table has exactly the metastore's list and table id."""
    answers, judged = _answers(), 0
    for event_id, shown in replay(LOG):
        for tables in answers[event_id]:
            existing = {name: answer for name, answer in tables.items() if answer["exists"]}
            assert {name: table.table_id for name, table in shown.items()} == {
                name: answer["table_id"] for name, answer in existing.items()
            }
            for name, answer in existing.items():
                expected = answer["write_id_list"] if answer["transactional"] else None
                assert shown[name].write_ids == expected, f"{name} after event {event_id}"
                judged += expected is not None
    assert judged == 202


def test_a_table_is_servable_only_while_no_writer_of_it_is_open() -> None:
    """A table written by an open transaction is not servable; once all have ended, every table is."""
    pending = 0
    last: dict[str, bool] = {}
    for _, shown in replay(LOG):
        last = {name: table.servable for name, table in shown.items()}
        for name, table in shown.items():
            if table.servable and table.write_ids is not None:
                assert ValidWriteIdList.parse(table.write_ids).table == name
            pending += "pending" in table.why
    assert pending
    assert last
    assert all(last.values())


def test_without_images_the_log_alone_makes_nothing_servable() -> None:
    """An event only invalidates: without the fetch that follows it, no entry may be served."""
    for _, shown in replay(LOG, with_images=False):
        assert not any(table.servable for table in shown.values())


def test_the_command_prints_one_line_for_each_event() -> None:
    """`freshet replay --every --json` prints event id, tables, lists, servable and why for each event."""
    result = CliRunner().invoke(app, ["replay", str(DATA / "hive_log.sample.jsonl"), "--every", "--json"])
    assert result.exit_code == 0
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["after_event"] for line in lines] == [row["eventId"] for row in LOG]
    table = lines[-1]["tables"]["s1.fau"]
    assert table["write_ids"] == "s1.fau:3:9223372036854775807::1"
    assert table["table_id"] == 3
    assert table.keys() >= {"table_id", "write_ids", "servable", "why"}
    assert lines[-1]["tables"]["s1.ext"]["write_ids"] is None


def test_without_every_only_the_last_state_is_printed() -> None:
    """`freshet replay --json` prints one line, for the last event."""
    result = CliRunner().invoke(app, ["replay", str(DATA / "hive_log.sample.jsonl"), "--json"])
    assert [json.loads(line)["after_event"] for line in result.stdout.splitlines()] == [45]


def test_the_damaged_line_of_a_log_is_named(tmp_path: Path) -> None:
    """For a damaged file the error names the line that can't be read."""
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps(LOG[0]) + "\n" + json.dumps(LOG[1])[:50])
    result = CliRunner().invoke(app, ["replay", str(file)])
    assert result.exit_code != 0
    assert "line 2 is not JSON" in (result.output + str(result.exception))


def test_until_shows_what_was_known_then() -> None:
    """`freshet replay --until` ends after that event, with columns, parameters and partitions as they were."""
    log = str(DATA / "hive_log.sample.jsonl")
    every = CliRunner().invoke(app, ["replay", log, "--every", "--json"])
    at = {found["after_event"]: found["tables"] for found in map(json.loads, every.stdout.splitlines())}
    for event_id in (8, 27, 30, 45):
        result = CliRunner().invoke(app, ["replay", log, "--until", str(event_id), "--json"])
        assert json.loads(result.stdout) == {"after_event": event_id, "tables": at[event_id]}
    assert CliRunner().invoke(app, ["replay", log, "--until", "0"]).exit_code == 1


def test_the_partitions_of_a_real_log_are_followed() -> None:
    """What was added, altered and dropped is shown: parameters where the log has them, null where they are awaited."""
    *_, (_, tables) = replay(LOG)
    shown = tables["s1.mmp"]
    assert [each.values for each in shown.partitions] == [["1"], ["2"]]
    assert [each.image is None for each in shown.partitions] == [True, False]
    by_event = dict(replay(LOG))
    assert [each.values for each in by_event[26]["s1.mmp"].partitions] == [["1"], ["2"]]
    assert by_event[26]["s1.mmp"].partitions_whole
    assert not any(each.partitions for name, each in tables.items() if name == "s1.fau")
