"""The API: streams, windows, aggregates and writers, in PySpark's words."""
