"""Mistakes that are made with weights, each as what it does to a checkpoint."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, TensorFiles
from transformer_nfn.identity.causes.changed import Change, with_blocks, with_tensors
from transformer_nfn.space import Attention, WeightBatch

#: Rows of a table that are compared at a time.
_ROWS = 4096
#: What is added to the scales of norms.
_OFFSETS = (1.0, -1.0)
#: Dtypes that weights are rounded to on their way, the finest first.
DTYPES = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class Mistake:
    """Something that happened to weights on their way.

    Attributes:
        name: A few words.
        says: What happened, and what to do about it.
        made: A checkpoint to which it has happened, of one to which it has not.
        tensors: The declared tensors of a block that it changes; None for all of them.
        words: Whether it changes what is written into the stream before the first block.
    """

    name: str
    says: str
    made: Callable[[Checkpoint], Checkpoint]
    tensors: frozenset[str] | None = None
    words: bool = False


def mistakes(checkpoint: Checkpoint, number: int) -> Iterator[Mistake]:
    """All that could have happened to a checkpoint.

    Args:
        checkpoint: It.
        number: The first block that differs; 0 if none does.
    """
    if checkpoint.last_norm and (tables := _tied_tables(checkpoint)):
        yield Mistake(
            "tied head",
            "the last norm's scale was folded into the head, which is tied to the embedding, so "
            "the embedding was scaled too; untie the head before folding, or leave that norm alone",
            partial(_tied, tables=tables),
            frozenset(),
            words=True,
        )
    yield from _norm_offsets(checkpoint)
    for attention in checkpoint.spec.block.attentions:
        if attention.rotary:
            yield from _pairings(attention, checkpoint.spec.sizes.get("heads_per_group", 1))
    yield from _transposed(checkpoint, number)
    for dtype in DTYPES:
        if torch.finfo(dtype).eps > torch.finfo(checkpoint.dtype).eps:
            word = str(dtype).removeprefix("torch.")
            yield Mistake(
                "dtype",
                f"all weights were rounded to {word} on the way, and stored in a finer dtype "
                f"again; convert from the original, and cast once, at the end",
                partial(_rounded, dtype=dtype),
                words=True,
            )


def _tied_tables(checkpoint: Checkpoint) -> frozenset[str]:
    """The embedding where a head is tied to it, and a tensor of its own that such a head has."""
    words, files = checkpoint.words, checkpoint.files
    if words is None or words not in files:
        return frozenset()
    heads = checkpoint.heads.values()
    tied = {head.weight for head in heads if head.tied or _same_rows(files, head.weight, words)}
    return frozenset({*tied, words}) if tied else frozenset()


def _same_rows(files: TensorFiles, one: str, two: str) -> bool:
    """Whether two tables are the same, bit for bit."""
    if files.entry(one).shape != files.entry(two).shape:
        return False
    chunks = zip(files.chunks(one, _ROWS), files.chunks(two, _ROWS), strict=True)
    return all(torch.equal(a, b) for a, b in chunks)


def _tied(checkpoint: Checkpoint, tables: frozenset[str]) -> Checkpoint:
    """The embedding takes the last norm's scale, as the head that it is should."""
    norm, offset = checkpoint.last_norm, checkpoint.family.norm_offset
    scale, _ = checkpoint.norm(norm)
    whole: dict[str, Change] = {f"{norm}.weight": lambda w: torch.ones_like(w) - offset}
    if f"{norm}.bias" in checkpoint.files:
        whole[f"{norm}.bias"] = lambda shift: shift.double() / scale
    return with_tensors(
        checkpoint, whole, dict.fromkeys(tables, lambda rows: rows.double() * scale)
    )


def _norm_offsets(checkpoint: Checkpoint) -> Iterator[Mistake]:
    """Scales of norms that are off by 1, all of them or those of one kind."""
    if checkpoint.settings.norm != "rms":
        return
    reading = [
        norm for i in range(checkpoint.blocks) for norm in checkpoint.reading_norms(i) if norm
    ]
    read = {f"{norm}.weight" for norm in reading}
    last = {f"{checkpoint.last_norm}.weight"} if checkpoint.last_norm else set()
    first, stored = checkpoint.block_name(0), checkpoint.files
    scales = [
        matrix.weight
        for matrix in checkpoint.family.matrices
        if first + matrix.weight in stored and len(stored.entry(first + matrix.weight).shape) == 1
    ]
    inside = {checkpoint.block_name(i) + name for i in range(checkpoint.blocks) for name in scales}
    kinds = {
        "all norms": read | last | inside,
        "the norms that can be folded": read | last,
        "the norms before attention and MLP": read,
        "the norms inside blocks that cannot be folded": inside,
        "the last norm": last,
    }
    known: list[set[str]] = []
    for which, names in kinds.items():
        names &= set(checkpoint.files)
        # What is added to scales that are all alike is a factor, and then anything may be one.
        if names in known or all(_constant(checkpoint.files.read(name)) for name in names):
            continue
        known.append(names)
        for offset in _OFFSETS:
            yield Mistake(
                "norm offset",
                f"the scales of {which} are off by {offset:+g}: some formats store a scale w, some "
                f"w - 1 (Gemma); use 1 + w where one is folded, and convert it where one is stored",
                partial(_offset, names=frozenset(names), offset=offset),
            )


def _constant(scale: Tensor) -> bool:
    return bool((scale == scale.flatten()[:1]).all())


def _offset(checkpoint: Checkpoint, names: frozenset[str], offset: float) -> Checkpoint:
    return with_tensors(checkpoint, dict.fromkeys(names, lambda w: w.double() + offset))


Order = Callable[[Tensor], Tensor]


def _pairings(attention: Attention, many: int) -> Iterator[Mistake]:
    """Rows of queries or keys in the order of another way to turn them."""
    orders: dict[str, Order | None] = {
        "": None,
        "from neighbours to halves (0, 2, …, 1, 3, …)": _to_halves,
        "from halves to neighbours (0, k/2, 1, …)": _to_neighbours,
    }
    for norms in (False, True) if attention.normed else (False,):
        for query, key in ((q, k) for q in orders for k in orders if q or k):
            what = {name: text for name, text in (("queries", query), ("keys", key)) if text}
            yield Mistake(
                "rotary pairs",
                "the two numbers of each rotary pair are not where attention looks for them: "
                + ", ".join(f"rows of {name} were moved {text}" for name, text in what.items())
                + "; permute the rows of q and k, by the number of heads of each, once and in one "
                "direction, or not at all",
                partial(
                    _paired,
                    attention=attention,
                    query=orders[query],
                    key=orders[key],
                    norms=norms,
                ),
                frozenset((attention.query, attention.key, "nQ", "nK")),
            )
    if many > 1:
        for order in (_to_halves, _to_neighbours):
            for query_order in (None, order):
                yield Mistake(
                    "rotary pairs",
                    "the rows of keys were permuted by the number of query heads; they have fewer "
                    "heads (num_key_value_heads)",
                    partial(
                        _paired,
                        attention=attention,
                        query=query_order,
                        key=partial(_by_queries, order=order, many=many),
                    ),
                    frozenset((attention.query, attention.key)),
                )


def _paired(
    checkpoint: Checkpoint,
    attention: Attention,
    query: Order | None,
    key: Order | None,
    *,
    norms: bool = False,
) -> Checkpoint:
    def change(_: int, block: WeightBatch) -> WeightBatch:
        tensors = dict(block.tensors)
        for order, name, norm in ((query, attention.query, "nQ"), (key, attention.key, "nK")):
            if order is None:
                continue
            tensors[name] = order(tensors[name])
            if norms:  # "… f j i", for each of the two of a pair
                scales = tensors[norm]
                tensors[norm] = order(scales.flatten(-3)).view(scales.shape)
        return WeightBatch(block.spec, tensors)

    return with_blocks(checkpoint, change)


def _by_queries(keys: Tensor, order: Order, many: int) -> Tensor:
    """An order that takes each head of keys "… g z k" for so many heads of queries."""
    size = keys.shape[-1]
    if size % (2 * many):
        return keys
    return order(keys.reshape(*keys.shape[:-1], many, size // many)).flatten(-2)


def _to_halves(tensor: Tensor) -> Tensor:
    """0 1 2 3 4 5 becomes 0 2 4 1 3 5 along the last axis."""
    return tensor.reshape(*tensor.shape[:-1], -1, 2).mT.flatten(-2)


def _to_neighbours(tensor: Tensor) -> Tensor:
    """0 1 2 3 4 5 becomes 0 3 1 4 2 5 along the last axis."""
    return tensor.reshape(*tensor.shape[:-1], 2, -1).mT.flatten(-2)


def _transposed(checkpoint: Checkpoint, number: int) -> Iterator[Mistake]:
    """A matrix with its rows for columns, in all blocks or in one."""
    for matrix in checkpoint.family.matrices:
        names = {
            i: checkpoint.block_name(i) + matrix.weight
            for i in range(checkpoint.blocks)
            if checkpoint.block_name(i) + matrix.weight in checkpoint.files
        }
        if number not in names or len(checkpoint.files.entry(names[number]).shape) != 2:
            continue
        wheres = [(names[number], [names[number]])]
        if number == 0 and len(names) > 1:
            wheres.insert(0, (f"{matrix.weight} of every block", list(names.values())))
        for where, those in wheres:
            yield Mistake(
                "transposed matrix",
                f"{where} is transposed: a Linear stores [out, in], Conv1D and JAX [in, out]",
                partial(with_tensors, whole=dict.fromkeys(those, _turned)),
                frozenset(matrix.tensors),
            )


def _turned(matrix: Tensor) -> Tensor:
    """Transposed; of one that is not square the numbers in that order, in the shape it had."""
    return matrix.T.reshape(matrix.shape)


def _rounded(checkpoint: Checkpoint, dtype: torch.dtype) -> Checkpoint:
    kinds = checkpoint.files.entries
    names = [name for name, entry in kinds.items() if entry.dtype.is_floating_point]
    return with_tensors(checkpoint, {}, dict.fromkeys(names, lambda rows: rows.to(dtype)))
