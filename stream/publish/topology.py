"""Which shards may publish in a topic, and whose history a shard continues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stream.shards.map import ShardMap
from stream.wire.codec import Record
from stream.wire.events import Topology
from tokens.errors import FreshetError


class TopologyError(FreshetError):
    """The topic's shards are not as declared.

    Codes: ``second_shard`` (a shard publishes in the topic that is not declared), ``ancestor_unknown`` (the epoch of
    the shard that this one succeeds is not in the topic, and not given), ``succession_too_late`` (a shard that has
    begun is to succeed another one), ``range_changed`` (a shard has begun with another range of keys).
    """

    code = "second_shard"


@dataclass(frozen=True, slots=True)
class DeclaredTopology:
    """As in the settings. ``shards``: the other shards of the keyspace. ``succeeds``: ``shard`` or ``shard@epoch``.

    ``map``: which shard has which keys; None: it is not known. It names all shards.
    """

    shards: tuple[str, ...] = ()
    succeeds: str = ""
    map: ShardMap | None = None

    @property
    def ancestor(self) -> str:
        """The name of the shard that is succeeded, or empty."""
        return self.succeeds.partition("@")[0]

    def check(self, topic: str, shard: str, others: Mapping[str, int]) -> None:
        """Raise `TopologyError` ``second_shard`` if one of ``others``, found in the topic, is not declared."""
        undeclared = sorted(others.keys() - {*self._with(shard), self.ancestor})
        if undeclared:
            raise TopologyError(
                f"{topic} has events of shard {undeclared[0]}, and {shard} is to publish there",
                hint=f"if {shard} is its new name: succeeds = {undeclared[0]!r}; if both belong here: name both in "
                "shards; else publish into another keyspace",
            )

    def first(self, shard: str, others: Mapping[str, int]) -> Topology:
        """The topology of a shard that begins. Raises `TopologyError` ``ancestor_unknown``."""
        if not self.succeeds:
            return Topology(self._with(shard), ranges=self._ranges())
        epoch = self._ancestors_epoch(others)
        if not epoch:
            raise TopologyError(
                f"{shard} succeeds {self.ancestor}, of which the topic has no marker",
                hint=f"give the epoch too: succeeds = '{self.ancestor}@1'; `freshet lag` shows it",
                code="ancestor_unknown",
            )
        return Topology(self._with(shard), ((self.ancestor, epoch),), ranges=self._ranges())

    def of_a_new_history(self, shard: str, others: Mapping[str, int]) -> Topology:
        """The topology of a shard whose history begins anew, and what it said before is lost."""
        epoch = self._ancestors_epoch(others) if self.succeeds else 0
        ancestors = ((self.ancestor, epoch),) if epoch else ()
        return Topology(self._with(shard), ancestors, ranges=self._ranges()).in_a_new_epoch()

    def _ancestors_epoch(self, others: Mapping[str, int]) -> int:
        """As declared, else as found in the topic; 0: unknown."""
        _, _, number = self.succeeds.partition("@")
        return int(number) if number else others.get(self.ancestor, 0)

    def resumed(self, shard: str, known: Record | None) -> Topology:
        """The topology of a shard that goes on. Ancestors are declared when a shard begins, and never later.

        Raises `TopologyError` ``succession_too_late``: what is published already was not called a continuation, so the
        sessions of the ancestor have been answered as strangers. And ``range_changed``: a session's position in a shard
        counts for the keys that the shard has, so they must stay the same. A shard without a range may get one: until
        then its positions counted for whichever keys it wrote.
        """
        self._check_range(shard, known)
        ancestors = _places(known["ancestors"]) if known is not None else ()
        succeeded = _places(known["succeeded"]) if known is not None else ()
        if self.succeeds and self.ancestor not in dict(ancestors + succeeded):
            raise TopologyError(
                f"{shard} has begun, and did not succeed {self.ancestor} then",
                hint="remove succeeds; or give a new keyspace with it to the readers, from its first start on",
                code="succession_too_late",
            )
        return Topology(self._with(shard), ancestors, succeeded, self._ranges())

    def _check_range(self, shard: str, known: Record | None) -> None:
        said = {each["shard"]: each["range"] for each in known.get("ranges", ())} if known is not None else {}
        held, wanted = said.get(shard, ""), dict(self._ranges()).get(shard, "")
        if held and held != wanted:
            raise TopologyError(
                f"{shard} has published the keys of {held}, and is to have {wanted or 'any'}",
                hint="give a shard with other keys another name, which succeeds this one",
                code="range_changed",
            )

    def _ranges(self) -> tuple[tuple[str, str], ...]:
        return tuple(self.map.texts().items()) if self.map is not None else ()

    def _with(self, shard: str) -> tuple[str, ...]:
        return tuple(sorted({shard, *self.shards, *(self.map.shards if self.map is not None else ())}))


def _places(ancestors: Iterable[Record]) -> tuple[tuple[str, int], ...]:
    return tuple((each["shard"], each["epoch"]) for each in ancestors)
