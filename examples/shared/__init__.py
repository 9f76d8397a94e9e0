"""What several example applications share."""
