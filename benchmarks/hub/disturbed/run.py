"""One disturbed run of `faults.py`: commands, what happens to them, what they leave."""

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
from functools import partial
from pathlib import Path
from uuid import uuid4

from benchmarks.hub.disturbed.compare import Watch, compare, undisturbed, unswept
from benchmarks.hub.disturbed.files import Mischief
from benchmarks.material.processes import left_behind, raylets, workers

#: Bytes of the file system that is filled up; what a run writes takes a tenth.
DISK = 2**23
#: Seconds that a command may take, and that Ray may take to be gone.
LIMIT, GONE = 300.0, 20.0
#: What happens to files and not to processes.
FILES = ("vanish", "change", "grow")
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
        self.unjudged: list[subprocess.Popen[str]] = []  # whose end nobody has looked at
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
            found["temporaries"] = unswept(self.out)
            sessions = {driver.pid for driver in self.drivers}
            found["left_behind"] = left_behind(sessions, self.mark, GONE)
        finally:
            self.watch.stop.set()
            self.threads.shutdown()
            for driver in self.drivers:
                driver.kill()
                driver.wait()
            if "full" in self.kinds:
                subprocess.run(["umount", "--lazy", self.disk], check=True)
        return found

    def _start(self, *more: str) -> "subprocess.Popen[str]":
        name, _, value = self.mark.partition("=")
        words = ["fingerprint", str(self.tree), "--out", f"{self.out}/", "--json", *more]
        driver = subprocess.Popen(
            [sys.executable, "-c", "from transformer_nfn.cli import main; main()", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, name: value},
        )
        self.drivers.append(driver)
        self.unjudged.append(driver)
        return driver

    def _disturb(self) -> None:
        """Start, let things happen after some number of shards each, and wait for the end."""
        incidents: list[Callable[[], None]] = [
            partial(self._happen, kind) if kind in FILES else getattr(self, f"_{kind}")
            for kind in self.kinds
            if kind != "two"
        ]
        if "worker" in self.kinds:
            incidents += [self._worker] * self.rng.randint(0, 2)
        self.rng.shuffle(incidents)
        moments = sorted(self.rng.uniform(0, 0.6) * self.shards for _ in incidents)
        if "full" in self.kinds and self.rng.random() < 0.3:  # from the beginning
            self._fill()
            incidents.sort(key=lambda incident: incident != self._full)  # it comes first
        self._start("--ray")
        if "two" in self.kinds:  # they are to meet, so at once
            time.sleep(self.rng.uniform(0, 2))
            self._hit("second driver")
            self._start("--ray")
        if self.kinds[0] in ("worker", "driver", "stop", "raylet") and self.rng.random() < EARLY:
            time.sleep(self.rng.uniform(0, 12))  # Python, Ray and its workers still start
            moments[0] = 0.0
        for moment, incident in zip(moments, incidents, strict=True):
            while self._running() and len(self.watch.seen) < moment:
                time.sleep(0.005)
            incident()
        for driver in list(self.unjudged):
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
            self._over(driver)
            self._start("--ray")

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
            self._over(driver)
        self._start("--ray")

    def _raylet(self) -> None:
        """The heart of a local Ray is killed; its driver cannot go on, and must not hang."""
        while running := self._running():
            driver = self.rng.choice(running)
            for pid in raylets(driver.pid):
                os.kill(pid, signal.SIGKILL)
                self._hit("raylet")
                self._over(driver)
                self._start("--ray")
                return
            time.sleep(0.01)

    def _happen(self, kind: str) -> None:
        """Something happens to files, while the run goes on and after it."""
        self._hit(kind)
        actions = self.growing if kind == "grow" else getattr(self.mischief, kind)()
        self.happening += [self.threads.submit(action) for action in actions]

    def _fill(self) -> None:
        with suppress(OSError), (self.disk / "ballast").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def _full(self) -> None:
        """The disk is full; drivers say so and end. Then there is room, and one starts again."""
        self._fill()
        codes = [self._ended(driver, None) for driver in list(self.unjudged)]
        (self.disk / "ballast").unlink()
        if 1 in codes:
            self._hit("full")
        if set(codes) != {0}:
            self._start("--ray")

    def _over(self, driver: "subprocess.Popen[str]") -> tuple[str, str]:
        """Wait for the end of a driver, however it ends; what it wrote."""
        self.unjudged.remove(driver)
        try:
            return driver.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise WrongError(f"a command takes longer than {LIMIT} s") from None

    def _ended(
        self, driver: "subprocess.Popen[str]", code: int | None, words: str | None = None
    ) -> int:
        """Wait for the end of a driver: it is 0, or a code with some words in its last line.

        None stands for 1 and words about a full disk.
        """
        if code is None:
            code, words = 1, "cannot be written: No space left on device"
        _, errors = self._over(driver)
        said = [line for line in errors.splitlines() if not line.startswith("no result: ")]
        if driver.returncode not in (0, code) or "Traceback" in errors:
            raise WrongError(f"a command ended with {driver.returncode}:\n{errors}")
        if driver.returncode and words is not None and not (said and words in said[-1]):
            raise WrongError(f"a command ended with {driver.returncode} and these words:\n{errors}")
        return driver.returncode

    def _finish(self) -> int:
        """Without Ray, until there is nothing to do; says how often there was something."""
        for number in range(AGAIN + 1):
            driver = self._start()
            out, errors = self._over(driver)
            if driver.returncode:
                raise WrongError(f"the last command ended with {driver.returncode}:\n{errors}")
            if json.loads(out)["done"] == 0:
                return number
        raise WrongError(f"the same command found something to do {AGAIN + 1} times")
