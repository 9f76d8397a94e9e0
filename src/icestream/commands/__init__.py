"""The commands `run` (`program`), `sql` and `plan` (`what_if`) of the CLI."""
