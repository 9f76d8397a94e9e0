"""The text of statements: tokens and their places, Spark's dialect, aggregate calls, GROUP BY."""
