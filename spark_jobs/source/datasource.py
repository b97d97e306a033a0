"""Spark's data source ``freshet``: a table's rows now, or as of a token or time, or its changes, without files.

`register_source` binds it to a Kafka; ``freshet.spark.register`` does so from the settings (docs/operating/export.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from spark_jobs.offsets import OffsetsError, topic_bounds
from spark_jobs.source.cut import AsOfError, parse_as_of
from spark_jobs.source.filters import Used, used
from spark_jobs.source.reading import Plan, change_batches, check_topic, plan, table_batches
from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import start_offsets


class TableSource(DataSource):  # type: ignore[misc]  # PySpark's are not typed here
    """The data source. Options: ``keyspace``, ``table``; ``asOf``, ``changes``, ``base``, ``snapshots``."""

    kafka: ClassVar[KafkaCluster]
    places: ClassVar[Mapping[str, str]] = {}
    """Keyspace → where its snapshots are, unless the option says it."""
    _planned: Plan | None = None

    @classmethod
    def name(cls) -> str:
        """What ``spark.read.format`` takes."""
        return "freshet"

    def schema(self) -> Any:
        """The table's columns as the topic describes them at the moment that is read, after those of each row."""
        return from_arrow_schema(self._asked().schema())

    def reader(self, schema: Any) -> DataSourceReader:
        """Reads the table, or its changes up to the moment."""
        planned = self._asked()
        planned.check_whole()
        return TableReader(planned, schema, changes=self.is_of_changes())

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Reads the changes as they come."""
        if self.options.get("asOf"):
            raise AsOfError("a stream has no end: it takes no asOf", hint="leave it out")
        columns = self._asked().columns  # those of the schema
        return ChangeStream(replace(self.planned().of_changes(), columns=columns), schema)

    def planned(self) -> Plan:
        """What is read; the topic is asked once.

        The beginning may be gone: whether one is needed is known later, when Spark asks for a reader or a new stream.
        """
        if self._planned is None:
            missing = [name for name in ("keyspace", "table") if not self.options.get(name)]
            if missing:
                raise AsOfError(f"the option {missing[0]} is missing", hint=f'.option("{missing[0]}", …)')
            as_of = parse_as_of(self.options.get("asOf", ""))
            keyspace, base = self.options["keyspace"], self.options.get("base", "")
            snapshots = self.options.get("snapshots", self.places.get(keyspace, ""))
            place = keyspace, self.options["table"]
            self._planned = plan(self.kafka, *place, as_of, base, snapshots=snapshots, whole=False)
        return self._planned

    def _asked(self) -> Plan:
        """What the options ask for. They say nothing of a stream: a schema is the same for it."""
        return self.planned().of_changes() if self.is_of_changes() else self.planned()

    def is_of_changes(self) -> bool:
        """Whether changes are read instead of rows."""
        return str(self.options.get("changes", "false")).lower() == "true"


def register_source(
    session: Any, kafka: KafkaCluster, planned: Plan | None = None, *, places: Mapping[str, str] | None = None
) -> None:
    """Registers the data source over a Kafka in a Spark session, and has filters pushed down to it.

    The class holds Kafka's settings, so Spark sends them to the workers, and shows them nowhere. ``planned``: what is
    read, if that is known already. ``places``: keyspace → where its snapshots are.
    """
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    session.dataSource.register(
        type("FreshetSource", (TableSource,), {"kafka": kafka, "_planned": planned, "places": places or {}})
    )


class TableReader(DataSourceReader):  # type: ignore[misc]  # PySpark's are not typed here
    """Reads a plan; a task for each partition of the topic that the filters leave."""

    def __init__(self, planned: Plan, schema: Any, *, changes: bool) -> None:
        self._planned, self._schema, self._changes = planned, schema, changes
        self._filters: list[Used] = []

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Takes filters; Spark applies all of them again."""
        self._filters = used(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """One for each partition of the topic that may have such rows.

        A change may be in any of them: it lies where its key of then was, and the table may have had another.
        """
        filters = [] if self._changes else self._filters
        return [InputPartition(partition) for partition in self._planned.partitions(filters)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        planned, number = self._planned, partition.value
        if self._changes:
            found = change_batches(planned, number, planned.start[number], planned.end[number], self._filters)
        else:
            found = table_batches(planned, number, self._filters)
        yield from as_spark_wants(found, self._schema)


class ChangeStream(DataSourceStreamReader):  # type: ignore[misc]  # PySpark's are not typed here
    """Reads the changes as a stream. An offset is the topic's id, and the next offset of each partition."""

    def __init__(self, planned: Plan, schema: Any) -> None:
        self._planned, self._schema = planned, schema

    def initialOffset(self) -> dict[str, Any]:
        """The topic's beginning. Spark asks a new query for it; one that goes on does so from its own checkpoint."""
        self._planned.check_whole()
        return self._offset(self._planned.start)

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: ARG002
        """What is committed now."""
        bounds = topic_bounds(self._planned.kafka, self._planned.topic)
        check_topic(self._planned, bounds.topic_id)
        return self._offset(bounds.end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One for each partition with something new, with the first offset that is retained and its range."""
        planned = self._planned
        check_topic(planned, start["topic_id"])
        if start["offsets"].keys() != end["offsets"].keys():
            raise AsOfError("the topic has other partitions than before", hint="begin a new query")
        low = start_offsets(planned.kafka, planned.topic, map(int, start["offsets"]))
        ranges = [
            (int(each), low[int(each)], first, end["offsets"][each]) for each, first in sorted(start["offsets"].items())
        ]
        for partition, retained, first, _ in ranges:
            if first < retained:
                raise OffsetsError(
                    f"retention has passed the stream: {planned.topic}[{partition}] begins at offset {retained}, "
                    f"the stream has read up to {first}",
                    hint="begin a new query from a newer base, and let the topic retain more",
                    code="offsets_expired",
                )
        return [InputPartition(each) for each in ranges if each[2] < each[3]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one range."""
        number, low, start, end = partition.value
        found = change_batches(self._planned, number, start, end, [], low=low)
        yield from as_spark_wants(found, self._schema)

    def _offset(self, offsets: dict[int, int]) -> dict[str, Any]:
        texts = {str(partition): offset for partition, offset in sorted(offsets.items())}
        return {"topic_id": self._planned.topic_id, "offsets": texts}


def as_spark_wants(tables: Iterable[pa.Table], schema: Any) -> Iterator[pa.RecordBatch]:
    """The rows in the units and with the columns of Spark's schema."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    for table in tables:
        yield from table.select(wanted.names).cast(wanted).to_batches()
