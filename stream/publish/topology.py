"""Which shards may publish in a topic, and whose history a shard continues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stream.wire.codec import Record
from stream.wire.events import Topology
from tokens.errors import FreshetError


class TopologyError(FreshetError):
    """The topic's shards are not as declared.

    Codes: ``second_shard`` (a shard publishes in the topic that is not declared), ``ancestor_unknown`` (the epoch of
    the shard that this one succeeds is not in the topic, and not given), ``succession_too_late`` (a shard that has
    begun is to succeed another one).
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
            return Topology(self._with(shard))
        epoch = self._ancestors_epoch(others)
        if not epoch:
            raise TopologyError(
                f"{shard} succeeds {self.ancestor}, of which the topic has no marker",
                hint=f"give the epoch too: succeeds = '{self.ancestor}@1'; `freshet lag` shows it",
                code="ancestor_unknown",
            )
        return Topology(self._with(shard), ((self.ancestor, epoch),))

    def of_a_new_history(self, shard: str, others: Mapping[str, int]) -> Topology:
        """The topology of a shard whose history begins anew, and what it said before is lost."""
        epoch = self._ancestors_epoch(others) if self.succeeds else 0
        return Topology(self._with(shard), ((self.ancestor, epoch),) if epoch else ()).in_a_new_epoch()

    def _ancestors_epoch(self, others: Mapping[str, int]) -> int:
        """As declared, else as found in the topic; 0: unknown."""
        _, _, number = self.succeeds.partition("@")
        return int(number) if number else others.get(self.ancestor, 0)

    def resumed(self, shard: str, known: Record | None) -> Topology:
        """The topology of a shard that goes on. Ancestors are declared when a shard begins, and never later.

        Raises `TopologyError` ``succession_too_late``: what is published already was not called a continuation, so the
        sessions of the ancestor have been answered as strangers.
        """
        ancestors = _places(known["ancestors"]) if known is not None else ()
        succeeded = _places(known["succeeded"]) if known is not None else ()
        if self.succeeds and self.ancestor not in dict(ancestors + succeeded):
            raise TopologyError(
                f"{shard} has begun, and did not succeed {self.ancestor} then",
                hint="remove succeeds; or give a new keyspace with it to the readers, from its first start on",
                code="succession_too_late",
            )
        return Topology(self._with(shard), ancestors, succeeded)

    def _with(self, shard: str) -> tuple[str, ...]:
        return tuple(sorted({shard, *self.shards}))


def _places(ancestors: Iterable[Record]) -> tuple[tuple[str, int], ...]:
    return tuple((each["shard"], each["epoch"]) for each in ancestors)
