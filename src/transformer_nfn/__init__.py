"""Learn from, compare and audit the weights of transformers, with their symmetries exact."""

from importlib.metadata import version

__version__ = version("transformer-nfn")
