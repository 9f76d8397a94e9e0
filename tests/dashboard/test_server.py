from __future__ import annotations

import http.client
import json
import time
from typing import Any

import pytest

from icestream.core.errors import DefinitionError
from icestream.dashboard import server
from icestream.dashboard.query_list import QueryList
from icestream.dashboard.server import DashboardServer, shared_page


def ask(
    page: DashboardServer,
    path: str,
    *,
    method: str = "GET",
    token: str | None = None,
    body: bytes | None = None,
    **headers: str,
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    try:
        connection.request(
            method, f"/{page.token if token is None else token}/{path}", body, headers
        )
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def read(page: DashboardServer, path: str) -> Any:
    status, _, body = ask(page, path)
    assert status == 200
    return json.loads(body)


@pytest.mark.parametrize("path", ["", "app.js", "api/queries", "metrics"])
@pytest.mark.parametrize("token", ["", "x", "A" * 32, "é", "..", "%2e%2e"])
def test_a_wrong_token_is_refused(page: DashboardServer, token: str, path: str) -> None:
    from urllib.parse import quote

    status, headers, body = ask(page, path, token=quote(token, safe="%"))
    assert status == 403
    assert page.token.encode() not in body
    assert "Set-Cookie" not in headers


def test_a_token_that_is_nearly_right_is_refused(page: DashboardServer) -> None:
    for wrong in (page.token[:-1], page.token + "x", page.token.swapcase()):
        assert ask(page, "api/queries", token=wrong)[0] == 403


def test_the_root_reports_nothing(page: DashboardServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    connection.request("GET", "/")
    assert connection.getresponse().status == 403
    connection.close()


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "localhost.:{port}"],
)
def test_another_host_is_refused(page: DashboardServer, host: str) -> None:
    assert ask(page, "api/queries", Host=host.format(port=page.port))[0] == 403


def test_both_names_of_the_loopback_address_are_answered(page: DashboardServer) -> None:
    for name in ("127.0.0.1", "localhost"):
        assert ask(page, "api/queries", Host=f"{name}:{page.port}")[0] == 200


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "QUERY", "get"]
)
def test_only_get_is_answered(page: DashboardServer, method: str) -> None:
    status, headers, _ = ask(page, "api/queries", method=method, body=b"{}")
    assert status == 405
    assert headers["Allow"] == "GET"


def test_a_body_that_is_refused_is_not_taken_for_the_next_request(page: DashboardServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    smuggled = f"GET /{page.token}/api/queries HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n\r\n"
    connection.request("POST", f"/{page.token}/", smuggled.encode())
    answer = connection.getresponse()
    assert answer.status == 405
    assert answer.getheader("Connection") == "close"
    connection.close()


def test_answers_forbid_what_the_page_does_not_need(page: DashboardServer) -> None:
    for path in ("", "app.js", "api/queries", "metrics", "nowhere"):
        _, headers, _ = ask(page, path, Origin="http://evil.example")
        assert not [name for name in headers if name.lower().startswith("access-control")]
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        "../server.py",
        "..%2fserver.py",
        "page/app.js",
        "api/query/none",
        "api",
        "api/query/",
        "app.js/",
    ],
)
def test_nothing_but_the_page_is_served(page: DashboardServer, path: str) -> None:
    assert ask(page, path)[0] == 404


def test_the_page_listens_on_the_loopback_address_only(page: DashboardServer) -> None:
    assert page.url.startswith("http://127.0.0.1:")
    assert page._server.server_address[0] == "127.0.0.1"


def test_every_page_has_a_token_of_its_own() -> None:
    with DashboardServer(QueryList()) as one, DashboardServer(QueryList()) as other:
        assert one.token != other.token
        assert len(one.token) >= 32


def test_a_token_of_the_environment_stays_when_the_page_starts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ICESTREAM_UI_TOKEN", "prometheus-reads-this")
    for _ in range(2):
        with DashboardServer(QueryList()) as page:
            assert page.token == "prometheus-reads-this"
            assert ask(page, "metrics")[0] == 200
            assert ask(page, "metrics", token="another-token-of-16")[0] == 403
    monkeypatch.setenv("ICESTREAM_UI_TOKEN", "short")
    with pytest.raises(DefinitionError, match=r"\(ICESTREAM_UI_TOKEN\) needs at least 16 letters"):
        DashboardServer(QueryList())


def test_a_token_that_is_easy_to_guess_is_refused() -> None:
    for token in ("short", "sixteen/letters/", "with spaces in it all"):
        with pytest.raises(DefinitionError, match="at least 16 letters"):
            DashboardServer(QueryList(), token=token)


def test_a_port_that_is_taken_is_named(page: DashboardServer) -> None:
    with pytest.raises(DefinitionError, match=f"port {page.port} of 127.0.0.1"):
        DashboardServer(QueryList(), port=page.port)


def test_queries_are_listed_with_what_they_do(page: DashboardServer) -> None:
    listed = read(page, "api/queries")
    assert [each["name"] for each in listed] == ["groups", "updates", "windows", "joins"]
    assert [each["state"] for each in listed] == ["running", "running", "running", "ended"]
    assert all(each["last"]["version"] == 60 for each in listed)


def test_a_query_is_told_from_where_one_has_read(page: DashboardServer) -> None:
    identity = read(page, "api/queries")[0]["id"]
    whole = read(page, f"api/query/{identity}")
    assert [record["number"] for record in whole["records"]] == list(range(1, 61))
    assert [box["id"] for box in whole["plan"]["boxes"]][:2] == ["source 0", "component 0"]
    rest = read(page, f"api/query/{identity}?after=57")
    assert [record["version"] for record in rest["records"]] == [58, 59, 60]
    for odd in ("-1", "x", "9" * 40, "²"):
        from urllib.parse import quote

        assert len(read(page, f"api/query/{identity}?after={quote(odd)}")["records"]) == 60


def test_a_thousand_requests_are_answered_and_leave_nothing(page: DashboardServer) -> None:
    import threading

    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    for _ in range(1000):
        connection.request("GET", f"/{page.token}/icon.svg")
        assert len(connection.getresponse().read()) > 100
    connection.close()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        left = [each for each in threading.enumerate() if "process_request" in each.name]
        if not left:
            break
        time.sleep(0.01)
    assert not left


def test_queries_of_one_process_share_a_page(
    checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_shared", [])
    first = shared_page(str(checkpoints / "groups"))
    second = shared_page(str(checkpoints / "joins"))
    try:
        assert first is second
        assert [each["name"] for each in read(first, "api/queries")] == ["groups", "joins"]
    finally:
        first.close()
