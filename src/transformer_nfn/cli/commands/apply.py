"""`tnfn apply`: turn one checkpoint into another by a certificate."""

from pathlib import Path
from typing import Annotated

import typer

from transformer_nfn.cli.checkpoints import ConfigFile, FamilyFile, Options, Source, open_checkpoint
from transformer_nfn.cli.common import Json, show
from transformer_nfn.cli.early import check_there


def apply(
    certificate: Annotated[
        str, typer.Argument(help="Written by `tnfn same --certificate`; or its URL.")
    ],
    path: Source,
    out: Annotated[Path, typer.Option(help="A .safetensors file, or a folder.")],
    other_file: Annotated[
        bool,
        typer.Option("--other-file", help="Apply it to a file with other bytes or settings."),
    ] = False,
    config: ConfigFile = None,
    options: Options = None,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Apply a certificate to a checkpoint.

    It is for the checkpoint it was found for: the result is the other one.

    What is no symmetry of the checkpoint is refused, and so is a checkpoint with other bytes or
    settings than those it was found for. With --other-file it may be any, the same tensors in
    other shards for example; the result still has the function of PATH, or is refused.

    Example: tnfn apply g.safetensors a.safetensors --out b/
    """
    check_there(certificate, path, config)
    from transformer_nfn.checkpoints import CheckpointError, Digests
    from transformer_nfn.identity import apply_element, load_certificate, read_terms

    with open_checkpoint(path, config, options, family) as checkpoint:
        stated = read_terms(certificate).first
        if not other_file and (wrong := stated.difference(Digests.of(checkpoint))):
            raise CheckpointError(
                f"{certificate} was not found for {path}: {wrong}; if it holds the same network, "
                f"--other-file applies it anyway"
            )
        element, _ = load_certificate(certificate, checkpoint)
        written = apply_element(checkpoint, element, out)
    show({"wrote": str(written), "condition": float(f"{element.condition():.4g}")}, as_json)
