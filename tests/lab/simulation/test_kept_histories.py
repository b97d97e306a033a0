"""Histories that once broke a rule: shrunk by the simulator, kept so that they stay good."""

from __future__ import annotations

from typing import Any

import pytest

from lab.simulation.catalog.world import CatalogWorld
from lab.simulation.connectors.world import ConnectorsWorld
from lab.simulation.engine import History, run_one
from lab.simulation.files.world import FilesWorld
from lab.simulation.hive.world import HiveWorld
from lab.simulation.installation.world import InstallationWorld
from lab.simulation.postgres.world import PostgresWorld
from lab.simulation.rows.world import RowsWorld
from lab.simulation.warehouse.world import WarehouseWorld
from stream.sources.debezium.source import DebeziumSource
from stream.sources.debezium.topics import ConnectorTopics

ROWS: dict[str, History] = {
    "Kafka loses its end where an owner has read on, and another shard begins in its place": [
        ("world", 0, 1, 0, 0, 0),
        ("backfill", 0, 3, 0),
        ("publish", 0, 0, 0, 0),
        ("sync", 0),
        ("lose end", 0),
    ],
    "a source voids a transaction that it cannot continue, and dies while it describes the tables anew": [
        ("world", 0, 0, 0, 1, 0),
        ("publish", 0, 0, 0, 0),
        ("txn", 0, 43022, 0),
        ("txn", 0, 0, 0),
        ("publish", 0, 1, 2, 1),
        ("publish", 0, 1, 1, 1),
    ],
    "the description of the tables is split over two batches and its publisher dies between them": [
        ("publish", 0, 0, 1, 1),
        ("write", 0, 0, 0),
    ],
    "an entry of a new epoch is read before the head that begins the epoch is visible": [
        ("write", 0, 0, 0),
        ("publish", 0, 0, 0, 0),
        ("sync", 0),
        ("restore", 0, 0, 0),
        ("txn", 0, 0, 0),
        ("publish", 0, 1, 0, 0),
        ("fold and read", 0, 0, 0, 0, 0),
    ],
    "a key of a second shard is read where only the first shard is known": [
        ("world", 0, 1, 0, 0),
        ("publish", 0, 0, 0, 0),
        ("sync", 1),
        ("publish", 1, 0, 0, 0),
        ("sync", 0),
        ("read", 0, 4, 1, 0, 0),
        ("write", 1, 1, 0),
        ("read", 1, 4, 1, 0, 2),
    ],
    "a session's first write is placed by a front that still names the epoch before the one that it has seen": [
        ("publish", 0, 0, 0, 0),
        ("sync", 0),
        ("txn", 0, 0, 0),
        ("publish", 0, 1, 0, 0),
        ("restore", 0, 0, 0),
        ("txn", 0, 0, 0),
        ("publish", 0, 1, 0, 0),
        ("sync", 1),
        ("read", 1, 1, 1, 0, 7),
        ("snap", 0, 0),
        ("write", 1, 0, 0),
        ("give", 0),
        ("read", 1, 0, 0, 0, 7),
        ("read", 1, 0, 1, 0, 0),
    ],
    "a fill over an entry of an ended epoch, and a wait that is over": [
        ("publish", 0, 0, 0, 0),
        ("write", 0, 0, 50004),
        ("publish", 0, 1, 0, 0),
        ("restore", 0, 0, 0),
        ("txn", 0, 0, 0),
        ("publish", 0, 1, 0, 0),
        ("fold and read", 1, 0, 2, 0, 0),
        ("fold", 0, 0, 1),
        ("read", 0, 1, 1, 0, 5),
        ("sync", 1),
        ("read", 1, 0, 0, 0, 0),
        ("wait", 1, 1, 0),
    ],
    "a fill of a table that its shard does not publish any more, while another shard still describes it": [
        ("world", 0, 1, 0, 1, 0),
        ("publish", 0, 0, 0, 0),
        ("publish", 1, 0, 0, 0),
        ("backfill", 0, 2, 0),
        ("choose", 1),
        ("publish", 0, 0, 0, 0),
        ("sync", 0),
        ("read", 0, 1, 0, 0, 0),
        ("txn", 0, 18, 0),
        ("write", 1, 0, 0),
        ("publish", 0, 2, 0, 0),
        ("sync", 0),
        ("read", 1, 1, 0, 0, 0),
    ],
    "an owner's answer broke off, and the front's next look for that owner is late": [
        ("write", 0, 0, 0),
        ("tear", 0, 0, 0, 1),
        ("hold", 0, 0, 0, 1, 0),
    ],
    "a wait is over in a store that begins behind what a shard has said of the shards beside it": [
        ("world", 0, 1, 0, 0, 0),
        ("publish", 0, 0, 0, 0),
        ("publish", 1, 0, 0, 0),
        ("sync", 0),
        ("txn", 0, 0, 0),
        ("read", 0, 0, 0, 0, 0),
        ("publish", 0, 1, 0, 0),
        ("begin", 1, 0, 2),
        ("txn", 1, 0, 0),
        ("publish", 1, 1, 0, 0),
        ("sync", 1),
        ("wait", 0, 1, 0),
    ],
    "a table that was whole is read again, and a deletion in it that was dropped is unknown meanwhile": [
        ("publish", 0, 0, 0, 0),
        ("backfill", 0, 3, 0),
        ("backfill", 0, 1, 0),
        ("backfill", 0, 0, 0),
        ("txn", 0, 144, 0),
        ("publish", 0, 1, 0, 0),
        ("sync", 0),
        ("commit", 0, 0, 0),
        ("repeat", 0, 1),
        ("die", 0),
        ("backfill", 0, 0, 0),
    ],
    "a write is placed in a history that is over, and an older read's answer is of the next one": [
        ("publish", 0, 0, 0, 0),
        ("sync", 0),
        ("txn", 0, 0, 0),
        ("publish", 0, 1, 0, 0),
        ("restore", 0, 0, 0),
        ("txn", 0, 0, 0),
        ("publish", 0, 1, 0, 0),
        ("sync", 1),
        ("read", 1, 1, 1, 0, 7),
        ("snap", 0, 0),
        ("write", 1, 0, 0),
        ("read", 1, 0, 0, 0, 7),
        ("give", 0),
        ("read", 1, 0, 1, 0, 0),
    ],
}
CATALOG: dict[str, History] = {
    "a staged image is committed behind a void, and read between the two by an owner that has seen no void yet": [
        ("world", 1, 0, 0, 0),
        ("create", 1, 0),
        ("open",),
        ("publish", 0, 0, 0),
        ("sync", 0),
        ("write", 0, 1),
        ("publish", 2, 0, 0),
        ("damage", 0),
        ("write", 0, 1),
        ("finish", 0, 1),
        ("publish", 2, 0, 0),
        ("list", 1, 1, 0),
        ("race", 1, 0, 4),
    ],
    "an ALLOC is damaged on its way, and its transaction writes without naming itself": [
        ("world", 0, 1, 0, 0),
        ("create", 1, 0),
        ("open",),
        ("publish", 0, 0, 0),
        ("finish", 0, 0),
        ("damage", 36),
        ("open",),
        ("write", 0, 1),
        ("publish", 4, 0, 0),
        ("sync", 0),
        ("list", 1, 1, 0),
        ("read", 1, 0, 0),
    ],
    "a catalog is first published after its cleaner has forgotten the last write id": [
        ("create", 0, 0),
        ("open",),
        ("allocate", 0, 0),
        ("finish", 0, 0),
        ("clean",),
    ],
    "a table is renamed, an external one gets its name, and a reader still has the first one's list": [
        ("create", 0, 0),
        ("list", 1, 0, 0),
        ("rename", 0),
        ("create", 0, 3),
        ("publish", 0, 0, 0),
        ("sync", 0),
        ("read", 1, 0, 4),
    ],
    "a publisher dies among the names that it publishes again, and then every table is dropped": [
        ("world", 0, 0, 1),
        ("create", 0, 0),
        ("create", 1, 0),
        ("publish", 4, 0, 0),
        ("die",),
        ("publish", 0, 2, 1),
        ("drop", 0, 0),
        ("drop", 1, 0),
        ("publish", 4, 0, 0),
        ("create", 0, 0),
    ],
}
WAREHOUSE: dict[str, History] = {
    "a transaction was given a write id and wrote before the source began, and is open": [
        ("world", 1, 0, 0, 0, 1),
        ("create", 0, 0),
        ("open", 0),
        ("allocate", 0, 0, 0),
        ("alter", 0, 1),
        ("start", 0),
        ("let", 3),
        ("let", 3),
        ("table", 0, 0, 0, 0, 3),
    ],
    "a transaction that has written two tables is seen committed in one, behind the cache; the other is read next": [
        ("create", 0, 0),
        ("create", 1, 0),
        ("open", 0),
        ("allocate", 0, 0, 0),
        ("allocate", 1, 0, 0),
        ("let", 3),
        ("table", 0, 0, 0, 0, 3),
        ("list", 1),
        ("alter", 0, 1),
        ("let", 3),
        ("kafka", 1, 0),
        ("alter", 1, 1),
        ("end", 0, 1),
        ("table", 0, 0, 0, 0, 3),
        ("table", 0, 1, 1, 0, 3),
    ],
    "partitions show a COMMIT behind the cache, before which a table without a list was altered": [
        ("create", 0, 4),
        ("partition", 0, 4, 0, 0),
        ("create", 1, 2),
        ("open", 0),
        ("allocate", 0, 0, 0),
        ("let", 3),
        ("table", 0, 1, 0, 0, 3),
        ("partition", 0, 4, 1, 1),
        ("let", 3),
        ("kafka", 1, 0),
        ("alter", 1, 0),
        ("end", 0, 1),
        ("partitions", 0, 0, 0, 0, 0, 3),
        ("table", 0, 1, 0, 0, 3),
    ],
    "a table gets ids that no event tells while a transaction is open that has its list": [
        ("create", 1, 0),
        ("let", 1),
        ("open", 0),
        ("begin", 0, 0, 1, 1, 2, 1),
        ("seed", 1, 0),
        ("within", 0, 1, 1, 0, 0, 0),
    ],
    "a session reads what must not be old at the metastore, and then what has changed since, which it has not seen": [
        ("create", 0, 0),
        ("create", 3, 1),
        ("let", 3),
        ("partition", 3, 0, 0, 0),
        ("kafka", 1, 0),
        ("begin", 1, 0, 0, 0, 0, 0),
        ("bounded", 1, 0, 0, 0, 2),
        ("within", 1, 3, 0, 0, 0, 0),
    ],
    "a transaction writes while its source is slow, and its session reads that from the metastore": [
        ("create", 1, 0),
        ("open", 1),
        ("let", 1),
        ("begin", 0, 0, 0, 1, 0, 1),
        ("allocate", 1, 0, 1),
        ("end", 1, 1),
        ("within", 0, 1, 0, 0, 0, 0),
        ("slow", 0, 3),
        ("expire", 0),
        ("let", 3),
        ("table", 0, 1, 0, 0, 1),
    ],
    "a table without partition columns was there before its source": [
        ("world", 1, 0, 0, 0, 1),
        ("create", 0, 3),
        ("start", 0),
    ],
    "two writers from before the source; the server lists the first one only, and the second one commits": [
        ("world", 1, 0, 0, 0, 1),
        ("create", 0, 4),
        ("open", 1),
        ("allocate", 0, 0, 1),
        ("start", 0),
        ("let", 2),
        ("end", 0, 1),
    ],
    "the first one of three writers from before the source aborts, and behind it the second one commits": [
        ("world", 1, 0, 0, 0, 1),
        ("create", 0, 4),
        ("open", 2),
        ("allocate", 0, 0, 1),
        ("allocate", 0, 2, 0),
        ("start", 0),
        ("let", 2),
        ("end", 1, 0),
        ("let", 2),
        ("end", 0, 1),
    ],
    "an event that names no table is of a type that the source does not know": [
        ("create", 0, 4),
        ("let", 3),
        ("strange", 0, 1),
    ],
    "an external table is made under a name that has write ids, one of them from before the source": [
        ("world", 1, 0, 0, 0, 1),
        ("open", 1),
        ("allocate", 0, 0, 0),
        ("start", 0),
        ("let", 2),
        ("allocate", 0, 1, 0),
        ("create", 0, 10),
        ("alter", 0, 0),
    ],
    "a source that was started anew is told of a write of an external table, but not that it is external": [
        ("create", 1, 10),
        ("let", 1),
        ("kill", 0, 0),
        ("let", 2),
        ("strange", 1, 4),
    ],
    "the first drop of a set in a new epoch, of which there were some in the epoch before": [
        ("create", 0, 0),
        ("let", 1),
        ("rename", 0, 1),
        ("expire", 0),
    ],
    "a partition was written, and the metastore went away before the source had asked where the log ends": [
        ("create", 2, 1),
        ("let", 1),
        ("slow", 2, 0),
        ("partition", 2, 0, 0, 0),
        ("kafka", 1, 0),
        ("kill", 1, 3),
        ("kafka", 0, 0),
        ("metastore", 1, 0),
    ],
    "the source is killed when it has just published that the partitions of a table are fetched": [
        ("world", 23220, 0, 0, 0, 1, 0),
        ("create", 0, 1),
        ("partition", 0, 0, 0, 0),
        ("start", 0),
        ("let", 0),
        ("let", 2),
        ("begin", 0, 0, 0, 0, 0, 1),
        ("within", 0, 1, 0, 0, 0, 0),
        ("within", 0, 1, 0, 0, 0, 1),
        ("within", 0, 0, 2, 0, 0, 1),
        ("partition", 0, 1, 0, 0),
        ("begin", 0, 0, 0, 0, 1, 1),
        ("table", 0, 1, 0, 0, 0),
        ("table", 0, 0, 0, 0, 1),
        ("kill", 0, 0),
    ],
    "a session reads a table between two pages of partitions, the first of which it has seen": [
        ("create", 1, 1),
        ("partition", 1, 0, 0, 0),
        ("partition", 1, 0, 3, 0),
        ("partition", 1, 0, 1, 0),
        ("let", 3),
        ("partitions", 0, 1, 0, 1, 1, 1),
        ("table", 0, 0, 0, 0, 0),
    ],
    "a transaction writes a table that it had not named, while no front is up that could list it": [
        ("create", 2, 0),
        ("open", 0),
        ("let", 1),
        ("begin", 0, 2, 0, 1, 0, 1),
        ("let", 1),
        ("kill", 3, 0),
        ("within", 0, 2, 0, 0, 0, 0),
    ],
    "a transaction's lists come before an owner has named the epoch, and prove nothing of an external table": [
        ("world", 61679, 1, 0, 0, 0, 0),
        ("create", 2, 2),
        ("create", 0, 0),
        ("create", 1, 1),
        ("partition", 2, 0, 0, 0),
        ("partition", 2, 0, 1, 0),
        ("partition", 2, 0, 5, 0),
        ("partition", 1, 0, 0, 0),
        ("partition", 1, 0, 3, 0),
        ("partition", 1, 0, 1, 0),
        ("let", 2),
        ("open", 0),
        ("let", 2),
        ("begin", 0, 0, 0, 1, 1, 1),
        ("within", 0, 2, 0, 0, 0, 1),
        ("within", 0, 2, 0, 0, 0, 1),
        ("within", 0, 2, 0, 0, 0, 0),
    ],
    "the metastore is left alone until after the end, and the cache has answered all else before": [
        ("world", 9157, 1, 1, 0, 1, 1, 0),
        ("let", 2),
        ("create", 0, 4),
        ("partition", 0, 4, 0, 0),
        ("let", 3),
        ("break", 3, 2),
        ("table", 1, 1, 1, 2, 3),
    ],
}


FILES: dict[str, History] = {
    "a host is killed amid its first start, and its finally blocks run when the history is over": [
        ("get", 0, 0, 0, 0, 0, 0),
        ("kill", 0, 0),
    ],
    "the disk is full as a version is let go of for another, and the first one is never cached again": [
        ("put", 3, 1, 0),
        ("let", 0),
        ("get", 3, 0, 0, 0, 0, 0),
        ("read", 0, 0, 0, 0, 0, 0),
        ("read", 3, 0, 0, 0, 8, 1),
        ("disk", 0, 1),
    ],
    "a damaged block is met while the disk is full, and the read of the file fails": [
        ("let", 0),
        ("put", 1, 1, 0),
        ("read", 1, 0, 0, 0, 0, 0),
        ("read", 0, 0, 0, 0, 0, 0),
        ("get", 1, 0, 0, 0, 0, 1),
        ("damage", 0, 0, 0),
        ("disk", 0, 0),
    ],
    "a host dies while it lets an extent grow": [
        ("store", 0, 0),
        ("put", 1, 7, 0),
        ("put", 0, 0, 0),
        ("read", 1, 0, 0, 0, 0, 0),
        ("prefetch", 1, 2, 4),
        ("die writing", 0),
        ("prefetch", 0, 0, 0),
    ],
}


INSTALLATION: dict[str, History] = {
    "a key that is none is asked for before any owner or MariaDB has described its table": [
        ("mariadb", 1, 1),
        ("probe", 0, 24),
    ],
    "a key that is none, then a page that is none, are asked for while MariaDB is down": [
        ("let", 3),
        ("probe", 0, 24),
        ("mariadb", 1, 1),
        ("probe", 0, 24),
        ("probe", 0, 51),
    ],
    "a forged letter is dismissed, and then the message of that place is buried": [
        ("let", 1),
        ("mariadb", 0, 1),
        ("bury", 0, 6, 3),
        ("letters", 0, 0),
        ("bury", 0, 10, 0),
        ("letters", 1, 0),
    ],
    "a consumer is drained while it waits for its topic, which is there a moment later": [
        ("world", 0, 1, 0, 0, 0, 0, 1),
        ("let", 2),
        *[("let", 0)] * 3,
        ("drain", 0),
    ],
    "a sink reads a table at the source once its history is another one, and before the stream tells of that": [
        ("world", 0, 0, 0, 0, 1, 0, 0, 40),
        ("replica", 1, 0),
        ("sink", 4),
        ("torn", 0),
    ],
    "two threads of a client are refused for a secret that was exchanged, and one of them has read the new one": [
        ("world", 0, 0, 0, 0, 0, 0, 0, 1),
        ("write", 0, 0, 0, 0),
        ("exchange", 0),
        ("let", 3),
        ("read", 0, 0, 0, 0),
        ("bounded", 0, 0, 0, 0),
    ],
    "a reader of the stream begins twice before the topic goes back so far, and leaves in between": [
        ("kill", 4, 3),
        ("follow", 1, 1, 0, 0),
        ("follow", 1, 0, 0, 3),
    ],
    "a session is told at once that two histories are over: of the topic, and of the server": [
        ("let", 3),
        ("read", 0, 0, 0, 1),
        ("write", 0, 0, 1, 0),
        ("topic",),
        ("restore", 0),
        ("read", 0, 0, 0, 1),
        ("read", 0, 0, 0, 0),
    ],
    "all secrets are exchanged twice within one call": [
        ("world", 0, 0, 0, 0, 1, 0, 0, 33),
        ("find", 0, 0, 0, 0, 0),
        ("exchange", 0),
        ("replica", 0, 4),
        ("find", 0, 0, 0, 0, 0),
        ("exchange", 0),
    ],
    "a server is restored while Kafka is away, and its source is killed before it has begun the new epoch": [
        ("let", 3),
        ("kafka", 1, 0),
        ("find", 1, 0, 0, 0, 1),
        ("write", 1, 0, 0, 1),
        ("restore", 0),
        ("kill", 2, 0),
    ],
    "a sink is killed while it is told to begin anew": [("let", 3), ("sink", 2), ("sink dies", 0, 0), ("torn", 0)],
    "an operator's cancel is on its way while Kafka is away, until the end": [
        ("world", 7, 0, 0, 0, 0, 1),
        ("let", 3),
        ("kill", 2, 0),
        ("change", 0, 0),
        ("kafka", 1, 0),
        ("backfill", 0, 1, 0),
    ],
    "a history is lost while somebody still watches for the epoch after the loss before": [
        ("world", 14130, 1, 0, 0, 0, 1, 0, 0),
        ("let", 2),
        ("write", 0, 0, 3, 3),
        ("write", 0, 1, 3, 3),
        ("read", 0, 3, 1, 0),
        ("tail", 0, 2),
        ("bounded", 0, 3, 1, 3),
        ("kafka", 1, 0),
        ("restore", 2),
    ],
    "a stream begins a second ago, which the server's clock has still before it": [
        ("world", 1, 0, 0, 0, 0, 0, 0, 66),
        ("follow", 0, 1, 0, 1),
    ],
}


CONNECTORS: dict[str, History] = {
    "a source is killed once it has described a table that came back, and before it says where it reads the topic": [
        ("world", 0, 1, 1, 0, 0, 0),
        ("write", 0, 1, 1),
        ("write", 0, 0, 0),
        ("change", 8, 0),
        ("write", 0, 0, 0),
        ("let", 3),
        ("change", 9, 2),
        ("kill", 1, 0),
    ],
    "a table is renamed away while no source runs, after a change that none has read yet": [
        ("world", 1, 0, 0, 0, 1, 0),
        ("let", 3),
        ("write", 0, 5, 0),
        ("change", 0, 3),
        ("kill", 1, 0),
        ("write", 0, 4, 0),
        ("kill", 0, 0),
        ("change", 8, 0),
    ],
}


POSTGRES: dict[str, History] = {
    "an epoch begins while Kafka has the end of a transaction that is not committed there, and not yet its row": [
        ("world", 0, 0, 0, 0, 0, 1),
        ("lag", 2),
        ("write", 0, 0, 0, 0),
    ],
}


HIVE: dict[str, History] = {
    "of two writers the first one's write is missing, and the second one aborts": [
        ("world", 0, 0),
        ("create", 0, 0),
        ("open", 1),
        ("allocate", 0, 0, 0, 1),
        ("allocate", 0, 1, 0, 1),
        ("miss", 0),
        ("alter", 0, 1),
        ("alter", 0, 2),
        ("end", 1, 0),
    ],
    "a table of the same name is dropped in another catalog": [("create", 0, 0), ("note", 1)],
    "it is, and the message is damaged": [("create", 0, 0), ("damage", 0), ("note", 1)],
    "a table is renamed twice, and the first time is missing in the log: the name that it had is free": [
        ("create", 1, 3),
        ("miss", 0),
        ("rename", 1, 0),
        ("rename", 0, 2),
    ],
    "a drop keeps its ids, and the next table of that name is renamed before it gets any": [
        ("open", 0),
        ("create", 1, 0),
        ("allocate", 1, 0, 0, 0),
        ("drop", 1, 0),
        ("create", 1, 0),
        ("rename", 1, 0),
        ("allocate", 0, 0, 0, 0),
    ],
}


@pytest.mark.parametrize("ops", ROWS.values(), ids=ROWS)
def test_a_history_that_once_broke_a_rule_of_rows_breaks_none(ops: History) -> None:
    """What the simulator has found once is not lost again."""
    assert run_one(RowsWorld(), ops).violations == []


@pytest.mark.parametrize("ops", CATALOG.values(), ids=CATALOG)
def test_a_history_that_once_broke_a_rule_of_tables_breaks_none(ops: History) -> None:
    """The same for the world of catalog tables."""
    assert run_one(CatalogWorld(), ops).violations == []


@pytest.mark.parametrize("ops", WAREHOUSE.values(), ids=WAREHOUSE)
def test_a_history_that_once_broke_a_rule_of_a_live_catalog_breaks_none(ops: History) -> None:
    """The same for whole processes that follow a metastore."""
    assert run_one(WarehouseWorld(), ops).violations == []


@pytest.mark.parametrize("ops", FILES.values(), ids=FILES)
def test_a_history_that_once_broke_a_rule_of_files_breaks_none(ops: History) -> None:
    """Each of them was a defect, of the product or of the simulator."""
    assert run_one(FilesWorld(), ops).violations == []


@pytest.mark.parametrize("ops", HIVE.values(), ids=HIVE)
def test_a_history_that_once_broke_a_rule_of_a_logged_catalog_breaks_none(ops: History) -> None:
    """The same for notification logs that are folded."""
    assert run_one(HiveWorld(), ops).violations == []


@pytest.mark.parametrize("ops", INSTALLATION.values(), ids=INSTALLATION)
def test_a_history_that_once_broke_a_rule_of_an_installation_breaks_none(ops: History) -> None:
    """The same for whole processes on a MariaDB."""
    assert run_one(InstallationWorld(), ops).violations == []


@pytest.mark.parametrize("ops", CONNECTORS.values(), ids=CONNECTORS)
def test_a_history_that_once_broke_a_rule_of_a_connector_breaks_none(ops: History) -> None:
    """The same for whole processes on a MariaDB or MySQL and its connector."""
    assert run_one(ConnectorsWorld(), ops).violations == []


@pytest.mark.parametrize("ops", POSTGRES.values(), ids=POSTGRES)
def test_a_history_that_once_broke_a_rule_of_a_postgresql_breaks_none(ops: History) -> None:
    """The same for whole processes on a PostgreSQL and its connector."""
    assert run_one(PostgresWorld(), ops).violations == []


def test_a_table_that_is_gone_with_its_topic_does_not_stop_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was renamed away while no source ran, and its topic was deleted: what was in there can't be read any more."""
    opened, deleted = DebeziumSource._open_log, list[str]()

    def without_topics(source: DebeziumSource, schema: Any, position: str) -> Any:
        topics = ConnectorTopics(source._from.kafka, source._from.topic_prefix)
        gone = topics.existing().keys() & map(topics.topic_of, schema.catalog.names - schema.live.keys())
        for each in topics._admin.delete_topics(sorted(gone)).values() if gone else ():
            each.result()
        topics.close()
        deleted.extend(gone)
        return opened(source, schema, position)

    monkeypatch.setattr(DebeziumSource, "_open_log", without_topics)
    ops = CONNECTORS["a table is renamed away while no source runs, after a change that none has read yet"]
    assert run_one(ConnectorsWorld(), ops).violations == []
    assert deleted == ["c.shop.parts"]
