"""`/metrics`: the newest state of the runs for Prometheus, behind the same door as the page."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from fedprivacy.server.dashboard.lookup import Runs

metrics = APIRouter()


@metrics.get("/metrics", include_in_schema=False)
def exposition(request: Request, catalogue: Runs) -> Response:
    """What Prometheus scrapes, in the format that it asks for.

    Raises:
        HTTPException: 501, its library is not installed.
    """
    try:
        from prometheus_client.exposition import choose_encoder

        from fedprivacy.server.dashboard.collector import RunCollector
    except ModuleNotFoundError as error:
        raise HTTPException(501, "/metrics needs prometheus-client; install 'fedprivacy[prometheus]'.") from error
    state = request.app.state
    if not hasattr(state, "collector"):
        state.collector = RunCollector(catalogue)
    try:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
    except TypeError:  # the header names a version that is no number
        encode, content_type = choose_encoder("")
    return Response(encode(state.collector), media_type=content_type)
