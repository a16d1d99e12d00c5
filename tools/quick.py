"""Quick forms of benchmarks one after the other, each in a fork of a process that imported torch.

    python tools/quick.py same/verdicts kin/fingerprint

To import torch and transformers takes several seconds, for many of them most of their time. Of each
benchmark its last line is shown, and all that it said if it fails; then the exit code is 1.
"""

import importlib
import os
import runpy
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
#: What most of them need, some of it only when it is called.
IMPORTED = ("tests.checkpoints.made", "transformer_nfn.identity", "transformer_nfn.kinship")
IMPORTED += ("scipy.optimize", "scipy.spatial", "scipy.sparse.csgraph")


def run(name: str) -> bool:
    """Run one in a fork; whether it ended well."""
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        if (child := os.fork()) == 0:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
            os.fsync = lambda _: None  # many small files need not outlive a power cut
            sys.argv = [str(ROOT / "benchmarks" / f"{name}.py"), "--quick", "--json"]
            runpy.run_path(sys.argv[0], run_name="__main__")
            sys.exit()  # some benchmarks do only if they failed
        _, status, used = os.wait4(child, 0)
        code = os.waitstatus_to_exitcode(status)
        log.seek(0)
        said = log.read().rstrip()
    shown = said.rpartition("\n")[2] if code == 0 else said
    seconds, busy = time.monotonic() - begin, used.ru_utime + used.ru_stime
    took = f"{seconds:.0f} s, {busy:.0f} s of the processor"
    print(f"\n== {name} --quick: exit {code}, {took}\n{shown}", flush=True)
    return code == 0


def main() -> int:
    """Run all that are named."""
    sys.path.insert(0, str(ROOT))
    for name in IMPORTED:
        importlib.import_module(name)
    torch.set_num_threads(1)  # a fork has none of its parent's threads
    ended = [run(name) for name in sys.argv[1:]]
    return 0 if all(ended) else 1


if __name__ == "__main__":
    sys.exit(main())
