"""What a panel and a page say of a witness is true of it."""

import json
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import made
from tests.cli.run import tnfn
from tests.reports.test_pages import parsed
from transformer_nfn.cli.pages.same import write_same
from transformer_nfn.cli.verdicts import facts, in_words
from transformer_nfn.identity import Answer, Verdict, Witness


def verdict(answer: Answer = Answer.DIFFERENT, **changes: Any) -> Verdict:
    """A verdict with a witness of ten tokens."""
    given: dict[str, Any] = {
        "inputs": torch.arange(10),
        "head": "lm_head",
        "ours": 1.0,
        "theirs": 2.0,
        "difference": 0.5,
        "ratio": 30.0,
        "overall": 10.0,
        "along": None,
        "seed": 0,
    }
    return Verdict(answer, "a reason", witness=Witness(**given | changes), seed=0)


def lines(found: dict[str, Any]) -> dict[str, str]:
    return dict(in_words(found))


def saying(first: int, second: int) -> dict[str, Any]:
    both = (("first", first, 0.25), ("second", second, 0.0042))
    return {"position": 2} | {
        name: {"output": output, "word": None, "probability": p} for name, output, p in both
    }


def test_a_witness_of_one_input() -> None:
    said = lines(facts(verdict()))
    assert said["seen on"] == "10 random tokens: 0, 1, 2, 3, 4, 5, 6, 7, …"
    assert said["outputs"] == (
        "where lm_head differs most, it is 1 in the first and 2 in the second; "
        "apart by 30 times what rounding does"
    )


def test_what_both_prefer_and_where() -> None:
    found = facts(verdict())
    found["witness"]["said"] = saying(3, 4)
    assert lines(found)["outputs"].startswith(
        "lm_head at token 3: the first prefers output 3 with probability 0.25, "
        "the second output 4 with 0.0042; apart"
    )
    found["witness"]["said"] = saying(3, 3)
    assert lines(found)["outputs"].startswith(
        "lm_head at token 3: both prefer output 3, with probability 0.25 and 0.0042; apart"
    )


def test_inputs_that_only_together_show_it_are_not_told_as_one() -> None:
    said = lines(facts(verdict(inputs=torch.zeros(20, 12, dtype=torch.long), ratio=0.9, along=7.5)))
    assert said["seen on"] == "20 random inputs, which only together show it"
    assert "apart by 0.9 times" in said["outputs"]
    assert "7.5 standard deviations" in said["outputs"]


def test_what_was_tried_in_vain_was_not_seen(tmp_path: Path) -> None:
    open_one = verdict(Answer.UNDECIDED, ratio=0.0)
    found = facts(open_one)
    assert "seen on" not in lines(found)
    assert lines(found)["tried on"].startswith("10 random tokens")
    assert "apart by 0 times" in lines(found)["outputs"]
    write_same(tmp_path / "a.html", ("a", "b"), "not decided", open_one, found)
    text = parsed(tmp_path / "a.html").text
    assert "on which they differ" not in text
    assert "The input on which they are furthest apart" in text


def test_many_tokens_and_kinds_of_tokens_are_counted_as_tokens() -> None:
    assert lines(facts(verdict(inputs=torch.arange(300))))["seen on"] == "300 random tokens"
    two = lines(facts(verdict(inputs=torch.stack([torch.arange(4), torch.zeros(4).long()]))))
    assert two["seen on"] == "4 random tokens: 0, 1, 2, 3"
    image = lines(facts(verdict(inputs=torch.zeros(3, 4, 4))))
    assert image["seen on"] == "a random input of shape 3 × 4 × 4"


@pytest.mark.parametrize(("one", "two"), [(nan, 1.0), (inf, 1.0), (1.0, nan), (0.0, 0.0)])
def test_numbers_that_are_none_break_nothing(one: float, two: float, tmp_path: Path) -> None:
    odd = verdict(ours=one, theirs=two, ratio=inf)
    found = facts(odd)
    assert "apart by infinitely many times what rounding does" in lines(found)["outputs"]
    write_same(tmp_path / "a.html", ("a", "b"), "different", odd, found)
    page = (tmp_path / "a.html").read_text()
    assert "width:nan" not in page
    assert "width:inf" not in page


def test_a_page_has_no_raw_tables(tmp_path: Path) -> None:
    found = facts(verdict())
    found["witness"]["said"] = saying(3, 4)
    write_same(tmp_path / "a.html", ("a", "b"), "different", verdict(), found)
    text = parsed(tmp_path / "a.html").text.partition("Are these two")[2]  # after the styles
    assert "{" not in text
    assert "None" not in text
    assert "witness: said: second: output4" in text


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("nets")
    for name, seed in (("a", 0), ("b", 1)):
        made.save(made.model("gpt2", seed), home / name)
    return home


def test_each_network_speaks_its_own_words(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("same", nets / "a", nets / "b", "--seed", 1, "--no-cause")

    def said(**vocabularies: int) -> dict[str, Any]:
        for name in "ab":
            (nets / name / "vocab.json").unlink(missing_ok=True)
        for name, size in vocabularies.items():
            table = {f"{name}{number}": number for number in range(size)}
            (nets / name / "vocab.json").write_text(json.dumps(table))
        found: dict[str, Any] = json.loads(tnfn(capsys, *words, "--json").out)["witness"]
        return found

    plain = said()
    one, two = (plain["said"][name]["output"] for name in ("first", "second"))
    for given, first, second in (
        ({"a": 60, "b": 60}, "a", "b"),
        ({"a": 60}, "a", "a"),
        ({"b": 60}, "b", "b"),
        ({"a": 61, "b": 60}, "b", "b"),  # 61 words are of another network
    ):
        found = said(**given)
        assert found["said"]["first"]["word"] == f"{first}{one}"
        assert found["said"]["second"]["word"] == f"{second}{two}"
        assert found["words"] == [f"{first}{number}" for number in found["tokens"]]
    assert f"the first prefers 'b{one}'" in tnfn(capsys, *words).out


def test_what_an_encoder_was_given_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    for name, seed in (("a", 0), ("b", 1)):
        torch.manual_seed(seed)
        config = transformers.T5Config(
            vocab_size=60, d_model=24, d_kv=8, d_ff=40, num_layers=1, num_heads=3,
            decoder_start_token_id=0,
        )  # fmt: skip
        made.save(transformers.T5ForConditionalGeneration(config), tmp_path / name)
    ended = tnfn(capsys, "same", tmp_path / "a", tmp_path / "b", "--no-cause")
    assert "; the encoder was given 64 random tokens" in ended.out
