"""A keyspace over several MariaDB servers, each a shard with a range of keys, as processes of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tomli_w

from freshet.local.mariadb import MariaDBServer
from stream.kafka.connection import KafkaCluster
from stream.shards.map import ShardMap
from stream.wire.keys import Layout, row_key
from tests.serving.stack import ServingStack, eventually
from tokens import Position, Vector

PARTITIONS = 2


class ShardedStack(ServingStack):
    """``servers``: range → its server. Role ``source-RANGE`` is the source of a shard."""

    def __init__(
        self,
        directory: Path,
        kafka: KafkaCluster,
        servers: Mapping[str, MariaDBServer],
        keyspace: str,
        database: str,
        **source: Any,
    ) -> None:
        first = next(iter(servers.values()))
        super().__init__(directory, kafka, first.address, keyspace, database, partitions=PARTITIONS, **source)
        del self._commands["source"]
        self.configure(servers)
        self.move_to(servers)

    def configure(
        self, servers: Mapping[str, MariaDBServer], succeeds: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> None:
        """Write these shards into the settings, for processes that start from now on.

        ``succeeds``: range → the ranges of the shards that it succeeds.
        """
        self._settings["keyspaces"][self.keyspace]["shards"] = {
            text: {
                "host": server.host,
                "port": server.port,
                "succeeds": [f"{self.keyspace}/{old}" for old in succeeds.get(text, ())],
            }
            for text, server in servers.items()
        }
        self.config.write_text(tomli_w.dumps(self._settings))
        sources = {
            f"source-{text}": ["source", "mariadb", "--keyspace", self.keyspace, f"--shard={text}"] for text in servers
        }
        self._commands = {**sources, **self._commands}

    def move_to(self, servers: Mapping[str, MariaDBServer]) -> None:
        """From here on these servers are written."""
        self.servers = dict(servers)
        self.map = ShardMap.parse({f"{self.keyspace}/{text}": text for text in servers})

    def await_log(self, role: str, words: str) -> None:
        """Until a process has logged these words."""
        eventually(lambda: words in self.log_of(role), what=f"{words} of {role}")

    def id_of(self, table: str, *pk: object, prefix: int = 0) -> int:
        """The keyspace id of a row."""
        return Layout(PARTITIONS).keyspace_id(row_key(f"{self.database}.{table}", pk), prefix)

    def range_of(self, table: str, *pk: object, prefix: int = 0) -> str:
        """The range of the shard that a row belongs to."""
        return str(self.map.range_of(self.map.shard_of(self.id_of(table, *pk, prefix=prefix))))

    def run_everywhere(self, *statements: str) -> None:
        """Statements in each server."""
        for server in self.servers.values():
            with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)

    def settle(self, *ranges: str) -> str:
        """A token with everything committed in these servers (default: in all), which every partition has folded."""
        wanted = {}
        for text in ranges or self.servers:
            with self.servers[text].connect() as connection, connection.cursor() as cursor:
                cursor.execute("SELECT @@gtid_binlog_pos")
                wanted[f"{self.keyspace}/{text}"] = Position.parse(f"MariaDB/{cursor.fetchone()[0]}")

        def reached() -> str:
            tokens = [self.get(f"/v1/locations/{self.keyspace}/{p}").json().get("token") for p in range(PARTITIONS)]
            found = [Vector.parse(token) for token in tokens if token]
            for vector in found:
                for shard, position in wanted.items():
                    component = vector.get(shard)
                    if component is None or not component.position.at_or_past(position):
                        return ""
            return str(found[0]) if len(found) == PARTITIONS else ""

        return eventually(reached, what="folding")


def start_servers(stack: ExitStack, directory: Path, ranges: tuple[str, ...]) -> dict[str, MariaDBServer]:
    """A server for each range, each with a GTID domain of its own."""
    return {
        text: stack.enter_context(
            MariaDBServer(directory / f"mariadb{number}", server_id=number, gtid_domain_id=number, durable=False)
        )
        for number, text in enumerate(ranges, 1)
    }
