"""What makes the published figures: the commands, and how they are stopped and gone on with."""

import json
import signal
import sys
import time
from pathlib import Path
from typing import get_args

import pytest

from tools import fits, results
from transformer_nfn.bench.models.fittings import CHOSEN, USUAL, candidates
from transformer_nfn.bench.models.registry import MODELS, main_models
from transformer_nfn.bench.protocol.experiments import Experiment
from transformer_nfn.zoo import Recipe

#: Of a shell, which is there at once: Python takes seconds to start on a busy machine.
WAITS = 'trap "touch $0; exit" INT; sleep 60 & wait'


def test_every_zoo_is_a_recipe_of_its_size_and_every_experiment_is_one():
    assert set(results.TUNING) == set(CHOSEN)
    for zoo in (*results.TUNING.values(), *results.ZOOS):
        assert Recipe.load(zoo.recipe).runs >= zoo.runs
    folders = {zoo.folder for zoo in results.ZOOS}
    for experiment, zoos, _ in results.EXPERIMENTS:
        assert experiment in get_args(Experiment)
        assert set(zoos) <= folders
    assert set(results.SEEDED) == {
        name for name in main_models() if "fitting" in MODELS[name].settings
    }


def test_zoos_of_choices_are_in_no_table():
    tuned, shown = (
        {zoo.recipe for zoo in zoos} for zoos in (results.TUNING.values(), results.ZOOS)
    )
    assert not tuned & shown
    seeds = [{Recipe.load(name).seed for name in names} for names in (tuned, shown)]
    assert not set.intersection(*seeds)  # other runs of the same grids
    for command in results.commands(Path("zoos"), None, ray=False):
        assert "bench" not in command or not any("-tuning" in part for part in command)


def test_zoos_can_be_smaller(capsys):
    assert results.main(["zoos", "--list", "--at-most", "60"]) == 0
    built = [line for line in capsys.readouterr().out.splitlines() if "zoo build" in line]
    assert len(built) == len(results.ZOOS)
    assert all("--runs 60" in line for line in built)


def test_only_some_zoos(capsys):
    assert results.main(["zoos", "--list", "--only", "mnist-small,mnist-small-shared"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" zoo build ")[1].split()[0] for line in lines if " zoo build " in line] == [
        "mnist-small",
        "mnist-small",
    ]
    others = {zoo.folder for zoo in results.ZOOS} - {"mnist-small", "mnist-small-shared"}
    assert not any(f"/{other} " in f"{line} " for other in others for line in lines)
    # Zoos that are elsewhere stay on the page.
    assert f"{results.PAGES} --to {results.PAGES}" in lines[-1]
    with pytest.raises(SystemExit):
        results.main(["zoos", "--list", "--only", "mnist"])
    assert "no zoo mnist: digits-mini, " in capsys.readouterr().err


def test_costly_models_learn_from_fewer_runs_of_a_large_zoo_only(capsys):
    """At no size do they learn from more; smaller ones give their learning curves."""

    def asked(*options):
        assert results.main(["zoos", "--list", "--only", "mnist-small", *options]) == 0
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if "agreement" in line and "mnist-small " in line]

    sizes = [line.partition(" --train-runs ")[2] for line in asked()]
    assert sizes == ["600", "75", "150", "300"]
    small = [line.partition(" --train-runs ")[2] for line in asked("--at-most", "300")]
    assert small == ["", "75", "150"]


def test_nothing_that_is_costly_is_fitted_to_a_whole_large_zoo():
    large = {zoo.folder for zoo in results.ZOOS if zoo.runs > results.COSTLY_RUNS}
    for command in results.commands(Path("zoos"), None, ray=False):
        folders = {Path(part).name for part in command}
        asked = command[command.index("--experiment") + 1] if "run" in command else "none"
        if asked in ("none", "components") or "--train-runs" in command or not large & folders:
            continue
        assert not set(results.COSTLY) & set(command[command.index("--models") + 1].split(","))


def test_no_figure_is_of_the_split_that_probes_were_designed_on():
    for command in results.commands(Path("zoos"), None, ray=False):
        if "run" in command:
            splits = command[command.index("--splits") + 1]
            assert set(splits.split(",")) in ({"1", "2"}, {"1", "2", "3", "4"})


def test_no_model_is_asked_for_that_a_zoo_has_no_inputs_for():
    for command in results.commands(Path("zoos"), None, ray=False):
        if "run" in command and str(Path("zoos") / "digits-mini") in command:
            assert "consensus" not in command[command.index("--models") + 1].split(",")


def test_cards_of_the_zoos_that_are_here_become_pages(tmp_path):
    folder = tmp_path / "agnews-small"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlicense: other\n---\n\n# AG\n\n![x](accuracy.png)\n")
    (folder / "accuracy.png").write_bytes(b"picture")
    to = tmp_path / "docs"
    to.mkdir()
    results.copy_cards(tmp_path, to)
    assert (to / "agnews-small.md").read_text() == "# AG\n\n![x](agnews-small.png)\n"
    assert (to / "agnews-small.png").read_bytes() == b"picture"
    assert len(list(to.iterdir())) == 2


def test_a_zoo_is_tabled_before_the_next_is_built():
    steps = [
        "build" if "build" in command else "fit"
        for command in results.commands(Path("zoos"), None, ray=False)
        if "report" not in command
    ]
    assert steps[:6] == ["build", "fit", "fit"] * 2


def test_the_search_is_made_once(monkeypatch, tmp_path):
    def begin() -> list[list[str]]:
        return list(results.commands(Path("zoos"), None, ray=False))[:2]

    tuned = results.TUNING[USUAL]
    assert tuned.recipe not in begin()[0]
    published = json.loads((results.SEARCHES / f"{tuned.folder}.json").read_text("utf-8"))
    monkeypatch.setattr(results, "SEARCHES", tmp_path)
    for fits_done in (published["fits"][:-1], None):
        search = tmp_path / f"{tuned.folder}.json"
        search.unlink(missing_ok=True)
        if fits_done is not None:
            search.write_text(json.dumps({**published, "fits": fits_done}))
        first, second = begin()
        assert tuned.recipe in first
        assert str(results.ROOT / "tools" / "fits.py") in second


def test_a_command_is_interrupted_when_the_time_is_over(tmp_path):
    ended = tmp_path / "ended"
    begun = time.monotonic()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a shell
    try:
        code = results.run(["sh", "-c", WAITS, str(ended)], begun + 2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == results.OUT_OF_TIME
    assert ended.exists()
    assert time.monotonic() - begun < 30
    assert results.run(["never"], time.monotonic() - 1) == results.OUT_OF_TIME


@pytest.mark.parametrize("code", [0, 5])
def test_a_failure_ends_it(monkeypatch, tmp_path, code):
    made = [
        [sys.executable, "-c", f"raise SystemExit({code})"],
        [sys.executable, "-c", f"open({str(tmp_path / 'second')!r}, 'w').close()"],
    ]
    monkeypatch.setattr(results, "commands", lambda *_: iter(made))
    assert results.main([str(tmp_path)]) == code
    assert (tmp_path / "second").exists() == (code == 0)


def test_what_is_chosen_is_the_best_of_the_published_searches():
    searched = []
    for path in results.SEARCHES.glob("*.json"):
        search = json.loads(path.read_text("utf-8"))
        published = search["fits"]
        assert fits.in_order(published) == published
        searched.append((search["task"], search["track"]))
        assert len(published) == sum(len(candidates(model)) for model in CHOSEN[searched[-1]])
        assert fits.best_of(published) == CHOSEN[searched[-1]]
    assert set(searched) == set(CHOSEN)


def test_of_ties_the_first_candidate_is_chosen_whichever_was_finished_first():
    alike = [
        {"model": "nfn", "fitting": fitting.model_dump(), "tau_validation": 0.5}
        for fitting in candidates("nfn")
    ]
    first = candidates("nfn")[0]
    assert fits.best_of(alike[::-1]) == {"nfn": (first.lr, first.weight_decay)}


def test_the_best_of_the_search_is_of_whole_searches_only():
    figures = [
        {"model": "nfn", "fitting": fitting.model_dump(), "tau_validation": number / 10}
        for number, fitting in enumerate(candidates("nfn"))
    ]
    last = candidates("nfn")[-1]
    assert fits.best_of(figures) == {"nfn": (last.lr, last.weight_decay)}
    assert fits.best_of(figures[:-1]) == {}
    assert set(fits.best_of(figures)) <= set(CHOSEN[USUAL])
