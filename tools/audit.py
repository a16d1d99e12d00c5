"""Known vulnerabilities of what is installed, or a plain word that nobody could be asked.

    python tools/audit.py

pip-audit asks PyPI, then OSV. It ends well when a service answers for no package at all, so its
answer is read and not its exit code. Exit code 1 only where something is found.
"""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

SERVICES = ("pypi", "osv")
SECONDS = 60
#: Vulnerabilities that do not concern us, each with its reason. None at present.
IGNORED: dict[str, str] = {}


@dataclass
class Answer:
    """What a service said."""

    service: str
    audited: int = 0
    skipped: int = 0
    found: list[str] = field(default_factory=list)
    failure: str = ""

    @property
    def reached(self) -> bool:
        """Most packages were known to it: the few that are not are ours, or local builds."""
        return not self.failure and self.audited > self.skipped


def ask(service: str) -> Answer:
    """Ask one service for everything that is installed."""
    command = [sys.executable, "-m", "pip_audit", "-s", service, "-f", "json"]
    command += ["--progress-spinner", "off", "--timeout", "5"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return Answer(service, failure=f"no answer in {SECONDS} s")
    try:
        return read(service, json.loads(run.stdout))
    except (ValueError, KeyError, TypeError):
        lines = run.stderr.strip().splitlines() or ["no output"]
        return Answer(service, failure=lines[-1][:300])


def read(service: str, report: dict[str, Any]) -> Answer:
    """An answer from pip-audit's report."""
    answer = Answer(service)
    for package in report["dependencies"]:
        if "skip_reason" in package:
            answer.skipped += 1
            continue
        answer.audited += 1
        for one in package["vulns"]:
            names = {one["id"], *one.get("aliases", [])}
            if not names & set(IGNORED):
                fixed = ", ".join(one.get("fix_versions", [])) or "no version yet"
                answer.found.append(
                    f"{package['name']} {package['version']}: {one['id']}, fixed in {fixed}"
                )
    return answer


def main() -> int:
    """Ask until one answers."""
    for service in SERVICES:
        answer = ask(service)
        if answer.found:
            print(
                f"{len(answer.found)} known vulnerabilities ({service}):", *answer.found, sep="\n"
            )
            return 1
        if answer.reached:
            print(f"no known vulnerability in {answer.audited} packages ({service}); ", end="")
            print(f"{answer.skipped} are not known to it")
            return 0
        why = answer.failure or f"it knew {answer.audited} of {answer.audited + answer.skipped}"
        print(f"NOT AUDITED by {service}: {why}")
    print("NO AUDIT WAS DONE: no service could be reached. Run it where there is a network.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
