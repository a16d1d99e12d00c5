"""The passes of a group as compiled code, where there is a C++ compiler."""

from transformer_nfn.zoo.training.compiled.engine import Compiled, Outcome, find_library

__all__ = ["Compiled", "Outcome", "find_library"]
