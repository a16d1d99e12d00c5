"""`pytorch_model.bin` as safetensors, in a process of its own and only where somebody asks for it.

Such a file is a pickle. `torch.load(weights_only=True)` builds tensors and plain containers of it
and runs nothing that it brings, as far as anybody knows. So that what nobody knows has little to
work with, it runs in a process that may take so much memory, time and disk and no more, and all
that comes back is a safetensors file, which is read as one from a stranger.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.files.places import open_regular

#: Seconds of the processor for a gigabyte, and for a small file.
_SECONDS_FOR_A_GB, _SECONDS = 60, 60
#: Bytes beside three times those of the file: it is read, copied and written.
_MEMORY = 2**29
#: The longest message that is passed on.
_MESSAGE = 300


def unpickle(source: Path, out: Path) -> None:
    """Write the tensors of a pickle to a safetensors file.

    Raises:
        CheckpointError: If it is no pickle of tensors, or takes more than it may.
    """
    handle, size = open_regular(source)
    handle.close()
    seconds = _SECONDS + size * _SECONDS_FOR_A_GB // 10**9
    words = [sys.executable, "-I", "-m", __name__, str(source.resolve()), str(out.resolve())]
    try:
        done = subprocess.run(
            [*words, str(size), str(seconds)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=4 * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CheckpointError(f"{source} takes too long to be unpickled") from None
    if done.returncode or not out.exists():
        out.unlink(missing_ok=True)
        said = done.stderr.strip().rpartition("\n")[2]
        clean = "".join(c if c.isprintable() else " " for c in said)[:_MESSAGE]
        how = clean or f"its process ended with {done.returncode}: too much memory, time or disk"
        raise CheckpointError(f"{source} cannot be unpickled: {how}")


def _main(source: str, out: str, size: str, seconds: str) -> None:
    """What runs in the process."""
    import torch
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    _limit(int(size), int(seconds))
    try:
        found = torch.load(source, map_location="cpu", weights_only=True)  # noqa: TID251 - asked for
    except MemoryError:
        sys.exit("it takes more memory than three times its size")
    except Exception as error:
        if type(error).__name__ == "UnpicklingError":  # torch's advice is to run the file's code
            sys.exit("it is no pickle, or holds more than tensors and plain containers of them")
        sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    found = _inner(found)
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        sys.exit("it holds no tensors by name")
    tensors = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
    inside = [name for name, value in found.items() if name not in tensors and _holds(value)]
    if inside:
        sys.exit(f"there are tensors inside {inside[0][:80]!r} as well: whose are they?")
    if not tensors:
        sys.exit("it holds no tensors by name")
    if any(value.is_sparse or value.is_quantized for value in tensors.values()):
        sys.exit("it holds sparse or quantised tensors")
    try:
        # Tied tensors are one on disk and two here; safetensors wants each to have its own memory.
        save_file({n: v.detach().clone().contiguous() for n, v in tensors.items()}, out)
    except (MemoryError, OSError, RuntimeError, ValueError) as error:
        sys.exit(f"{type(error).__name__}: {str(error)[:200]}")


def _inner(found: Any) -> Any:
    """The model of what a trainer stored, beside which only others' tensors may stand."""
    for name in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, dict) and isinstance(model := found.get(name), dict):
            others = [value for key, value in found.items() if key != name]
            if any(_holds(value) for value in others if not isinstance(value, dict)):
                sys.exit(f"there are tensors beside {name!r}: whose are they?")
            if any(isinstance(value, dict) and value.keys() & model.keys() for value in others):
                sys.exit(f"there is another model beside {name!r}; take one of them out")
            return model
    return found


def _holds(value: Any) -> bool:
    """Whether there are tensors in a container."""
    if isinstance(value, dict):
        return any(_holds(one) for one in value.values())
    if isinstance(value, list | tuple):
        return any(_holds(one) for one in value)
    return type(value).__module__.startswith("torch") and hasattr(value, "numel")


def _limit(size: int, seconds: int) -> None:
    import resource  # which not every system has, and only this process needs

    with open("/proc/self/statm") as file:  # what torch itself has taken
        now = int(file.read().split()[0]) * resource.getpagesize()
    for kind, most in (
        (resource.RLIMIT_AS, now + 3 * size + _MEMORY),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 2 * size + _MEMORY),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    _main(*sys.argv[1:])
