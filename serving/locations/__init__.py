"""Who answers for what. The pure core is in the client's wheel, too, as its package ``_locations``."""

from .cache import LocationCache, Report
from .errors import LocationError
from .places import Key, Location, Origin, Replica, Version
from .queues import Batch

__all__ = ["Batch", "Key", "Location", "LocationCache", "LocationError", "Origin", "Replica", "Report", "Version"]
