"""Operators over update streams: the newest value of a key is all that matters."""
