"""Ask a store again, after longer and longer pauses: bounded in number and in time."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from transformer_nfn.stores.errors import UnreachableError, is_foreign, is_refused, is_transient

T = TypeVar("T")

#: How often a store is asked, and seconds after which it is not asked again. A question may take
#: long by itself: a client has limits of time and retries of its own.
ATTEMPTS = 8
SECONDS = 60.0
#: Seconds of the first pause, which then doubles, and of the longest.
_FIRST, _LONGEST = 0.1, 10.0


def patiently(ask: Callable[[], T], what: str) -> T:
    """The answer to a question, asked again while it fails for reasons that pass.

    Args:
        ask: Asks; may be called several times.
        what: Named in the error at the end.

    Raises:
        UnreachableError: If all attempts failed so, or a library says that the request is wrong.
        PermissionError: If credentials are missing, or not enough.
        Exception: Of `ask`, if it says that asking again is no use: not found, not allowed.
    """
    start, pause, asked = time.monotonic(), _FIRST, 0
    while True:
        asked += 1
        try:
            return ask()
        except Exception as error:
            if is_refused(error):
                raise PermissionError(
                    f"{what}: {error}; credentials and permissions are on the page on stores"
                ) from error
            if not is_transient(error):
                if not is_foreign(error):
                    raise
                raise UnreachableError(f"{what}: {type(error).__name__}: {error}") from error
            spent = time.monotonic() - start
            if asked >= ATTEMPTS or spent + pause > SECONDS:
                raise UnreachableError(
                    f"{what}: asked {asked} times in {spent:.0f} s, and the last answer was "
                    f"{type(error).__name__}: {error}. What is committed is kept: run the same "
                    "command again when the store answers"
                ) from error
        # Not all who were refused at the same time come back at the same time.
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, _LONGEST)
