"""The log: immutable segment files of checksummed records, found again by 8-byte markers.

`format` defines the bytes, `writer` makes a segment, `reader` reads segments and finds
records by their markers. `docs/formats/log.md` shows the format.
"""
