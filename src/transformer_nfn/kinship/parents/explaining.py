"""Which tensors of a file come from which of several others, and in what proportion."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

import torch
from torch import Tensor

from transformer_nfn.checkpoints import TensorFiles
from transformer_nfn.kinship.descent.closeness import is_copy
from transformer_nfn.kinship.parents.blocks import Place, floats, match_blocks, read, related

#: What is left of a tensor after its parents were taken away, beyond the rounding of its dtype, is
#: called changed.
_ROUNDINGS = 4.0
#: Numbers that are looked at at once.
_AT_ONCE = 2**22
#: Who has a smaller coefficient is no parent.
_LEAST = 0.005
#: Coefficients of one merge differ by less than this from tensor to tensor, or by so many of their
#: standard errors.
ALIKE, _ERRORS = 0.02, 6.0
#: A tensor has to have so many numbers for each parent: any two numbers are a sum of any others.
_NUMBERS = 8


class Origin(Enum):
    """Where a tensor comes from."""

    COPIED = "copied"
    MERGED = "merged"
    CHANGED = "changed"
    NEW = "new"


@dataclass(frozen=True)
class Share:
    """One parent of a tensor.

    Attributes:
        parent: Its number among those that were given.
        name: The tensor there.
        coefficient: By which it is in the child.
        error: Its standard error, by what rounding left out; infinite if two parents are the same.
    """

    parent: int
    name: str
    coefficient: float
    error: float = 0.0


@dataclass(frozen=True)
class Explained:
    """One tensor of the child.

    Attributes:
        name: Its name.
        origin: Where it comes from.
        shares: From whom, none if it is new.
        left: What of it no parent explains, relative to it.
        turn: Of two parents the t of a spherical interpolation that would give their coefficients;
            None if none would.
    """

    name: str
    origin: Origin
    shares: tuple[Share, ...]
    left: float
    turn: float | None = None


@dataclass(frozen=True)
class Explanation:
    """All tensors of the child.

    Attributes:
        tensors: Each of them.
        blocks: For each parent, which block of the child is which of its own.
        summary: In a sentence.
    """

    tensors: tuple[Explained, ...]
    blocks: tuple[dict[int, int], ...]
    summary: str


@torch.no_grad()
def explain(
    child: TensorFiles,
    parents: Sequence[TensorFiles],
    names: Sequence[str],
    progress: Callable[[int], None] | None = None,
) -> Explanation:
    """Find for each tensor of a file which of several others it is made of.

    Coefficients are those of least squares. A task vector is such a sum too: of the base 1 minus
    all others.

    Args:
        child: The file.
        parents: The others.
        names: What they are called in the summary.
        progress: Called with the number of tensors that are explained.
    """
    blocks = tuple(match_blocks(child, parent) for parent in parents)
    found = []
    for number, name in enumerate(floats(child), 1):
        found.append(_explained(child, parents, blocks, name))
        if progress is not None:
            progress(number)
    tensors = tuple(found)
    return Explanation(tensors, blocks, _summary(tensors, blocks, names))


def _explained(
    child: TensorFiles,
    parents: Sequence[TensorFiles],
    blocks: Sequence[dict[int, int]],
    name: str,
) -> Explained:
    place, entry = Place.of(name), child.entry(name)
    there: list[tuple[int, str]] = []
    for number, (parent, known) in enumerate(zip(parents, blocks, strict=True)):
        if place.block is not None and place.block not in known:
            continue
        other = name if place.block is None else place.at(known[place.block]).name
        if other not in parent or parent.entry(other).shape != entry.shape:
            continue
        if parent.entry(other).dtype.is_floating_point:
            there.append((number, other))
    row = read(child, name)
    if not there:
        return Explained(name, Origin.NEW, (), 1.0)
    rows = [read(parents[number], other) for number, other in there]
    dtypes = [parents[number].entry(other).dtype for number, other in there]
    for (number, other), parent_row, dtype in zip(there, rows, dtypes, strict=True):
        if is_copy(row, parent_row, entry.dtype, dtype):
            return Explained(name, Origin.COPIED, (Share(number, other, 1.0),), 0.0)
    row, rows = row.flatten(), [each.flatten() for each in rows]
    size = row.norm().item()
    if size == 0:
        return Explained(name, Origin.NEW, (), 1.0)
    coefficients, scales = _least_squares(row, rows)
    made = sum((c * each for c, each in zip(coefficients, rows, strict=True)), torch.zeros(()))
    apart = (row - made).norm().item()
    left, each = apart / size, apart / math.sqrt(len(row))
    shares = tuple(
        Share(number, other, coefficient, each * scale)
        for (number, other), coefficient, scale in zip(there, coefficients, scales, strict=True)
        if abs(coefficient) >= _LEAST
    )
    rounding = max(torch.finfo(dtype).eps for dtype in (entry.dtype, *dtypes)) / math.sqrt(12)
    enough = len(row) >= _NUMBERS * len(rows)
    if left <= _ROUNDINGS * rounding and len(shares) > 1 and enough:
        return Explained(name, Origin.MERGED, shares, left, _turn(coefficients, rows))
    if not related(max(_cosine(row, each) for each in rows), len(row)):
        return Explained(name, Origin.NEW, (), 1.0)
    return Explained(name, Origin.CHANGED, shares, left)


def _least_squares(row: Tensor, rows: Sequence[Tensor]) -> tuple[list[float], list[float]]:
    """Coefficients of a sum of rows that is nearest to another; equal rows share theirs.

    Returns:
        These, and by how much each is off where each number of the sum is off by 1 at random.
    """
    gram = torch.empty(len(rows), len(rows), dtype=torch.float64)
    for i, one in enumerate(rows):
        for j, two in enumerate(rows[: i + 1]):
            gram[i, j] = gram[j, i] = _dot(one, two)
    wanted = torch.tensor([_dot(each, row) for each in rows], dtype=torch.float64)
    inverse = torch.linalg.pinv(gram, rtol=1e-12, hermitian=True)
    scales = inverse.diagonal().clamp_min(0).sqrt()
    values = torch.linalg.eigvalsh(gram)
    if values[0] <= 1e-12 * values[-1]:  # two of them are the same: any shares would do
        scales = torch.full_like(scales, math.inf)
    return (inverse @ wanted).tolist(), scales.tolist()


def _dot(one: Tensor, two: Tensor) -> float:
    """In float64, a piece at a time."""
    pieces = range(0, len(one), _AT_ONCE)
    rows = ((row[i : i + _AT_ONCE].double() for row in (one, two)) for i in pieces)
    return sum(torch.dot(*both).item() for both in rows)


def _cosine(one: Tensor, two: Tensor) -> float:
    return _dot(one, two) / math.sqrt(max(_dot(one, one) * _dot(two, two), 1e-300))


def _turn(coefficients: Sequence[float], rows: Sequence[Tensor]) -> float | None:
    """The t for which sin((1-t)Ω)/sin Ω and sin(tΩ)/sin Ω are the coefficients of two rows."""
    if len(rows) != 2:
        return None
    angle = math.acos(max(-1.0, min(1.0, _cosine(*rows))))
    if angle < 1e-4:
        return None
    first, second = coefficients
    turns = []
    for value in (second, first):
        sine = value * math.sin(angle)
        if not -1 <= sine <= 1:
            return None
        turns.append(math.asin(sine) / angle)
    return turns[0] if abs(turns[0] + turns[1] - 1) < ALIKE else None


def _summary(
    tensors: Sequence[Explained], blocks: Sequence[dict[int, int]], names: Sequence[str]
) -> str:
    kinds = {origin: [one for one in tensors if one.origin is origin] for origin in Origin}
    merged = kinds[Origin.MERGED]
    said = []
    if copied := kinds[Origin.COPIED]:
        from_whom: dict[int, int] = {}
        for one in copied:
            from_whom[one.shares[0].parent] = from_whom.get(one.shares[0].parent, 0) + 1
        each = ", ".join(f"{count} from {names[number]}" for number, count in from_whom.items())
        said.append(f"{len(copied)} tensors are copied ({each})")
    if merged:
        said.append(f"{len(merged)} are merged: {_recipe(merged, names)}")
    if changed := kinds[Origin.CHANGED]:
        far = median(one.left for one in changed)
        said.append(f"{len(changed)} were changed, {far:.1%} of them is new")
    if kinds[Origin.NEW]:
        said.append(f"{len(kinds[Origin.NEW])} are new")
    for known, name in zip(blocks, names, strict=True):
        if any(number != other for number, other in known.items()):
            order = ", ".join(str(known[number]) for number in sorted(known))
            said.append(f"its blocks {_ranges(known)} are blocks {order} of {name}")
    return "; ".join(said) or "it has no tensors of numbers"


def _ranges(known: dict[int, int]) -> str:
    numbers = sorted(known)
    if numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 2:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _recipe(merged: Sequence[Explained], names: Sequence[str]) -> str:
    """One recipe for all tensors, if there is one."""
    parents = sorted({share.parent for one in merged for share in one.shares})
    shares = {
        parent: [share for one in merged for share in one.shares if share.parent == parent]
        for parent in parents
    }
    turns = [one.turn for one in merged if one.turn is not None]
    sums = [sum(share.coefficient for share in one.shares) for one in merged]
    spherical = len(turns) == len(merged) and max(turns) - min(turns) <= ALIKE
    # Of a small angle both are the same.
    if spherical and len(parents) == 2 and max(abs(one - 1) for one in sums) > ALIKE / 4:
        first, second = (names[parent] for parent in parents)
        return f"spherically between {first} and {second}, at {median(turns):.3f}"
    pooled = {parent: _pooled(some) for parent, some in shares.items()}
    if all(
        abs(share.coefficient - pooled[parent]) <= ALIKE / 2 + _ERRORS * share.error
        for parent, some in shares.items()
        for share in some
    ):
        return " + ".join(f"{pooled[parent]:.3f} {names[parent]}" for parent in parents)
    each = {parent: [share.coefficient for share in some] for parent, some in shares.items()}
    terms = (
        f"{min(each[parent]):.3f} to {max(each[parent]):.3f} {names[parent]}" for parent in parents
    )
    return "with coefficients that differ, " + " + ".join(terms)


def _pooled(shares: Sequence[Share]) -> float:
    """The coefficient that fits all tensors, those that say most of it first."""
    weights = [1 / max(share.error, 1e-6) ** 2 for share in shares]
    if not any(weights):
        return median(share.coefficient for share in shares)
    return sum(w * s.coefficient for w, s in zip(weights, shares, strict=True)) / sum(weights)
