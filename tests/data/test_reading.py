"""Networks of known families as layers take them, and datasets of networks."""

import pickle  # noqa: TID251 - what a DataLoader's workers do

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    Qwen3Config,
    Qwen3Model,
)

from transformer_nfn.data import StateDictReader, WeightDataset, read_net
from transformer_nfn.layers import EquivariantLayer, InvariantLayer
from transformer_nfn.models import NFNConfig, TransformerNFN
from transformer_nfn.space import (
    GROUPED,
    RESIDUAL,
    BlockSpec,
    DeclarationError,
    NetBatch,
    ShapeError,
    WeightBatch,
    apply_blocks,
)

WIDTHS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**WIDTHS, "num_key_value_heads": 2, "intermediate_size": 24, "vocab_size": 30}


def randomised(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.double().eval()


def gpt2() -> GPT2Model:
    config = GPT2Config(
        n_embd=16,
        n_layer=2,
        n_head=4,
        vocab_size=30,
        n_positions=8,
        bos_token_id=1,
        eos_token_id=1,
    )
    return randomised(GPT2Model(config))


def test_folded_blocks_compute_what_the_model_does(tmp_path) -> None:
    model = gpt2()
    net = read_net(model, dtype=torch.float64)
    assert net.blocks.spec.block.has_tables_of(RESIDUAL)
    x = torch.randn(1, 3, 16, dtype=torch.float64)
    outputs = model(inputs_embeds=x, output_hidden_states=True).hidden_states
    blocks = apply_blocks(net.blocks, x + model.wpe.weight[:3])
    torch.testing.assert_close(model.ln_f(blocks), outputs[-1])
    model.save_pretrained(tmp_path)
    again = read_net(tmp_path, dtype=torch.float64)
    assert torch.equal(again.blocks.flat(), net.blocks.flat())


def test_a_llama_is_a_grouped_block() -> None:
    net = read_net(randomised(LlamaModel(LlamaConfig(**LLAMA))), biases=False)
    assert net.blocks.spec.block.has_tables_of(GROUPED)
    with pytest.raises(ShapeError, match="has no function"):
        apply_blocks(net.blocks, torch.zeros(1, 2, 16))
    assert net.blocks.dtype == torch.float32
    layer = EquivariantLayer(net.blocks.spec, blocks=2, inputs=1, outputs=2)
    assert layer(net.blocks).channels == 2


def test_a_bert_keeps_its_norms() -> None:
    config = BertConfig(**WIDTHS, intermediate_size=24, vocab_size=30, hidden_act="relu")
    model = randomised(BertModel(config))
    with pytest.raises(ShapeError, match="'keep'"):
        read_net(model)
    net = read_net(model, norms="keep")
    # What the MLP of a block reads is the norm after its attention.
    stored = model.encoder.layer[1].attention.output.LayerNorm.weight.float()
    assert torch.equal(net.blocks["scale2"][0, 0, 1], stored)
    shape = {"blocks": 2, "inputs": 1, "outputs": 3}
    assert InvariantLayer(net.blocks.spec, **shape)(net.blocks).shape == (1, 3, 2, 1)
    assert read_net(model, norms="drop").blocks.spec.block.has_tables_of(RESIDUAL)
    with pytest.raises(ShapeError, match="not 'folded'"):
        read_net(model, norms="folded")  # type: ignore[arg-type]


def test_what_has_no_layers_is_refused() -> None:
    model = randomised(Qwen3Model(Qwen3Config(**LLAMA, head_dim=4)))
    with pytest.raises(DeclarationError, match="norms of queries and keys"):
        read_net(model)


def module(seed: int) -> nn.TransformerEncoder:
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(8, 2, 12, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def test_a_folder_is_read_one_network_at_a_time(tmp_path) -> None:
    for seed in range(5):
        save_file(module(seed).state_dict(), tmp_path / f"{seed}.safetensors")
    reader = StateDictReader(heads=2, activation="relu", post_norm=False)
    targets = {f"{seed}.safetensors": seed / 4 for seed in (3, 1, 4)}
    dataset = WeightDataset.from_folder(tmp_path, targets, reader)
    (tmp_path / "0.safetensors").write_bytes(b"no file")  # which has no target: never opened
    loader = DataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context="spawn")
    got = list(loader)
    nets, labels = NetBatch.cat([net for net, _ in got]), torch.cat([label for _, label in got])
    assert labels.tolist() == [0.75, 0.25, 1.0]
    expected = NetBatch.from_modules([module(seed) for seed in (3, 1, 4)])
    assert torch.equal(nets.blocks.flat(), expected.blocks.flat())
    with pytest.raises(FileNotFoundError, match=r"1 of 2 targets have no file .* 'x' for example"):
        WeightDataset.from_folder(tmp_path, {"x": 0.0, "1.safetensors": 1.0}, reader)


def test_a_batch_with_targets() -> None:
    nets = NetBatch.from_modules([module(seed) for seed in range(3)])
    dataset = WeightDataset(nets, [1, 0, 1])
    assert dataset.targets.dtype == torch.int64
    for index in (np.int64(2), torch.tensor(2)):
        assert dataset[index][1] == 1
    assert len(list(DataLoader(dataset, sampler=np.random.default_rng(0).permutation(3)))) == 3
    assert dataset[0][0].blocks["Q"].requires_grad is False
    assert len(WeightDataset(nets.blocks, [1, 0, 1])[0][0]) == 1
    net, target = dataset[-1]
    assert torch.equal(net.blocks.flat(), nets[2].blocks.flat())
    assert target == 1
    assert len(pickle.loads(pickle.dumps(dataset))) == 3
    with pytest.raises(IndexError, match="network 3 of 3"):
        dataset[3]
    with pytest.raises(ShapeError, match="3 networks need as many targets"):
        WeightDataset(nets, [1.0, 2.0])
    twice = WeightDataset(["a"], [1.0], lambda _: nets)
    with pytest.raises(ShapeError, match="has 3 networks, expected one"):
        twice[0]


def test_a_config_follows_from_networks() -> None:
    spec = BlockSpec(RESIDUAL, D=4, heads=2, D_k=2, D_v=2, D_A=5)
    blocks = WeightBatch.random(spec, networks=3, blocks=2)
    nets = NetBatch(blocks, {"w": torch.ones(3, 7)}, {"b": torch.ones(3, 2, 2)})
    config = NFNConfig.of(nets, channels=(2,), outputs=4)
    assert (config.blocks, config.embedding, config.classifier) == (2, 7, 4)
    assert TransformerNFN(config)(nets).shape == (3, 4)
    assert NFNConfig.of(nets, embedding=None).embedding is None
    assert NFNConfig.of(nets.blocks).blocks == 2
    with pytest.raises(ShapeError, match="give blocks="):
        NFNConfig.of(spec)
