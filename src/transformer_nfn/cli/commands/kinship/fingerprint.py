"""`tnfn fingerprint`: a few numbers for each file that no symmetry of its network changes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_nfn.cli.bulk import (
    BlockChoice,
    Sources,
    few_fingerprints,
    in_words,
    is_folder,
    run_bulk,
)
from transformer_nfn.cli.checkpoints import FamilyFile
from transformer_nfn.cli.common import Json, Ray
from transformer_nfn.cli.early import check_not_read, check_some_there
from transformer_nfn.cli.terminal import say, say_json

if TYPE_CHECKING:
    from transformer_nfn.kinship import Fingerprint


def fingerprint(
    sources: Sources,
    out: Annotated[
        str | None,
        typer.Option(
            help="FOLDER of results, for many files: a second run does only what is new or "
            "changed. Or FILE.parquet or FILE.jsonl; JSON lines on stdout if not given."
        ),
    ] = None,
    blocks: BlockChoice = "all",
    limit: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="With a FOLDER: maximum seconds per file; one that takes longer has no result, "
            "and is tried again the next time.",
        ),
    ] = None,
    family: FamilyFile = None,
    ray: Ray = None,
    as_json: Json = False,
) -> None:
    """Fingerprint checkpoints, a few or a million.

    16 numbers for each attention, MLP, embedding and output head.

    Exit code 1 if a file could not be read; with a FOLDER, where such files are rows with a
    reason, if none could be.

    Example: tnfn fingerprint model.safetensors checkpoints/ --out prints.parquet
    Example: tnfn fingerprint s3://hub/models --out prints --blocks first,last --ray
    """
    check_some_there(sources)
    if out is not None and not is_folder(out):
        check_not_read((*sources, family), Path(out))
    from transformer_nfn.checkpoints import CheckpointError

    if out is not None and is_folder(out):
        from transformer_nfn.hub import FingerprintTask

        if family is not None:
            raise CheckpointError(
                "--family is for a few files; for a FOLDER of results install the family as a "
                "package with an entry point, see docs/understand/networks.md"
            )
        _, figures = run_bulk(FingerprintTask(blocks, limit), sources, out, ray, as_json)
        if as_json:
            say_json(figures)
        else:
            say(in_words(figures))
        if not figures["status"].get("ok"):
            raise typer.Exit(1)
        return
    if out is not None and not out.endswith((".parquet", ".jsonl")):
        raise CheckpointError(
            f"--out ends with .parquet or .jsonl, or with / for a folder; not {Path(out).name!r}"
        )
    found = few_fingerprints(sources, blocks, ray, as_json, family)
    _write(found.done, found.unread, None if out is None else Path(out), as_json)


def _write(
    prints: "list[Fingerprint]", broken: dict[str, str], out: Path | None, as_json: bool
) -> None:
    """Those of a few files, at the end."""
    from transformer_nfn.checkpoints import CheckpointError

    for reason in broken.values():
        say(f"error: {reason}", err=True)

    def line(one: "Fingerprint") -> str:
        return json.dumps(one.to_json())

    if out is None and not as_json:
        for one in prints:
            say_json(one.to_json())
    elif out is not None and prints:
        try:
            if out.suffix == ".parquet":
                _write_parquet(prints, out)
            else:
                out.write_text("".join(f"{line(one)}\n" for one in prints))
        except OSError as error:
            raise CheckpointError(f"{out}: {error.strerror or error}") from None
    if as_json:
        figures = {
            "files": len(prints),
            "out": None if out is None else str(out),
            "broken": broken,
            "fingerprints": [one.to_json() for one in prints] if out is None else None,
        }
        say_json(figures)
    elif out is not None:
        say(f"{out}: {len(prints)} fingerprints")
    if broken:
        raise typer.Exit(1)


def _write_parquet(prints: "list[Fingerprint]", out: Path) -> None:
    """A row for each part of each file."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    rows = [
        {
            "path": one.path,
            "shape": one.shape,
            "dtype": one.dtype,
            "part": part,
            "numbers": value.tolist(),
        }
        for one in prints
        for part, value in one.parts.items()
    ]
    text = {name: pa.string() for name in ("path", "shape", "dtype", "part")}
    schema = pa.schema({**text, "numbers": pa.list_(pa.float64(), 16)})
    pq.write_table(pa.Table.from_pylist(rows, schema), out)
