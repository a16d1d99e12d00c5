"""All equivariant maps between two tensors, by linear algebra: the null space of Φρ(g) = σ(g)Φ.

Needs only generators of the group: a transposition and a cycle for each permuted axis, and for
each linear axis matrices that generate a Zariski-dense subgroup of GL, all on the first head
alone. (A few random elements would do for the permutations only by luck.)
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from transformer_nfn.group import GroupElement
from transformer_nfn.space import Block, BlockSpec, Index, Kind


def generators(spec: BlockSpec, leave_out: str = "") -> Iterator[GroupElement]:
    """Generators of the group; for negative controls those of one axis can be left out."""
    one = GroupElement.identity(spec)
    for label, axis in spec.block.axes.items():
        if axis.kind is Kind.FREE or label == leave_out:
            continue
        size = spec.size(label)
        if axis.kind is Kind.PERMUTED:
            swap = torch.arange(size)
            swap[:2] = swap[:2].flip(0)
            choices = [swap, torch.arange(size).roll(1)]
        else:
            # I + E_ij generate SL(Z), dense in SL; with diag(2, 1, …) that is dense in GL.
            scale = torch.ones(size, dtype=torch.float64)
            scale[0] = 2
            choices = [torch.diag(scale)]
            for i in range(size):
                for j in range(size):
                    if i != j:
                        shear = torch.eye(size, dtype=torch.float64)
                        shear[i, j] = 1
                        choices.append(shear)
        for choice in choices:
            part = one.parts[label].clone()
            part[(0, 0, *(0 for _ in axis.per))] = choice
            yield GroupElement(spec, {**one.parts, label: part})


def matrix(element: GroupElement, indices: tuple[Index, ...]) -> Tensor:
    """The action on tensors with these axes as a matrix; columns are images of basis tensors."""
    shape = [element.spec.size(index.label) for index in indices]
    size = int(torch.tensor(shape).prod()) if shape else 1
    basis = torch.eye(size, dtype=torch.float64).reshape(size, 1, 1, *shape)
    return element.act(basis, indices).reshape(size, size).T.contiguous()


def dimension(
    spec: BlockSpec, target: tuple[Index, ...], source: tuple[Index, ...], leave_out: str = ""
) -> int:
    """The dimension of the space of equivariant maps from source to target."""
    equations = []
    for g in generators(spec, leave_out):
        out, into = matrix(g, target), matrix(g, source)
        left = torch.kron(out, torch.eye(len(into), dtype=torch.float64))
        right = torch.kron(torch.eye(len(out), dtype=torch.float64), into.T.contiguous())
        equations.append(left - right)  # on Φ, row after row
    system = sum(e.T @ e for e in equations)
    assert isinstance(system, Tensor)
    eigenvalues = torch.linalg.eigvalsh(system)
    return int((eigenvalues < 1e-9 * eigenvalues[-1].clamp(min=1)).sum())


def ansatz(block: Block) -> dict[str, tuple[Index, ...]]:
    """What the paper's layers are linear in: each tensor, QK and VO of each head, a constant."""
    sources = dict(block.tensors)
    for name, product in block.products.items():
        heads = [a for a in product.contracted if block.axes[a].kind is Kind.PERMUTED]
        sources[name] = (*(Index(head) for head in heads), *product.indices)
    return sources | {"1": ()}
