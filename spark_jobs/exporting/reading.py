"""The messages of one partition, read in order: also those of schemas that a `SchemaText` before them announces."""

from __future__ import annotations

from stream.wire.announced import Announced
from stream.wire.checks import check
from stream.wire.codec import MAGIC, Record, decode, is_of_unknown_schema


class PartitionReader:
    """Decodes what the fold decodes, for those who keep no state of the partition."""

    def __init__(self, texts: dict[str, Announced] | None = None) -> None:
        """``texts``: fingerprint in hex → what is announced of schemas that this version lacks. Kept up to date."""
        self._kept = {} if texts is None else texts
        self._texts = {bytes.fromhex(each): told for each, told in self._kept.items()}

    def decode(self, value: bytes) -> tuple[str, Record]:
        """As `stream.wire.codec.decode`."""
        name, record = decode(value, self._texts)
        if name == "SchemaText" and is_of_unknown_schema(MAGIC + record["fingerprint"]):
            check(name, record)
            told = Announced(record["name"], record["text"], record["skippable"])
            self._texts[record["fingerprint"]] = self._kept[record["fingerprint"].hex()] = told
        return name, record
