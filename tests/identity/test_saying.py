"""What two networks say on a witness is what the models of `transformers` say."""

from pathlib import Path

import pytest
import torch

from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import find_witness, what_both_say


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_choices_are_those_of_the_models(family: str, tmp_path: Path) -> None:
    models = [made.model(family, seed=seed) for seed in (0, 1)]
    for name, model in zip("ab", models, strict=True):
        made.save(model, tmp_path / name)
    with Checkpoint(tmp_path / "a") as ours, Checkpoint(tmp_path / "b") as theirs:
        witness = find_witness(ours, theirs, seed=0)
        said = what_both_say(ours, theirs, witness)
    assert said is not None
    assert said.words
    assert said.position is not None
    assert isinstance(witness.inputs, torch.Tensor)
    probabilities = [
        model.eval()(witness.inputs[None]).logits[0].detach().double().softmax(-1)
        for model in models
    ]
    for choice, given in zip((said.first, said.second), probabilities, strict=True):
        assert choice.output == int(given[said.position].argmax())
        assert choice.probability == pytest.approx(float(given[said.position].max()), rel=1e-4)
    apart = (probabilities[0] - probabilities[1]).abs().sum(-1)
    assert apart[said.position] == pytest.approx(float(apart.max()), rel=1e-3)


def test_hidden_states_are_no_choices(tmp_path: Path) -> None:
    from transformers import GPT2Model

    for name, seed in (("a", 0), ("b", 1)):
        body = made.model("gpt2", seed=seed).transformer
        assert isinstance(body, GPT2Model)
        made.save(body, tmp_path / name)
    with Checkpoint(tmp_path / "a") as ours, Checkpoint(tmp_path / "b") as theirs:
        witness = find_witness(ours, theirs, seed=0)
        assert what_both_say(ours, theirs, witness) is None


@pytest.mark.parametrize(
    ("cls", "changes", "chosen"),
    [
        ("BertForQuestionAnswering", {}, False),
        ("BertForSequenceClassification", {"num_labels": 3}, True),
        ("BertForSequenceClassification", {"num_labels": 1}, False),
        ("BertForSequenceClassification", {"num_labels": 3, "problem_type": "regression"}, False),
        (
            "BertForSequenceClassification",
            {"num_labels": 3, "problem_type": "multi_label_classification"},
            False,
        ),
        ("BertForTokenClassification", {"num_labels": 3}, True),
    ],
)
def test_only_what_is_chosen_is_a_choice(
    cls: str, changes: dict[str, object], chosen: bool, tmp_path: Path
) -> None:
    """Two scores of a token as start and end of an answer are no two probabilities."""
    for name, seed in (("a", 0), ("b", 1)):
        made.save(made.model("bert", seed, cls=cls, **changes), tmp_path / name)
    with Checkpoint(tmp_path / "a") as ours, Checkpoint(tmp_path / "b") as theirs:
        said = what_both_say(ours, theirs, find_witness(ours, theirs, seed=0))
    assert (said is not None) is chosen
    assert said is None or not said.words
    assert said is None or (said.position is None) == ("Token" not in cls)
