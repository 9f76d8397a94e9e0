"""The log: immutable segment files of checksummed records, found again by 8-byte markers.

`format` defines the bytes, `writer` writes a segment, `reader` reads segments and follows chains of
records, `mapped_segments` maps them into memory, `segments` is a shard's table of segments, `ipc`
stores Arrow tables as payloads, and `compact` merges chains that never expire.
`docs/formats/log.md` shows the format.
"""
