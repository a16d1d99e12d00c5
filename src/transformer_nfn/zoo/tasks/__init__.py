"""Tasks: what the networks of a zoo are trained on."""

from pathlib import Path

from transformer_nfn.zoo.tasks.crop import Cropper
from transformer_nfn.zoo.tasks.errors import DataError
from transformer_nfn.zoo.tasks.part import Part, Task, patches

__all__ = ["TASKS", "Cropper", "DataError", "Part", "Task", "load_task", "patches"]

#: The tasks that `load_task` knows.
TASKS = ("digits", "mnist", "ag_news")


def load_task(name: str, *, data: str | Path | None = None, patch: int | None = None) -> Task:
    """Load a task by its name. The same files give the same task, example by example.

    Args:
        name: One of `TASKS`.
        data: The folder with the folders of the tasks; None for the one in the environment
            variable TNFN_DATA. Where neither is given, MNIST is downloaded from the Hugging Face
            hub. The digits need no data.
        patch: The side of a patch in pixels; None for the task's own, 2 for digits, 4 for MNIST.

    Raises:
        DataError: If the task is unknown, or its files or libraries are missing.

    Examples:
        >>> from transformer_nfn.zoo.tasks import load_task
        >>> task = load_task("digits")
        >>> len(task.train), task.tokens, task.width, task.classes
        (1097, 16, 4, 10)
    """
    if name not in TASKS:
        raise DataError(f"no task {name!r}, there are {', '.join(TASKS)}")
    if name == "ag_news" and patch is not None:
        raise DataError(f"ag_news is text and has no patches, got patch {patch}")
    folder = None if data is None else Path(data)
    # Imported here, since each task has libraries of its own.
    try:
        if name == "digits":
            from transformer_nfn.zoo.tasks.digits import digits_task

            return digits_task(**({} if patch is None else {"patch": patch}))
        if name == "mnist":
            from transformer_nfn.zoo.tasks.mnist import mnist_task

            return mnist_task(folder, **({} if patch is None else {"patch": patch}))
        from transformer_nfn.zoo.tasks.ag_news import ag_news_task

        return ag_news_task(folder)
    except ImportError as error:
        raise DataError(
            f"task {name!r} needs {error.name}: `pip install 'transformer-nfn[zoo]'`"
        ) from error
