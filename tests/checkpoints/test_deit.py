"""DeiT is a table and nothing else: two tokens before the patches, heads that read one each."""

from pathlib import Path

import pytest
import torch
import transformers

from tests.checkpoints import made
from transformer_nfn.checkpoints import FAMILIES, Checkpoint
from transformer_nfn.identity import Answer, apply_element, random_net_element, run, same

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 12,
    "patch_size": 4,
    "num_labels": 5,
}
HEADS = {
    "DeiTModel": ("hidden",),
    "DeiTForImageClassification": ("classifier",),
    "DeiTForImageClassificationWithTeacher": ("cls_classifier", "distillation_classifier"),
}


def deit(kind: str, folder: Path) -> Path:
    torch.manual_seed(0)
    net = getattr(transformers, kind)(transformers.DeiTConfig(**SIZES)).eval()
    with torch.no_grad():
        for name, value in net.named_parameters():
            value.copy_(torch.randn_like(value) * 0.3 + ("norm" in name and "weight" in name))
    return made.save(net, folder)


@pytest.mark.parametrize("kind", HEADS)
def test_it_is_read_as_transformers_reads_it(kind: str, tmp_path: Path) -> None:
    folder = deit(kind, tmp_path)
    images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    with Checkpoint(folder) as checkpoint, torch.no_grad():
        assert checkpoint.family is FAMILIES["deit"]
        assert not checkpoint.unknown
        found = run(checkpoint, images)
        net = made.load(folder, torch.float64)
        given = net(images.double())
    wanted = given["last_hidden_state"] if kind == "DeiTModel" else given["logits"]
    mean = torch.stack([found[head] for head in HEADS[kind]]).mean(dim=0)
    assert (mean - wanted).abs().max() < 1e-12 * wanted.abs().max()


def test_moved_it_is_the_same_and_without_its_token_another(tmp_path: Path) -> None:
    folder = deit("DeiTForImageClassificationWithTeacher", tmp_path / "a")
    with Checkpoint(folder) as ours:
        element = random_net_element(ours, torch.Generator().manual_seed(1), condition=5.0)
        with Checkpoint(apply_element(ours, element, tmp_path / "b")) as theirs:
            assert same(ours, theirs).answer is Answer.EQUIVALENT
    with torch.no_grad():
        net = made.load(folder)
        net.deit.embeddings.distillation_token[0, 0, 3] += 0.05
    with Checkpoint(folder) as ours, Checkpoint(made.save(net, tmp_path / "c")) as theirs:
        assert same(ours, theirs).answer is Answer.DIFFERENT
