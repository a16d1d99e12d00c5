import math
import struct
import zlib

import pytest
import yaml

from tests.zoo.conftest import built
from transformer_nfn.zoo import summarize, write_card
from transformer_nfn.zoo.dataset import Zoo
from transformer_nfn.zoo.finished import card
from transformer_nfn.zoo.finished import card as card_module
from transformer_nfn.zoo.finished.card import HISTOGRAM, LAYOUT, card_text, histogram
from transformer_nfn.zoo.format.schema import COLUMNS


def front_matter(text: str) -> dict[str, object]:
    start, matter, _ = text.split("---\n", 2)
    assert start == ""
    return yaml.safe_load(matter)


def size_of_png(content: bytes) -> tuple[int, int]:
    """Width and height; every chunk's checksum is checked."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    place, kinds = 8, []
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        chunk = content[place + 4 : place + 8 + length]
        assert struct.unpack(">I", content[place + 8 + length : place + 12 + length]) == (
            zlib.crc32(chunk),
        )
        kinds.append(chunk[:4])
        place += 12 + length
    assert (kinds[0], kinds[-1]) == (b"IHDR", b"IEND")
    return struct.unpack(">II", content[16:24])


def test_the_summary_counts_what_is_in_the_zoo(tiny_zoo):
    figures = summarize(tiny_zoo)
    table = tiny_zoo.table()
    accuracies = sorted(a for a in table.column("test_accuracy").to_pylist() if a is not None)
    assert (figures["recipe"], figures["zoo"]) == ("tiny", tiny_zoo.url)
    assert (figures["runs"], figures["rows"], figures["shards"]) == (10, 30, 5)
    assert figures["status"] == {"ok": 27, "diverged": 3}
    assert figures["weights_a_net"] == 1690
    assert 27 * 4 * 1690 < figures["bytes"] < 2 * 27 * 4 * 1690
    quantiles = figures["test_accuracy_quantiles"]
    assert [quantiles[0], quantiles[2], quantiles[4]] == [
        round(accuracies[place], 4) for place in (0, 13, 26)
    ]
    means = figures["mean_test_accuracy_by_checkpoint"]
    assert list(means) == ["1", "2", "best"]
    for checkpoint, mean in means.items():
        of_it = [
            row["test_accuracy"]
            for row in table.to_pylist()
            if row["checkpoint"] == checkpoint and row["status"] == "ok"
        ]
        assert len(of_it) == 9
        assert mean == pytest.approx(math.fsum(of_it) / 9, abs=1e-4)
    assert [log["runs"] for log in figures["builds"]] == [10]


def test_the_front_matter_is_yaml_that_the_hub_understands(tiny_zoo):
    matter = front_matter(card_text(tiny_zoo))
    assert matter == {
        "license": "mit",
        "pretty_name": "tiny",
        "size_categories": ["n<1K"],
        "tags": ["weight-space-learning", "model-zoo", "transformers"],
        "configs": [{"config_name": "default", "data_files": "data/*.parquet"}],
    }


@pytest.mark.parametrize(
    ("rows", "size"),
    [
        (999, "n<1K"),
        (1_000, "1K<n<10K"),
        (64_000, "10K<n<100K"),
        (999_999, "100K<n<1M"),
        (2_000_000, "1M<n<10M"),
    ],
)
def test_the_size_category_is_one_of_the_hubs(tiny_zoo, monkeypatch, rows, size):
    figures = {**summarize(tiny_zoo), "rows": rows}
    monkeypatch.setattr(card_module, "summarize", lambda zoo: figures)
    assert front_matter(card_text(tiny_zoo))["size_categories"] == [size]


@pytest.mark.parametrize("name", ["no", "null", "12"])
def test_any_name_that_a_recipe_may_have_is_a_string_in_the_front_matter(tiny_zoo, name):
    zoo = Zoo(tiny_zoo.url)
    zoo.description = {**zoo.description, "recipe": {**zoo.description["recipe"], "name": name}}
    assert front_matter(card_text(zoo))["pretty_name"] == name


def test_the_card_has_the_counts_the_columns_and_the_command(tiny_zoo):
    lines = card_text(tiny_zoo).splitlines()
    for line in (
        "# tiny",
        "A zoo for tests.",
        f"![test accuracies]({HISTOGRAM})",
        "| runs | 10 |",
        "| rows | 30: 3 diverged, 27 ok |",
        "| numbers in a net | 1,690 |",
        "| task | digits, batch 32, 2 epochs |",
        "| block | paper, D = 8, 2 heads, D_A = 12, 2 blocks |",
        "| seeds | one for each run |",
        "tnfn zoo build tiny --runs 10 --out tiny",
    ):
        assert line in lines
    for name in (*COLUMNS, "weights"):
        assert sum(line.startswith(f"| `{name}` |") for line in lines) == 1


def test_the_card_of_the_shared_track_says_so(tiny_recipe, tmp_path):
    text = card_text(built(tiny_recipe.with_seeds("shared"), tmp_path, runs=2))
    assert "| seeds | the same for all runs |" in text
    assert "tnfn zoo build tiny --runs 2 --seeds shared --out tiny-shared" in text


def test_the_histogram_is_a_png(tiny_zoo):
    width, height = size_of_png(histogram(tiny_zoo))
    assert (width, height) == (768, 432)


def test_the_check_of_a_png_notices_a_changed_byte(tiny_zoo):
    content = bytearray(histogram(tiny_zoo))
    content[len(content) // 2] ^= 1
    with pytest.raises(AssertionError):
        size_of_png(bytes(content))


def test_a_name_is_no_formula(tiny_zoo, monkeypatch):
    monkeypatch.setattr(card, "_title", lambda _: "$\\frac{$\x1b")
    assert size_of_png(histogram(tiny_zoo)) == (768, 432)


def test_card_and_histogram_are_replaced_when_the_zoo_has_grown(tiny_recipe, tmp_path):
    zoo = built(tiny_recipe, tmp_path, runs=2)
    assert write_card(zoo) == ["README.md", HISTOGRAM, LAYOUT]
    assert "| runs | 2 |" in (tmp_path / "README.md").read_text("utf-8")
    size_of_png((tmp_path / HISTOGRAM).read_bytes())
    assert write_card(built(tiny_recipe, tmp_path, runs=4)) == ["README.md", HISTOGRAM, LAYOUT]
    assert "| runs | 4 |" in (tmp_path / "README.md").read_text("utf-8")
    assert (tmp_path / "README.md").read_text("utf-8") == card_text(Zoo(tmp_path))


def test_a_zoo_without_a_single_ok_row_has_a_card(tiny_recipe, tmp_path):
    zoo = built(tiny_recipe, tmp_path, runs=1)
    write_card(zoo)
    assert "| rows | 3: 3 diverged |" in (tmp_path / "README.md").read_text("utf-8")
    size_of_png((tmp_path / HISTOGRAM).read_bytes())
