"""Which shards may publish in a topic, and whose history a shard continues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stream.wire.codec import Record
from stream.wire.events import Topology
from tokens.errors import FreshetError


class TopologyError(FreshetError):
    """The topic's shards are not as declared.

    Codes: ``second_shard`` (a shard publishes in the topic that is not declared), ``ancestor_unknown`` (the epoch of
    the shard that this one succeeds is not in the topic, and not given).
    """

    code = "second_shard"


@dataclass(frozen=True, slots=True)
class DeclaredTopology:
    """As in the settings. ``shards``: the other shards of the keyspace. ``succeeds``: ``shard`` or ``shard@epoch``."""

    shards: tuple[str, ...] = ()
    succeeds: str = ""

    @property
    def ancestor(self) -> str:
        """The name of the shard that is succeeded, or empty."""
        return self.succeeds.partition("@")[0]

    def check(self, topic: str, shard: str, others: Mapping[str, int]) -> None:
        """Raise `TopologyError` ``second_shard`` if one of ``others``, found in the topic, is not declared."""
        undeclared = sorted(others.keys() - {*self.shards, self.ancestor})
        if undeclared:
            raise TopologyError(
                f"{topic} has events of shard {undeclared[0]}, and {shard} is to publish there",
                hint=f"if {shard} is its new name: succeeds = {undeclared[0]!r}; if both belong here: name both in "
                "shards; else publish into another keyspace",
            )

    def first(self, shard: str, others: Mapping[str, int]) -> Topology:
        """The topology of a shard that begins. Raises `TopologyError` ``ancestor_unknown``."""
        if not self.succeeds:
            return self.without_ancestors(shard)
        _, _, number = self.succeeds.partition("@")
        epoch = int(number) if number else others.get(self.ancestor, 0)
        if not epoch:
            raise TopologyError(
                f"{shard} succeeds {self.ancestor}, of which the topic has no marker",
                hint=f"give the epoch too: succeeds = '{self.ancestor}@1'; `freshet lag` shows it",
                code="ancestor_unknown",
            )
        return Topology(self._with(shard), ((self.ancestor, epoch),))

    def without_ancestors(self, shard: str) -> Topology:
        """The topology of a shard whose history begins with its epoch."""
        return Topology(self._with(shard))

    def resumed(self, shard: str, known: Record | None) -> Topology:
        """The topology of a shard that goes on. Ancestors are declared when a shard begins, and never later."""
        ancestors = () if known is None else tuple((each["shard"], each["epoch"]) for each in known["ancestors"])
        return Topology(self._with(shard), ancestors)

    def _with(self, shard: str) -> tuple[str, ...]:
        return tuple(sorted({shard, *self.shards}))
