"""Reading the files of a batch in the ingest tasks, instead of taking rows from the JVM.

Idea: passing a row through the JVM costs far more than folding it. If the stream is a folder of
Parquet, CSV or Arrow files and the query uses plain columns of them, Spark still decides which
files belong to which batch, and the tasks read those files with pyarrow.

    source.py         which streams can be read this way, and by which reader
    scans.py          the files of a batch
    order.py          their order
    file_splits.py    their division among the tasks
    reader.py         what all readers share; parquet.py, csv.py and arrow.py are the readers
    reception.py      what every ingest task does with events

Invariants:
1. The pieces of a batch are the files of Spark's own scan, cut without overlap, so every row is
   read once (`test_oracle_reading_files_directly_gives_the_same_rows`).
2. Files that Spark might read differently (other types, missing columns, partition folders,
   filters, expressions, unusual text) go through the JVM
   (`test_files_that_need_sparks_reader_go_through_the_jvm`).

Limits: files must be on a local or mounted disk; each of several sources needs its own folder.
"""
