"""What holds files open, and closes them at the end of a `with`."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

# Not typing.Self: beartype, which checks shapes and types in tests, takes it in classes only.
SelfT = TypeVar("SelfT", bound="Closing")


class Closing(ABC):
    """A context manager that closes itself."""

    @abstractmethod
    def close(self) -> None:
        """Close what is open."""

    def __enter__(self: SelfT) -> SelfT:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
