"""The caches of this process: one for each choice of options, whatever opens them.

After a fork the child has none of its parent's: it must not write, and must not keep the parent's directories locked.
"""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path
from typing import Final

from serving.bytecache.options import CacheOptions
from serving.bytecache.policy.admission import parse_admission
from serving.bytecache.reading.cache import ByteCache
from serving.bytecache.reading.fetching import FetchRules
from serving.bytecache.reading.trace import Trace
from serving.bytecache.shared.joined import Joined

_caches: Final[dict[CacheOptions, ByteCache]] = {}
_places: Final[dict[Path, Joined]] = {}
_lock = threading.Lock()


def cache_for(options: CacheOptions) -> ByteCache:
    """The cache of this process. Raises `ByteCacheError` for a directory that can't be used."""
    with _lock:
        if (cache := _caches.get(options)) is None:
            for text in options.dirs:
                path, wanted = options.directory(text)
                if path not in _places:
                    _places[path] = Joined(path, wanted, at_once=False)
            admission = parse_admission(options.admission)
            rules = FetchRules(
                options.gap, options.request_bytes, admission, options.hosts, options.host, options.read_only
            )
            trace = _trace(options) if options.trace else None
            places = [_places[options.directory(text)[0]] for text in options.dirs]
            cache = _caches[options] = ByteCache(places, rules, trace)
        return cache


def _trace(options: CacheOptions) -> Trace:
    return Trace(Path(options.trace), share=options.trace_share, anonymous=options.trace_anonymous)


def close_caches() -> None:
    """Writes what waits, and gives all directories back. No read may be under way."""
    with _lock:
        for place in _places.values():
            place.close()
        _places.clear()
        _caches.clear()


def _at_exit() -> None:
    """Writes what waits. Files stay open: other threads may still read."""
    for place in _places.values():
        place.settle()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for place in _places.values():
        place.after_fork()
    for cache in _caches.values():
        cache.after_fork()
    _places.clear()
    _caches.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
