"""Quick forms of benchmarks one after the other, each in a fork of a process that imported torch.

    python tools/quick.py symmetries verdicts fingerprint

To import torch and transformers takes several seconds, for many of them most of their time. Of each
benchmark its last line is shown, and all that it said if it fails; then the exit code is 1.
"""

import os
import runpy
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(name: str) -> bool:
    """Run one in a fork; whether it ended well."""
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        if (child := os.fork()) == 0:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
            sys.argv = [str(ROOT / "benchmarks" / f"{name}.py"), "--quick", "--json"]
            runpy.run_path(sys.argv[0], run_name="__main__")
            os._exit(70)  # a benchmark ends by sys.exit
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        log.seek(0)
        said = log.read().rstrip()
    shown = said.rpartition("\n")[2] if code == 0 else said
    print(f"\n== {name} --quick: exit {code}, {time.monotonic() - begin:.0f} s\n{shown}", flush=True)
    return code == 0


def main() -> int:
    """Run all that are named."""
    sys.path.insert(0, str(ROOT))
    import torch

    import tests.checkpoints.made  # transformers
    import transformer_nfn.identity
    import transformer_nfn.kinship  # noqa: F401

    torch.set_num_threads(1)  # a fork has none of its parent's threads
    return 0 if all([run(name) for name in sys.argv[1:]]) else 1


if __name__ == "__main__":
    sys.exit(main())
