"""Reading the files of a batch in the ingest tasks, instead of taking rows from the JVM.

Idea: a row that goes through the JVM costs far more than folding it does. Where the stream is a
folder of Parquet, CSV or Arrow files and the query uses plain columns of them, Spark still decides
which files belong to which batch, and the tasks read those files with pyarrow.

    source.py    which streams can be read so, and by which reader
    scans.py     the files of a batch
    order.py     the order they are in
    pieces.py    whose they are, cut for the tasks
    parquet.py, csv.py, arrow.py    one reader each

Invariants:
1. The pieces of a batch are the files of Spark's own scan, cut without overlap, so every row is
   read once (`test_oracle_reading_files_directly_gives_the_same_rows`).
2. Whatever is not plainly the same as Spark would read it (other types, columns that are missing,
   partition folders, filters, expressions, unusual text) goes through the JVM
   (`test_files_that_need_sparks_reader_go_through_the_jvm`).

Limits: files on a local or mounted disk; several sources each in a folder of its own.
"""
