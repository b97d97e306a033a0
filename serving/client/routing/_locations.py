"""The location cache of the fronts, which the client keeps as well.

In the wheel of ``freshet-client`` the pure modules of `serving.locations` take this module's place. They import each
other relatively, and their errors' base class from the folder above, which is this one: `ReadError` of `errors.py`.
"""

from serving.locations import Batch, Key, Location, LocationCache, LocationError, Origin, Replica, Report, Version

__all__ = ["Batch", "Key", "Location", "LocationCache", "LocationError", "Origin", "Replica", "Report", "Version"]
