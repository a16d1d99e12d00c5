from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint, CheckpointError, parse_option, rewrite


@pytest.mark.parametrize("family", made.FAMILIES)
def test_blocks_are_what_the_file_says_and_go_back(family: str, tmp_path: Path) -> None:
    folder = made.save(made.model(family), tmp_path / "a")
    stored = load_file(folder / "model.safetensors")
    with Checkpoint(folder) as checkpoint:
        assert (checkpoint.blocks, checkpoint.D) == (2, 24)
        assert checkpoint.unknown == []
        for i in range(2):
            batch = checkpoint.block(i, dtype=None)
            packed = checkpoint.pack(i, batch)
            names = [name for name in stored if name.startswith(checkpoint.block_name(i))]
            norms = [name for name in names if "norm" in name.lower() or ".ln_" in name]
            assert set(packed) == set(names) - set(norms)
            for name, value in packed.items():
                assert torch.equal(value, stored[name]), name


def test_queries_of_a_head_are_its_columns(tmp_path: Path) -> None:
    net = made.model("gpt2")
    with Checkpoint(made.save(net, tmp_path)) as checkpoint:
        batch = checkpoint.block(1)
        fused = net.transformer.h[1].attn.c_attn
        for name, first in (("Q", 0), ("K", 24), ("V", 48)):
            columns = slice(first + 8, first + 16)  # head 1
            assert torch.equal(batch[name][0, 0, 0, 1, :24], fused.weight[:, columns].double())
            assert torch.equal(batch[name][0, 0, 0, 1, 24], fused.bias[columns].double())


def test_grouped_queries_belong_to_their_key_head(tmp_path: Path) -> None:
    net = made.model("qwen2")
    with Checkpoint(made.save(net, tmp_path)) as checkpoint:
        batch = checkpoint.block(0)
        attention = net.model.layers[0].self_attn
        rows = slice(16, 20)  # head 4 is the second of group 1
        assert torch.equal(batch["Q"][0, 0, 0, 1, 1, :24], attention.q_proj.weight[rows].T.double())
        assert torch.equal(batch["Q"][0, 0, 0, 1, 1, 24], attention.q_proj.bias[rows].double())
        assert torch.equal(batch["K"][0, 0, 0, 1, :24], attention.k_proj.weight[4:].T.double())


@pytest.mark.parametrize("family", made.FAMILIES)
def test_a_copy_without_changes_is_the_same_file(family: str, tmp_path: Path) -> None:
    folder = made.save(made.model(family), tmp_path / "a")
    with Checkpoint(folder) as checkpoint:
        changes = [
            pair for i in range(2) for pair in checkpoint.pack(i, checkpoint.block(i)).items()
        ]
        out = rewrite(checkpoint, changes, tmp_path / "b")
    for name in ("model.safetensors", "config.json"):
        assert (out / name).read_bytes() == (folder / name).read_bytes()


def test_a_copy_of_shards_is_shards(tmp_path: Path) -> None:
    folder = made.save(made.model("llama"), tmp_path / "a", max_shard_size="15KB")
    files = sorted(path.name for path in folder.glob("model*"))
    assert len(files) > 2
    with Checkpoint(folder) as checkpoint:
        out = rewrite(checkpoint, checkpoint.pack(1, checkpoint.block(1)).items(), tmp_path / "b")
    for name in files:
        if name.endswith(".safetensors"):
            assert (out / name).read_bytes() == (folder / name).read_bytes()
    with Checkpoint(out) as copy:
        assert list(copy.files) == list(checkpoint.files)


def test_only_named_tensors_change(tmp_path: Path) -> None:
    folder = made.save(made.model("bert"), tmp_path / "a")
    with Checkpoint(folder) as checkpoint:
        name = "bert.encoder.layer.1.output.dense.bias"
        out = rewrite(checkpoint, [(name, torch.full((24,), 7.0))], tmp_path / "b.safetensors")
    before, after = load_file(folder / "model.safetensors"), load_file(out)
    assert {n for n in before if not torch.equal(before[n], after[n])} == {name}
    assert (after[name] == 7).all()


def test_head_counts_are_never_guessed(tmp_path: Path) -> None:
    folder = made.save(made.model("bert"), tmp_path)
    (folder / "config.json").unlink()
    bert = {"model_type": "bert"}
    with pytest.raises(CheckpointError, match="--set num_attention_heads="):
        Checkpoint(folder, options=bert)
    with Checkpoint(folder, options={**bert, "num_attention_heads": 3}) as checkpoint:
        assert checkpoint.spec.sizes["heads"] == 3
    with pytest.raises(CheckpointError, match="5 heads do not divide the 24 columns"):
        Checkpoint(folder, options={**bert, "num_attention_heads": 5})
    with pytest.raises(CheckpointError, match="should be int from 1, not 'many'"):
        Checkpoint(folder, options={**bert, "num_attention_heads": "many"})


@pytest.mark.parametrize(
    ("family", "option"),
    [
        ("gpt2", "layer_norm_epsilon={}"),
        ("bert", "layer_norm_eps={}"),
        ("llama", "rms_norm_eps={}"),
        ("llama", 'rope_parameters={{"rope_theta": {}}}'),
        ("llama", 'rope_parameters={{"rope_theta": 10000.0, "factor": {}}}'),
    ],
)
def test_integers_larger_than_any_float_are_refused(
    family: str, option: str, tmp_path: Path
) -> None:
    folder = made.save(made.model(family), tmp_path)
    name, value = parse_option(option.format("9" * 400))
    with pytest.raises(CheckpointError, match="too large for a float"):
        Checkpoint(folder, options={name: value})


def test_settings_that_change_the_function_are_refused(tmp_path: Path) -> None:
    folder = made.save(made.model("gpt2"), tmp_path)
    with pytest.raises(CheckpointError, match="scale_attn_by_inverse_layer_idx=True"):
        Checkpoint(folder, options={"scale_attn_by_inverse_layer_idx": True})


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    folder = made.save(made.model("gpt2"), tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"says 'bert', the tensors' names say gpt2"):
        Checkpoint(folder, options={"model_type": "bert"})


@pytest.mark.parametrize(
    ("family", "cls", "hidden"),
    [
        ("gpt2", "GPT2LMHeadModel", False),
        ("gpt2", "GPT2Model", True),
        ("bert", "BertModel", True),
        ("bert", "BertForMaskedLM", False),
        ("vit", "ViTModel", True),
        ("llama", "LlamaModel", True),
        ("qwen2", "Qwen2ForCausalLM", False),
    ],
)
def test_whether_a_file_has_a_head(family: str, cls: str, hidden: bool, tmp_path: Path) -> None:
    with Checkpoint(made.save(made.model(family, cls=cls), tmp_path)) as checkpoint:
        assert checkpoint.gives_hidden_states is hidden
        assert checkpoint.unknown == []
