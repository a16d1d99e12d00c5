"""A zoo's data card: README.md with the front matter of the Hugging Face hub, and a histogram.

With both, the folder can be uploaded to the hub as it is.
"""

import io
import json
from typing import Any

from transformer_nfn.escaping import for_picture
from transformer_nfn.zoo.dataset import Zoo, ok
from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.finished.summary import QUANTILES, summarize
from transformer_nfn.zoo.format.schema import COLUMNS

HISTOGRAM = "accuracy.png"
LAYOUT = "layout.json"
#: Of examples, and of a published zoo's rows.
SIDES = ("train", "validation", "test")
_SIZES = (
    (10**3, "n<1K"),
    (10**4, "1K<n<10K"),
    (10**5, "10K<n<100K"),
    (10**6, "100K<n<1M"),
    (10**7, "1M<n<10M"),
    (10**8, "10M<n<100M"),
)


_GATHERED = "Networks that were trained elsewhere; `files.csv` says which row is which file."


def write_card(zoo: Zoo) -> list[str]:
    """Write card, histogram and layout into the zoo's folder, in place of older ones; their names.

    The layout says where each tensor is in a row of weights, for readers without our code.
    """
    text = card_text(zoo).encode()
    layout = {
        name: {"offset": offset, "shape": list(dims)}
        for name, (offset, dims) in zoo.shape.stored.items()
    }
    zoo.root.replace(HISTOGRAM, histogram(zoo))
    zoo.root.replace(LAYOUT, json.dumps(layout, indent=1).encode())
    zoo.root.replace("README.md", text)
    return ["README.md", HISTOGRAM, LAYOUT]


def card_text(zoo: Zoo) -> str:
    """The card, in Markdown.

    Raises:
        StoreError: If zoo.json or a log of a build lacks what a card tells.
    """
    try:
        return _card_text(zoo)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{zoo.url}: zoo.json or a file in builds/ lacks {error}") from None


def _card_text(zoo: Zoo) -> str:
    figures = summarize(zoo)
    recipe: dict[str, Any] = zoo.description.get("recipe", {})
    name = _title(zoo)
    size = next((label for limit, label in _SIZES if figures["rows"] < limit), "100M<n<1B")
    status = ", ".join(f"{count:,} {name}" for name, count in sorted(figures["status"].items()))
    quantiles = " | ".join(f"{100 * value:.1f} %" for value in figures["test_accuracy_quantiles"])
    lines = [
        "---",
        *([] if _is_gathered(zoo) else _licence(recipe)),  # of people's own nets nobody knows
        f"pretty_name: {json.dumps(name)}",  # a name such as `no` would be a truth value
        f"size_categories: [{size}]",
        "tags: [weight-space-learning, model-zoo, transformers]",
        "configs:",
        "  - config_name: default",
        *_data_files(zoo),
        "---",
        "",
        f"# {name}",
        "",
        _GATHERED if _is_gathered(zoo) else recipe.get("description", "An imported zoo."),
        "",
        f"![test accuracies]({HISTOGRAM})",
        "",
        "| | |",
        "|---|---|",
        f"| runs | {figures['runs']:,} |",
        f"| rows | {figures['rows']:,}: {status} |",
        f"| numbers in a net | {figures['weights_a_net']:,} |",
        f"| size | {figures['bytes'] / 1e6:,.0f} MB in {figures['shards']} shards |",
        *_recipe_lines(recipe),
        *_data_lines(zoo.description.get("data", {}), recipe),
        *_build_lines(figures["builds"]),
        "",
        "## Test accuracy of the ok rows",
        "",
        "| " + " | ".join(f"{100 * q:.0f} %" for q in QUANTILES) + " |",
        "|---" * len(QUANTILES) + "|",
        f"| {quantiles} |",
        "",
        "Mean by checkpoint: "
        + ", ".join(
            f"{name} {100 * value:.1f} %"
            for name, value in figures["mean_test_accuracy_by_checkpoint"].items()
        )
        + ".",
        "",
        "## Columns",
        "",
        "| column | type | meaning |",
        "|---|---|---|",
        *(f"| `{name}` | {kind} | {meaning} |" for name, (kind, meaning) in COLUMNS.items()),
        f"| `weights` | list of {figures['weights_a_net']} float32 | all numbers of the net; the "
        f"layout (name, offset, shape) is in `{LAYOUT}` and in the Parquet schema's metadata |",
        "",
        *_rebuild_lines(recipe, figures["runs"]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def histogram(zoo: Zoo) -> bytes:
    """Test accuracies of the ok rows as a PNG, counts on a logarithmic scale.

    Raises:
        StoreError: If matplotlib is missing.
    """
    try:
        from matplotlib import rc_context
    except ImportError as error:
        raise StoreError("the histogram needs `pip install 'transformer-nfn[zoo]'`") from error
    with rc_context({"text.usetex": False}):  # a zoo's name is text
        return _draw_histogram(zoo)


def _draw_histogram(zoo: Zoo) -> bytes:
    from matplotlib.figure import Figure

    table = zoo.table(ok, ["checkpoint", "test_accuracy"])
    accuracies = 100 * table.column("test_accuracy").drop_null().to_numpy()
    final = table.filter(_last_epoch(table)).column("test_accuracy").drop_null().to_numpy() * 100
    figure = Figure(figsize=(6.4, 3.6), dpi=120, layout="constrained")
    axes = figure.subplots()
    bins = [2.5 * edge for edge in range(41)]
    axes.hist(accuracies, bins, color="#9ecae1", label=f"all {len(accuracies):,} rows")
    axes.hist(final, bins, color="#08519c", label=f"last epoch, {len(final):,} runs")
    axes.set(
        xlabel="test accuracy, %",
        ylabel="networks",
        yscale="log" if len(accuracies) else "linear",
        xlim=(0, 100),
    )
    axes.set_title(for_picture(_title(zoo)), loc="left")
    # Beside the title: bars may be anywhere, and at 10 % there are always some.
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
    axes.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _title(zoo: Zoo) -> str:
    recipe = zoo.description.get("recipe")
    if _is_gathered(zoo):
        return str(zoo.name)
    if recipe is None:
        return f"{zoo.name}, {zoo.description.get('source', {}).get('task')}"
    return f"{zoo.name}{', shared seeds' if recipe.get('seeds') == 'shared' else ''}"


def _is_gathered(zoo: Zoo) -> bool:
    return bool(zoo.description.get("source", {}).get("kind") == "gathered")


def _last_epoch(table: Any) -> Any:
    import pyarrow as pa  # type: ignore[import-untyped]

    names = [name for name in table.column("checkpoint").to_pylist() if name.isdigit()]
    last = max(names, key=int, default="best")
    return pa.array([name == last for name in table.column("checkpoint").to_pylist()], pa.bool_())


def _licence(recipe: dict[str, Any]) -> list[str]:
    if recipe.get("task") == "ag_news":  # its articles are for research only
        return ["license: other", "license_name: research-only"]
    return ["license: mit"]


def _data_files(zoo: Zoo) -> list[str]:
    """Splits where each shard belongs to one, as in a zoo that was published; else all files."""
    names = zoo.names()
    sides = [side for side in SIDES if any(name.startswith(f"{side}-") for name in names)]
    if not all(name.startswith(tuple(f"{side}-" for side in SIDES)) for name in names):
        return ["    data_files: data/*.parquet"]
    lines = ["    data_files:"]
    for side in sides:
        lines += [f"      - split: {side}", f"        path: data/{side}-*.parquet"]
    return lines


def _data_lines(data: dict[str, Any], recipe: dict[str, Any]) -> list[str]:
    if not data:
        return []
    counts = ", ".join(f"{data[side]:,} {side}" for side in SIDES)
    return [
        f"| data | {data['about'] or recipe['task']} |",
        f"| examples | {counts} |",
        f"| SHA-256 of the data | `{recipe['data']}` |",
    ]


def _recipe_lines(recipe: dict[str, Any]) -> list[str]:
    if not recipe:
        return []
    seeds = "one for each run" if recipe["seeds"] == "run" else "the same for all runs"
    training = recipe["training"]
    return [
        f"| task | {recipe['task']}, batch {training['batch']}, {training['epochs']} epochs |",
        f"| block | {recipe['block']}, D = {recipe['D']}, {recipe['heads']} heads, "
        f"D_A = {recipe['D_A']}, {recipe['blocks']} blocks |",
        f"| seeds | {seeds} |",
    ]


def _build_lines(builds: list[dict[str, Any]]) -> list[str]:
    if not builds:
        return []
    wall = sum(log["wall_seconds"] for log in builds)
    busy = sum(log["worker_seconds"] for log in builds)
    workers = max(log["workers"] for log in builds)
    return [
        f"| time taken | {wall / 60:.0f} min on {_count(workers, 'worker')} in "
        f"{_count(len(builds), 'session')}, {busy / 3600:.2f} worker hours |"
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _rebuild_lines(recipe: dict[str, Any], runs: int) -> list[str]:
    if not recipe:
        return []
    shared = recipe["seeds"] != "run"
    seeds, folder = " --seeds shared" * shared, recipe["name"] + "-shared" * shared
    return [
        "## Build it again",
        "",
        "```sh",
        "pip install 'transformer-nfn[zoo]'",
        f"tnfn zoo build {recipe['name']} --runs {runs}{seeds} --out {folder}",
        "```",
    ]
