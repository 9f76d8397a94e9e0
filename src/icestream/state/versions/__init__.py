"""Versions of a checkpoint: commit files, created exclusively and never replaced (`commits`)."""
