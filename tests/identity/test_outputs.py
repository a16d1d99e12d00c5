"""What counts as the output of a file, and which symmetries that leaves."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.group import relative_error
from transformer_nfn.identity import (
    Answer,
    Verdict,
    apply_element,
    random_net_element,
    same,
    symmetry_parts,
)
from transformer_nfn.identity.running import witness as witness_room

#: Models of BERT, their outputs in `transformers`, and whether the stream's basis is free.
BERT: dict[str, tuple[tuple[str, ...], bool]] = {
    "BertForSequenceClassification": (("logits",), True),
    "BertForTokenClassification": (("logits",), True),
    "BertForNextSentencePrediction": (("logits",), True),
    "BertForPreTraining": (("prediction_logits", "seq_relationship_logits"), True),
    "BertForQuestionAnswering": (("start_logits", "end_logits"), True),
    "BertForMaskedLM": (("logits",), True),
    "BertModel": (("last_hidden_state", "pooler_output"), False),
}


def saved(folder: Path, cls: str, **changes: Any) -> Path:
    labels = 2 if cls == "BertForQuestionAnswering" else 3
    changes = {"num_hidden_layers": 1, **changes}  # what is after the last block counts
    return made.save(made.model("bert", cls=cls, num_labels=labels, **changes), folder)


@torch.no_grad()
def outputs(folder: Path, names: tuple[str, ...]) -> list[Tensor]:
    net = made.load(folder, torch.float64)
    given = net(**made.inputs("bert"))
    return [given[name] for name in names]


def decide(a: Path, b: Path) -> Verdict:
    with Checkpoint(a) as ours, Checkpoint(b) as theirs:
        return same(ours, theirs)


def rewrite(folder: Path, out: Path, **changes: Tensor) -> Path:
    """The same files with some tensors changed."""
    out.mkdir()
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | changes, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text((folder / "config.json").read_text())
    return out


@pytest.mark.parametrize("cls", BERT)
def test_a_permuted_stream_is_the_same_function_where_heads_read_it(
    cls: str, tmp_path: Path
) -> None:
    names, free = BERT[cls]
    a = saved(tmp_path / "a", cls)
    with Checkpoint(a) as checkpoint:
        assert ("basis" in symmetry_parts(checkpoint)) is free
        assert checkpoint.gives_hidden_states is not free
        assert checkpoint.unknown == []
        if not free:
            return
        element = random_net_element(checkpoint, torch.Generator().manual_seed(1), parts=["basis"])
        b = apply_element(checkpoint, element, tmp_path / "b")
    for one, two in zip(outputs(a, names), outputs(b, names), strict=True):
        assert relative_error(one, two) < 1e-5
    assert decide(a, b).answer is Answer.EQUIVALENT


@pytest.mark.parametrize(
    ("cls", "weight"),
    [
        ("BertForSequenceClassification", "classifier.weight"),
        ("BertForSequenceClassification", "bert.pooler.dense.weight"),
        ("BertForTokenClassification", "classifier.weight"),
        ("BertForNextSentencePrediction", "cls.seq_relationship.weight"),
        ("BertForPreTraining", "cls.seq_relationship.weight"),
    ],
)
def test_another_head_is_another_function(cls: str, weight: str, tmp_path: Path) -> None:
    a = saved(tmp_path / "a", cls)
    stored = load_file(a / "model.safetensors")[weight]
    b = rewrite(a, tmp_path / "b", **{weight: stored + 0.1 * torch.ones_like(stored)})
    names = BERT[cls][0]
    pairs = zip(outputs(a, names), outputs(b, names), strict=True)
    assert max(relative_error(one, two) for one, two in pairs) > 0.01
    verdict = decide(a, b)
    assert verdict.answer is Answer.DIFFERENT
    assert verdict.where is not None
    assert weight.partition(".weight")[0] in verdict.where


def test_a_stream_permuted_without_its_classifier_is_another_function(tmp_path: Path) -> None:
    """A classifier of tokens reads the stream: the basis must not move without it."""
    a = saved(tmp_path / "a", "BertForTokenClassification")
    with Checkpoint(a) as checkpoint:
        element = random_net_element(checkpoint, torch.Generator().manual_seed(1), parts=["basis"])
        b = apply_element(checkpoint, element, tmp_path / "b")
    stored = load_file(a / "model.safetensors")["classifier.weight"]
    c = rewrite(b, tmp_path / "c", **{"classifier.weight": stored})
    assert decide(a, c).answer is Answer.DIFFERENT


def test_pooled_units_in_another_order_are_not_called_different(tmp_path: Path) -> None:
    """They are read by the classifier alone; that we do not find this symmetry is no difference."""
    a = saved(tmp_path / "a", "BertForSequenceClassification")
    tensors = load_file(a / "model.safetensors")
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    names = ["bert.pooler.dense.weight", "bert.pooler.dense.bias"]
    moved = {name: tensors[name][order].contiguous() for name in names}
    moved["classifier.weight"] = tensors["classifier.weight"][:, order].contiguous()
    b = rewrite(a, tmp_path / "b", **moved)
    assert decide(a, b).answer is Answer.UNDECIDED


@pytest.mark.parametrize(
    ("architectures", "hidden", "head", "pooled"),
    [
        (["BertForSequenceClassification"], False, False, True),
        (["BertForMultipleChoice"], False, False, True),
        (["BertForTokenClassification"], False, True, False),
        (["BertModel"], True, False, True),
        (None, False, False, True),
    ],
)
def test_architectures_say_what_a_classifier_reads(
    architectures: list[str] | None, hidden: bool, head: bool, pooled: bool, tmp_path: Path
) -> None:
    folder = saved(tmp_path, "BertForSequenceClassification")
    with Checkpoint(folder, options={"architectures": architectures}) as checkpoint:
        assert checkpoint.gives_hidden_states is hidden
        assert ("classifier" in checkpoint.heads) is head
        assert ("classifier" in checkpoint.pooled_heads) is pooled


def test_a_classifier_that_reads_other_things_is_not_compared(tmp_path: Path) -> None:
    a = saved(tmp_path / "a", "BertForSequenceClassification")
    b = rewrite(a, tmp_path / "b")
    config = json.loads((b / "config.json").read_text())
    config["architectures"] = ["BertForTokenClassification"]
    (b / "config.json").write_text(json.dumps(config))
    assert decide(a, b).answer is Answer.UNDECIDED
    config["architectures"] = ["BertModel"]
    (b / "config.json").write_text(json.dumps(config))
    assert decide(a, b).answer is Answer.UNDECIDED


def test_a_classifier_without_its_pooler_keeps_the_basis(tmp_path: Path) -> None:
    folder = saved(tmp_path, "BertForSequenceClassification")
    file = folder / "model.safetensors"
    kept = {n: t for n, t in load_file(file).items() if "pooler" not in n}
    save_file(kept, file, {"format": "pt"})
    with Checkpoint(folder) as checkpoint:
        assert checkpoint.unknown == ["classifier.bias", "classifier.weight"]
        assert "basis" not in symmetry_parts(checkpoint)


def test_of_a_large_vocabulary_no_more_is_kept_than_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One word's output differs: it is among those that are looked at, however few these are."""
    a = made.save(made.model("llama", vocab_size=400), tmp_path / "a")
    with Checkpoint(a) as ours:
        head = ours.files.read("lm_head.weight").clone()
        head[377] *= 1.2
        rewrite(a, tmp_path / "b", **{"lm_head.weight": head})
        monkeypatch.setattr(witness_room, "NUMBERS", 2**18)
        sizes = []
        seen = witness_room.some_outputs

        def watched(*given: Any) -> dict[str, Tensor]:
            found = seen(*given)
            sizes.append(max(out.numel() for out in found.values()))
            return found

        monkeypatch.setattr(witness_room, "some_outputs", watched)
        with Checkpoint(tmp_path / "b") as theirs:
            verdict = same(ours, theirs, seed=0)
    assert verdict.answer is Answer.DIFFERENT
    assert max(sizes) <= 2**18
