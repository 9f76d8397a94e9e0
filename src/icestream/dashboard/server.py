"""The server of the page: it reads histories, answers GET, and does nothing else.

Idea: a small server of the standard library on the loopback address. The first part of every path
is a random token, so relative addresses contain it and no cookies are needed: a page of another
origin can neither guess an address here nor use the browser's credentials. There are no commands.

Invariants:
1. Without the token nothing is revealed, and comparing it takes constant time
   (`test_a_wrong_token_is_refused`).
2. A request with another host name is refused, so that a name rebound to the loopback address gets
   nothing (`test_another_host_is_refused`).
3. Only GET is answered (`test_only_get_is_answered`).
4. Answers forbid scripts, styles and connections from elsewhere, and sharing with other origins
   (`test_answers_forbid_what_the_page_does_not_need`).

Limits: anyone who has the address can read the page; it is made for one user on one machine. From
another machine, forward the port with ssh.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlsplit

from icestream.core.errors import DefinitionError
from icestream.dashboard import metrics
from icestream.dashboard.query_list import QueryList

LOOPBACK = "127.0.0.1"
#: environment variable with the token of pages, for programs that read them after every restart
TOKEN = "ICESTREAM_UI_TOKEN"
#: seconds that a connection may be idle
IDLE_SECONDS = 30.0

_FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "style.css": ("style.css", "text/css; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
    **{
        name: (name, "text/javascript; charset=utf-8")
        for name in ("app.js", "charts.js", "format.js", "heat.js", "panels.js", "plan.js")
    },
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_JSON = "application/json; charset=utf-8"


class DashboardServer:
    """A server that shows queries until it is closed.

    Example:
        >>> with DashboardServer(QueryList(["checkpoint"])) as page:
        ...     print(page.url)  # open this in a browser
    """

    def __init__(self, library: QueryList, port: int = 0, token: str | None = None) -> None:
        """Listen on the loopback address; by default on a free port.

        Without a token it is that of the environment, `ICESTREAM_UI_TOKEN`, or else a random one.
        """
        self.library = library
        given = os.environ.get(TOKEN) if token is None else token
        self.token = secrets.token_urlsafe(24) if given is None else given
        if len(self.token) < 16 or not set(self.token) <= _TOKEN_CHARACTERS:
            msg = (
                f"the token of the page ({TOKEN}) needs at least 16 letters, digits, - and _; "
                "leave it out for a random one"
            )
            raise DefinitionError(msg)
        try:
            self._server = _Server((LOOPBACK, port), self)
        except OSError as error:
            msg = f"port {port} of {LOOPBACK} cannot be used ({error.strerror}): choose another one"
            raise DefinitionError(msg) from error
        self.port = int(self._server.server_address[1])
        serve = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="icestream-ui", daemon=True
        )
        serve.start()

    @property
    def url(self) -> str:
        """Return the address to open in a browser; anyone who has it can read the page."""
        return f"http://{LOOPBACK}:{self.port}/{self.token}/"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._server.hang_up()

    def __enter__(self) -> DashboardServer:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


_TOKEN_CHARACTERS = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_shared: list[DashboardServer] = []
_sharing = threading.Lock()


def shared_page(checkpoint: str) -> DashboardServer:
    """Return the server of this process's page, with another checkpoint added."""
    with _sharing:
        if not _shared:
            _shared.append(DashboardServer(QueryList()))
        _shared[0].library.add(checkpoint)
        return _shared[0]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], page: DashboardServer) -> None:
        super().__init__(address, _Handler)
        self.page = page
        port = self.server_address[1]
        self.hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}
        self._connections: set[Any] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Record a connection while it is open."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Close connections that browsers keep open."""
        for request in list(self._connections):
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore broken connections."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "icestream"
    sys_version = ""
    timeout = IDLE_SECONDS
    # send head and body of an answer together
    wbufsize = 1 << 16
    server: _Server

    def parse_request(self) -> bool:
        """Refuse every method but GET before anything else is parsed."""
        if not super().parse_request():
            return False
        if self.command != "GET":
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "this page is read-only: use GET")
            return False
        return True

    def do_GET(self) -> None:
        """Answer a request for the page, its data or the metrics."""
        address = urlsplit(self.path)
        token, _, path = address.path.removeprefix("/").partition("/")
        if self.headers.get("Host", "") not in self.server.hosts:
            self._refuse(HTTPStatus.FORBIDDEN, "this page is served only to this machine")
        elif not hmac.compare_digest(token.encode(), self.server.page.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "the address lacks the token that was printed")
        elif path in _FILES:
            name, kind = _FILES[path]
            data = resources.files("icestream.dashboard").joinpath("page", name).read_bytes()
            self._answer(HTTPStatus.OK, kind, data)
        else:
            self._answer_data(path, parse_qs(address.query))

    def _answer_data(self, path: str, query: dict[str, list[str]]) -> None:
        library = self.server.page.library
        if path == "metrics":
            text = metrics.exposition(library.watched())
            self._answer(HTTPStatus.OK, metrics.CONTENT_TYPE, text.encode(errors="replace"))
            return
        found: Any = None
        if path == "api/queries":
            found = library.queries()
        elif path.startswith("api/query/"):
            after = query.get("after", ["0"])[-1]
            number = int(after) if after.isascii() and after.isdigit() and len(after) < 16 else 0
            found = library.query(path.removeprefix("api/query/"), number)
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here")
        else:
            self._answer(HTTPStatus.OK, _JSON, json.dumps(found, separators=(",", ":")).encode())

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True
        self._answer(status, "text/plain; charset=utf-8", f"{why}\n".encode())

    def _answer(self, status: HTTPStatus, kind: str, data: bytes) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log: addresses contain the token."""
