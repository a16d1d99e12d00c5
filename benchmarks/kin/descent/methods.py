"""Ways to ask whether two networks are kin, ours and others written from their papers.

Each gives a number that is larger for kin, minus infinity where it cannot compare two networks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import chi2, spearmanr
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.kinship import Fingerprint, SketchStack, distance, fingerprint, kin
from transformer_nfn.kinship.descent.networks import networks_of
from transformer_nfn.kinship.disguise.neurons import Seen, networks_seen
from transformer_nfn.kinship.disguise.score import compare_seen
from transformer_nfn.kinship.sketch.finding import by_blocks

#: Words whose rows HuRef's invariants are made of.
_TOKENS = 64


class File:
    """A checkpoint, and what several methods read of it, once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def seen(self) -> list[Seen]:
        """For ours, in disguise."""
        with Checkpoint(self.path) as checkpoint:
            return networks_seen(checkpoint)

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """As `tnfn dedup` has it."""
        return fingerprint(self.path)

    @cached_property
    def words(self) -> Tensor:
        """The table of words, or of patches."""
        with Checkpoint(self.path) as checkpoint:
            [net] = networks_of(checkpoint)
            return next(iter(net.words.values()))()

    @cached_property
    def blocks(self) -> "list[Matrices]":
        """Every block as plain matrices."""
        with Checkpoint(self.path) as checkpoint:
            return [_matrices(checkpoint, number) for number in range(checkpoint.blocks)]


@dataclass(frozen=True)
class Matrices:
    """Matrices of a block, from the stream to the right, each head beside the next.

    Attributes:
        heads: Q, K, V "h x k" and O "h k x", shared ones repeated.
        read: What neurons read, the gate first: "a x".
        write: What they write: "a x".
    """

    heads: dict[str, Tensor]
    read: tuple[Tensor, ...]
    write: Tensor


def _matrices(checkpoint: Checkpoint, number: int) -> Matrices:
    tensors = {n: t[0, 0, 0] for n, t in checkpoint.block(number, torch.float32).tensors.items()}
    size, heads = checkpoint.D, {}
    for name in "QKVO":
        tensor = tensors[name]
        if tensor.dim() == 4:
            tensor = tensor.flatten(0, 1)
        heads[name] = tensor if name == "O" else tensor[..., :size, :]
    count = len(heads["Q"])
    heads = {n: t.repeat_interleave(count // len(t), dim=0) for n, t in heads.items()}
    if "gate" in tensors:
        read = tuple(tensors[n].reshape(len(tensors[n]), -1)[:size].T for n in ("gate", "up"))
        return Matrices(heads, read, tensors["down"].reshape(-1, size))
    return Matrices(heads, (tensors["A"].T,), tensors["B"])


def ours_p(one: File, two: File) -> float:
    """Minus the logarithm of our p."""
    with Checkpoint(one.path) as a, Checkpoint(two.path) as b:
        return -kin(a, b).log_p


def ours_disguised(one: File, two: File) -> float:
    """Our score in disguise."""
    found = compare_seen(one.seen, two.seen)
    return found.score if found.blocks else -math.inf


def ours_sketch(one: File, two: File) -> float:
    """The evidence of our sketches."""
    sketches = [each.fingerprint.sketch for each in (one, two)]
    if sketches[0] is None or sketches[1] is None or sketches[0].kind != sketches[1].kind:
        return -math.inf
    taken = [SketchStack.of([each]).take(np.array([0])) for each in sketches if each is not None]
    return float(by_blocks(*taken)[0][0])


def cosine(one: File, two: File) -> float:
    """The cosine of all matrices of the same place and shape."""
    products, squares, others = 0.0, 0.0, 0.0
    for a, b in zip(one.blocks, two.blocks, strict=False):
        for x, y in zip(
            (*a.heads.values(), *a.read, a.write),
            (*b.heads.values(), *b.read, b.write),
            strict=True,
        ):
            if x.shape == y.shape:
                products += (x * y).sum().item()
                squares, others = (
                    squares + x.square().sum().item(),
                    others + y.square().sum().item(),
                )
    return products / math.sqrt(squares * others) if squares else -math.inf


def by_fingerprint(one: File, two: File) -> float:
    """Minus the distance of the fingerprints of `tnfn dedup`."""
    found = distance(one.fingerprint, two.fingerprint)
    return -found.largest if math.isfinite(found.largest) else -math.inf


def awm(one: File, two: File) -> float:
    """Assignment of the stream by the words, then unbiased linear CKA of W_Q and W_K."""
    a, b = _common(one.words, two.words)
    if a is None or b is None:
        return -math.inf
    unit = torch.nn.functional.normalize
    cosines = (unit(a, dim=0).T @ unit(b, dim=0)).numpy()
    rows, columns = linear_sum_assignment(-np.abs(cosines))
    signs = torch.from_numpy(np.sign(cosines[rows, columns])).float()
    scores = []
    for x, y in zip(one.blocks, two.blocks, strict=False):
        for name in "QK":
            first = x.heads[name].movedim(1, 0).flatten(1)
            second = y.heads[name].movedim(1, 0).flatten(1)[columns] * signs[:, None]
            scores.append(_cka(first, second))
    return sum(scores) / len(scores)


def _cka(one: Tensor, two: Tensor) -> float:
    a, b = (m @ m.T for m in (one, two))
    value = _hsic(a, b) / math.sqrt(max(_hsic(a, a) * _hsic(b, b), 1e-30))
    return float(value)


def _hsic(a: Tensor, b: Tensor) -> float:
    """The unbiased estimate."""
    n = len(a)
    a, b = (m - m.diag().diag() for m in (a, b))
    sums = (
        (a * b).sum() + a.sum() * b.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * a.sum(0) @ b.sum(0)
    )
    return float(sums / (n * (n - 3)))


def huref(one: File, two: File) -> float:
    """Products of a head's and an MLP's matrices between rows of words, which nothing moves."""
    a, b = _common(one.words, two.words)
    if a is None or b is None:
        return -math.inf
    first, second = (
        _invariants(net.blocks, words[:_TOKENS]) for net, words in ((one, a), (two, b))
    )
    if len(first) != len(second):
        return -math.inf
    return torch.nn.functional.cosine_similarity(first, second, dim=0).item()


def _invariants(blocks: list[Matrices], words: Tensor) -> Tensor:
    found = []
    for block in blocks[-2:]:
        h = block.heads
        for product in (
            torch.einsum("hxk,hyk->xy", h["Q"], h["K"]),
            torch.einsum("hxk,hky->xy", h["V"], h["O"]),
            block.read[-1].T @ block.write,
        ):
            term = words @ product @ words.T
            found.append((term / term.norm()).flatten())
    return torch.cat(found)


def phi_u(one: File, two: File) -> float:
    """Spearman's correlation of the matching of neurons with their numbers, Fisher over layers."""
    pairs = list(zip(one.blocks, two.blocks, strict=False))
    if any(a.read[-1].shape != b.read[-1].shape for a, b in pairs):
        return -math.inf
    return _fisher([_rank(_matching(a.read[-1], b.read[-1]), None) for a, b in pairs])


def phi_match(one: File, two: File) -> float:
    """Whether the matching by what neurons read is that by what they write, or by their gates."""
    pairs = list(zip(one.blocks, two.blocks, strict=False))
    if any(a.write.shape != b.write.shape for a, b in pairs):
        return -math.inf
    logs = []
    for a, b in pairs:
        other = (a.write, b.write) if len(a.read) == 1 else (a.read[0], b.read[0])
        logs.append(_rank(_matching(a.read[-1], b.read[-1]), _matching(*other)))
    return _fisher(logs)


def spectra(one: File, two: File) -> float:
    """Minus how far singular values of the products QKᵀ and VO of all heads are apart."""
    pairs = list(zip(one.blocks, two.blocks, strict=False))
    far = []
    for a, b in pairs:
        for first, second in (("Q", "K"), ("V", "O")):
            values = []
            for net in (a, b):
                left, right = net.heads[first], net.heads[second]
                product = left @ (right if second == "O" else right.mT)
                sizes = torch.linalg.svdvals(product)[:, : left.shape[2]].flatten().sort().values
                values.append(sizes / sizes.norm())
            if len(values[0]) != len(values[1]):
                return -math.inf
            far.append((values[0] - values[1]).norm().item())
    return -sum(far) / len(far)


def _matching(one: Tensor, two: Tensor) -> np.ndarray:
    unit = torch.nn.functional.normalize
    _, columns = linear_sum_assignment(-(unit(one, dim=1) @ unit(two, dim=1).T).numpy())
    return columns


def _rank(numbers: np.ndarray, others: np.ndarray | None) -> float:
    against = np.arange(len(numbers)) if others is None else others
    found = spearmanr(numbers, against, alternative="greater")
    return math.log(max(float(found.pvalue), 1e-300))


def _fisher(logs: list[float]) -> float:
    total = -2 * sum(logs)
    return -float(chi2.logsf(total, 2 * len(logs))) if logs else -math.inf


def _common(one: Tensor, two: Tensor) -> tuple[Tensor | None, Tensor | None]:
    if one.shape[1] != two.shape[1]:
        return None, None
    rows = min(len(one), len(two))
    return one[:rows], two[:rows]


METHODS: dict[str, Callable[[File, File], float]] = {
    "ours, p": ours_p,
    "ours, disguised": ours_disguised,
    "ours, sketch": ours_sketch,
    "cosine": cosine,
    "fingerprint": by_fingerprint,
    "AWM": awm,
    "HuRef": huref,
    "phi_U": phi_u,
    "phi_MATCH": phi_match,
    "SVD": spectra,
}
