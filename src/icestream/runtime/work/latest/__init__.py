"""A version of an update stream: the newest values taken, as many served as there is time for."""
