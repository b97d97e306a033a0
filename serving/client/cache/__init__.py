"""The application's own cache of rows, kept consistent by the change stream: docs/concepts/application-cache.md."""

from .invalidating import Invalidator
from .objects import CachedObject, Composites, ObjectCache
from .reading import CachedRow, RowCache
from .stores import DictStore, EntryTooLarge, Found, MemcachedStore, Store, StoreRefused

__all__ = [
    "CachedObject",
    "CachedRow",
    "Composites",
    "DictStore",
    "EntryTooLarge",
    "Found",
    "Invalidator",
    "MemcachedStore",
    "ObjectCache",
    "RowCache",
    "Store",
    "StoreRefused",
]
