"""Versions as Spark jobs: session, workers, placement, storage, sinks and the query's handle."""
