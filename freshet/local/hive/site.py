"""The settings of a local Hive Metastore, as its ``metastore-site.xml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from xml.sax.saxutils import escape

from freshet.local.mariadb import MariaDBAddress

LOG4J2 = """\
status = WARN
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
"""

SETTINGS = {
    "metastore.thrift.bind.host": "127.0.0.1",
    "metastore.transactional.event.listeners": "org.apache.hive.hcatalog.listener.DbNotificationListener",
    "metastore.event.message.factory": "org.apache.hadoop.hive.metastore.messaging.json.gzip.GzipJSONMessageEncoder",
    "metastore.metastore.event.db.notification.api.auth": "false",  # so it is spelled
    "metastore.expression.proxy": "org.apache.hadoop.hive.metastore.MsckPartitionExpressionProxy",
    "metastore.task.threads.always": "org.apache.hadoop.hive.metastore.events.EventCleanerTask",
    # housekeeping and compaction change write-id lists without an event
    "metastore.housekeeping.threads.on": "false",
    "metastore.acidmetrics.thread.on": "false",
    "metastore.compactor.initiator.on": "false",
    "metastore.compactor.cleaner.on": "false",
    "metastore.compactor.worker.threads": "0",
    "metastore.async.log.enabled": "false",
    "metastore.schema.verification": "true",
    "datanucleus.schema.autoCreateAll": "false",
    "metastore.server.min.threads": "2",
    "metastore.server.max.threads": "64",
    "metastore.thread.pool.size": "2",
    "datanucleus.connectionPool.maxPoolSize": "6",
    "metastore.txn.timeout": "86400s",
}


@dataclass(frozen=True, slots=True)
class DerbyDatabase:
    """The metastore's own embedded database, in a directory. Only one process can open it."""

    directory: Path
    kind: ClassVar[str] = "derby"

    @property
    def connection(self) -> dict[str, str]:
        """JDBC URL, driver and account."""
        return {
            "ConnectionURL": f"jdbc:derby:;databaseName={self.directory};create=true",
            "ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
            "ConnectionUserName": "APP",
            "ConnectionPassword": "mine",
        }


@dataclass(frozen=True, slots=True)
class MetastoreDatabase:
    """A database ``name`` in a MariaDB: several metastores can share it."""

    address: MariaDBAddress
    name: str
    kind: ClassVar[str] = "mysql"

    @property
    def connection(self) -> dict[str, str]:
        """JDBC URL, driver and account."""
        address = self.address
        return {
            "ConnectionURL": f"jdbc:mariadb://{address.host}:{address.port}/{self.name}?useMysqlMetadata=true",
            "ConnectionDriverName": "org.mariadb.jdbc.Driver",
            "ConnectionUserName": address.user,
            "ConnectionPassword": address.password,
        }


def write_site(
    conf: Path,
    database: MetastoreDatabase | DerbyDatabase,
    warehouse: Path,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Write the files of the directory ``conf``. ``settings``: on top of `SETTINGS`."""
    conf.mkdir(parents=True, exist_ok=True)
    properties = {
        **{f"javax.jdo.option.{name}": value for name, value in database.connection.items()},
        "metastore.warehouse.dir": f"file://{warehouse}/managed",
        "metastore.warehouse.external.dir": f"file://{warehouse}/external",
        **SETTINGS,
        **(settings or {}),
    }
    lines = [
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
        for name, value in properties.items()
    ]
    site = conf / "metastore-site.xml"
    site.touch(mode=0o600)
    site.write_text("\n".join(["<configuration>", *lines, "</configuration>", ""]))
    (conf / "metastore-log4j2.properties").write_text(LOG4J2)
