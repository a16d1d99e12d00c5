"""One case: make the pair, ask `same`, measure the outputs, judge."""

import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks.same.forging.bases import Bases
from benchmarks.same.forging.forge import forged, kinds
from benchmarks.same.forging.honest import HONEST, honest
from benchmarks.same.forging.measure import LINE, Apart, apart
from benchmarks.same.forging.pairs import Case, Pair
from benchmarks.same.forging.roles import UnfitError
from transformer_nfn.checkpoints import Checkpoint, CheckpointError
from transformer_nfn.identity import ElementError, same

SAME = ("identical bytes", "same tensors", "equivalent", "equivalent by products")
Result = dict[str, Any]


def play(bases: Bases, case: Case, *, seed: int | None = None) -> Result:
    """The whole of one case; with a seed the verdict's inputs are always the same."""
    torch.set_num_threads(1)
    work = Path(tempfile.mkdtemp(dir=bases.home))
    result: Result = {
        "case": case.key, "kind": case.kind, "family": case.family, "dtype": case.dtype,
        "seed": case.seed,
    }  # fmt: skip
    try:
        begin = time.process_time()
        try:
            pair = _maker(case)(bases, case, work)
        except (UnfitError, ElementError) as reason:
            return result | {"status": "unfit", "reason": str(reason), "wrong": False}
        made = time.process_time()
        answer, more = ask(pair, seed)
        asked = time.process_time()
        found = measured(bases, pair, careful=answer in SAME)
        result |= more | {"answer": answer, "details": pair.details}
        if found is not None:
            result |= {
                "over_all": round(found.over_all, 3),
                "on_one": round(found.on_one, 3),
                "relative": float(f"{found.relative:.3g}"),
            }
        result |= judged(pair, found, answer)
        result["seconds"] = [
            round(t, 4) for t in (made - begin, asked - made, time.process_time() - asked)
        ]
        return result
    except Exception:
        # Nothing may stop the contest; a generator that fails is a fault of the contest itself.
        return result | {
            "status": "broken", "wrong": True, "reason": traceback.format_exc(limit=-6)[-900:]
        }  # fmt: skip
    finally:
        shutil.rmtree(work)


def _maker(case: Case) -> Any:
    return honest if case.kind in HONEST else forged


def ask(pair: Pair, seed: int | None = None) -> tuple[str, Result]:
    """What `same` says; a refusal is an answer, any other exception is a fault.

    For a forgery no input that shows it is looked for, which takes longest: that comes after the
    pair has been found not to be the same, and decides only between "different" and "not decided".
    """
    try:
        with Checkpoint(pair.ours) as ours, Checkpoint(pair.theirs) as theirs:
            verdict = same(ours, theirs, seed=seed, search=pair.honest)
    except CheckpointError as error:
        return "refused", {"reason": str(error)[:200]}
    except Exception:
        return "crash", {"reason": traceback.format_exc(limit=-3)[-600:]}
    more: Result = {"reason": verdict.reason[:200], "margin": verdict.margin}
    if verdict.witness is not None:
        more["witness"] = round(verdict.witness.strength, 3)
    return verdict.answer.value, more


def measured(bases: Bases, pair: Pair, *, careful: bool) -> Apart | None:
    """How far the outputs are apart; None where the answer is declared."""
    if not pair.measured:
        return pair.apart
    with Checkpoint(pair.ours) as ours, Checkpoint(pair.theirs) as theirs:
        first = bases.profile(ours, pair.length)
        return apart(ours, theirs, first, careful=careful)


def judged(pair: Pair, found: Apart | None, answer: str) -> Result:
    """What the pair is, and whether the answer is wrong."""
    if pair.degenerate:
        return {"status": "degenerate", "wrong": answer not in (*SAME, "not decided")}
    if pair.honest:
        return {"status": "honest", "wrong": answer not in (*SAME, "not decided")}
    if pair.declared is not None:
        wrong = answer in (*SAME, "crash")
        return {"status": "declared", "declared": pair.declared, "wrong": wrong}
    assert found is not None
    if not found.forged:
        return {"status": "too small", "wrong": answer == "crash"}
    return {"status": "forgery", "wrong": answer in (*SAME, "crash")}


def summary(results: Iterable[Result], wanted: dict[str, int]) -> Result:
    """Counts by all that a case has, and whether the targets are met."""
    results = list(results)
    by_status = Counter(r["status"] for r in results)
    of = {s: [r for r in results if r["status"] == s] for s in by_status}
    forgeries = [r for r in of.get("forgery", []) if not r["kind"].startswith("adaptive")]
    attacks = [r for r in results if r["kind"] == "adaptive" and r["status"] != "unfit"]
    adaptive = [r for r in attacks if r["status"] == "forgery"]
    declared, copies = of.get("declared", []), of.get("honest", [])
    caught = [r for r in (*forgeries, *adaptive) if not r["wrong"]]
    passed = [r for r in (*forgeries, *adaptive, *declared) if r["wrong"]]
    undecided = [r for r in copies if r["answer"] == "not decided"]
    report: Result = {
        "forgeries": len(forgeries),
        "forgeries_passed": sum(r["wrong"] for r in forgeries),
        "adaptive": len(attacks),
        "adaptive_above_the_line": len(adaptive),
        "adaptive_passed": sum(r["wrong"] for r in adaptive),
        "declared": len(declared),
        "declared_passed": sum(r["wrong"] for r in declared),
        "too_small_to_be_a_forgery": dict(
            Counter(r["answer"] for r in of.get("too small", []))
        ),
        "honest": len(copies),
        "honest_called_different": sum(r["wrong"] for r in copies),
        "honest_not_decided": len(undecided),
        "degenerate": dict(Counter(r["answer"] for r in of.get("degenerate", []))),
        "unfit": by_status["unfit"],
        "broken": by_status["broken"],
        "line": LINE,
        "smallest_caught": min((strength(r) for r in caught), default=None),
        "largest_honest": max((strength(r) for r in copies), default=None),
        "passed": [
            {"case": r["case"], "ratio": strength(r), "answer": r["answer"]} for r in passed
        ],
        "by_kind": _table(results, "kind"),
        "by_family": _table(results, "family"),
        "by_dtype": _table(results, "dtype"),
        "seconds_per_case": _seconds(results),
        "targets": {
            "forgeries": wanted["forgeries"], "forgeries_passed": 0, "declared_passed": 0,
            "adaptive": wanted["adaptive"], "adaptive_passed": 0, "honest": wanted["honest"],
            "honest_called_different": 0, "honest_not_decided_share": 0.001, "broken": 0,
        },
    }  # fmt: skip
    report["ok"] = bool(
        not any(r["wrong"] for r in results)
        and len(undecided) <= 0.001 * len(copies)
        and len(forgeries) >= wanted["forgeries"]
        and len(attacks) >= wanted["adaptive"]
        and len(copies) >= wanted["honest"]
    )
    return report


def strength(result: Result) -> float:
    """By how many times rounding the outputs differ."""
    return max(result.get("over_all", 0.0), result.get("on_one", 0.0))


def _table(results: list[Result], column: str) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for r in results:
        if r["status"] != "unfit":
            name = f"{r['status']}: {r.get('answer', 'broken')}"
            found.setdefault(str(r[column]), Counter())[name] += 1
    return {name: dict(count) for name, count in sorted(found.items())}


def _seconds(results: list[Result]) -> dict[str, float]:
    times = [r["seconds"] for r in results if "seconds" in r]
    parts = zip(*times, strict=True) if times else ((0.0,),) * 3
    names = ("making", "same", "measuring")
    return {n: round(sum(p) / len(p), 3) for n, p in zip(names, map(list, parts), strict=True)}


def all_kinds() -> list[str]:
    """Of forgeries, then of honest copies."""
    return [*kinds(), *HONEST]
