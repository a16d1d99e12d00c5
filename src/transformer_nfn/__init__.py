"""Learn from, compare and audit the weights of transformers, with their symmetries exact."""

from importlib import import_module
from importlib.metadata import version
from pkgutil import iter_modules
from typing import Any

__version__ = version("transformer-nfn")

_ROOMS = tuple(sorted(module.name for module in iter_modules(__path__) if module.ispkg))


def __getattr__(name: str) -> Any:
    """A room, imported when it is asked for: some of them take a second."""
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"transformer_nfn has no {name!r}; its rooms are {', '.join(_ROOMS)}")


def __dir__() -> list[str]:
    return ["__version__", *_ROOMS]
