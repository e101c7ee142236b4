"""The server's connections: half-open sockets never keep a browser out.

Waitress takes 100 connections, keeps an idle one for two minutes and accepts none at the limit: 200 sockets
that send nothing, which needs no token, block it for everybody else. Here a new connection replaces the one
that has waited longest, and a request must arrive completely within a limited time.
"""

import logging
import resource
import socket
import time
from typing import Any

from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer

MOST_CONNECTIONS = 1000
REQUEST_WITHIN_S = 30
"""Seconds for a request to arrive completely; the largest, 1 MiB, takes 8 s over a link of 1 Mbit/s."""
CLEANUP_EVERY_S = 5
_IN_PASSING = 50
"""Connections beyond the limit: a closing one stays for one iteration of the loop. Further ones must wait."""


class _Connection(HTTPChannel):
    """A connection with the time since when its next request is incomplete."""

    incomplete_since_s: float | None
    """None between requests: a browser keeps a connection for later."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.incomplete_since_s = self.creation_time

    def received(self, data: bytes) -> Any:
        """Receive bytes of a request, as Waitress does, and note whether it is complete now."""
        taken = super().received(data)
        if self.request is None:
            self.incomplete_since_s = None
        elif self.incomplete_since_s is None:
            self.incomplete_since_s = time.time()
        return taken

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is being answered here, so that closing it loses no answer."""
        return not self.requests and not self.total_outbufs_len


class Server(TcpWSGIServer):
    """A Waitress server in which new connections replace those that have waited longest.

    *bound* is the socket to listen on; a request must have arrived whole within *request_within_s*.
    """

    channel_class = _Connection

    def __init__(
        self,
        application: Any,
        bound: socket.socket,
        request_within_s: float = REQUEST_WITHIN_S,
        **limits: Any,
    ) -> None:
        # Waitress warns of each request that waits, which several viewers make every second.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        self.request_within_s = request_within_s
        self.most = most_connections()
        family, kind, protocol = bound.family, bound.type, bound.proto
        super().__init__(
            application,
            _sock=bound,
            sockinfo=(family, kind, protocol, bound.getsockname()),
            bind_socket=False,
            connection_limit=self.most + _IN_PASSING,
            cleanup_interval=CLEANUP_EVERY_S,
            asyncore_use_poll=True,  # select() fails where a descriptor is 1024 or above
            **limits,
        )

    def handle_accept(self) -> None:
        """Accept one connection; at the limit close the one that has waited longest."""
        if len(self.active_channels) >= self.most:
            self._drop_longest_waiting()
        super().handle_accept()

    def _drop_longest_waiting(self) -> None:
        waiting = [each for each in self.active_channels.values() if each.is_waiting and not each.will_close]
        if waiting:
            # Incomplete requests go first: a connection that a browser keeps has sent a token before.
            longest = min(waiting, key=lambda each: (each.incomplete_since_s is None, each.last_activity))
            # The loop closes it: the new connection must not get its descriptor while its events are pending.
            longest.will_close = True

    def maintenance(self, now: float) -> None:
        """Close connections that were idle for long, or did not complete their request in time."""
        super().maintenance(now)
        for channel in self.active_channels.values():
            since_s = channel.incomplete_since_s
            if since_s is not None and channel.is_waiting and now - since_s > self.request_within_s:
                channel.will_close = True


def most_connections() -> int:
    """Return the limit of open connections: at most half of the file descriptors of this process."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_CONNECTIONS if allowed == resource.RLIM_INFINITY else allowed // 2
    return max(min(MOST_CONNECTIONS, most), 50)
