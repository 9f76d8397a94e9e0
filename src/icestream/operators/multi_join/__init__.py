"""The n-way join of events that share a key, whose state leaves memory and is cleaned up later."""
