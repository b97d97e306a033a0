"""Token buckets. In the client's wheel the module itself stands here, since the client imports no room."""

from stream.access.bucket import Bucket as Bucket
