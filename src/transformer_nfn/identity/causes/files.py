"""What can be seen in the numbers as they are stored: a shard of another model, a lost digit."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial

import torch

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.causes.apart import apart, slices
from transformer_nfn.identity.causes.changed import stored_as
from transformer_nfn.identity.causes.mistakes import DTYPES, Mistake

#: Matrices of strangers differ by more than their size; those of a fine-tune by far less.
_STRANGE = 0.5
#: From here on a tensor is in other coordinates, not rounded or tuned.
_MOVED = 0.2


def strange_shard(ours: Checkpoint, theirs: Checkpoint) -> tuple[str, str] | None:
    """The one of several files of the second in which alone tensors differ: what to say of it.

    Returns:
        What happened and the evidence, or None.
    """
    files = theirs.files
    if len(files.shards) < 2:
        return None
    names = {name: number for name, number in files.shard_of.items() if name in ours.files}
    found: dict[int, list[float]] = defaultdict(list)
    for name, number in names.items():
        if ours.files.entry(name).shape != files.entry(name).shape:
            return None
        if (difference := apart(ours, theirs, name)) > 0:
            found[number].append(difference)
            if len(found) > 1:
                return None
    if len(found) != 1:
        return None
    [(number, differences)] = found.items()
    count = Counter(names.values())[number]
    matrices = [
        n for n, where in names.items() if where == number and len(files.entry(n).shape) > 1
    ]
    if not matrices or min(apart(ours, theirs, name) for name in matrices) < _STRANGE:
        return None
    typical = sorted(differences)[len(differences) // 2]
    return (
        f"{files.shards[number][0].name} is of another model; fetch it again, or look at what "
        f"wrote it",
        f"{len(differences)} of its {count} tensors differ, half of them by {typical:.0%} of their "
        f"size or more, and none of the {len(names) - count} in the other {len(files.shards) - 1} "
        f"files does",
    )


def lost_digits(ours: Checkpoint, theirs: Checkpoint) -> Iterator[Mistake]:
    """The second's tensors whose numbers all are of a coarser dtype than they are stored in."""
    for dtype in DTYPES:
        word = str(dtype).removeprefix("torch.")
        lost = {
            name: dtype
            for name, entry in theirs.files.entries.items()
            if entry.dtype.is_floating_point
            and torch.finfo(entry.dtype).eps < torch.finfo(dtype).eps
            and _fits(theirs, name, dtype)
        }
        if any(_was_rounded(ours, theirs, name, dtype) for name in lost) and all(
            _was_rounded(ours, theirs, name, dtype) is not False for name in lost
        ):
            yield Mistake(
                "dtype",
                f"{len(lost)} of {len(theirs.files.entries)} tensors hold only numbers of {word}: "
                f"they were rounded to it on the way, and stored in a finer dtype again; convert "
                f"from the original, and cast once, at the end",
                partial(stored_as, dtypes=lost),
                words=True,
            )


def _was_rounded(
    ours: Checkpoint, theirs: Checkpoint, name: str, dtype: torch.dtype
) -> bool | None:
    """Whether a tensor can be what rounding made of the first's; None if it needed none.

    Where both have the same coordinates each number must be just that.
    """
    if name not in ours.files or _fits(ours, name, dtype):
        return None
    pairs = zip(slices(ours, name), slices(theirs, name), strict=True)
    if apart(ours, theirs, name) > _MOVED:
        return True
    return all(torch.equal(one.to(dtype).double(), two) for one, two in pairs)


def _fits(checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> bool:
    """Whether all numbers of a tensor are of a dtype."""
    return all(torch.equal(rows, rows.to(dtype).double()) for rows in slices(checkpoint, name))
