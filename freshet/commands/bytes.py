"""``freshet bytes``: what the byte cache holds, whether it verifies, and what another size or policy would do."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from freshet.settings import load_settings
from freshet.settings_errors import SettingsError
from tokens.errors import printable

if TYPE_CHECKING:
    from serving.bytecache.shared.joined import Joined

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Show, check and drop what the byte cache holds; replay traces of it.",
)

Dirs = Annotated[
    str | None,
    typer.Option("--bytes-dirs", help="Directories, separated by commas (setting bytes.dirs).", metavar="DIRS"),
]
FreeShare = Annotated[
    float | None, typer.Option("--bytes-free-share", help="Share of the free space to use (setting bytes.free_share).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Policy = Annotated[str, typer.Option(help="s3fifo, lirs, lru or fifo.")]
Capacity = Annotated[int, typer.Option(help="Size of the simulated cache, in bytes.", min=1)]


@app.command("ls")
def list_files(bytes_dirs: Dirs = None, bytes_free_share: FreeShare = None, as_json: AsJson = False) -> None:
    """List the cached files: how much of each is here, and of which version."""
    with _places(bytes_dirs, bytes_free_share) as places:
        for place in places:
            for line in place.described(files=True).files:
                if as_json:
                    typer.echo(msgspec.json.encode(line).decode())
                else:
                    names = f"{printable(line.path)}  {printable(line.version)}"
                    typer.echo(f"{line.cached_bytes:>14,} of {line.size:>14,}  {names}")


@app.command("du")
def usage(bytes_dirs: Dirs = None, bytes_free_share: FreeShare = None, as_json: AsJson = False) -> None:
    """Show each directory: its owner, its quota, what it takes on disk, and what happened since it was opened."""
    with _places(bytes_dirs, bytes_free_share) as places:
        for place in places:
            described = place.described(files=False)
            if as_json:
                typer.echo(msgspec.json.encode(described).decode())
                continue
            typer.echo(f"{described.place}  owner {described.pid}")
            typer.echo(f"  used     {described.used:,} of {described.quota:,} bytes, {described.entries:,} entries")
            for name, count in {**described.pools, **described.counts}.items():
                if count:
                    typer.echo(f"  {name:<18} {count:,}")


@app.command("verify")
def verify(bytes_dirs: Dirs = None, bytes_free_share: FreeShare = None, as_json: AsJson = False) -> None:
    """Read every block; what does not verify is dropped. Exit code 1 if there was any."""
    damaged_blocks = 0
    with _places(bytes_dirs, bytes_free_share) as places:
        for place in places:
            whole, damaged = place.verify()
            damaged_blocks += damaged
            if as_json:
                typer.echo(json.dumps({"place": place.name, "whole": whole, "damaged": damaged}))
            else:
                typer.echo(f"{place.name}: {whole:,} blocks verify, {damaged:,} were damaged and are dropped")
    if damaged_blocks:
        raise typer.Exit(1)


@app.command("drop")
def drop(
    path: Annotated[str, typer.Argument(help="A file as `freshet bytes ls` prints it, or what its path begins with.")],
    exact: Annotated[bool, typer.Option("--exact", help="This file only, not all that begin so.")] = False,
    bytes_dirs: Dirs = None,
    bytes_free_share: FreeShare = None,
) -> None:
    """Drop cached files. Afterwards no process reads them from here."""
    with _places(bytes_dirs, bytes_free_share) as places:
        dropped = sum(place.forget(path, prefix=not exact) for place in places)
    typer.echo(f"{dropped} files dropped")


@app.command("resize")
def resize(
    quota: Annotated[int, typer.Argument(help="Bytes that each directory may take from now on.", min=1)],
    bytes_dirs: Dirs = None,
    bytes_free_share: FreeShare = None,
) -> None:
    """Give space back, or allow more, until the owner of the directory ends."""
    with _places(bytes_dirs, bytes_free_share) as places:
        for place in places:
            place.resize(quota)
            if (described := place.describe(files=False)) is not None:
                typer.echo(f"{described.place}: {described.used:,} of {described.quota:,} bytes")


@app.command("where")
def where(
    uri: Annotated[str, typer.Argument(help="A file at a store that fsspec knows, for example s3://bucket/key.")],
    as_json: AsJson = False,
) -> None:
    """Show which of bytes.hosts shall read each part of a file: where the part begins, and the hosts in their order."""
    from fsspec import filesystem

    from serving.bytecache.policy.locality import SPLIT_BITS

    chosen = load_settings().bytes
    if not chosen.hosts:
        raise SettingsError("bytes.hosts names no host", hint='bytes.hosts = ["10.0.0.1", "10.0.0.2"]')
    scheme = uri.partition("://")[0] if "://" in uri else "file"
    for split, hosts in enumerate(filesystem("freshet", target_protocol=scheme, hosts=chosen.hosts).hosts_of(uri)):
        line = {"start": split << SPLIT_BITS, "hosts": hosts}
        typer.echo(json.dumps(line) if as_json else f"{line['start']:>16,}  {' '.join(hosts)}")


@app.command("trace")
def trace(
    file: Annotated[Path, typer.Argument(help="A trace (setting bytes.trace).")], as_json: AsJson = False
) -> None:
    """Sum a trace up: its reads, their bytes, and how many of them were here."""
    from serving.bytecache.reading.replay import summary

    found = summary(file)
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        typer.echo(
            f"{found.reads:,} reads of {found.files:,} files, {found.read_bytes:,} bytes, {found.ratio:.2%} here"
        )


@app.command("replay")
def replay(
    file: Annotated[Path, typer.Argument(help="A trace (setting bytes.trace).")],
    capacity: Capacity,
    policy: Policy = "s3fifo",
    as_json: AsJson = False,
) -> None:
    """Replay a trace on another size or policy, without data; also estimates half, double and four times that size."""
    from serving.bytecache.reading.replay import replayed

    outcome, ratios = replayed(file, capacity, _policy(policy))
    if as_json:
        typer.echo(
            json.dumps({"policy": policy, "capacity": capacity, **msgspec.to_builtins(outcome), "sizes": ratios})
        )
        return
    typer.echo(f"{policy}, {capacity:,} bytes: {outcome.hits:,} hits, {outcome.misses:,} misses, {outcome.ratio:.2%}")
    for size, ratio in ratios.items():
        typer.echo(f"  about {ratio:.2%} with {size:g} times that size")


@app.command("simulate")
def simulate(
    exponent: Annotated[float, typer.Option(help="Of Zipf's law.")] = 0.8,
    keys: Annotated[int, typer.Option(help="How many entries there are.", min=1)] = 100_000,
    reads: Annotated[int, typer.Option(help="How many reads.", min=1)] = 1_000_000,
    scans: Annotated[int, typer.Option(help="Passes over half as many entries that never come again.", min=0)] = 5,
    capacity: Annotated[int, typer.Option(help="Entries of the simulated cache.", min=1)] = 10_000,
    seed: Annotated[int, typer.Option(help="Of the random reads.")] = 7,
) -> None:
    """Compare all policies on a random trace: their hit ratios."""
    from serving.bytecache.policy.pools import POLICIES
    from serving.bytecache.policy.simulate import Touch
    from serving.bytecache.policy.simulate import simulate as run
    from serving.bytecache.reading.replay import zipf

    trace = zipf(exponent, keys, reads, scans, seed)
    for policy in POLICIES:
        typer.echo(f"{policy:<7} {run(policy, capacity, map(Touch, trace)).ratio:.2%}")


def _policy(name: str) -> str:
    from serving.bytecache.policy.pools import POLICIES

    if name not in POLICIES:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(POLICIES)}")
    return name


@contextmanager
def _places(dirs: str | None, free_share: float | None) -> Iterator[list[Joined]]:
    """The directories of the settings: owned for as long as the command runs, or attached to their owner."""
    from serving.bytecache.errors import ByteCacheError
    from serving.bytecache.shared.joined import Joined

    options = load_settings(flags={"bytes": {"dirs": dirs, "free_share": free_share}}).bytes.options
    if not options.dirs:
        raise ByteCacheError("no_bytes_dir", "no directory of the byte cache is known")
    places: list[Joined] = []
    try:
        for path, wanted in map(options.directory, options.dirs):
            if not path.is_dir():
                raise ByteCacheError("no_bytes_dir", f"{path} is no directory; a process that reads makes it")
            places.append(Joined(path, dataclasses.replace(wanted, keep_all=True)))
        yield places
    finally:
        for place in places:
            place.close()
