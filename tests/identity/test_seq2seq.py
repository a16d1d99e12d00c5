"""An encoder and a decoder that reads what it made: T5, plain and gated."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.families import function_error, moved, relative
from benchmarks.material.families import exact, inputs, load, make, outputs
from transformer_nfn.checkpoints import Checkpoint, CheckpointError, rewrite
from transformer_nfn.identity import (
    apply_element,
    load_certificate,
    same,
    save_certificate,
    symmetry_parts,
)
from transformer_nfn.kinship import distance, fingerprint

GATED = {"feed_forward_proj": "gated-gelu"}
UNTIED = {"tie_word_embeddings": False}
TABLE = "{}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def changed_in_one_number(checkpoint: Checkpoint, home: Path) -> Iterator[tuple[str, Path]]:
    """Files of which one tensor each is another, of the first blocks and outside of them."""
    for name in checkpoint.files:
        if any(f".block.{number}." in name for number in (1, 2)):
            continue
        value = checkpoint.files.read(name).clone()
        value.view(-1)[-1] *= 1.5
        yield name, rewrite(checkpoint, [(name, value)], home / name)


@pytest.mark.parametrize("changes", [{}, GATED, UNTIED, {**GATED, **UNTIED}])
def test_its_function(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = make("t5", tmp_path, **changes)
    given = inputs(folder)
    assert function_error(folder, given, outputs(exact(load(folder)), given)) < 1e-12


def test_every_symmetry_of_both(tmp_path: Path) -> None:
    folder = make("t5", tmp_path / "a", **GATED)
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


def test_every_number_of_both_counts(tmp_path: Path) -> None:
    """Also those that no input of 64 tokens reaches: biases of distances beyond 64."""
    folder = make("t5", tmp_path / "a", dtype=torch.float32)
    with Checkpoint(folder) as ours:
        known = fingerprint(ours)
        for name, changed in changed_in_one_number(ours, tmp_path):
            with Checkpoint(changed) as theirs:
                assert not same(ours, theirs, seed=0, search=False).answer.same_function, name
                assert distance(known, fingerprint(theirs)).largest > 1e-5, name


def test_a_certificate_carries_both(tmp_path: Path) -> None:
    folder = make("t5", tmp_path / "a", dtype=torch.float32)
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
    folder = make("t5", tmp_path / "a", dtype=torch.float32)
    with Checkpoint(folder) as ours:
        turned = ours.files.read(TABLE.format(network)).roll(1, dims=1)
        rewrite(ours, [(TABLE.format(network), turned)], tmp_path / "b")
        with Checkpoint(tmp_path / "b") as theirs:
            assert same(ours, theirs, seed=0).answer.value == "different"


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_decoder_layers", 2), ("num_layers", 3), ("feed_forward_proj", "gelu-relu-x"),
     ("relative_attention_max_distance", 64), ("is_encoder_decoder", False), ("is_decoder", True),
     ("d_kv", 5), ("hidden_size", 25)],
)  # fmt: skip
def test_settings_that_mean_another_network_are_refused(
    key: str, value: object, tmp_path: Path
) -> None:
    file = make("t5", tmp_path) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with pytest.raises(CheckpointError, match=key), Checkpoint(tmp_path):
        pass
