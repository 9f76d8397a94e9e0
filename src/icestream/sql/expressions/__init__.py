"""SQL expressions over Arrow batches, with Spark's meaning and without the JVM."""
