"""The command `tnfn`. Each group of commands has a file; a room is imported when it is needed."""

from transformer_nfn.cli.main import main

__all__ = ["main"]
