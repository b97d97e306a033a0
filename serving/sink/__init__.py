"""A copy of tables in another database, kept up to date by the change stream: docs/operating/sink.md.

`serving.sink.running` is the loop, `serving.sink.applying` the rules, `serving.sink.tables` the copy's tables and
values, `serving.sink.state` what it keeps of itself beside them. It is a client of a front, and needs neither Kafka nor
the source.
"""
