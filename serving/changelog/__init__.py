"""A keyspace's change log, one committed transaction a line of a file or a record of a topic.

`serving.changelog.writing` is the loop, a client of a front. `serving.changelog.files` is the files and what a crash
leaves of them; `serving.changelog.topic` the topic, `serving.changelog.records` what is in it, and
`serving.changelog.registry` who knows their schemas. For users: docs/operating/change-log.md.
"""
