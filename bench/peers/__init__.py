"""Other systems to compare with Icestream, each in a process and an environment of its own."""

from bench.peer_environments import Peer, python_of

__all__ = ["Peer", "python_of"]
