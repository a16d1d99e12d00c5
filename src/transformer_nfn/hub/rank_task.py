"""Predicted accuracies as bulk work, and the best of them.

The room `bench` takes a second to import, so only those who rank do it.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch

from transformer_nfn.checkpoints import CheckpointError, TensorFiles
from transformer_nfn.hub.store import Results

if TYPE_CHECKING:
    from transformer_nfn.bench import Net, Ranked


#: Kinds of numbers by the names that safetensors has for them.
_KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}


@lru_cache(maxsize=1)  # once in a worker, not with each batch
def _model(name: str) -> Any:
    from transformer_nfn.bench import load_predictor

    return load_predictor(name)


@dataclass(frozen=True)
class RankTask:
    """What a saved model predicts of each file that `tnfn zoo export` wrote.

    Attributes:
        model: Its name, or the path of its folder, where every worker finds it.
    """

    model: str

    @property
    def description(self) -> dict[str, Any]:
        """The model by what it is: one that is fitted again under the same name is another."""
        described = _model(self.model).description
        digest = hashlib.sha256(described.model_dump_json().encode()).hexdigest()
        return {"name": "rank", "model": described.model, "digest": digest[:16]}

    @property
    def schema(self) -> pa.Schema:
        """Columns: as in `Ranked`."""
        return pa.schema(
            {"predicted": pa.float64(), "outside": pa.float64(), "warning": pa.string()}
        )

    def read(self, path: str) -> "tuple[Net, int]":
        """The weights of a file and the bytes that they took; all is checked before any is read."""
        from transformer_nfn.bench import BenchError, Net, check_net

        shape = _model(self.model).description.shape
        with TensorFiles(path) as files:
            entries = files.entries
            try:
                check_net(
                    {n: (e.shape, _KINDS.get(e.dtype, str(e.dtype))) for n, e in entries.items()},
                    shape,
                )
            except BenchError as error:
                raise CheckpointError(str(error)) from None
            row = torch.cat([files.read(name).float().flatten() for name in shape.stored])
            if not row.isfinite().all():
                raise CheckpointError("has NaN or infinite weights")
            metadata = dict(files.shards[0][1].metadata)
            return Net(path, row.numpy(), metadata), files.bytes_read

    def of_unsupported(self, path: str) -> dict[str, Any]:
        """Nothing: there is no score without a reader."""
        return {}

    def columns(self, found: "Sequence[Net]") -> list[dict[str, Any]]:
        """A row for each."""
        from transformer_nfn.bench import rank_nets

        return [
            {"predicted": one.predicted, "outside": one.outside, "warning": one.warning}
            for one in rank_nets(_model(self.model), found)
        ]


def stored_ranks(results: Results, listing: pa.Table, most: int) -> "list[Ranked]":
    """The best of the listed files that a folder of results has predictions of.

    Args:
        results: Where they are.
        listing: What is there now.
        most: How many at most.
    """
    from transformer_nfn.bench import Ranked

    names = ["status", "predicted", "outside", "warning"]
    table = results.rows(names, RankTask("").schema)
    chosen = pc.is_in(table["path"], listing["path"].combine_chunks())
    best = table.filter(pc.and_(chosen, pc.equal(table["status"], "ok")))
    best = best.sort_by([("predicted", "descending"), ("path", "ascending")]).slice(0, most)
    columns = (best[name].to_pylist() for name in ("path", *names[1:]))
    return [Ranked(*row) for row in zip(*columns, strict=True)]
