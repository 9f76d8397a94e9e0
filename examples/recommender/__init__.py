"""Recommendations of films, kept up to date with every rating."""
