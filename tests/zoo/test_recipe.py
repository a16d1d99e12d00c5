from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.zoo.conftest import write_tiny
from transformer_nfn.zoo import RECIPES, Recipe, RecipeError
from transformer_nfn.zoo.recipe import TRAINER_VERSION
from transformer_nfn.zoo.runs import FOLDS, Hyperparameters

# The paper's table "Hyperparameter configurations of the Small Transformer Zoo Dataset".
PAPER_GRID = {
    ("sgd", "sgdm"): {
        "train_fraction": {1.0, 0.9, 0.8, 0.7},
        "dropout": {0.2, 0.15, 0.1, 0.05, 0.0},
        "lr": {1e-3, 3e-3, 5e-3, 7e-3, 1e-2, 3e-2, 5e-2, 7e-2},
        "init_std": {0.1, 0.15, 0.2, 0.25, 0.3},
        "l2": {1e-8, 1e-7, 1e-6, 1e-4, 1e-2},
    },
    ("adam", "rmsprop"): {
        "train_fraction": {1.0, 0.9, 0.8, 0.7},
        "dropout": {0.2, 0.15, 0.1, 0.05, 0.0},
        "lr": {3e-4, 5e-4, 1e-3, 3e-3, 5e-3, 1e-2, 3e-2, 5e-2},
        "init_std": {0.1, 0.2, 0.3, 0.4, 0.5},
        "l2": {1e-8, 1e-7, 1e-6, 1e-4, 1e-2},
    },
}


@pytest.fixture(scope="module")
def papers() -> dict[str, Recipe]:
    return {name: Recipe.load(name) for name in ("mnist-paper", "agnews-paper")}


@pytest.fixture(scope="module")
def digits_mini() -> Recipe:
    return Recipe.load("digits-mini")


@pytest.fixture(scope="module")
def digits_shared(digits_mini: Recipe) -> Recipe:
    return digits_mini.with_seeds("shared")


def rejected(path: Path) -> str:
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path)
    return str(caught.value)


@pytest.mark.parametrize("name", ["mnist-paper", "agnews-paper"])
def test_a_paper_recipe_has_the_papers_grid(papers, name):
    recipe = papers[name]
    grid = [run.hyperparameters for run in recipe.all_runs]
    assert len(grid) == len(set(grid)) == len({run.id for run in recipe.all_runs}) == 16_000
    for optimizers, values in PAPER_GRID.items():
        family = [h for h in grid if h.optimizer in optimizers]
        assert len(family) == 8_000
        assert {h.optimizer for h in family} == set(optimizers)
        for field, expected in values.items():
            assert {getattr(h, field) for h in family} == expected


def test_the_paper_recipes_have_the_papers_net_and_epochs(papers):
    assert [recipe.shape.size for recipe in papers.values()] == [18_506, 17_764]
    for recipe in papers.values():
        assert recipe.training.epochs == 100
        assert recipe.checkpoints == ("50", "75", "100", "best")


@pytest.mark.parametrize("name", RECIPES)
def test_every_shipped_recipe_loads_under_its_own_name(name):
    recipe = Recipe.load(name)
    assert recipe.name == name
    assert recipe.runs <= 16_000
    assert len(recipe.families) == 2
    assert "shape" in recipe.__dict__  # its sizes fit each other
    # What the file says is all that the recipe is.
    assert Recipe.model_validate(recipe.model_dump()) == recipe


def test_the_first_runs_of_digits_mini_are_pinned(digits_mini, digits_shared):
    # Golden values: the ids are those of zoos that are built and published. If they change, either
    # the order or what a run is has changed, and TRAINER_VERSION must rise.
    assert TRAINER_VERSION == 1
    first = digits_mini.with_data("0" * 64).all_runs[0]
    assert first.id == "ab26e95abc3b73197801c9432afe4703"
    assert first.seed == 2134380601947876190
    assert first.hyperparameters == Hyperparameters(
        optimizer="adam", lr=0.003, l2=1e-4, dropout=0.15, init_std=0.1, train_fraction=0.8
    )
    assert first.hyperparameters.twins == "c31756418bdf832e"
    assert first.hyperparameters.fold == 8
    shared = digits_shared.with_data("0" * 64).all_runs[0]
    assert shared.id == "2549b3b9115cf20aaaeb2dab06e03355"
    assert shared.seed == 4550338696867455065


def test_the_shared_track_has_the_same_order_one_seed_and_other_ids(digits_mini, digits_shared):
    own, shared = digits_mini.all_runs, digits_shared.all_runs
    assert [r.hyperparameters for r in own] == [r.hyperparameters for r in shared]
    assert len({run.seed for run in shared}) == 1
    assert len({run.seed for run in own}) == len(own)
    assert not {run.id for run in own} & {run.id for run in shared}


def test_the_other_track_has_runs_of_its_own_after_those_of_the_first_were_used(tiny_recipe):
    recipe = tiny_recipe.with_seeds("run")
    assert recipe == tiny_recipe
    before = recipe.all_runs
    shared = recipe.with_seeds("shared")
    assert shared.all_runs[0].seed != before[0].seed
    assert shared.with_seeds("run").all_runs == before
    assert recipe.all_runs is before


def test_the_recipe_refuses_a_track_that_it_does_not_have(tiny_recipe):
    with pytest.raises(RecipeError, match="shared"):
        tiny_recipe.with_seeds("wrong")


@pytest.mark.parametrize(
    "change",
    [
        ("epochs = 2", "epochs = 3"),
        ("batch = 32", "batch = 16"),
        ("D_A = 12", "D_A = 16"),
        ("patch = 4", "patch = 2"),
        ("patch = 4", 'patch = 4\nblock = "residual"'),
        ("train_examples = 96", "train_examples = 97"),
    ],
)
def test_an_id_depends_on_what_determines_the_run(tiny_recipe, tmp_path, change):
    other = Recipe.load(write_tiny(tmp_path, change))
    assert [r.hyperparameters for r in other.all_runs] == [
        r.hyperparameters for r in tiny_recipe.all_runs
    ]
    assert not {run.id for run in other.all_runs} & {run.id for run in tiny_recipe.all_runs}


def test_another_seed_is_another_order_and_other_runs(tiny_recipe, tmp_path):
    other = Recipe.load(write_tiny(tmp_path, ("seed = 1", "seed = 2")))
    assert {r.hyperparameters for r in other.all_runs} == {
        r.hyperparameters for r in tiny_recipe.all_runs
    }
    assert other.all_runs[0].hyperparameters != tiny_recipe.all_runs[0].hyperparameters
    assert not {run.seed for run in other.all_runs} & {run.seed for run in tiny_recipe.all_runs}


@pytest.mark.parametrize(
    "change",
    [
        ('name = "tiny"', 'name = "other"'),
        ("runs = 10", "runs = 5"),
        ("group = 3", "group = 4"),
        ("lockstep = 2", "lockstep = 1"),
    ],
)
def test_an_id_does_not_depend_on_how_the_work_is_cut(tiny_recipe, tmp_path, change):
    assert Recipe.load(write_tiny(tmp_path, change)).all_runs == tiny_recipe.all_runs


def twins_of(l2: float, **changes: object) -> Hyperparameters:
    defaults = {
        "optimizer": "adam",
        "lr": 1e-3,
        "dropout": 0.1,
        "init_std": 0.2,
        "train_fraction": 1.0,
    }
    return Hyperparameters.model_validate(defaults | changes | {"l2": l2})


def test_runs_with_a_weak_l2_are_twins_and_share_a_fold():
    weak = [twins_of(l2) for l2 in (0.0, 1e-8, 1e-7, 1e-6)]
    assert len({h.twins for h in weak}) == len({h.fold for h in weak}) == 1
    others = [
        twins_of(1e-4),
        twins_of(1e-2),
        twins_of(1e-8, lr=2e-3),
        twins_of(1e-8, optimizer="sgd"),
        twins_of(1e-8, dropout=0.0),
        twins_of(1e-8, init_std=0.3),
        twins_of(1e-8, train_fraction=0.9),
    ]
    assert len({h.twins for h in [weak[0], *others]}) == 1 + len(others)


def test_folds_are_balanced_over_the_papers_grid(papers):
    grid = [run.hyperparameters for run in papers["mnist-paper"].all_runs]
    families = Counter(h.twins for h in grid)
    # Of the five values of L2 three are weak.
    assert Counter(families.values()) == {1: 6_400, 3: 3_200}
    folds = Counter(h.fold for h in grid)
    assert set(folds) == set(range(FOLDS))
    # 9,600 families fall into folds at random: five deviations of the sum of their sizes.
    deviation = ((6_400 * 1 + 3_200 * 9) * 0.1 * 0.9) ** 0.5
    assert max(abs(count - 1_600) for count in folds.values()) < 5 * deviation


def test_the_first_runs_are_a_fair_part_of_the_grid(papers):
    first = papers["mnist-paper"].first_runs(1_600)
    optimizers = Counter(run.hyperparameters.optimizer for run in first)
    assert all(abs(count - 400) < 5 * (1_600 * 0.25 * 0.75) ** 0.5 for count in optimizers.values())


@pytest.mark.parametrize("count", [0, -1, 35])
def test_more_runs_than_there_are_or_none_are_refused(tiny_recipe, count):
    with pytest.raises(RecipeError, match=f"tiny has 34 runs, asked for {count}.*from 1 to 34"):
        tiny_recipe.first_runs(count)


def test_the_first_and_all_runs_can_be_had(tiny_recipe):
    assert tiny_recipe.first_runs(1) == tiny_recipe.all_runs[:1]
    assert tiny_recipe.first_runs(34) == tiny_recipe.all_runs
    assert len(tiny_recipe.all_runs) == 34


def test_an_unknown_recipe_is_told_which_there_are(tmp_path):
    for name in ("mnist", tmp_path / "no.toml", tmp_path):
        message = rejected(name)
        assert str(name) in message
        assert all(recipe in message for recipe in RECIPES)
        assert "TOML" in message


def test_a_broken_toml_is_refused_with_its_place(tmp_path):
    message = rejected(write_tiny(tmp_path, ("D = 8", "D = = 8")))
    assert "tiny.toml" in message
    assert "line 6" in message


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "picture.toml"
    path.write_bytes(b"\x89PNG\xff")
    assert "picture.toml" in rejected(path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("heads = 2", "heads = 2\nheds = 3"), ["heds", "Extra inputs"]),
        (("warmup = 0.5", "warmup = 0.5\nwarmdown = 1"), ["training.warmdown", "Extra inputs"]),
        (("patch = 4", "patch = 3"), ["patch must divide 8, got 3"]),
        (("patch = 4", ""), ["patch must divide 8, got None"]),
        (('"digits"', '"ag_news"'), ["ag_news is text", "no patch"]),
        (('task = "digits"\npatch = 4', 'task = "imagenet"'), ["task", "'mnist'"]),
        (("heads = 2", "heads = 3"), ["D=8 must be even and a multiple of heads=3"]),
        (("checkpoints = [1, 2]", "checkpoints = [2, 1]"), ["must be rising epochs within 1..2"]),
        (("checkpoints = [1, 2]", "checkpoints = [1, 3]"), ["must be rising epochs within 1..2"]),
        (("warmup = 0.5", "warmup = 2"), ["warmup 2.0 must be shorter than 2 epochs"]),
        (('"step"', '"never"'), ["training.schedule"]),
        (('"adam"]', '"adamw"]'), ["families.0.optimizer", "'adam'"]),
        (('name = "tiny"', 'name = "../tiny"'), ["name", "pattern"]),
        (("group = 3", "group = 0"), ["group", "greater than 0"]),
        (("lr = [1e30]", ""), ["families.1.lr", "required"]),
    ],
)
def test_what_is_wrong_with_a_recipe_is_said(tmp_path, change, expected):
    message = rejected(write_tiny(tmp_path, change))
    assert all(text in message for text in ["tiny.toml", *expected])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("lr = [1e30]", "lr = [-0.1]"), "lr"),
        (("lr = [1e30]", "lr = [inf]"), "lr"),
        (("l2 = [1.0]", "l2 = [nan]"), "l2"),
        (("l2 = [1.0]\ndropout = [0.0, 0.1]", "l2 = [1.0]\ndropout = [0.0, 1.0]"), "dropout"),
        (("train_fraction = [1.0]\n", "train_fraction = [1.5]\n"), "train_fraction"),
        (("lr = [1e30]", "lr = []"), "lr"),
    ],
)
def test_a_value_of_the_grid_that_no_run_can_have_is_refused_when_the_recipe_is_read(
    tmp_path, change, expected
):
    assert expected in rejected(write_tiny(tmp_path, change))


@pytest.mark.parametrize(
    "change",
    [("lr = [1e30]", "lr = [1e30, 1e30]"), ("lr = [1e30]\nl2 = [1.0]", "lr = [1e-3]\nl2 = [1e-8]")],
)
def test_a_grid_that_has_a_run_twice_is_refused(tmp_path, change):
    # Its rows would be in the zoo twice, which verification reports after all the work.
    assert "tiny.toml" in rejected(write_tiny(tmp_path, change))


def test_text_has_no_crops(tmp_path):
    path = write_tiny(
        tmp_path,
        ('task = "digits"\npatch = 4', 'task = "ag_news"'),
        ("warmup = 0.5", "warmup = 0.5\ncrop = 2"),
    )
    assert "ag_news is text: it has no patch and no crops" in rejected(path)
    text = write_tiny(tmp_path, ('task = "digits"\npatch = 4', 'task = "ag_news"'))
    assert Recipe.load(text).shape.inputs == 0


def test_the_first_configurations_are_trained_again_with_other_seeds(tiny_recipe, tmp_path):
    changed = Recipe.model_validate(
        {**tiny_recipe.model_dump(), "replicates": {"configurations": 4, "runs": 3}}
    )
    plain, runs = tiny_recipe.all_runs, changed.all_runs
    assert len(runs) == len(plain) + 8
    assert len({run.id for run in runs}) == len({run.seed for run in runs}) == len(runs)
    # Every third run from the fifth on is one of those that were there before.
    again = runs[6:30:3]
    assert [run for run in runs if run not in again] == list(plain)
    assert [run.hyperparameters for run in again] == [r.hyperparameters for r in plain[:4]] * 2
    assert {run.hyperparameters.fold for run in again} == {
        run.hyperparameters.fold for run in plain[:4]
    }
    # All runs of the shared track have one seed: the same run again would be the same net.
    assert len(changed.with_seeds("shared").all_runs) == len(plain)


def test_replicates_that_do_not_fit_between_come_last(tiny_recipe):
    many = Recipe.model_validate(
        {**tiny_recipe.model_dump(), "replicates": {"configurations": 34, "runs": 2}}
    )
    assert len(many.all_runs) == 68
    assert [r.hyperparameters for r in many.all_runs[34:]] == [
        r.hyperparameters for r in many.all_runs[:34]
    ]


def test_other_data_are_other_runs(tiny_recipe):
    one, other = (tiny_recipe.with_data(digit * 64) for digit in "ab")
    assert not {run.id for run in one.all_runs} & {run.id for run in other.all_runs}
    assert [run.seed for run in one.all_runs] == [run.seed for run in other.all_runs]
    with pytest.raises(ValidationError, match="data"):
        tiny_recipe.with_data("short")
