"""Whatever is asked, the API answers as its OpenAPI document says, and never with an error of its own."""

import functools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dashboard.shown import asking, serving

HANG = 60.0
"""Seconds after which something hangs."""

THERE = {"run_id": ("done", "troubled", "begun"), "client_id": ("client-03", "=cmd()", "silent")}


@pytest.fixture(scope="module")
def questions(runs):
    """Questions about a path: sensible ones, of runs that there are and others, and forbidden ones."""
    import schemathesis

    @st.composite
    def named(draw, sensible):
        """Name runs and clients that exist: a made-up name is always unknown."""
        case = draw(sensible)
        for name in [name for name in THERE if name in case.path_parameters]:
            case.path_parameters[name] = draw(st.sampled_from(THERE[name]))
        return case

    with serving(runs) as address:
        described = schemathesis.openapi.from_url(f"{address}/api/v1/openapi.json", timeout=HANG)

        @functools.cache
        def about(path):
            kinds = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
            sensible, forbidden = (described[path]["GET"].as_strategy(generation_mode=kind) for kind in kinds)
            return st.one_of(named(sensible), sensible, forbidden)

        yield about


PATHS = sorted(path for path in asking().app.openapi()["paths"] if not path.endswith("events"))
"""Streams of events never end; `test_live` asks for them."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", PATHS)
@given(data=st.data())
@settings(suppress_health_check=list(HealthCheck))
def test_any_question_is_answered_as_described(questions, path, data):
    data.draw(questions(path)).call_and_validate(timeout=HANG)


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
    limited = schema.keys() & {"enum", "$ref", "maxLength", "maximum", "const"}
    return bool(limited) or schema.get("type") in ("null", "boolean")
