"""Where the owners of a keyspace answer, for commands that ask them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from consumers.owner.client import OwnerConnection
from freshet.keyspaces import naming_known
from freshet.settings import Settings
from stream.kafka.locations import LocationError, LocationsReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def owner_addresses(settings: Settings, keyspace: str, given: Sequence[str] = ()) -> dict[int, str]:
    """Partition → ``host:port`` as announced; the key -1 for each that is ``given``. Raises `FreshetError`."""
    if given:
        return {-1 - number: address for number, address in enumerate(given)}
    with naming_known(settings, keyspace):
        with LocationsReader(settings.kafka.cluster) as reader:
            found = {number: each.address for number, each in reader.owners(keyspace).items() if not each.gone}
        if not found:
            raise LocationError(
                f"nobody has announced a partition of {keyspace}",
                hint="start `freshet consume`, or name an owner with --owner HOST:PORT",
                code="owner_unknown",
            )
    return found


@contextmanager
def asking(settings: Settings, address: str) -> Iterator[OwnerConnection]:
    """A connection to an owner, with the token of the settings. Raises `OwnerError`."""
    token = settings.consumer.owner_token
    with OwnerConnection(address, token=token.get_secret_value() if token is not None else "") as connection:
        yield connection
