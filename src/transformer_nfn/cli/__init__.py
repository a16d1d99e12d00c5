"""The command `tnfn`: its commands are in `commands`; a room is imported when it is needed."""

from transformer_nfn.cli.main import main

__all__ = ["main"]
