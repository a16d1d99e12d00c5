"""`tnfn convert`: other formats as safetensors."""

from pathlib import Path
from typing import Annotated

import typer

from transformer_nfn.cli.checkpoints import Blocks
from transformer_nfn.cli.common import Json, show
from transformer_nfn.cli.early import check_there


def convert(
    source: Annotated[
        str, typer.Argument(help="A .gguf file, or with --unpickle a pytorch_model.bin.")
    ],
    out: Annotated[Path, typer.Option(help="A folder for model.safetensors and config.json.")],
    unpickle: Annotated[
        bool,
        typer.Option(
            "--unpickle",
            help="Read a pickle, in a process of its own with limits of memory, time and disk. "
            "No code in it is run; torch has had flaws that allowed that, none known to be open.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a GGUF or pickled checkpoint as safetensors.

    Tensors get the names that transformers has for them.

    Example: tnfn convert model-q8_0.gguf --out model/
    """
    check_there(source)
    from transformer_nfn.checkpoints import convert as converted

    with Blocks(1, "tensors written", disable=as_json) as progress:
        folder = converted(source, out, unpickled=unpickle, progress=progress)
    show({"wrote": str(folder / "model.safetensors")}, as_json)
