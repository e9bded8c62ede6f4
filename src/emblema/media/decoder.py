"""The process that decodes media: one file at a time, under limits of memory and time that the system enforces."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from emblema.errors import EmblemaError, MediaError
from emblema.media.audio import decode_sound
from emblema.media.container import describe_container
from emblema.media.decoder_pool import IDLE_SECONDS, LENGTHS
from emblema.media.document import decode_pages
from emblema.media.frames import decode_frames
from emblema.media.image import count_frames, decode_picture, import_formats
from emblema.media.limits import MediaLimits
from emblema.media.live import decode_live

Items = Iterator[tuple[dict[str, Any], bytes]]

TASKS: dict[str, Callable[..., Items]] = {
    "picture": decode_picture,
    "count": count_frames,
    "pages": decode_pages,
    "frames": decode_frames,
    "sound": decode_sound,
    "container": describe_container,
    "live": decode_live,
}
"""Decoders by kind of task: each takes an open file, its name, limits and options, and yields fields with a payload."""

_THREADS = 4
"""How many threads a decoder may have, so that the limit of processor time allows for them."""


def main() -> None:
    """Serve the process at the other end of the socket whose descriptor is the first argument, until it is gone."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    import_formats()
    # What libraries in C write about a picture would come among the caller's messages.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for limit, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, 64)):
        resource.setrlimit(limit, (most, most))
    try:
        connection.sendall(b"\0")
        while (request := _request(connection)) is not None:
            _serve(connection, *request)
    except OSError:
        return  # The caller is gone, or has had enough of this file.


def _request(connection: socket.socket) -> tuple[dict[str, Any], BinaryIO] | None:
    """Return the next request and its file; None when nobody asks any more."""
    connection.settimeout(IDLE_SECONDS)
    try:
        data, descriptors, _, _ = socket.recv_fds(connection, LENGTHS.size, 1)
    except TimeoutError:
        return None
    if not data or not descriptors:
        return None
    connection.settimeout(None)
    data += _receive(connection, LENGTHS.size - len(data))
    header, _ = LENGTHS.unpack(data)
    return json.loads(_receive(connection, header)), os.fdopen(descriptors[0], "rb")


def _serve(connection: socket.socket, request: dict[str, Any], file: BinaryIO) -> None:
    limits = MediaLimits(**request["limits"])
    _confine(limits.decoder_bytes, request["seconds"])
    name = request["name"]
    with file:
        try:
            file.seek(0)
            for fields, data in TASKS[request["kind"]](file, name, limits, **request["options"]):
                _send(connection, fields | {"outcome": "item"}, data)
            last = {"outcome": "end"}
        except MediaError as error:
            last = {"outcome": "refused", "message": str(error)}
        except EmblemaError as error:
            last = {"outcome": "unavailable", "message": str(error)}
        except MemoryError:
            text = f"{name} needs more than {limits.decoder_bytes} bytes of memory (the limit decoder_bytes)."
            last = {"outcome": "refused", "message": text}
        except ConnectionError:
            raise
        except Exception as error:
            last = {"outcome": "refused", "message": f"{name} cannot be decoded ({type(error).__name__}: {error})."}
    _send(connection, last)


def _confine(memory: int, seconds: float) -> None:
    """Bound what one task may take: the system ends the process even when nobody is there any more to kill it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = used.ru_utime + used.ru_stime
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    most = hard if math.isinf(seconds) else math.ceil(spent + seconds * _THREADS) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (_lower(most, hard), hard))
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (_lower(memory, hard), hard))


def _lower(wanted: int, hard: int) -> int:
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def _send(connection: socket.socket, fields: dict[str, Any], data: bytes = b"") -> None:
    fields |= {"message": fields["message"][:2000]} if "message" in fields else {}
    header = json.dumps(fields).encode()
    connection.sendall(LENGTHS.pack(len(header), len(data)) + header)
    connection.sendall(data)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError
        data += piece
    return data
