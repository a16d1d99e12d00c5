"""Files on a local disk that appear whole or not at all."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from uuid import uuid4

#: Subfolder for files that are still being written: on the same file system as what they become.
TEMPORARIES = "_tmp"
#: Taken for the moment of a rename, where there are no hard links. Never in `TEMPORARIES`: a sweep
#: that removed it while it is held would let a second process in.
LOCK = "_lock"

#: What `os.link` says on a file system without hard links: FAT, network and cloud mounts, FUSE.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
#: What fsync says of a folder on file systems that have no such thing.
_NO_FOLDER_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}


def create_file(final: Path, write: Callable[[BufferedIOBase], object]) -> bool:
    """Create a file whole, or leave what is there: True if this call created it.

    Written and synced under a temporary name first. A hard link then gives it its name: it fails
    if the name is taken, so of several writers exactly one succeeds, and it happens at once, so
    nobody ever sees part of a file.
    """
    if final.exists():
        return False
    with _written(final, write) as temporary:
        created = _link(temporary, final)
    _sync_folder(final.parent)
    return created


def replace_file(final: Path, write: Callable[[BufferedIOBase], object]) -> None:
    """Write a file whole, in place of what may be there; readers see the old or the new one."""
    with _written(final, write) as temporary:
        os.replace(temporary, final)
    _sync_folder(final.parent)


@contextmanager
def _written(final: Path, write: Callable[[BufferedIOBase], object]) -> Iterator[Path]:
    folder = final.parent / TEMPORARIES
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{final.name}.{uuid4().hex}"
    try:
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _link(temporary: Path, final: Path) -> bool:
    try:
        os.link(temporary, final)
    except FileExistsError:
        # On NFS a link may be made while its reply is lost, and the repeated call finds it there.
        return os.path.samefile(temporary, final)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _rename_locked(temporary, final)
    return True


def _rename_locked(temporary: Path, final: Path) -> bool:
    """`_link` without hard links: look and rename, one process at a time.

    The kernel drops the lock when its holder dies. It holds between the processes of one machine,
    and between machines where the file system shares locks; on a mount that has neither hard links
    nor shared locks (a cloud drive through FUSE) only one machine may write.
    """
    import fcntl  # not on Windows, whose file systems have hard links

    with open(final.parent / LOCK, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if final.exists():
            return False
        os.rename(temporary, final)
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)
