from pathlib import Path

import pytest
import torch

from tests.checkpoints import made
from tests.kinship.test_dedup import disguise
from tests.kinship.test_distances import made_up, near
from transformer_nfn.checkpoints import CheckpointError
from transformer_nfn.kinship import Fingerprint, audit_series, find_checkpoints, fingerprints


def train(home: Path, steps: int = 8) -> None:
    """A GPT-2 trained for real on random sequences, a checkpoint every 3 steps."""
    net = made.model("gpt2")
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for step in range(1, 3 * steps + 1):
        batch = made.inputs("gpt2", seed=step)["input_ids"]
        loss = net(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 3 == 0:
            made.save(net, home / f"checkpoint-{100 * step // 3}")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("run")
    train(home, 12)
    return home


def prints_of(home: Path) -> list[Fingerprint]:
    prints, broken, _ = fingerprints(find_checkpoints(home))
    assert not broken
    return prints


def test_a_sound_run_is_sound(run: Path) -> None:
    prints = prints_of(run)
    order = [Path(one.path).parent.name for one in prints]
    assert order == [f"checkpoint-{100 * i}" for i in range(1, 13)]
    found = audit_series(prints)
    assert found.sound
    assert not any(step.finding for step in found.steps)
    assert found.steps[0].moved is None
    assert found.usual > 0


def test_a_disguised_duplicate_and_a_foreign_step_are_found(run: Path, tmp_path: Path) -> None:
    prints = prints_of(run)
    disguised = disguise(run / "checkpoint-300", tmp_path / "disguised")
    foreign = made.save(made.model("gpt2", seed=5), tmp_path / "foreign")
    (copy, stranger), *_ = fingerprints([disguised, foreign])
    found = audit_series([*prints[:6], copy, *prints[6:9], stranger, *prints[9:]])
    findings = {number: step.finding for number, step in enumerate(found.steps) if step.finding}
    assert findings == {6: "duplicate", 10: "foreign"}
    assert found.steps[6].of == prints[2].path
    assert not found.sound


def test_two_foreign_steps_in_a_row_and_one_at_the_end(run: Path, tmp_path: Path) -> None:
    prints = prints_of(run)
    train_other = made.model("gpt2", seed=5)
    one = made.save(train_other, tmp_path / "one")
    with torch.no_grad():
        for value in train_other.parameters():
            value.mul_(
                1 + 0.01 * torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
            )
    two = made.save(train_other, tmp_path / "two")
    last = made.save(made.model("gpt2", seed=6), tmp_path / "last")
    (a, b, c), *_ = fingerprints([one, two, last])
    found = audit_series([*prints[:5], a, b, *prints[5:], c])
    findings = {number: step.finding for number, step in enumerate(found.steps) if step.finding}
    assert findings == {5: "foreign", 6: "foreign", 14: "foreign"}


def test_another_shape_is_foreign(run: Path, tmp_path: Path) -> None:
    prints = prints_of(run)
    (other,), *_ = fingerprints([made.save(made.model("bert"), tmp_path / "bert")])
    found = audit_series([other, *prints])
    assert found.steps[0].finding == "foreign"
    assert found.steps[1].moved is None
    assert audit_series([*prints[:3], other, *prints[3:]]).steps[3].finding == "foreign"


def test_a_large_first_step_is_a_jump_and_sound() -> None:
    walk = [made_up(0)]
    for number in range(8):
        walk.append(near(walk[-1], 0.02, seed=number))
    found = audit_series([made_up(9), *walk])
    assert [step.finding for step in found.steps] == ["jump", *[None] * 9]
    assert found.sound


def test_small_steps_in_coarse_dtypes_are_no_duplicates() -> None:
    walk = [made_up(0, "bfloat16")]
    for number in range(8):
        walk.append(near(walk[-1], 0.01, seed=number))  # below the limit of a copy
    assert audit_series(walk).sound
    doubled = [*walk[:4], near(walk[1], 1e-4), *walk[4:]]
    assert audit_series(doubled).steps[4].of == walk[1].path


def test_a_run_that_never_moves_is_all_duplicates() -> None:
    found = audit_series([made_up(0)] * 4)
    assert [step.finding for step in found.steps] == [None, *["duplicate"] * 3]


def test_two_steps_are_no_series() -> None:
    with pytest.raises(CheckpointError, match="3 checkpoints or more, not 2"):
        audit_series([made_up(0), made_up(1)])
