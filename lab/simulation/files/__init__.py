"""The world `files`: remote files that are read through the byte cache, by programs and over HTTP."""
