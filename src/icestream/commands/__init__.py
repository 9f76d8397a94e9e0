"""The commands `run` (`program`), `sql` (`statement`) and `plan` (`what_if`) of the CLI."""
