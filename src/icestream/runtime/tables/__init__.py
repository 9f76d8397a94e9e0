"""Tables that tasks write themselves: a row is encoded once, as the file that the table will have.

`layout` and `writer` are what a task needs, `append_table` is what a table is to a query, `delta`
and `iceberg` are two of them (Spark's own log of Parquet files is `runtime.spark.parquet_sink`),
`sweep` removes the files of dead attempts and `compaction` merges small files of a Parquet folder.
"""
