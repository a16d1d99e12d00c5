"""One disturbed run of hub_faults.py: commands, what happens to them, what they leave."""

import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from benchmarks.hub_faults_compare import Watch, compare, undisturbed
from benchmarks.hub_faults_material import Mischief
from benchmarks.processes import below, of_session, workers
from transformer_nfn.hub import Results

#: Bytes of the file system that is filled up; what a run writes takes a tenth.
DISK = 2**23
#: Seconds that a command may take, and that Ray may take to be gone.
LIMIT, GONE = 300.0, 20.0
RAYLET = os.fsencode(
    f"{importlib.util.find_spec('ray').submodule_search_locations[0]}/core/src/ray/raylet/raylet"
)
#: How often something happens before there is any result.
EARLY = 0.25
#: How often the same command may find something to do after the disturbances.
AGAIN = 3


class WrongError(Exception):
    """Something that must not happen, in words."""


class Run:
    """One tree of files, one folder of results, some disturbances.

    Args:
        home: An empty folder for it.
        pool: The files, which are copied.
        spare: Nets that others are replaced by.
        kinds: What happens: worker, driver, stop, raylet, vanish, change, grow, full, two.
        seed: When and to whom.
    """

    def __init__(
        self, home: Path, pool: Path, spare: Path, kinds: tuple[str, ...], seed: str
    ) -> None:
        self.kinds, self.rng = kinds, random.Random(seed)
        self.tree, self.disk = home / "nets", home / "disk"
        shutil.copytree(pool, self.tree)
        self.disk.mkdir(parents=True)
        if "full" in kinds:
            size = f"size={DISK}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", self.disk], check=True)
        self.out = self.disk / "out"
        self.mischief = Mischief(self.tree, spare, self.rng)
        self.mark = f"TNFN_FAULTS={uuid4().hex}"
        self.calm = home / "calm"
        self.watch = Watch(self.out / "data")
        self.drivers: list[subprocess.Popen[str]] = []
        self.hits: list[str] = []
        self.threads = ThreadPoolExecutor(32)
        self.happening: list[Future[None]] = []
        self.growing = self.mischief.grow() if "grow" in kinds else []
        self.shards = len(list(self.tree.rglob("*.safetensors"))) // 8

    def judge(self) -> dict[str, object]:
        """Run it, and compare what it left with an undisturbed run."""
        self.watch.start()
        try:
            self._disturb()
            again = self._finish()
            found = compare(self.tree, self.out, undisturbed(self.tree, self.calm))
            found |= {"hits": self.hits, "again": again, "shards": len(self.watch.seen)}
            found["torn"] = len(self.watch.close())
            found["temporaries"] = self._temporaries()
            found["left_behind"] = self._left_behind()
        finally:
            self.watch.stop.set()
            self.threads.shutdown()
            for driver in self.drivers:
                driver.kill()
                driver.wait()
            if "full" in self.kinds:
                subprocess.run(["umount", "--lazy", self.disk], check=True)
        return found

    def _start(self) -> "subprocess.Popen[str]":
        name, _, value = self.mark.partition("=")
        words = ["fingerprint", str(self.tree), "--out", f"{self.out}/", "--ray", "--json"]
        driver = subprocess.Popen(
            [sys.executable, "-c", "from transformer_nfn.cli import main; main()", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, name: value},
        )
        self.drivers.append(driver)
        return driver

    def _disturb(self) -> None:
        """Start, let things happen after some number of shards each, and wait for the end."""
        incidents = [getattr(self, f"_{kind}") for kind in self.kinds]
        if "worker" in self.kinds:
            incidents += [self._worker] * self.rng.randint(0, 2)
        self.rng.shuffle(incidents)
        moments = sorted(self.rng.uniform(0, 0.6) * self.shards for _ in incidents)
        if "full" in self.kinds and self.rng.random() < 0.3:  # from the beginning
            self._fill()
        self._start()
        if self.rng.random() < EARLY:  # while Python, Ray and its workers still start
            time.sleep(self.rng.uniform(0, 12))
            moments[0] = 0.0
        for moment, incident in zip(moments, incidents, strict=True):
            while self._running() and len(self.watch.seen) < moment:
                time.sleep(0.005)
            incident()
        for driver in self._running():
            self._ended(driver, 0)
        for happening in self.happening:
            happening.result()

    def _running(self) -> "list[subprocess.Popen[str]]":
        return [driver for driver in self.drivers if driver.poll() is None]

    def _hit(self, kind: str) -> None:
        self.hits.append(f"{kind} after {len(self.watch.seen)}")

    def _worker(self) -> None:
        """A worker is killed."""
        while running := self._running():
            if pids := workers(self.rng.choice(running).pid):
                with suppress(ProcessLookupError):
                    os.kill(self.rng.choice(pids), signal.SIGKILL)
                    self._hit("worker")
                return
            time.sleep(0.01)

    def _driver(self) -> None:
        """A driver is killed, and started again."""
        if running := self._running():
            driver = self.rng.choice(running)
            self._hit("driver")
            driver.kill()
            driver.communicate()
            self._start()

    def _stop(self) -> None:
        """Ctrl-C at the terminal, which all processes of the group get; or a polite SIGTERM."""
        if not (running := self._running()):
            return
        driver = self.rng.choice(running)
        if self.rng.random() < 0.5:
            self._hit("SIGINT")
            os.killpg(driver.pid, signal.SIGINT)
        else:
            self._hit("SIGTERM")
            driver.terminate()
        if self.watch.seen:
            self._ended(driver, 130, "interrupted: what is finished is kept")
        else:  # perhaps Python was still importing: it need only end
            driver.communicate(timeout=LIMIT)
        self._start()

    def _raylet(self) -> None:
        """The heart of a local Ray is killed; its driver cannot go on, and must not hang."""
        while running := self._running():
            driver = self.rng.choice(running)
            for pid in below(driver.pid, (RAYLET,)):
                os.kill(pid, signal.SIGKILL)
                self._hit("raylet")
                driver.communicate(timeout=LIMIT)
                self._start()
                return
            time.sleep(0.01)

    def _vanish(self) -> None:
        self._happen("vanish", self.mischief.vanish())

    def _change(self) -> None:
        self._happen("change", self.mischief.change())

    def _grow(self) -> None:
        self._happen("grow", self.growing)

    def _happen(self, kind: str, actions: list[Callable[[], None]]) -> None:
        """Something happens to files, while the run goes on and after it."""
        self._hit(kind)
        self.happening += [self.threads.submit(action) for action in actions]

    def _fill(self) -> None:
        with suppress(OSError), (self.disk / "ballast").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def _full(self) -> None:
        """The disk is full; drivers say so and end. Then there is room, and one starts again."""
        self._fill()
        codes = [self._ended(driver, None, None) for driver in self._running()]
        (self.disk / "ballast").unlink()
        if 1 in codes:
            self._hit("full")
        if set(codes) != {0}:
            self._start()

    def _two(self) -> None:
        """A second driver, on the same files and results."""
        self._hit("second driver")
        self._start()

    def _ended(
        self, driver: "subprocess.Popen[str]", code: int | None, words: str | None = None
    ) -> int:
        """Wait for the end of a driver: its code, and what it says, must be as expected.

        Args:
            driver: Which.
            code: Or 0; None for 1 with one line about a full disk.
            words: What it must say, if it does not end with 0.
        """
        if code is None:
            code, words = 1, "cannot be written: No space left on device"
        try:
            _, errors = driver.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise WrongError(f"a command takes longer than {LIMIT} s") from None
        said = [line for line in errors.splitlines() if not line.startswith("no result: ")]
        if driver.returncode not in (0, code) or "Traceback" in errors:
            raise WrongError(f"a command ended with {driver.returncode}:\n{errors}")
        if driver.returncode and words is not None and not (said and words in said[-1]):
            raise WrongError(f"a command ended with {driver.returncode} and these words:\n{errors}")
        return driver.returncode

    def _finish(self) -> int:
        """The same command, until it finds nothing to do; says how often it found something."""
        for number in range(AGAIN + 1):
            driver = self._start()
            out, errors = driver.communicate(timeout=LIMIT)
            if driver.returncode:
                raise WrongError(f"the last command ended with {driver.returncode}:\n{errors}")
            if json.loads(out)["done"] == 0:
                return number
        raise WrongError(f"the same command found something to do {AGAIN + 1} times")

    def _temporaries(self) -> int:
        """Files of killed writers, which the next run sweeps up when they are old enough."""
        left = [path for path in self.out.rglob("_tmp/*") if path.is_file()]
        for path in left:
            os.utime(path, (1, 1))
        Results(str(self.out)).claim()
        return sum(path.exists() for path in left)

    def _left_behind(self) -> list[str]:
        """Processes that outlive all commands."""
        end = time.monotonic() + GONE
        sessions = {driver.pid for driver in self.drivers}
        while (pids := of_session(sessions, self.mark)) and time.monotonic() < end:
            time.sleep(0.1)
        return [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:80] for pid in pids]
