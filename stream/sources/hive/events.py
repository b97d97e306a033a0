"""The types of notification events, and what each means for a table entry.

They are those of ``EventMessage.EventType`` in Hive 4.0.1, plus additions of 4.2.0. An event only invalidates. Its
after-image may differ from what the metastore stores: concurrent alters are merged, and cascades leave no event.
"""

from __future__ import annotations

from typing import Final

WRITES: Final = frozenset(
    {
        "ADD_PARTITION",
        "ALTER_PARTITION",
        "ALTER_PARTITIONS",
        "DROP_PARTITION",
        "INSERT",
        "ACID_WRITE_EVENT",
        "BATCH_ACID_WRITE_EVENT",
        "UPDATE_TBL_COL_STAT_EVENT",
        "DELETE_TBL_COL_STAT_EVENT",
        "UPDATE_PART_COL_STAT_EVENT",
        "DELETE_PART_COL_STAT_EVENT",
        "UPDATE_PART_COL_STAT_EVENT_BATCH",
        "ADD_PRIMARYKEY",
        "ADD_FOREIGNKEY",
        "ADD_UNIQUECONSTRAINT",
        "ADD_NOTNULLCONSTRAINT",
        "ADD_DEFAULTCONSTRAINT",
        "ADD_CHECKCONSTRAINT",
        "DROP_CONSTRAINT",
        "COMMIT_COMPACTION_EVENT",
        "RELOAD",
    }
)
"""Events that write a table or a part of it: its image is awaited. Statistics change its parameters."""

OF_CATALOG: Final = frozenset(
    {
        "CREATE_DATABASE",
        "ALTER_DATABASE",
        "CREATE_FUNCTION",
        "DROP_FUNCTION",
        "CREATE_CATALOG",
        "ALTER_CATALOG",
        "DROP_CATALOG",
    }
)
"""Events that change an object without a table. DROP_DATABASE is one too; it frees names as well."""

IGNORED: Final = frozenset(
    {
        "CREATE_ISCHEMA",
        "ALTER_ISCHEMA",
        "DROP_ISCHEMA",
        "ADD_SCHEMA_VERSION",
        "ALTER_SCHEMA_VERSION",
        "DROP_SCHEMA_VERSION",
        "CREATE_DATACONNECTOR",
        "ALTER_DATACONNECTOR",
        "DROP_DATACONNECTOR",
    }
)
"""Events that touch no object that is published: only the position moves."""
