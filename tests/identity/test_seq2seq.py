"""An encoder and a decoder that reads what it made: T5, plain and gated, and Whisper."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.material.families import exact, inputs, load, make, outputs
from benchmarks.same.families import function_error, moved, relative
from transformer_nfn.checkpoints import Checkpoint, CheckpointError, rewrite
from transformer_nfn.identity import (
    ElementError,
    apply_element,
    load_certificate,
    same,
    save_certificate,
    symmetry_parts,
)
from transformer_nfn.identity.elements.element import NetElement, Outside
from transformer_nfn.kinship import distance, fingerprint

GATED = {"feed_forward_proj": "gated-gelu"}
UNTIED = {"tie_word_embeddings": False}
TABLE = "{}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"


#: As small as each can be with all that it has: one block of each network.
ONE_BLOCK = {
    "t5": {
        "num_layers": 1, "num_decoder_layers": 1,
        "d_model": 12, "d_ff": 20, "d_kv": 3, "num_heads": 4, "vocab_size": 30,
    },
    "whisper": {
        "encoder_layers": 1, "decoder_layers": 1, "d_model": 12, "encoder_attention_heads": 2,
        "decoder_attention_heads": 3, "encoder_ffn_dim": 20, "decoder_ffn_dim": 16,
        "vocab_size": 30, "max_target_positions": 40,
    },
}  # fmt: skip


def changed_in_one_number(checkpoint: Checkpoint, home: Path) -> Iterator[tuple[str, Path]]:
    """Files of which one tensor each is another."""
    for name in checkpoint.files:
        value = checkpoint.files.read(name).clone()
        value.view(-1)[-1] *= 1.5
        yield name, rewrite(checkpoint, [(name, value)], home / name)


@pytest.mark.parametrize(
    ("name", "changes"),
    [("t5", {}), ("t5", GATED), ("t5", UNTIED), ("t5", {**GATED, **UNTIED}), ("whisper", {}),
     ("whisper", UNTIED), ("whisper", {"activation_function": "relu", "scale_embedding": True})],
)  # fmt: skip
def test_its_function(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    folder = make(name, tmp_path, **changes)
    given = inputs(folder)
    assert function_error(folder, given, outputs(exact(load(folder)), given)) < 1e-12


@pytest.mark.parametrize(("name", "changes"), [("t5", GATED), ("whisper", {})])
def test_every_symmetry_of_both(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    folder = make(name, tmp_path / "a", **changes, **ONE_BLOCK[name])
    given = inputs(folder)
    before = outputs(exact(load(folder)), given)
    with Checkpoint(folder) as checkpoint:
        parts = symmetry_parts(checkpoint)
        assert {"heads", "qk", "vo", "neurons", "norms", "basis"} <= set(parts)
        for part in parts:
            other = moved(folder, tmp_path / part, 1, parts=[part])
            assert relative(outputs(exact(load(other)), given), before) < 1e-12, part
            with Checkpoint(other) as theirs:
                assert same(checkpoint, theirs, seed=0).answer.value == "equivalent", part


@pytest.mark.parametrize("kind", ["t5", "whisper"])
def test_every_number_of_both_counts(kind: str, tmp_path: Path) -> None:
    """Also those that no input of 64 tokens reaches: biases of distances beyond 64."""
    folder = make(kind, tmp_path / "a", dtype=torch.float32, **ONE_BLOCK[kind])
    with Checkpoint(folder) as ours:
        known = fingerprint(ours)
        for name, changed in changed_in_one_number(ours, tmp_path):
            with Checkpoint(changed) as theirs:
                assert not same(ours, theirs, seed=0, search=False).answer.same_function, name
                assert distance(known, fingerprint(theirs)).largest > 1e-5, name


@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_a_certificate_carries_both(name: str, tmp_path: Path) -> None:
    folder = make(name, tmp_path / "a", dtype=torch.float32, **ONE_BLOCK[name])
    other = moved(folder, tmp_path / "b", 1)
    with Checkpoint(folder) as ours, Checkpoint(other) as theirs:
        verdict = same(ours, theirs, seed=0)
        assert verdict.element is not None
        save_certificate(verdict.element, ours, theirs, tmp_path / "c.safetensors")
        element, _ = load_certificate(tmp_path / "c.safetensors", ours)
        again = apply_element(ours, element, tmp_path / "again")
    given = inputs(folder)
    one, two = (outputs(load(path, torch.float32), given) for path in (other, again))
    assert relative(one, two) < 1e-4


@pytest.mark.parametrize("network", ["encoder", "decoder"])
def test_biases_of_distances_hold_the_order_of_heads(network: str, tmp_path: Path) -> None:
    folder = make("t5", tmp_path / "a", dtype=torch.float32, **ONE_BLOCK["t5"])
    with Checkpoint(folder) as ours:
        turned = ours.files.read(TABLE.format(network)).roll(1, dims=1)
        rewrite(ours, [(TABLE.format(network), turned)], tmp_path / "b")
        with Checkpoint(tmp_path / "b") as theirs:
            assert same(ours, theirs, seed=0).answer.value == "different"


def stated(folder: Path, **changes: Any) -> Path:
    """The folder with another config.json; None takes a key away."""
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_decoder_layers", 2), ("num_decoder_layers", 0), ("num_layers", 3),
     ("feed_forward_proj", "gelu-relu-x"), ("is_gated_act", True), ("dense_act_fn", 1),
     ("relative_attention_max_distance", 64), ("is_encoder_decoder", False), ("is_decoder", True),
     ("d_kv", 5), ("hidden_size", 25), ("is_causal", True), ("is_causal", False),
     ("attribute_map", {}),
     ("relative_attention_num_buckets", 31)],
)  # fmt: skip
def test_settings_that_mean_another_network_are_refused(
    key: str, value: object, tmp_path: Path
) -> None:
    stated(make("t5", tmp_path), **{key: value})
    with pytest.raises(CheckpointError, match=key), Checkpoint(tmp_path):
        pass


@pytest.mark.parametrize(
    ("key", "value"),
    [("encoder_layers", 3), ("decoder_layers", 2), ("encoder_attention_heads", 5),
     ("encoder_ffn_dim", 32), ("num_mel_bins", 6), ("max_source_positions", 13), ("d_model", 25),
     ("is_encoder_decoder", False), ("is_causal", True), ("use_weighted_layer_sum", True),
     ("num_key_value_heads", 4),
     ("architectures", ["WhisperForAudioClassification"]), ("architectures", ["WhisperModel"])],
)  # fmt: skip
def test_settings_that_mean_another_whisper_are_refused(
    key: str, value: object, tmp_path: Path
) -> None:
    stated(make("whisper", tmp_path), **{key: value})
    with pytest.raises(CheckpointError, match=f"{key}|Whisper|heads"), Checkpoint(tmp_path):
        pass


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("encoder_attention_heads", 4),
        ("decoder_attention_heads", 3),
        ("activation_function", "relu"),
    ],
)
def test_settings_of_one_network_alone_are_another_function(
    key: str, value: object, tmp_path: Path
) -> None:
    ours = make("whisper", tmp_path / "a")
    theirs = stated(make("whisper", tmp_path / "b"), **{key: value})
    with Checkpoint(ours) as a, Checkpoint(theirs) as b:
        assert same(a, b, seed=0).answer.value == "different"


@pytest.mark.parametrize(
    ("name", "shape"),
    [("conv1.weight", (24, 5, 5)), ("conv2.weight", (24, 23, 3)), ("conv2.bias", (23,)),
     ("conv1.weight", (24,)), ("conv1.bias", None)],
)  # fmt: skip
def test_convolutions_of_other_shapes_are_refused(
    name: str, shape: tuple[int, ...] | None, tmp_path: Path
) -> None:
    file = make("whisper", tmp_path) / "model.safetensors"
    tensors = load_file(file)
    del tensors[f"model.encoder.{name}"]
    tensors |= {f"model.encoder.{name}": torch.ones(shape)} if shape else {}
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match="conv"), Checkpoint(tmp_path):
        pass


def test_the_stream_of_whisper_s_encoder_is_fixed(tmp_path: Path) -> None:
    """An activation writes it: what would be its basis elsewhere is refused."""
    with Checkpoint(make("whisper", tmp_path / "a")) as ours:
        inner = ours.encoder
        assert inner is not None
        turned = replace(
            NetElement.identity(inner.spec, inner.blocks),
            bases={0: torch.eye(24).roll(1, 0).double()},
        )
        element = replace(NetElement.identity(ours.spec, ours.blocks), encoder=turned)
        with pytest.raises(ElementError, match="no part of any symmetry"):
            apply_element(ours, element, tmp_path / "b")


def test_another_order_of_whisper_s_channels_is_never_called_different(tmp_path: Path) -> None:
    """It is the same function, but that order is not looked for."""
    with Checkpoint(make("whisper", tmp_path / "a", **ONE_BLOCK["whisper"])) as ours:
        first, second = (f"model.encoder.conv{number}" for number in (1, 2))
        read = ours.files.read
        values = [
            (f"{first}.weight", read(f"{first}.weight").roll(1, 0)),
            (f"{first}.bias", read(f"{first}.bias").roll(1, 0)),
            (f"{second}.weight", read(f"{second}.weight").roll(1, 1)),
        ]
        with Checkpoint(rewrite(ours, values, tmp_path / "b")) as theirs:
            assert same(ours, theirs, seed=0).answer.value == "not decided"


@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_a_key_that_says_null_is_not_absent(name: str, tmp_path: Path) -> None:
    file = make(name, tmp_path) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "is_causal": None}))
    with pytest.raises(CheckpointError, match="is_causal=None; remove"), Checkpoint(tmp_path):
        pass


@pytest.mark.parametrize(
    "model", ["T5ForSequenceClassification", "T5ForQuestionAnswering", "T5Model", "T5EncoderModel"]
)
def test_classes_that_make_other_inputs_or_outputs_are_refused(model: str, tmp_path: Path) -> None:
    stated(make("t5", tmp_path), architectures=[model])
    with pytest.raises(CheckpointError, match=model), Checkpoint(tmp_path):
        pass


def test_what_was_derived_and_stored_comes_before_the_word(tmp_path: Path) -> None:
    one = ONE_BLOCK["t5"]
    ours = make("t5", tmp_path / "a", **one)
    theirs = stated(make("t5", tmp_path / "b", **one), dense_act_fn="gelu")
    made = make("t5", tmp_path / "c", **one)
    other_word = stated(made, feed_forward_proj="gelu", dense_act_fn="relu")
    with Checkpoint(ours) as a, Checkpoint(theirs) as b, Checkpoint(other_word) as c:
        assert same(a, b, seed=0).answer.value == "different"
        assert same(a, c, seed=0).answer.value == "identical bytes"
    made = make("t5", tmp_path / "d", **one)
    gated = stated(made, feed_forward_proj="gated-relu", is_gated_act=None)
    with pytest.raises(CheckpointError, match="is_gated_act"), Checkpoint(gated):
        pass


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_encoder_with_a_block_more_is_another(order: tuple[int, int], tmp_path: Path) -> None:
    """Even one that writes nothing: a rare word could wake it."""
    ours = make("t5", tmp_path / "a", dtype=torch.float32)
    theirs = make("t5", tmp_path / "b", dtype=torch.float32, num_layers=3)
    longer = load_file(theirs / "model.safetensors")
    longer |= load_file(ours / "model.safetensors")
    for name, value in longer.items():
        if name.startswith("encoder.block.2.") and name.endswith(("o.weight", "wo.weight")):
            value.zero_()
    save_file(longer, theirs / "model.safetensors", {"format": "pt"})
    pair = [ours, theirs]
    with Checkpoint(pair[order[0]]) as a, Checkpoint(pair[order[1]]) as b:
        assert not same(a, b, seed=0, search=False).answer.same_function


@pytest.mark.parametrize(
    "name",
    ["encoder.block.1.layer.1.DenseReluDense.wi", "decoder.block.0.layer.1.EncDecAttention.o"],
)
def test_biases_that_it_has_no_place_for_are_refused(name: str, tmp_path: Path) -> None:
    file = make("t5", tmp_path) / "model.safetensors"
    tensors = load_file(file)
    tensors[f"{name}.bias"] = torch.full((len(tensors[f"{name}.weight"]),), -1e6)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match="no place"), Checkpoint(tmp_path):
        pass


@pytest.mark.parametrize("network", ["encoder", "decoder"])
@pytest.mark.parametrize("shape", [(2, 4), (32, 3), (32,)])
def test_tables_of_distances_have_a_column_for_each_head(
    network: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    file = make("t5", tmp_path) / "model.safetensors"
    tensors = load_file(file)
    tensors[TABLE.format(network)] = torch.ones(shape)
    save_file(tensors, file, {"format": "pt"})
    stated(tmp_path, relative_attention_num_buckets=shape[0])
    with pytest.raises(CheckpointError, match="relative_attention"), Checkpoint(tmp_path):
        pass


def test_what_the_encoder_s_last_norm_takes_away_its_readers_get(tmp_path: Path) -> None:
    """A certificate of nothing but that norm: applied, it is the same function."""
    folder = make("t5", tmp_path / "a", dtype=torch.float32)
    with Checkpoint(folder) as ours:
        identity = NetElement.identity(ours.spec, ours.blocks)
        inner = ours.encoder
        assert inner is not None
        scale, shift = inner.norm(inner.last_norm)
        outside = Outside((3.0 * scale, shift), {}, False)
        encoder = replace(NetElement.identity(inner.spec, inner.blocks), outside=outside)
        apply_element(ours, replace(identity, encoder=encoder), tmp_path / "b")
    given = inputs(folder)
    one, two = (outputs(load(tmp_path / name, torch.float32), given) for name in ("a", "b"))
    assert relative(one, two) < 1e-5


def test_a_stream_beyond_the_stored_dtype_is_not_decided(tmp_path: Path) -> None:
    """T5 clamps it to what float16 can hold, coordinate by coordinate: so a basis counts."""
    file = make("t5", tmp_path / "a", dtype=torch.float32, **ONE_BLOCK["t5"]) / "model.safetensors"
    tensors = {
        name: (value * (4e4 if name.endswith(".o.weight") else 1)).half()
        for name, value in load_file(file).items()
    }
    save_file(tensors, file, {"format": "pt"})
    stated(tmp_path / "a", dtype="float16")
    other = moved(tmp_path / "a", tmp_path / "b", 1, parts=["neurons"])
    with Checkpoint(tmp_path / "a") as a, Checkpoint(other) as b:
        verdict = same(a, b, seed=0)
    assert verdict.answer.value == "not decided"
    assert "beyond all that the stored dtype" in verdict.reason
