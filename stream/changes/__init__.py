"""The change stream of a keyspace: from where to begin, whole transactions over all partitions, and checkpoints.

`stream.changes.starting` turns what a reader asks for into a `Start`; `stream.changes.assembling` puts the messages of
all partitions together (pure); `stream.changes.following` reads Kafka for it. docs/concepts/change-stream.md
"""
