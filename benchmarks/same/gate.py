"""Mistakes of converting a model: each is found, and its cause named; honest work has no cause.

    python benchmarks/same/gate.py --real ../lineage/iglm-IgLM-S ../lineage/gemma3-270m
    python benchmarks/same/gate.py --quick --json

Tiny models of several architectures, and one real model, are broken as people break them
(`material/breakages.py`): a norm folded into a tied head, 1 + w forgotten, rotary pairs in another
order, a transposed matrix, heads moved in Q, K and V only, one dtype too many, a shard of another
model, nothing moved at all. `same` must not say that the function is the same, and the cause must
be the right one; tiny models are also moved by a random symmetry afterwards. Conversions that are
right (norms folded, rotated, moved by a symmetry, heads in another order, resharded, cast) must be
the same function, so that no cause is looked for. Changes that are no mistake of these (noise, one
tensor of another model) must have none.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.material.breakages import (
    BREAKAGES,
    Break,
    Model,
    another_shard,
    fold,
    heads_moved,
    possible,
    rotate,
    transposed_once,
)
from benchmarks.material.families import make
from benchmarks.material.gguf_files import source
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import (
    Answer,
    apply_element,
    find_cause,
    moved_tensors,
    random_net_element,
    same,
)

KINDS = ("llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt2")
QUICK_KINDS = ("gemma3_text",)
ONE_BLOCK = {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}
_HONEST = 200


def made(kind: str, folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A tiny model whose head is tied."""
    if kind == "gpt2":
        return make("gpt2", folder, dtype=torch.float32, seed=seed, **changes)
    return source(kind, folder, tie_word_embeddings=True, seed=seed, **changes)


def ask(one: Path, two: Path) -> tuple[str, str | None]:
    """The verdict, and the cause where the function is not the same."""
    with Checkpoint(one) as ours, Checkpoint(two) as theirs:
        verdict = same(ours, theirs, seed=0)
        if verdict.answer.same_function:
            still = not moved_tensors(ours, theirs)
            return verdict.answer.value, "nothing moved" if still else None
        cause = find_cause(ours, theirs)
        return verdict.answer.value, cause.name if cause else None


def moved(folder: Path, out: Path, seed: int) -> Path:
    """The same function in other weights."""
    with Checkpoint(folder) as checkpoint:
        generator = torch.Generator().manual_seed(seed)
        element = random_net_element(checkpoint, generator, condition=2.0)
        return apply_element(checkpoint, element, out)


def broken(
    folder: Path, home: Path, *, also_moved: bool, only: list[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Every mistake that can be made with a model, or only some."""
    for cause, ways in BREAKAGES.items():
        for how in ways:
            if only is not None and how.__name__ not in only:
                continue
            model = Model.read(folder)
            if not possible(model, how):
                continue
            how(model, torch.Generator().manual_seed(0))
            with tempfile.TemporaryDirectory(dir=home) as work:
                bad = model.write(Path(work) / "bad")
                del model
                yield _asked(folder, bad, how, cause)
                # A block that was alone transposed is found by its place, which others share then.
                if also_moved and how is not transposed_once:
                    again = moved(bad, Path(work) / "moved", seed=1)
                    yield _asked(folder, again, how, cause) | {"moved": True}
    with tempfile.TemporaryDirectory(dir=home) as work:
        model = Model.read(folder)
        same_again = model.write(Path(work) / "still", shards=2)
        yield _asked(folder, same_again, None, "nothing moved")


def _asked(folder: Path, bad: Path, how: Break | None, cause: str) -> dict[str, Any]:
    begin = time.monotonic()
    answer, found = ask(folder, bad)
    wrong = answer == Answer.DIFFERENT.value if how else found == "nothing moved"
    return {
        "what": how.__name__ if how else "nothing",
        "cause": cause,
        "answer": answer,
        "found": found,
        "ok": wrong and found == cause,
        "seconds": round(time.monotonic() - begin, 1),
    }


def honest(folder: Path, out: Path, number: int) -> Path:
    """A conversion that is right, another for each number."""
    model, way = Model.read(folder), number % 6
    generator = torch.Generator().manual_seed(number)
    gpt2 = model.config["model_type"] == "gpt2"
    gains = any(name.endswith("post_feedforward_layernorm.weight") for name in model.tensors)
    if way == 0 or (way == 1 and gpt2):
        return moved(folder, out, seed=number)
    if way == 1:
        fold(model)
    elif way == 2 and not (gpt2 or gains):
        rotate(model, generator)
    elif way == 3 and not gpt2:
        heads_moved(model, generator)
    elif way == 4:
        kind = (torch.bfloat16, torch.float16)[number // 6 % 2]
        model.tensors = {name: tensor.to(kind) for name, tensor in model.tensors.items()}
        model.config["dtype"] = str(kind).removeprefix("torch.")
    return model.write(out, shards=1 + number % 3)


def other_changes(folder: Path, home: Path) -> Iterator[tuple[str, str | None]]:
    """Changes that are none of these mistakes: what was found for each."""
    for number, what in enumerate(("noise", "one tensor", "one row")):
        model = Model.read(folder)
        generator = torch.Generator().manual_seed(number)
        names = [name for name, tensor in model.tensors.items() if tensor.dim() == 2]
        for name in names if what == "noise" else names[-1:]:
            tensor = model.tensors[name].clone()
            noise = torch.randn(tensor.shape, generator=generator) * tensor.std()
            if what == "one row":
                tensor[0] += noise[0]
            else:
                tensor += 0.01 * noise if what == "noise" else noise
            model.tensors[name] = tensor
        with tempfile.TemporaryDirectory(dir=home) as work:
            yield what, ask(folder, model.write(Path(work) / "other"))[1]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--real", type=Path, nargs="+", default=[], help="real models with the names of tiny ones"
    )
    parser.add_argument("--mistakes", nargs="+", help="of the real models, only these")
    parser.add_argument("--no-tiny", action="store_true", help="only the real models")
    parser.add_argument("--work", type=Path, help="where copies of it are written for a while")
    parser.add_argument("--quick", action="store_true", help="one architecture, 2 conversions")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kinds = () if arguments.no_tiny else QUICK_KINDS if arguments.quick else KINDS
    count = 0 if arguments.no_tiny else 2 if arguments.quick else _HONEST
    figures: dict[str, Any] = {}
    wrong: list[Any] = []
    with tempfile.TemporaryDirectory(dir=arguments.work) as name:
        home = Path(name)
        for real in arguments.real:
            for found in broken(real, home, also_moved=False, only=arguments.mistakes):
                print(f"{real.name}: {json.dumps(found)}", flush=True)
                figures.setdefault(real.name, []).append(found)
                wrong += [] if found["ok"] else [found]
        nets = {kind: made(kind, home / kind) for kind in kinds}
        for kind, folder in nets.items():
            others = made(kind, home / f"{kind} other", seed=1)
            cases = list(broken(folder, home, also_moved=not arguments.quick))
            strange = another_shard(folder, others, home / f"{kind} shard")
            answer, cause = ask(folder, strange)
            cases.append({"cause": "shard", "found": cause, "ok": cause == "shard",
                          "answer": answer, "what": "a shard of another model"})  # fmt: skip
            right = sum(case["ok"] for case in cases)
            bad = [case for case in cases if not case["ok"]]
            print(f"{kind}: {right} of {len(cases)} causes {json.dumps(bad) if bad else ''}")
            figures[kind] = {"mistakes": len(cases), "right": right}
            wrong += bad
            if arguments.quick:  # where nothing is found, every mistake was tried on every block
                folder = made(kind, home / f"{kind} short", **ONE_BLOCK)
            for what, cause in other_changes(folder, home):
                if cause is not None:
                    wrong.append({"other": what, "kind": kind, "found": cause})
            print(f"{kind}: changes of other kinds have no cause", flush=True)
        answers: Counter[str] = Counter()
        for number in range(count):
            kind = kinds[number // 6 % len(kinds)]
            with tempfile.TemporaryDirectory(dir=home) as work:
                answer, cause = ask(nets[kind], honest(nets[kind], Path(work) / "new", number))
            answers[answer] += 1
            if cause not in (None, "nothing moved") or answer in ("different", "not decided"):
                wrong.append({"honest": number, "kind": kind, "answer": answer, "found": cause})
        figures["honest"] = dict(answers)
        print(f"honest: {dict(answers)}")
    figures["wrong"] = wrong
    ok = not wrong
    if arguments.json:
        print(json.dumps({"figures": figures, "targets": {"wrong": 0}, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
