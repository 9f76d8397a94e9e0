"""What each kind of plan adds to a version: windows, dataflows, update streams."""
