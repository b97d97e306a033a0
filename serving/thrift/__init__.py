"""The Thrift front: engines speak to it as to a metastore, unmodified. What the cache proves, it answers; the rest it
passes on (docs/operating/thrift.md)."""
