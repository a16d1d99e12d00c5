"""Certificates: what they hold, and that no other thing passes for one.

Each tensor of a certificate of each family is changed in many ways. What comes of it must be
refused, or compute the same function as before: a certificate can lie, but not about that.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint, CheckpointError, TensorFiles
from transformer_nfn.group import conditioned, relative_error
from transformer_nfn.identity import (
    ElementError,
    NetElement,
    apply_element,
    load_certificate,
    random_net_element,
    run,
    same,
    save_certificate,
    verify,
)
from transformer_nfn.identity.elements.table import element_from, element_table, element_tensors
from transformer_nfn.identity.running.witness import draw_inputs

#: Families, and members of them with something of their own.
NETS = {
    "gpt2": {},
    "gpt2 relu": {"activation_function": "relu"},
    "gpt2 classifier": {"cls": "GPT2ForSequenceClassification", "pad_token_id": 0},
    "bert": {},
    "bert states": {"cls": "BertModel"},
    "vit": {},
    "vit unbiased": {"qkv_bias": False},
    "llama": {},
    "qwen2": {},
    "paper": None,
    "residual": None,
}


def net(name: str, home: Path) -> Path:
    options = NETS[name]
    if options is None:
        return made.zoo_net(home / "a.safetensors", name)
    return made.save(made.model(name.split()[0], **options), home / "a", torch.float64)


def element_of(checkpoint: Checkpoint, seed: int = 0) -> NetElement:
    return random_net_element(checkpoint, torch.Generator().manual_seed(seed))


def outputs(path: Path, inputs: Tensor) -> Tensor:
    with Checkpoint(path) as checkpoint:
        found = run(checkpoint, inputs)
    return torch.cat([out.flatten() for out in found.values()])


def values(tensor: Tensor) -> Iterator[Tensor]:
    """Other numbers of the same shape."""
    if tensor.dtype == torch.bool:
        yield ~tensor
        return
    if tensor.dtype == torch.int64:
        yield torch.zeros_like(tensor)
        yield tensor + 1
        yield tensor.flip(-1)
        return
    generator = torch.Generator().manual_seed(0)
    yield tensor + 0.1 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    yield -tensor
    for number in (0.0, torch.nan, 1e30):
        changed = tensor.contiguous().clone()
        changed.view(-1)[0] = number
        yield changed


def not_finite(tensor: Tensor) -> Iterator[Tensor]:
    """What is refused everywhere."""
    yield from [tensor * torch.nan] if tensor.is_floating_point() else values(tensor)


@pytest.mark.parametrize("name", NETS)
def test_whatever_is_changed_is_refused_or_the_same_function(name: str, tmp_path: Path) -> None:
    start = net(name, tmp_path)
    refused, harmless = set(), set()
    with Checkpoint(start) as ours:
        inputs = draw_inputs(ours, ours, seed=0, count=4)
        wanted = outputs(start, inputs)
        sound = element_tensors(element_of(ours))
        # The last block as the first: one way is enough. Of the others every fifth in all ways,
        # for each network others.
        tampered = [
            (n, value)
            for place, (n, tensor) in enumerate(sound.items())
            for value in (
                islice(values(tensor), 1)
                if n.startswith(("block.1", "gauge.1"))
                else values(tensor)
                if (place + len(name)) % 5 == 0
                else not_finite(tensor)
            )
        ]
        for number, (field, value) in enumerate([("", torch.zeros(0)), *tampered]):
            element = element_from(sound | ({field: value} if field else {}), ours)
            out = tmp_path / f"out-{number}.safetensors"
            out = out if NETS[name] is None else out.with_suffix("")
            try:
                apply_element(ours, element, out)
            except ElementError:
                assert field, "the sound one"
                assert not out.exists()
                refused.add(field)
                continue
            harmless.add(field)
            # Zoo nets are stored in float32; what is laid over the weights costs digits there.
            limit = 1e-3 if NETS[name] is None else 1e-6
            assert relative_error(outputs(out, inputs), wanted) < limit, (field, value)
    # NaN at least is refused everywhere.
    first = {n for n in sound if not n.startswith(("block.1", "gauge.1"))}
    assert refused >= first - {"outside.untied"}
    assert len(harmless) > 2  # where there is a choice, another one is as good


@pytest.mark.parametrize("name", NETS)
def test_a_certificate_of_same_holds_and_another_shape_dtype_or_name_does_not_load(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, path = net(name, tmp_path), tmp_path / "g.safetensors"
    zoo = NETS[name] is None
    with Checkpoint(start) as ours:
        other = apply_element(ours, element_of(ours), tmp_path / f"b{'.safetensors' * zoo}")
    # Of half of the networks one way, of the others the other.
    one, two = (start, other) if list(NETS).index(name) % 2 else (other, start)
    with Checkpoint(one) as ours:
        with Checkpoint(two) as theirs:
            found = same(ours, theirs).element
            assert found is not None
            save_certificate(found, ours, theirs, path)
            checked = verify(path, ours, theirs, seed=0)
        assert checked.holds, checked.reason
        assert checked.residual is not None
        assert checked.residual < 5
        assert checked.agreement is not None
        assert checked.agreement.ratio < 2.5
        element, _ = load_certificate(path, ours)
        assert set(element_tensors(element)) <= set(element_table(ours))
        apply_element(ours, element, tmp_path / f"c{'.safetensors' * zoo}")
        sound, metadata = read(path)
        assert set(sound) == set(element_tensors(found))

        def forbidden(self: TensorFiles, name: str) -> Tensor:
            raise AssertionError(f"{name} was read before its shape was checked")

        monkeypatch.setattr(TensorFiles, "read", forbidden)
        for field, tensor in sound.items():
            wrong = [tensor.unsqueeze(0), tensor.float() if tensor.is_floating_point() else None]
            wrong += [tensor[:-1]] if tensor.dim() else []
            for value in wrong:
                if value is not None:
                    save_file(sound | {field: value.contiguous()}, path, metadata)
                    with pytest.raises(ElementError, match="should have shape"):
                        load_certificate(path, ours)
        for field in (
            "basis.99",
            "basis.x",
            "block.2.k",
            "gauge.0.ones.Z",
            "outside.ones.x",
            "new",
        ):
            save_file(sound | {field: torch.zeros(3).double()}, path, metadata)
            with pytest.raises(ElementError, match="no part of any symmetry"):
                load_certificate(path, ours)
        monkeypatch.undo()
        for field in ("block.0.v", "outside.untied"):
            save_file({n: t for n, t in sound.items() if n != field}, path, metadata)
            with pytest.raises(ElementError, match="not a sound certificate"):
                load_certificate(path, ours)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, "pt") as file:
        return load_file(path), file.metadata()


#: Fields that are no symmetry anywhere in that network.
NOWHERE = [
    ("bert states", "basis.0"),  # hidden states are the output
    ("residual", "basis.0"),  # fixed positions
    ("paper", "basis.0"),
    ("llama", "gauge.0.bias.K"),  # turns with the position
    ("llama", "gauge.0.bias.V"),  # there is no output bias
    ("llama", "gauge.0.ones.Q"),  # RMSNorm sees the mean
    ("llama", "outside.ones.model.embed_tokens.weight"),
    ("paper", "gauge.0.bias.K"),  # the file has no place for it
    ("paper", "gauge.0.ones.bO"),
    ("bert", "unseen"),  # has no setting for it
    ("gpt2", "hidden.order"),
    ("gpt2", "block.0.s"),  # GELU has no scales
]


@pytest.mark.parametrize(("name", "field"), NOWHERE, ids=" ".join)
def test_what_is_no_symmetry_there_is_in_no_table(name: str, field: str, tmp_path: Path) -> None:
    with Checkpoint(net(name, tmp_path)) as ours:
        assert field not in element_table(ours)


#: Values of the right kind that are no symmetry in this network, and what is said of them.
WRONG = [
    ("gpt2", "basis.0", lambda R: turned_ones(R), "moves the vector of ones"),
    ("gpt2", "basis.0", lambda R: R * 1.0001, "not orthogonal"),
    ("bert", "basis.0", lambda R: R * torch.tensor([1.0] * 23 + [-1.0]).double(), "one sign"),
    ("bert", "gauge.1.norm.0.scale", lambda x: x * 1.001, "has no choice"),
    ("bert", "outside.shift", lambda x: x + 0.001, "has no choice"),
    ("gpt2", "gauge.0.norm.1.scale", lambda x: x * 0, "gauge.0.norm.1.scale is not between"),
    ("gpt2", "outside.scale", lambda x: x * 0, "outside.scale is not between"),
    ("gpt2", "outside.shift", lambda x: x + 0.1, "changes the constant of lm_head"),
    ("gpt2", "outside.untied", lambda x: ~x, "needs one of its own"),
    ("vit", "outside.untied", lambda x: ~x, "nothing is tied"),
    ("vit unbiased", "gauge.0.norm.0.shift", lambda x: x + 0.1, "block 0, bQ"),
    ("vit unbiased", "gauge.0.ones.Q", lambda x: x + 0.1, "block 0, bQ"),
    ("vit unbiased", "gauge.0.bias.V", lambda x: x + 0.1, "block 0, bO"),
    ("llama", "gauge.0.norm.0.shift", lambda x: x + 0.1, "has no choice"),
    ("llama", "block.0.k", lambda c: c * 0, "the length of block.0.k"),
    ("llama", "block.0.s", lambda s: s * 0, "block.0.s is not between"),
    ("gpt2 relu", "block.0.s", lambda s: -s, "block.0.s is not positive"),
    ("paper", "gauge.0.norm.0.scale", lambda x: x * 2, "has no choice"),
    ("paper", "hidden.scale", lambda x: -x, "hidden.scale is not positive"),
    ("gpt2", "block.1.v", lambda G: almost_singular(G), "condition number"),
    ("gpt2", "gauge.0.ones.A", lambda x: x + 1e20, "leaves nothing of"),
]


def turned_ones(R: Tensor) -> Tensor:
    turn = torch.eye(len(R), dtype=torch.float64)
    turn[:2, :2] = torch.tensor([[0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
    return R @ turn


def almost_singular(G: Tensor) -> Tensor:
    u, s, vh = torch.linalg.svd(G)
    s[..., -1] = s[..., 0] * 1e-13
    return u @ torch.diag_embed(s) @ vh


@pytest.mark.parametrize(
    ("name", "field", "change", "message"), WRONG, ids=[f"{n} {f} {m}" for n, f, _, m in WRONG]
)
def test_the_reason_is_said(
    name: str, field: str, change: object, message: str, tmp_path: Path
) -> None:
    with Checkpoint(net(name, tmp_path)) as ours:
        tensors = element_tensors(element_of(ours))
        tensors[field] = change(tensors[field])  # type: ignore[operator]
        with pytest.raises(ElementError, match=message):
            apply_element(ours, element_from(tensors, ours), tmp_path / "b.safetensors")
    assert not list(tmp_path.glob("*b.safetensors*"))


def test_numbers_that_the_dtype_cannot_hold_are_not_written(tmp_path: Path) -> None:
    start = made.save(made.model("gpt2"), tmp_path / "a", torch.float16)
    with Checkpoint(start) as ours:
        tensors = element_tensors(element_of(ours))
        tensors["block.0.k"] = tensors["block.0.k"] * 1e9
        with pytest.raises(ElementError, match=r"NaN or infinite numbers in torch\.float16"):
            apply_element(ours, element_from(tensors, ours), tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_certificate_says_what_it_was_found_for(tmp_path: Path) -> None:
    start = net("gpt2", tmp_path)
    path = tmp_path / "g.safetensors"
    figures = {"answer": "equivalent", "seed": 7, "margin": 0.25, "worst": float("inf"), "no": None}
    with Checkpoint(start, options={"n_head": 3}) as ours, Checkpoint(start) as theirs:
        save_certificate(element_of(ours), ours, theirs, path, verdict=figures)
        _, terms = load_certificate(path, ours)
    _, metadata = read(path)
    weights = sha256((start / "model.safetensors").read_bytes()).hexdigest()
    config = sha256((start / "config.json").read_bytes()).hexdigest()
    assert json.loads(metadata["first"]) == {
        "config": config,
        "files": {"model.safetensors": weights},
        "options": '{"n_head":3}',
    }
    assert terms.first.difference(terms.second) is not None  # the option
    assert terms.verdict == {"answer": "equivalent", "seed": 7, "margin": 0.25, "worst": "inf"}
    assert set(terms.versions) == {"package", "torch"}
    assert terms.metadata() == metadata
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", "x", "is no certificate"),
        ("version", "1", "of version '1', not '2'"),
        ("first", "{", "no readable JSON"),
        ("first", '{"files":{"a":"XY"},"config":null,"options":"{}"}', "no SHA-256"),
        ("second", '{"files":[],"config":null,"options":"{}"}', "a table of files"),
        ("verdict", '{"a":[]}', "text and numbers"),
        ("torch", None, "'torch' in its metadata"),
        ("more", "x", "'more' in its metadata"),
        ("family", "bert", "is no certificate for"),
        ("sizes", "{}", "is no certificate for"),
    ],
)
def test_metadata_is_checked(key: str, value: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "g.safetensors"
    with Checkpoint(net("gpt2", tmp_path)) as ours:
        save_certificate(element_of(ours), ours, ours, path)
        tensors, metadata = read(path)
        changed = metadata | {key: value}
        save_file(tensors, path, {n: v for n, v in changed.items() if v is not None})
        with pytest.raises(CheckpointError, match=message):
            load_certificate(path, ours)


def test_a_small_certificate_takes_little_memory(tmp_path: Path) -> None:
    """A basis of one column would be squared to 11,000 × 11,000 numbers, 968 MB."""
    start, path = net("gpt2", tmp_path), tmp_path / "g.safetensors"
    with Checkpoint(start) as ours:
        save_certificate(element_of(ours), ours, ours, path)
    tensors, metadata = read(path)
    save_file(tensors | {"basis.0": torch.ones(11_000, 1).double()}, path, metadata)
    code = """
import resource, sys
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import ElementError, load_certificate
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with Checkpoint(sys.argv[1]) as ours:
    try:
        load_certificate(sys.argv[2], ours)
    except ElementError:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    command = [sys.executable, "-c", code, str(start), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert int(done.stdout) < 50_000  # kB


def test_save_refuses_what_is_no_symmetry(tmp_path: Path) -> None:
    path = tmp_path / "g.safetensors"
    with Checkpoint(net("gpt2", tmp_path)) as ours:
        tensors = element_tensors(element_of(ours))
        tensors["block.0.h"] = torch.tensor([0, 0, 1])
        with pytest.raises(ElementError, match="not a permutation"):
            save_certificate(element_from(tensors, ours), ours, ours, path)
    assert not path.exists()


def test_layer_norms_that_became_rms_norms(tmp_path: Path) -> None:
    from tests.identity.test_verdict import rotated_gpt2

    start = made.save(made.model("gpt2"), tmp_path / "a")
    R = conditioned(1.0)((), 24, torch.Generator().manual_seed(0))
    other = shutil.copytree(start, tmp_path / "b")
    tensors = rotated_gpt2(load_file(start / "model.safetensors"), R)
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    options = {"tie_word_embeddings": False, "norm": "rms"}
    path = tmp_path / "g.safetensors"
    with Checkpoint(start) as ours, Checkpoint(other, options=options) as theirs:
        found = same(ours, theirs).element
        assert found is not None
        save_certificate(found, ours, theirs, path)
        assert verify(path, ours, theirs).holds
        sound = element_tensors(found)
        wte = "outside.ones.transformer.wte.weight"
        for field, value, message in (
            ("unseen", sound["unseen"] + 0.01, "unseen has no choice"),
            ("unseen", None, "moves the vector of ones"),
            (wte, sound[wte] + 0.01, "an RMSNorm sees the mean"),
            (wte, None, "an RMSNorm sees the mean"),
            ("gauge.0.ones.B", torch.ones(40).double(), "block 0, B: the element makes another"),
            ("gauge.1", None, "there is no gauge.1"),
            ("outside", None, "no gauge outside the blocks"),
        ):
            changed = {
                n: t for n, t in sound.items() if value is not None or not n.startswith(field)
            }
            changed |= {} if value is None else {field: value}
            with pytest.raises(ElementError, match=message):
                apply_element(ours, element_from(changed, ours), tmp_path / "c")
