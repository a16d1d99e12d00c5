"""`tnfn fingerprint`: a few numbers for each file that no symmetry of its network changes."""

import json
from pathlib import Path
from typing import Annotated

import typer

from transformer_nfn.cli.common import Json, Ray, interruptible, make_executor


def fingerprint(
    files: Annotated[list[Path], typer.Argument(help="Safetensors files, or folders of them.")],
    out: Annotated[
        Path | None, typer.Option(help="FILE.parquet or FILE.jsonl; JSON lines on stdout if not.")
    ] = None,
    ray: Ray = None,
    as_json: Json = False,
) -> None:
    """Fingerprint checkpoints: 16 numbers for each attention, MLP, embedding and head.

    Exit code 1 if a file could not be read.

    Example: tnfn fingerprint model.safetensors checkpoints/ --out prints.parquet
    """
    from transformer_nfn.checkpoints import CheckpointError
    from transformer_nfn.identity import Fingerprint, find_checkpoints, fingerprints
    from transformer_nfn.jobs import track

    if out is not None and out.suffix not in (".parquet", ".jsonl"):
        raise CheckpointError(f"--out ends with .parquet or .jsonl, not {out.name!r}")
    paths = [one for path in files for one in (find_checkpoints(path) if path.is_dir() else [path])]
    paths = list(dict.fromkeys(paths))
    with interruptible(), make_executor(ray) as executor:
        prints, broken = fingerprints(
            paths,
            executor,
            lambda outcomes: track(outcomes, len(paths), describe="fingerprints", disable=as_json),
        )
    for reason in broken.values():
        typer.echo(f"error: {reason}", err=True)

    def line(one: Fingerprint) -> str:
        return json.dumps(one.to_json())

    if out is None and not as_json:
        for one in prints:
            typer.echo(line(one))
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
        typer.echo(json.dumps(figures))
    elif out is not None:
        typer.echo(f"{out}: {len(prints)} fingerprints")
    if broken:
        raise typer.Exit(1)


def _write_parquet(prints: list, out: Path) -> None:  # type: ignore[type-arg]
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
