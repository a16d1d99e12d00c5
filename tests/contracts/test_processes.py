"""Training on several processes: each sees some of the networks, all learn the same."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from tests.nets import paper_nets
from transformer_nfn.models import NFNConfig, TransformerNFN
from transformer_nfn.space import NetBatch

NETWORKS = 4


def model() -> TransformerNFN:
    blocks = paper_nets(1).blocks
    config = NFNConfig.of(blocks.spec, blocks=2, channels=(2,), embedding=544, seed=0)
    return TransformerNFN(config).double()


def loss(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.square().mean()


def _train(rank: int, size: int, store: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size)
    own = DistributedDataParallel(model())
    each = NETWORKS // size
    nets: NetBatch = paper_nets(NETWORKS)[rank * each : (rank + 1) * each]
    loss(own(nets)).backward()
    if rank == 0:
        torch.save({n: p.grad for n, p in own.module.named_parameters()}, out)  # noqa: TID251
    dist.destroy_process_group()
    # The threads of gloo live on and may still drop a tensor: where the interpreter is being torn
    # down by then, they abort the process.
    os._exit(0)


def test_two_processes_have_the_gradient_of_one(tmp_path) -> None:
    out = tmp_path / "gradients"
    mp.spawn(_train, args=(2, str(tmp_path / "store"), str(out)), nprocs=2)
    alone = model()
    loss(alone(paper_nets(NETWORKS))).backward()
    gradients = torch.load(out, weights_only=True)  # noqa: TID251
    for name, parameter in alone.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)
