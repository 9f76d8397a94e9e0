"""Icestream: stateful streams on Spark whose state is far larger than memory."""
