"""Ports of servers that checks start.

They lie below those that the system gives to outgoing connections, so a free one stays free. Checks that run at the same time take them
from ranges of their own.
"""

import contextlib
import socket

TOOLS = iter(range(31_000, 32_000))
PYMONGO_SUITE = iter(range(32_000, 32_700))


def free_port(ports):
    """Returns the next port that is free. Threads may share `ports`, one of the ranges: each port is returned once."""
    for port in ports:
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
