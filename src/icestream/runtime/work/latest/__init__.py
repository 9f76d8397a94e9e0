"""A version of an update stream: accept the newest values, serve as many keys as time allows."""
