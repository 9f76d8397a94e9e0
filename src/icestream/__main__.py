"""`python -m icestream`: the command line, where `icestream` is not on the path."""

from icestream.cli import main

main()
