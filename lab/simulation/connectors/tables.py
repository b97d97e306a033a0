"""The tables of the world, what is written to them, and what operators do to them and to the connector."""

from __future__ import annotations

from typing import Final

CREATE: Final = (
    "CREATE TABLE goods (id INT PRIMARY KEY, version BIGINT UNSIGNED NOT NULL, name VARCHAR(12), price DECIMAL(10,2),"
    " placed TIMESTAMP(6) NULL, begun DATETIME(3) NULL, day DATE NULL, share DOUBLE)",
    "CREATE TABLE parts (a VARCHAR(8) COLLATE utf8mb4_bin, b INT, version INT NOT NULL, PRIMARY KEY (a, b))",
)
PUT_GOODS: Final = (
    "REPLACE INTO goods (id, version, name, price, placed, begun, day, share) VALUES (%s, %s, %s, %s, %s, %s, %s, 0.5)"
)
PUT_PARTS: Final = "REPLACE INTO parts (a, b, version) VALUES ('x', %s, %s)"
MOMENT: Final = "2026-03-29 02:30:00.125"
CHANGES: Final = (
    ("DDL", ("ALTER TABLE parts MODIFY COLUMN version BIGINT NOT NULL",)),
    ("DDL", ("ALTER TABLE parts MODIFY COLUMN version INT NOT NULL",)),
    ("DDL", ("ALTER TABLE goods ADD COLUMN more INT DEFAULT 7", "ALTER TABLE goods DROP COLUMN more")),
    ("table emptied", ("TRUNCATE TABLE goods",)),
    ("table emptied", ("TRUNCATE TABLE parts",)),
    (
        "table swapped",
        (
            "DROP TABLE IF EXISTS fresh, stale",
            CREATE[1].replace("parts", "fresh"),
            "RENAME TABLE parts TO stale, fresh TO parts",
        ),
    ),
    ("table moved away", ("RENAME TABLE parts TO elsewhere.parts", "RENAME TABLE elsewhere.parts TO parts")),
    ("DDL", ("CREATE DATABASE IF NOT EXISTS other", "DROP DATABASE other")),
    ("table moved away", ("RENAME TABLE parts TO elsewhere.parts",)),
    ("table moved back", ("RENAME TABLE elsewhere.parts TO parts",)),
)
"""(fault, statements) that change tables."""
AWAY, BACK = 8, 9
"""Of the changes."""
CONFIGURATIONS: Final = (
    {"skipped.operations": "t"},
    {"table.include.list": "shop[.]goods"},
    {"database.include.list": "shop"},
    {"table.exclude.list": "shop[.]g.*"},
    {"connector.class": "io.debezium.connector.postgresql.PostgresConnector"},
)
"""What operators set for a while. The task goes on as before: what the other one would hide is not what is judged."""
