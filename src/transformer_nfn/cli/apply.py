"""`tnfn apply`: turn one checkpoint into another by a certificate."""

from pathlib import Path
from typing import Annotated

import typer

from transformer_nfn.cli.checkpoints import ConfigFile, Options, Source, open_checkpoint
from transformer_nfn.cli.common import Json, show


def apply(
    certificate: Annotated[
        str, typer.Argument(help="Written by `tnfn same --certificate`; or its URL.")
    ],
    path: Source,
    out: Annotated[Path, typer.Option(help="A .safetensors file, or a folder.")],
    config: ConfigFile = None,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Apply a certificate to the checkpoint it was found for: the result is the other one.

    Example: tnfn apply g.safetensors a.safetensors --out b/
    """
    from transformer_nfn.identity import apply_element, load_certificate

    with open_checkpoint(path, config, options) as checkpoint:
        element, norm = load_certificate(certificate, checkpoint)
        written = apply_element(checkpoint, element, out, norm=norm)
    show({"wrote": str(written), "condition": float(f"{element.condition():.4g}")}, as_json)
