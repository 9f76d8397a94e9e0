"""A local page that shows queries, running and ended, from their histories."""
