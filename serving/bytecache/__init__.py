"""The byte cache: parts of remote files, kept on local disk and verified at each read.

Other code reaches it through fsspec (``freshet::s3://…``). ``docs/internals/bytes.md`` has the format and the rules.

- `policy`: which entry leaves when room is needed; pure
- `disk`: a directory's files
- `reading`: a read of a file: what is here, what must be fetched, by whom
- `shared`: one cache for all processes of a machine
- `filesystem`: the fsspec file system
"""
