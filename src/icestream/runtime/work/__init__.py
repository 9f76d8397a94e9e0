"""What each kind of plan adds to a version: `windows`, `dataflow` and `latest` (update streams)."""
