"""What the commands `run`, `sql` and `plan` do."""
