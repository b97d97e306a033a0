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
    begun is to succeed another one), ``range_changed`` (a shard has begun with another range of keys),
    ``shard_handed_over`` (others have succeeded the shard), ``ancestor_missing`` (a shard does not succeed one that had
    keys of its range), ``ancestors_differ`` (it succeeds shards that have no common kind of position).
    """

    code = "second_shard"


@dataclass(frozen=True, slots=True)
class DeclaredTopology:
    """As in the settings. ``shards``: the other shards of the keyspace. ``succeeds``: ``shard`` or ``shard@epoch``.

    ``map``: which shard has which keys; None: it is not known. It names all shards. ``over``: the shards that any shard
    of the map succeeds. ``ends_for``: the shard that ends this one, which is all that is done; what it has declared
    stays, whatever else is said here.
    """

    shards: tuple[str, ...] = ()
    succeeds: tuple[str, ...] = ()
    map: ShardMap | None = None
    over: tuple[str, ...] = ()
    ends_for: str = ""

    @property
    def ancestors(self) -> dict[str, int]:
        """The shards that are succeeded → the epoch that is given, or 0."""
        named = (each.partition("@") for each in self.succeeds)
        return {name: int(epoch or 0) for name, _, epoch in named}

    @property
    def takes_over(self) -> bool:
        """Whether the shards that are succeeded publish in the same topic, so that each can be handed over."""
        return bool(self.succeeds) and not any(self.ancestors.values())

    def check(self, topic: str, shard: str, others: Mapping[str, int]) -> None:
        """Raise `TopologyError` ``second_shard`` if one of ``others``, found in the topic, is not declared."""
        undeclared = self.undeclared(shard, others)
        if undeclared:
            raise TopologyError(
                f"{topic} has events of shard {undeclared[0]}, and {shard} is to publish there",
                hint=f"if {shard} is its new name: succeeds = {undeclared[0]!r}; if both belong here: name both in "
                "shards; else publish into another keyspace",
            )

    def undeclared(self, shard: str, others: Iterable[str]) -> list[str]:
        """Those of ``others`` of which the settings say nothing."""
        return sorted(set(others) - {*self._with(shard), *self.ancestors}) if not self.ends_for else []

    def first(self, shard: str, others: Mapping[str, int]) -> Topology:
        """The topology of a shard that begins. Raises `TopologyError` ``ancestor_unknown``."""
        ancestors = self._epochs(others)
        missing = [name for name, epoch in ancestors.items() if not epoch]
        if missing:
            raise self._unknown(shard, missing[0], "Else start its source once more, or take it out of succeeds")
        return Topology(self._with(shard), tuple(ancestors.items()), ranges=self._ranges())

    def without_ancestors(self, shard: str) -> TopologyError:
        """The refusal of a shard that has nothing in the topic, where its ancestors have nothing either."""
        return self._unknown(shard, min(self.ancestors), "If all that Kafka had is lost, start once with --new-epoch")

    def _unknown(self, shard: str, ancestor: str, else_do: str) -> TopologyError:
        place = f", of this keyspace (else: {ancestor}@EPOCH, `freshet lag --json` has it)" if self.map is None else ""
        return TopologyError(
            f"{shard} succeeds {ancestor}, of which the topic has nothing",
            hint=f"is it the right name{place}? {else_do}",
            code="ancestor_unknown",
        )

    def of_a_new_history(self, shard: str, others: Mapping[str, int], forgotten: int) -> Topology:
        """The topology of a shard whose history begins anew, and what it said before is lost.

        Positions of all its ancestors are lost, in whichever epoch. ``forgotten`` is named as the epoch of one that the
        topic no longer has. It must not be below the true one: stores that stand would take that for one that goes on.
        """
        ancestors = tuple((name, epoch or forgotten) for name, epoch in self._epochs(others).items())
        return Topology(self._with(shard), ancestors, ranges=self._ranges()).in_a_new_epoch()

    def _epochs(self, others: Mapping[str, int]) -> dict[str, int]:
        """The ancestors → the epoch as declared, else as found in the topic; 0: unknown."""
        return {name: epoch or others.get(name, 0) for name, epoch in self.ancestors.items()}

    def resumed(self, shard: str, known: Record | None) -> Topology:
        """The topology of a shard that goes on. Ancestors are declared when a shard begins, and never later.

        Raises `TopologyError` ``succession_too_late``: what is published already was not called a continuation, so the
        sessions of the ancestor have been answered as strangers. And ``range_changed``: a session's position in a shard
        counts for the keys that the shard has, so they must stay the same. A shard without a range may get one: until
        then its positions counted for whichever keys it wrote.
        """
        if self.ends_for:
            return _as_said(shard, known)
        self._check_range(shard, known)
        ancestors = places(known["ancestors"]) if known is not None else ()
        succeeded = places(known["succeeded"]) if known is not None else ()
        late = [name for name in self.ancestors if name not in dict(ancestors + succeeded)]
        if late:
            raise TopologyError(
                f"{shard} has begun, and did not succeed {late[0]} then",
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
        return tuple(sorted({shard, *self.shards, *self.over, *(self.map.shards if self.map is not None else ())}))


def _as_said(shard: str, known: Record | None) -> Topology:
    if known is None:
        return Topology((shard,))
    ranges = tuple((each["shard"], each["range"]) for each in known["ranges"])
    return Topology(tuple(known["shards"]), places(known["ancestors"]), places(known["succeeded"]), ranges)


def places(ancestors: Iterable[Record]) -> tuple[tuple[str, int], ...]:
    """(shard, epoch) of each."""
    return tuple((each["shard"], each["epoch"]) for each in ancestors)
