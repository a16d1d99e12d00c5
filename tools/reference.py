"""Write the pages of the documentation that are made from code: docs/reference.

    python tools/reference.py            # write them
    python tools/reference.py --check    # write nothing; exit 1 if one is stale

`cli.md` and `exit-codes.md` are made whole, from the commands of `tnfn`. In `models.md` the text
between two marks is, from the tables of architectures; the rest of it is written by hand.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import typer

from transformer_nfn.checkpoints import FAMILIES, Family, families
from transformer_nfn.cli.main import app

DOCS = Path(__file__).resolve().parent.parent / "docs" / "reference"
BEGIN, END = "<!-- made by tools/reference.py -->", "<!-- end of what is made -->"

#: What any command may end with.
COMMON = {
    0: "done, with no finding that another code stands for",
    1: "something you can mend, in one line on stderr: a file that cannot be read, an architecture "
    "that is not supported, a disk that is full",
    2: "a wrong command line",
    130: "interrupted by Ctrl-C or SIGTERM in a long run; what is finished is kept",
}

#: What single commands end with beside that, or where a common code means more.
EXITS = {
    "same": {
        0: "the same function",
        3: "another function",
        4: "not decided",
        5: "the same function, but nothing moved where `--expect moved` asked for it",
    },
    "kin": {0: "related", 3: "unrelated as far as can be seen", 4: "not comparable"},
    "verify": {
        0: "the certificate holds",
        3: "it does not hold",
        4: "the weights agree, but the functions cannot be run",
    },
    "inspect": {1: "also: it has NaN or infinite numbers"},
    "families": {1: "also: there is no such model_type"},
    "fingerprint": {1: "a file could not be read; with a FOLDER as `--out`, if none could"},
    "dedup": {1: "no file could be read"},
    "nearest": {1: "also: none of the known files has its shape"},
    "audit": {1: "a step is a duplicate, foreign, or could not be read"},
    "rank": {1: "a file could not be read; with `--out`, if none could"},
    "zoo build": {1: "also: a group of runs failed; the same command tries it again"},
    "zoo import": {1: "also: some files failed; the same command tries them again"},
    "zoo verify": {1: "also: something in the zoo is wrong"},
    "zoo export": {1: "also: no row is chosen by the options"},
    "bench run": {1: "also: a cell failed; the same command tries it again"},
}

CLI_HEAD = """# Commands of `tnfn`

Every command with its arguments, options, exit codes and an example: to look something up. To learn
by doing, start with [your first verdict](../tutorials/first-verdict.md). `tnfn COMMAND --help`
shows the same text.

This page is written by `python tools/reference.py`.

`--json` prints one object on stdout instead of text; errors go to stderr. What the words mean is in
the [glossary](glossary.md), what the codes mean in [exit codes](exit-codes.md).
"""

EXITS_HEAD = """# Exit codes

For scripts and CI: what the exit code of each command means. Those of `same` and `kin` are a
contract (`tests/cli/test_contract.py`): a number keeps its meaning.

This page is written by `python tools/reference.py`.
"""

EXITS_TAIL = """
With `--json`, `same` and `kin` print one object for the codes 0, 3, 4 and 5, described by
[their schemas](formats.md#json-of-same-and-kin); for 1 and 2 stdout is empty and stderr has a line.
"""

#: The folders of tables, and what they hold.
FOLDERS = {
    "decoders": "Decoders",
    "llamas": "Llama and its relatives",
    "encoders": "Encoders of text",
    "images": "Encoders of images",
    "seq2seq": "Encoder-decoders",
    "": "Networks of zoos",
}


def commands() -> dict[str, Any]:
    """Every command by its name, those of groups as `zoo build`."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():
        inside = getattr(command, "commands", None)
        found |= {f"{name} {n}": c for n, c in inside.items()} if inside else {name: command}
    return found


def grouped() -> dict[str, list[tuple[str, Any]]]:
    """The panels of `tnfn --help` with their commands."""
    panels = {n: c.rich_help_panel for n, c in typer.main.get_command(app).commands.items()}
    found: dict[str, list[tuple[str, Any]]] = {}
    for name, command in commands().items():
        found.setdefault(panels[name.split()[0]], []).append((name, command))
    return found


def cell(text: str) -> str:
    """Text for a table: a bar would end its cell."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def code(text: str) -> str:
    """Code for a table."""
    return f"`{text}`".replace("|", "\\|")


def describe(name: str, command: Any) -> Iterator[str]:
    """The section of one command."""
    context = command.context_class(command, info_name=name)
    pieces = " ".join(command.collect_usage_pieces(context)).replace("{", "").replace("}", "")
    text, examples = [], []
    for line in (command.help or "").splitlines():
        (examples if line.startswith("Example: ") else text).append(line)
    yield f"### `tnfn {name}`\n"
    yield "\n".join(text).strip() + "\n"
    yield f"```console\n$ tnfn {name} {pieces}"
    yield from (f"$ {line.removeprefix('Example: ')}" for line in examples)
    yield "```\n"
    yield "| argument or option | meaning |\n|---|---|"
    for param in command.get_params(context):
        if (record := param.get_help_record(context)) and "--help" not in record[0]:
            yield f"| {code(record[0])} | {cell(record[1])} |"
    if name in EXITS:
        yield "\n| exit code | meaning |\n|---|---|"
        yield from (f"| {number} | {meaning} |" for number, meaning in EXITS[name].items())
    yield ""


def cli_page() -> str:
    """All commands."""
    lines = [CLI_HEAD]
    lines += ["| command | what it does |\n|---|---|"]
    sections = []
    for title, found in grouped().items():
        sections += [f"## {title}\n"]
        for name, command in found:
            anchor = f"tnfn-{name.replace(' ', '-')}"
            first = (command.help or "").split("\n\n")[0]
            lines += [f"| [`{name}`](#{anchor}) | {cell(first)} |"]
            sections += describe(name, command)
    return "\n".join([*lines, "", *sections]).rstrip() + "\n"


def exits_page() -> str:
    """The codes of all commands in one table."""
    lines = [EXITS_HEAD, "| code | any command |\n|---|---|"]
    lines += [f"| {number} | {meaning} |" for number, meaning in COMMON.items()]
    lines += ["", "| command | code | meaning |\n|---|---|---|"]
    known = [name for found in grouped().values() for name, _ in found]
    if unknown := set(EXITS) - set(known):
        raise SystemExit(f"take these out of EXITS: {', '.join(unknown)}")
    for name in known:
        for number, meaning in EXITS.get(name, {}).items():
            lines += [f"| `{name}` | {number} | {meaning} |"]
    return "\n".join([*lines, EXITS_TAIL])


def folders() -> dict[str, str]:
    """The folder in which each table is, by the family's name; "" is none."""
    found: dict[str, str] = {}
    for module in walk_packages(families.__path__, f"{families.__name__}."):
        folder, _, file = module.name.removeprefix(f"{families.__name__}.").partition(".")
        for value in vars(import_module(module.name)).values():
            if isinstance(value, Family):
                found.setdefault(value.name, folder if file or module.ispkg else "")
    return found


def names(words: Any) -> str:
    """Names as code, with commas."""
    return ", ".join(f"`{word}`" for word in words) or "none"


def architecture(family: Family) -> Iterator[str]:
    """The section of one table."""
    kinds = list(family.keys)
    tables = [one.keys[kind] for one in (family, family.encoder) if one for kind in kinds]
    settings = {n for keys in tables for key in keys.matter for n in (key.name, *key.also)}
    settings |= {n for keys in tables for joint in keys.joint for n in joint.names}
    only = {n: v for keys in tables for n, v in keys.supported.items()}
    yield f"#### {family.name}\n"
    yield f"- `model_type`: {names(kinds)}"
    yield f"- told by: {names(family.probes)}"
    yield f"- prefix: {names(p or '(none)' for p in family.prefixes)}; blocks: `{family.block}`"
    yield f"- tensors of a block: {names(f'{m.weight}: {m.axes}' for m in family.matrices)}"
    norms = [*(family.norms or ()), *filter(None, [family.first_norm, family.last_norm])]
    yield f"- norms: {names(dict.fromkeys(norms))}"
    yield f"- writes into the stream: {names(w.name for w in family.writers)}"
    heads = [r.name for r in family.readers] + [s.name for s in family.summaries]
    yield f"- outputs: {names(heads + list(family.pooled))}"
    if family.encoder is not None:
        inner = family.encoder
        yield f"- tensors of its encoder: {names(f'{m.weight}: {m.axes}' for m in inner.matrices)}"
    yield f"- settings that count: {names(sorted(settings))}"
    if only:
        yield f"- only read if: {names(f'{n} = {v!r}' for n, v in sorted(only.items()))}"
    yield ""


def models_part() -> str:
    """The tables of all architectures."""
    lines = [BEGIN, ""]
    places = folders()
    for folder, title in FOLDERS.items():
        lines += [f"### {title}\n"]
        for family in FAMILIES.values():
            if places[family.name] == folder:
                lines += architecture(family)
    return "\n".join([*lines, END])


def models_page() -> str:
    """The page as it is, with what is made put in."""
    page = (DOCS / "models.md").read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + models_part() + after


PAGES = {"cli.md": cli_page, "exit-codes.md": exits_page, "models.md": models_page}


def main() -> int:
    """Write the pages, or with --check say which are stale."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    options = parser.parse_args()
    stale = 0
    for name, make in PAGES.items():
        page, fresh = DOCS / name, make()
        if page.is_file() and page.read_text(encoding="utf-8") == fresh:
            continue
        stale += 1
        if options.check:
            print(f"docs/reference/{name} is stale; run: python tools/reference.py")
        else:
            page.write_text(fresh, encoding="utf-8")
            print(f"wrote docs/reference/{name}")
    if not stale:
        print(f"docs/reference: {', '.join(PAGES)} are fresh")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
