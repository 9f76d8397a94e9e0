"""The slow and obvious versions that operators are compared with."""
