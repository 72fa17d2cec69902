"""Whatever is asked, the API answers as its OpenAPI document says, and never with an error of its own."""

import re

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedprivacy.server.dashboard.security import Door
from tests.server.dashboard.shown import TOKEN, asking, serving

RUNS = ("done", "troubled", "begun")
NAMES = ("client-03", "=cmd()", "silent")


@pytest.fixture(scope="session")
def described(runs):
    with serving(runs) as address:
        yield schemathesis.openapi.from_url(f"{address}/api/v1/openapi.json")


PATHS = sorted(path for path in asking().app.openapi()["paths"] if not path.endswith("events"))
"""Streams of events never end; `test_live` asks for them."""


def asked(described, path, examples, change):
    """Ask many questions of all kinds: sensible ones, and those that a schema forbids."""

    questions = [described[path]["GET"].as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode]

    @given(case=st.one_of(questions))
    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def ask(case):
        change(case)
        case.call_and_validate()

    ask()


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", PATHS)
def test_any_question_is_answered_as_described(described, path):
    asked(described, path, 25, lambda case: None)


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", [path for path in PATHS if "{run_id}" in path])
def test_any_question_about_a_run_is_answered_as_described(described, path):
    """Runs and clients that there are: a made-up name is always unknown."""

    def name(case):
        chosen = len(str(case.query)) % 3
        case.path_parameters["run_id"] = RUNS[chosen]
        if "client_id" in case.path_parameters:
            case.path_parameters["client_id"] = NAMES[chosen]

    asked(described, path, 40, name)


def test_the_document_is_complete(ask):
    document = ask.get("/api/v1/openapi.json").json()
    assert all(path.startswith("/api/v1/") for path in document["paths"])
    for path, operations in document["paths"].items():
        assert set(operations) == {"get"}, f"{path} is not read-only"
        for parameter in operations["get"].get("parameters", []):
            assert _bounded(parameter["schema"]), f"{path} takes any {parameter['name']}"


def _bounded(schema):
    if "anyOf" in schema:
        return all(_bounded(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return "maxItems" in schema and _bounded(schema["items"])
    return bool(schema.keys() & {"enum", "$ref", "maxLength", "maximum", "const"}) or schema.get("type") == "null"


def test_no_script_comes_from_elsewhere(ask):
    for page in ("/", "/login", "/docs", "/redoc"):
        assert not re.search(r"(src|href)=.?(https?:)?//", ask.get(page).text)


def test_without_the_token_not_even_the_document_is_given(runs):
    ask = asking(runs, token=TOKEN)
    assert ask.get("/api/v1/openapi.json").status_code == 401
    assert Door(TOKEN).locked
