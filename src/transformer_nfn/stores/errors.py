"""What goes wrong with stores, and whether asking again may help.

Each library behind fsspec has its own exceptions, and none of them need be installed. So they are
known by the status of the answer that they carry, by errno, or by name.
"""

import errno
from typing import Any


class UnreachableError(OSError):
    """A store did not answer, or not as it should, however often it was asked."""


#: Answers that will not change.
_FINAL = (
    FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError,
    UnreachableError,
)  # fmt: skip
#: S3's words for "send it again", in answers with a status below 500. NoSuchUpload: an upload in
#: parts was completed, the answer was lost, and the client completed it once more.
_AGAIN = {
    "BadDigest", "ConditionalRequestConflict", "IncompleteBody", "NoSuchUpload", "OperationAborted",
    "RequestTimeout", "XAmzContentSHA256Mismatch",
}  # fmt: skip
_ERRNOS = {
    None, errno.EIO, errno.EBUSY, errno.EAGAIN, errno.ETIMEDOUT, errno.ENETDOWN, errno.ENETUNREACH,
    errno.EHOSTUNREACH, errno.EPIPE, getattr(errno, "EREMOTEIO", errno.EIO),
}  # fmt: skip
#: Exceptions that are no OSError: no answer, half an answer, or one that cannot be understood.
_NAMES = {
    ("aiohttp", "ClientError"),
    ("azure", "ServiceRequestError"),
    ("azure", "ServiceResponseError"),
    ("botocore", "ConnectionError"),
    ("botocore", "HTTPClientError"),
    ("botocore", "IncompleteReadError"),
    ("botocore", "ResponseParserError"),
    ("httpx", "TransportError"),
}


def is_refused(error: BaseException) -> bool:
    """Whether credentials are missing, or not enough."""
    if isinstance(error, PermissionError) or _answer(error)[0] in (401, 403):
        return True
    found = (type(error).__module__.partition(".")[0], type(error).__name__)
    return found in {("botocore", "NoCredentialsError"), ("botocore", "PartialCredentialsError")}


def is_missing(error: BaseException) -> bool:
    """Whether there is no such file."""
    return isinstance(error, FileNotFoundError) or _answer(error)[0] in (404, 410)


def is_taken(error: BaseException) -> bool:
    """Whether a file was not created since there is one.

    s3fs says FileExistsError only where the answer names the condition, as that of AWS does.
    """
    return isinstance(error, FileExistsError) or _answer(error)[0] == 412


def is_foreign(error: BaseException) -> bool:
    """Whether a library says in words of its own that a request was wrong, as aiohttp does.

    A ValueError too: of a URL that is none. Most other types of Python's own are bugs.
    """
    if isinstance(error, _FINAL):
        return False
    known = isinstance(error, ValueError | NotImplementedError)
    return known or type(error).__module__ != "builtins"


def is_transient(error: BaseException) -> bool:
    """Whether the same request may well succeed in a moment."""
    status, code = _answer(error)
    if code in _AGAIN:
        return True
    if isinstance(error, _FINAL):
        return False
    if status is not None:
        return status in (408, 429) or (status >= 500 and status != 501)
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if isinstance(error, OSError):
        return error.errno in _ERRNOS
    bases = type(error).__mro__
    return any((base.__module__.partition(".")[0], base.__name__) in _NAMES for base in bases)


def _answer(error: BaseException) -> tuple[int | None, str]:
    """Status and code of the answer that an error stands for."""
    for one in (error, error.__cause__):
        response: Any = getattr(one, "response", None)
        if isinstance(response, dict):  # botocore's, which s3fs gives as the cause
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status, str(response.get("Error", {}).get("Code", ""))
    for place in (error, getattr(error, "response", None)):
        for name in ("status", "status_code", "code"):
            found = getattr(place, name, None)
            if isinstance(found, int):
                return found, ""
    return None, ""
