"""Copies among files that no family reads: the same tensors, whatever they are called."""

import hashlib
from collections.abc import Mapping

from transformer_nfn.checkpoints import TensorFiles

#: Bytes that are in memory at once.
_PIECE = 2**24


def tensor_digest(files: TensorFiles) -> str:
    """A digest of dtypes, shapes and bytes of all tensors of a file, in any order; "" of none."""
    found = []
    for name in files:
        entry = files.entry(name)
        one = hashlib.blake2b(f"{entry.dtype} {list(entry.shape)}".encode(), digest_size=16)
        for piece in files.pieces(name, _PIECE):
            one.update(memoryview(piece.numpy()))  # type: ignore[arg-type]
        found.append(one.digest())
    return hashlib.blake2b(b"".join(sorted(found)), digest_size=16).hexdigest() if found else ""


def copies_by_digest(digests: Mapping[str, str]) -> dict[str, str]:
    """Of files with the same digest as one before them: that file.

    Example:
        >>> copies_by_digest({"a": "1", "b": "2", "c": "1"})
        {'c': 'a'}
    """
    first: dict[str, str] = {}
    return {
        path: first[digest]
        for path, digest in digests.items()
        if digest and first.setdefault(digest, path) != path
    }
