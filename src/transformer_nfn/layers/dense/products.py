"""Products of heads: each channel of each network is one small matmul."""

from torch import bmm

from transformer_nfn.layers.named import Named
from transformer_nfn.space import WeightBatch


def head_product(batch: WeightBatch, name: str, keep: tuple[str, ...]) -> Named:
    """A declared product as `WeightBatch.product` gives it, summed over all axes but `keep`.

    What only one factor has is summed before multiplying, so that the full product never exists.
    Heads and their coordinates are contracted together, so that no tensor "h x y" exists.
    """
    factors = batch.spec.block.products[name].factors
    labels = [tuple(index.label for index in factor.indices) for factor in factors]
    first, second = (
        Named(("n", "c", "l", *own), batch[factor.tensor]).keep(("n", "c", "l", *keep, *other))
        for factor, own, other in zip(factors, labels, labels[::-1], strict=True)
    )
    shared = tuple(a for a in labels[0] if a in labels[1])
    each = ("l", "n", "c", *(a for a in shared if a in keep))
    contracted = tuple(a for a in shared if a not in keep)
    rows, columns = (
        tuple(a for a in one.labels if a not in (*each, *contracted)) for one in (first, second)
    )
    made = bmm(first.matrices(each, rows, contracted), second.matrices(each, contracted, columns))
    lengths = dict(zip(first.labels, first.tensor.shape, strict=True))
    lengths |= dict(zip(second.labels, second.tensor.shape, strict=True))
    found = (*each, *rows, *columns)
    view = Named(found, made.view([lengths[a] for a in found]))
    return view.order(("n", "c", "l", *keep))
