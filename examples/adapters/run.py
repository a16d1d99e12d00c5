"""Which task was an adapter trained for, and which rank has it? Read from its weights alone.

    python examples/adapters/run.py --out FOLDER
    python examples/adapters/run.py --out OTHER --shared    # all start from the same A
    python examples/adapters/run.py --quick --json

A tiny ViT learns upright digits. Then PEFT trains LoRA adapters to it, each for images that are
turned, mirrored or inverted, with ranks from 1 to 8, and writes them as it always does. A folder
that is there is not trained again. Adapters are read as a collection, and models learn from four
fifths of them to tell task and rank of the others:

- `invariant`: `AdapterNet`, which sees an adapter only through what GL(r) leaves,
- `linear`: the same without soft ranks, so that its layers are all that it has,
- `factors`: its MLP on all numbers of A and B, with zeros where a rank is smaller,
- `products`: its MLP on the updates written out, also invariant, with D² numbers for each module.

Each is asked about the held-out adapters as they are, `moved` as by `tnfn reparam` (another basis
of its own r coordinates), and `padded` (another basis of all 8 coordinates, after zeros were
added). All three are the same functions. Beside the models ranks are counted, with no learning:
singular values of A B that are not 0, and columns of A that are not 0, of which padded ones have 8.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from learning import factors, learn_flat, learn_invariant, products
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from training import FIGURES, RANKS, TASKS, Recipe, Run, build, runs

from transformer_nfn.adapters import (
    Adapter,
    AdapterCollection,
    move_adapter,
    read_adapters,
    singular_values,
)
from transformer_nfn.group import random_element

QUICK = Recipe(tasks=3, copies=3, base_steps=100, steps=10)
MODELS = {
    "invariant": learn_invariant(spectrum=True),
    "linear": learn_invariant(spectrum=False),
    "factors": learn_flat(factors),
    "products": learn_flat(products),
}
Item = TypeVar("Item")


def shown(items: Iterable[Item], total: int, describe: str) -> Iterator[Item]:
    """Pass items on, with a bar on stderr if that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        yield from bar.track(items, total=total, description=describe)


def moved_on_disk(collection: AdapterCollection, out: Path) -> AdapterCollection:
    """The same adapters in another basis of their own r coordinates, from files of their own."""
    folders = []
    for number, path in enumerate(collection.paths):
        folders.append(out / path.name)
        if not folders[-1].exists():
            with Adapter(path) as adapter:
                move_adapter(adapter, folders[-1], torch.Generator().manual_seed(number))
    return read_adapters(folders, rank=max(RANKS))


def moved_when_padded(collection: AdapterCollection) -> AdapterCollection:
    """The same adapters in another basis of all coordinates, those of the zeros among them."""
    generator = torch.Generator().manual_seed(0)
    batches = tuple(
        random_element(
            batch.spec, networks=batch.networks, blocks=batch.blocks, generator=generator
        )(batch)
        for batch in collection.batches
    )
    return AdapterCollection(collection.paths, collection.ranks, collection.modules, batches)


def split(plan: list[Run], seed: int) -> tuple[list[int], list[int]]:
    """Numbers of adapters to learn from and to test with, a fifth of each task and rank."""
    order = torch.randperm(len(plan), generator=torch.Generator().manual_seed(seed)).tolist()
    cells: dict[tuple[str, int], list[int]] = {}
    for number in order:
        cells.setdefault((plan[number].task, plan[number].rank), []).append(number)
    train, test = [], []
    for members in cells.values():
        held = max(1, len(members) // 5)
        test += members[:held]
        train += members[held:]
    return train, test


def counted(collection: AdapterCollection) -> dict[str, float]:
    """Ranks that are read without learning: how often they are right."""
    values, columns = [], []
    for batch in collection.batches:
        found = singular_values(batch.to(dtype=torch.float64))[:, 0]  # n l s
        values.append((found > 1e-5 * found[..., :1]).sum(-1))
        columns.append((batch["A"][:, 0] != 0).any(-2).sum(-1))
    ranks = torch.tensor(collection.ranks)
    counts = {"singular values of A B": values, "columns of A that are not 0": columns}
    return {
        what: round(float((torch.cat(parts, dim=1).amax(1) == ranks).double().mean()), 3)
        for what, parts in counts.items()
    }


def learned(
    forms: dict[str, AdapterCollection], plan: list[Run], seeds: int, epochs: int
) -> dict[str, Any]:
    """Accuracies on held-out adapters: the mean over splits, and the standard deviation."""
    tasks = list(dict.fromkeys(run.task for run in plan))
    questions = {
        "task": torch.tensor([tasks.index(run.task) for run in plan]),
        "rank": torch.tensor([RANKS.index(run.rank) for run in plan]),
    }
    jobs = [(q, name, seed) for q in questions for name in MODELS for seed in range(seeds)]
    scores: dict[tuple[str, str, str], list[float]] = {}
    apart = 0.0
    for question, name, seed in shown(jobs, len(jobs), "learning"):
        train, test = split(plan, seed)
        labels = questions[question]
        classes = int(labels.max()) + 1
        model = MODELS[name](forms["as is"].select(train), labels[train], classes, epochs, seed)
        with torch.no_grad():
            logits = {form: model(collection.select(test)) for form, collection in forms.items()}
        for form, out in logits.items():
            right = (out.argmax(1) == labels[test]).double().mean()
            scores.setdefault((question, name, form), []).append(float(right))
            if name in ("invariant", "linear"):
                first = logits["as is"]
                apart = max(apart, float((out - first).abs().max() / first.abs().max()))
    figures: dict[str, Any] = {
        "chance": {"task": round(1 / len(tasks), 3), "rank": round(1 / len(RANKS), 3)},
        "logits_apart_when_moved": apart,
    }
    for (question, name, form), values in scores.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        entry = {"accuracy": round(statistics.mean(values), 3), "stdev": round(spread, 3)}
        figures.setdefault(question, {}).setdefault(name, {})[form] = entry
    return figures


def judged(figures: dict[str, Any]) -> dict[str, bool]:
    """What must come out.

    From one start for all, raw factors are in one basis too, and as good until they are moved.
    """
    task, chance = figures["task"], figures["chance"]["task"]
    ours, raw = task["invariant"], task["factors"]
    compared = ("moved", "padded") if figures["shared_start"] else ("as is", "moved", "padded")
    return {
        "the invariant model tells tasks: twice chance or more": (
            ours["as is"]["accuracy"] >= 2 * chance
        ),
        f"it is better than raw factors ({', '.join(compared)})": all(
            ours[form]["accuracy"] > raw[form]["accuracy"] for form in compared
        ),
        "another basis changes its accuracies by less than 0.01": all(
            abs(entry["accuracy"] - forms["invariant"]["as is"]["accuracy"]) < 0.01
            for forms in (task, figures["rank"])
            for entry in forms["invariant"].values()
        ),
        "and its logits by less than 1e-3 of the largest": figures["logits_apart_when_moved"]
        < 1e-3,
        "raw factors do not gain by another basis": (
            raw["padded"]["accuracy"] <= raw["as is"]["accuracy"] + 0.05
        ),
        "counted singular values are the rank, in any basis": all(
            form["singular values of A B"] == 1.0 for form in figures["rank_counted"].values()
        ),
    }


def table(figures: dict[str, Any]) -> str:
    """The accuracies in words."""
    lines = [f"{'':18}{'as is':>14}{'moved':>14}{'padded':>14}"]
    for question in ("task", "rank"):
        for name, forms in figures[question].items():
            cells = [f"{e['accuracy']:.3f} ± {e['stdev']:.3f}" for e in forms.values()]
            lines.append(f"{question} {name:13}" + "".join(f"{cell:>14}" for cell in cells))
        lines.append(f"{question} chance {figures['chance'][question]:>20.3f}")
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, learn, and say what came out; exit code 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="where adapters are kept; else they are not")
    parser.add_argument("--shared", action="store_true", help="adapters start from the same A")
    parser.add_argument("--quick", action="store_true", help="36 adapters, one split")
    parser.add_argument("--json", action="store_true", help="one line of JSON only")
    args = parser.parse_args()
    begin = time.monotonic()
    torch.set_num_threads(1)
    recipe = replace(QUICK if args.quick else Recipe(), shared=args.shared)
    with tempfile.TemporaryDirectory() as scratch:
        out: Path = args.out or Path(scratch) / "out"
        plan = runs(recipe)
        missing = sum(not (out / "adapters" / run.name).exists() for run in plan)
        for _ in shown(build(recipe, out), len(plan), "adapters"):
            pass
        trained = time.monotonic()
        folders = [out / "adapters" / run.name for run in plan]
        collection = read_adapters(folders)
        forms = {
            "as is": collection,
            "moved": moved_on_disk(collection, out / "moved"),
            "padded": moved_when_padded(collection),
        }
        read = time.monotonic()
        gains = [json.loads((folder / FIGURES).read_text()) for folder in folders]
    figures: dict[str, Any] = {
        "adapters": len(plan),
        "trained_now": missing,
        "shared_start": args.shared,
        "tasks": list(TASKS)[: recipe.tasks],
        "ranks": list(RANKS),
        "digits_read_before": round(statistics.mean(gain["before"] for gain in gains), 3),
        "digits_read_after": round(statistics.mean(gain["after"] for gain in gains), 3),
        "rank_counted": {form: counted(found) for form, found in forms.items()},
    }
    epochs, seeds = (20, 1) if args.quick else (30, 5)
    figures |= learned(forms, plan, seeds, epochs)
    ends = (trained - begin, read - trained, time.monotonic() - read)
    words = ("training", "reading", "learning")
    figures["seconds"] = {word: round(end, 1) for word, end in zip(words, ends, strict=True)}
    targets = judged(figures)
    if not args.json:
        print(table(figures))
    ok = all(targets.values())
    print(json.dumps({"figures": figures, "targets": targets, "ok": ok}))
    raise SystemExit(0 if ok else 1)


if __name__ == "__main__":
    main()
