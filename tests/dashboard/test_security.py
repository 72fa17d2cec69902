"""The door of a dashboard, and what browsers may do with its pages."""

from itertools import product

import pytest

from fedprivacy.dashboard.security import (
    COOKIE,
    SHORTEST_TOKEN,
    TokenError,
    checked_token,
    is_loopback,
    new_token,
)
from fedprivacy.dashboard.service import Address, ServingError
from tests.dashboard.shown import TOKEN, asking

PATHS = ("/api/v1/runs", "/api/v1/runs/done/clients", "/api/v1/openapi.json", "/metrics", "/api/v1/events", "/nowhere")


@pytest.fixture
def locked(runs):
    return asking(runs, token=TOKEN)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer"},
        {"Cookie": f"{COOKIE}={TOKEN}"},
        {"Cookie": f"{COOKIE}=\N{LATIN SMALL LETTER E WITH ACUTE}".encode()},
        {"Cookie": "a=\x01;;="},
    ],
)
def test_nobody_looks_without_the_token(locked, headers):
    for path in PATHS:
        answer = locked.get(path, headers=headers)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "done" not in answer.text and TOKEN not in answer.text


def test_the_token_opens_as_a_bearer_by_any_name_of_the_machine(locked):
    for path, host in (("/api/v1/runs", "localhost"), ("/metrics", "hospital.example")):
        answer = locked.get(path, headers={"Host": host, "Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 200 and "troubled" in answer.text


def test_the_page_asks_for_the_token_and_remembers_it_and_a_cookie_of_another_is_worth_nothing(locked, runs):
    answer = locked.get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert locked.get("/login").status_code == 200
    for form in ({"token": "wrong"}, {}, {"token": TOKEN, "more": "x" * 10_000}, {"token": "\N{SNOWMAN}"}):
        wrong = locked.post("/login", data=form, follow_redirects=False)
        assert wrong.status_code == 401 and "set-cookie" not in wrong.headers
    right = locked.post("/login", data={"token": TOKEN}, follow_redirects=False)
    cookie = right.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and TOKEN not in cookie
    assert locked.get("/api/v1/runs").status_code == 200
    assert locked.get("/").status_code == 200
    one, other = asking(runs, token=TOKEN), asking(runs, token=TOKEN + "2")
    one.post("/login", data={"token": TOKEN})
    assert other.get("/api/v1/runs", cookies={COOKIE: one.cookies[COOKIE]}).status_code == 401


def test_without_a_token_only_this_machine_s_names_are_answered(ask):
    for host in ("localhost", "localhost:8050", "127.0.0.1:8050", "[::1]:8050", "127.9.9.9"):
        assert ask.get("/api/v1/runs", headers={"Host": host}).status_code == 200
    strangers = "localhost.evil.example", "localhost.evil.example:8050", "evil-localhost", "127.0.0.1.example", "[::2]"
    for host, path in product((*strangers, "rebound.example", "rebound.example:8050", "", "10.0.0.1"), ("/", *PATHS)):
        answer = ask.get(path, headers={"Host": host})
        assert answer.status_code == 421 and "done" not in answer.text


@pytest.mark.parametrize("path", ["/", "/static/style.css", "/api/v1/runs", "/api/v1/runs/none", "/nowhere", "/login"])
def test_a_page_runs_its_own_scripts_alone_and_stands_in_no_other_s_frame(ask, locked, path):
    for headers in (ask.get(path).headers, locked.get(path, follow_redirects=False).headers):
        policy = dict(directive.split(maxsplit=1) for directive in headers["Content-Security-Policy"].split(";"))
        assert policy == {
            **dict.fromkeys(("default-src", "base-uri", "frame-ancestors"), "'none'"),
            **dict.fromkeys(("script-src", "style-src", "connect-src", "font-src", "form-action"), "'self'"),
            "img-src": "'self' data: blob:",
        }
        assert (headers["X-Frame-Options"], headers["X-Content-Type-Options"]) == ("DENY", "nosniff")
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Opener-Policy"] == headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Permissions-Policy"] == "camera=(), geolocation=(), microphone=()"
        assert headers["Cache-Control"] == ("no-cache" if path.startswith("/static/") else "no-store")


def test_a_token_that_could_be_guessed_is_refused():
    assert checked_token(new_token()) and len(new_token()) > 40 and new_token() != new_token()
    for weak in ("", "x" * (SHORTEST_TOKEN - 1), "with spaces in between", "\N{SNOWMAN}" * 20, "tab\t" * 10):
        with pytest.raises(TokenError, match="at least 16"):
            checked_token(weak)


def test_what_other_machines_can_reach_is_public():
    for host in ("localhost", "127.0.0.1", "127.1.2.3", "::1"):
        assert is_loopback(host) and not Address(host).public
    for host in ("0.0.0.0", "::", "192.168.1.4", "hospital.example", "localhost.evil.example", ""):
        assert not is_loopback(host) and Address(host).public


def test_tls_needs_a_certificate_and_a_key(tmp_path):
    (tmp_path / "a.pem").write_text("")
    with pytest.raises(ServingError, match="both"):
        Address(certificate=tmp_path / "a.pem")
    with pytest.raises(ServingError, match=r"b\.pem' is no file"):
        Address(certificate=tmp_path / "a.pem", key=tmp_path / "b.pem")
    assert Address(certificate=tmp_path / "a.pem", key=tmp_path / "a.pem").scheme == "https"
