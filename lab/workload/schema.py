"""The MariaDB tables of a workload catalog.

``catalog_sequence`` has one row, and every operation locks it first. So event ids have no gaps and are in commit order,
as with Hive's ``NOTIFICATION_SEQUENCE``.
"""

from __future__ import annotations

from typing import Final

TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS catalog_sequence (
        id TINYINT NOT NULL PRIMARY KEY,
        last_event BIGINT NOT NULL,
        last_txn BIGINT NOT NULL,
        last_table BIGINT NOT NULL
    ) ENGINE=InnoDB""",
    """CREATE TABLE IF NOT EXISTS catalog_tables (
        table_id BIGINT NOT NULL PRIMARY KEY,
        name VARCHAR(300) NOT NULL,
        kind VARCHAR(20) NOT NULL,
        image LONGBLOB NOT NULL,
        last_version BIGINT NOT NULL,
        next_write_id BIGINT NOT NULL,
        UNIQUE KEY by_name (name)
    ) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin""",
    """CREATE TABLE IF NOT EXISTS catalog_txns (
        txn BIGINT NOT NULL PRIMARY KEY,
        state ENUM('open','committed','aborted') NOT NULL,
        KEY by_state (state, txn)
    ) ENGINE=InnoDB""",
    """CREATE TABLE IF NOT EXISTS catalog_write_ids (
        table_id BIGINT NOT NULL,
        write_id BIGINT NOT NULL,
        txn BIGINT NOT NULL,
        PRIMARY KEY (table_id, write_id),
        KEY by_txn (txn)
    ) ENGINE=InnoDB""",
    """CREATE TABLE IF NOT EXISTS catalog_staged (
        table_id BIGINT NOT NULL PRIMARY KEY,
        txn BIGINT NOT NULL,
        write_id BIGINT NOT NULL,
        version BIGINT NOT NULL,
        image LONGBLOB NOT NULL,
        KEY by_txn (txn)
    ) ENGINE=InnoDB""",
    """CREATE TABLE IF NOT EXISTS catalog_versions (
        table_id BIGINT NOT NULL,
        version BIGINT NOT NULL,
        write_id BIGINT NOT NULL,
        txn BIGINT NOT NULL,
        committed_event BIGINT,
        PRIMARY KEY (table_id, version),
        KEY by_txn (txn)
    ) ENGINE=InnoDB""",
    """CREATE TABLE IF NOT EXISTS catalog_log (
        event_id BIGINT NOT NULL PRIMARY KEY,
        event_time BIGINT NOT NULL,
        event_type VARCHAR(20) NOT NULL,
        txn BIGINT NOT NULL,
        table_id BIGINT NOT NULL,
        message LONGBLOB NOT NULL
    ) ENGINE=InnoDB""",
    "INSERT IGNORE INTO catalog_sequence VALUES (1, 0, 0, 0)",
)
"""``catalog_versions`` keeps every version, so that an answer can be judged. Aborted versions are removed,
``committed_event`` is null while the writer is open, and ``write_id`` is 0 if no transaction wrote the version.
``catalog_staged`` has at most one writer per table: writes are exclusive, so versions rise in commit order."""
