"""CQL: continuous queries as text.

`tokens` splits a text into statements, `shape` takes a statement apart, `windows`, `grouping` and
`aggregates` read its parts, `statement` turns it into pure data, and `build` (`ice.sql`) makes the
calls of the fluent API that the data describes.
"""
