"""What ``--help`` adds to each command: examples that can be pasted, and types as people say them.

Examples are here, and not in the commands' modules, so that ``tests/cli/test_explained.py`` can compare all of them
with the command line.
"""

from __future__ import annotations

from typing import Any, Final

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "doctor": ("freshet doctor", "freshet doctor --kafka", "freshet doctor --source shop", "freshet doctor --json"),
    "local up": ("freshet local up", "freshet local up kafka mariadb hive"),
    "local down": ("freshet local down", "freshet local down --wipe"),
    "local sql": ("freshet local sql", "freshet local sql -e 'SELECT @@last_gtid'"),
    "local status": ("freshet local status",),
    "up": ("freshet up --local", "freshet --config freshet.toml up --keyspace shop --workers 2"),
    "get": ("freshet get shop orders 7", "freshet get shop orders 7 --after 0-1-15", "freshet get shop lines 7,2"),
    "source mariadb": ("freshet source mariadb shop", "freshet source mariadb shop --shard=-80"),
    "source mysql": ("freshet source mysql shop",),
    "source debezium": ("freshet source debezium shop",),
    "source hive": ("freshet source hive hive",),
    "source workload": ("freshet source workload hive",),
    "consume": ("freshet consume", "freshet consume --keyspace shop --workers auto"),
    "cluster status": ("freshet cluster status", "freshet cluster status --json"),
    "cluster drain": ("freshet cluster drain node-3:8481",),
    "cluster move": ("freshet cluster move shop 3 node-4:8481",),
    "token new": ("freshet token new checkout --role read --keyspace shop --days 90",),
    "token hash": ("freshet token hash < secret",),
    "token check": ("freshet token check < secret",),
    "node": ("freshet node", "freshet node --data-dir /var/lib/freshet --port 8481"),
    "serve": ("freshet serve", "freshet serve --port 8481"),
    "rebuild": ("freshet rebuild shop --to rebuilt",),
    "verify": ("freshet verify shop", "freshet verify rebuilt .freshet/shop"),
    "snapshots make": ("freshet snapshots make shop --to s3://bucket/freshet",),
    "snapshots ls": ("freshet snapshots ls shop --at s3://bucket/freshet",),
    "snapshots verify": ("freshet snapshots verify shop --at s3://bucket/freshet",),
    "snapshots prune": ("freshet snapshots prune shop --at s3://bucket/freshet --keep 3",),
    "swap": ("freshet swap shop --to next-1:7410",),
    "export": (
        "freshet export shop --to /data/shop",
        "freshet export shop --table shop.orders --to /data/orders",
    ),
    "sink": (
        "freshet sink shop sqlite:///copy.db --table shop.orders",
        "freshet sink shop postgresql+psycopg://copy@db/copy --table shop.orders --table shop.lines --once",
    ),
    "log": (
        "freshet log shop --table shop.orders --key 7 --from -86400",
        "freshet log shop --to /var/lib/shop-log --keep-days 90 --follow",
        "freshet log shop --to-topic shop-log --before --follow",
    ),
    "compare": ("freshet compare MariaDB/0-1-5 MariaDB/0-1-7",),
    "inspect": ("freshet inspect shop orders 7", "freshet inspect .freshet/shop/0 --digest"),
    "bytes ls": ("freshet bytes ls",),
    "bytes du": ("freshet bytes du",),
    "bytes verify": ("freshet bytes verify",),
    "bytes drop": ("freshet bytes drop s3://bucket/table",),
    "bytes where": ("freshet bytes where s3://bucket/table/part-0.parquet",),
    "bytes resize": ("freshet bytes resize 10000000000",),
    "bytes trace": ("freshet bytes trace trace.jsonl",),
    "bytes replay": ("freshet bytes replay trace.jsonl --capacity 10000000000 --policy lru",),
    "bytes simulate": ("freshet bytes simulate --keys 100000 --capacity 10000",),
    "dlq list": ("freshet dlq list shop",),
    "dlq show": ("freshet dlq show shop freshet.shop.events/0/17",),
    "dlq retry": ("freshet dlq retry shop freshet.shop.events/0/17",),
    "dlq dismiss": ("freshet dlq dismiss shop freshet.shop.events/0/17",),
    "backfill start": ("freshet backfill start shop orders --follow",),
    "backfill cancel": ("freshet backfill cancel shop orders",),
    "backfill status": ("freshet backfill status shop",),
    "lag": ("freshet lag shop", "freshet lag shop --tables"),
    "replay": ("freshet replay log.jsonl --every",),
    "simulate": ("freshet simulate --world rows --histories 1000",),
    "demo": ("freshet demo",),
}
"""Command → what may be typed."""


def explain(command: Any, name: str) -> Any:
    """Adds examples and types to a command and to those below it. Returns the command."""
    for inner, below in getattr(command, "commands", {}).items():
        explain(below, f"{name} {inner}")
    if examples := EXAMPLES.get(name):
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {example}" for example in examples)
    for parameter in command.params:
        if parameter.metavar is None:
            parameter.metavar = _metavar(parameter)
        if parameter.param_type_name == "argument" and not parameter.type_descriptor.is_choice:
            parameter.display_type_rich = _nothing  # typer would say <str>
    return command


def _nothing(**_: Any) -> str:
    return ""


def _metavar(parameter: Any) -> str | None:
    """What the parameter takes, as people say it; None where typer says it well: flags and choices."""
    if parameter.param_type_name == "argument":
        name: str = parameter.name.upper()
        return name
    if parameter.is_flag or parameter.count or parameter.type_descriptor.is_choice:
        return None
    kind: str = parameter.bare_type().removeprefix("list[").rstrip("]")
    return {"int": "N", "float": "N", "Path": "PATH", "str": "TEXT"}.get(kind)
