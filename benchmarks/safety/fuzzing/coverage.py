"""Which lines of a reader's modules its inputs reach: counted by tracing, over the final corpus."""

import importlib
import inspect
import sys
import threading
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any


def functions_of(modules: Iterable[str]) -> Iterator[FunctionType]:
    """All functions and methods that modules define, or only some: ``module:name,name``."""
    for text in modules:
        name, _, chosen = text.partition(":")
        module = importlib.import_module(name)
        for value in vars(module).values():
            if getattr(value, "__module__", None) != name:
                continue
            members = vars(value).values() if inspect.isclass(value) else [value]
            for function in (one for member in members for one in _bare(member)):
                if not chosen or function.__name__ in chosen.split(","):
                    yield function


def _bare(member: Any) -> Iterator[FunctionType]:
    for name in ("__func__", "fget", "func", "__wrapped__"):
        member = getattr(member, name, None) or member
    if isinstance(member, FunctionType):
        yield member


def _code_lines(code: CodeType) -> set[int]:
    """Lines that can run; the first of a function is its `def`."""
    found = {
        line for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno
    }
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _code_lines(constant)
    return found


class Lines:
    """Lines of some modules' functions, and those that were reached while it was on."""

    def __init__(self, modules: Iterable[str]) -> None:
        self.reached: set[tuple[str, int]] = set()
        self.all: set[tuple[str, int]] = set()
        for function in functions_of(modules):
            file = function.__code__.co_filename
            if "transformer_nfn" not in file:  # what dataclasses and pydantic add
                continue
            self.all |= {(file, line) for line in _code_lines(function.__code__)}
        self._files = {file for file, _ in self.all}

    def __enter__(self) -> "Lines":
        threading.settrace(self._call)  # shards are read in threads
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.reached.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def missed(self) -> list[str]:
        """Places that no input reached."""
        return sorted(f"{f.rpartition('/')[2]}:{n}" for f, n in self.all - self.reached)

    @property
    def share(self) -> float:
        return len(self.all & self.reached) / max(len(self.all), 1)
