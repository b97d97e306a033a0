"""A keyspace's change log in files, one committed transaction a line: docs/operating/change-log.md.

`serving.changelog.files` is the files and what a crash leaves of them, `serving.changelog.writing` the loop. It is a
client of a front, and needs neither Kafka nor the source.
"""
