"""Write chosen networks of a zoo as safetensors files."""

from pathlib import Path

import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch
from safetensors.torch import save

from transformer_nfn.zoo.dataset import Zoo, ok
from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.format.schema import COLUMNS, weight_matrix
from transformer_nfn.zoo.nets import NetShape, views


def export(zoo: Zoo, where: pc.Expression, folder: str | Path) -> list[Path]:
    """One file for each chosen row, with the layout's tensor names and the row's columns.

    The metadata's `net` is the zoo's `NetShape` as JSON: what the file needs to be read as a net;
    it is left out where blocks are not known.

    Args:
        zoo: Where from.
        where: Which rows; only those with status ok are written.
        folder: Where to; made if it is not there. Files of the same rows are replaced.
    """
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    written = []
    for name in zoo.names():
        table = zoo.read_shard(name).filter(ok & where)
        matrix = torch.from_numpy(weight_matrix(table.column("weights"), zoo.shape.size))
        for number, row in enumerate(table.select(list(COLUMNS)).to_pylist()):
            tensors = views(matrix[number : number + 1], zoo.shape.stored)
            if not row["checkpoint"].isalnum():  # it becomes part of a path
                raise StoreError(f"{name} has a checkpoint named {row['checkpoint']!r}")
            path = home / f"run{row['run']:06d}-{row['checkpoint']}.safetensors"
            metadata = {name: str(value) for name, value in row.items()}
            if isinstance(zoo.shape, NetShape):
                metadata["net"] = zoo.shape.model_dump_json()
            alone = {name: tensor[0].contiguous() for name, tensor in tensors.items()}
            path.write_bytes(save(alone, metadata))
            written.append(path)
    return sorted(written)
