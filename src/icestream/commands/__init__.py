"""One module for each command of the CLI: `program` is `run`; the others have their names."""
