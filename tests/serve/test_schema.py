"""schemathesis over the OpenAPI: whatever is sent, the answer is one of those described, and never a 5xx but 503."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode, checks

EXAMPLES = 20  # for each address, of right and of wrong input
ADDRESSES = ["/encode", "/decode", "/invert", "/random", "/health", "/queue", "/models"]
# Not among them: that well-formed input is accepted. A vector of zeros is well-formed and no vector.
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
    checks.negative_data_rejection,
]


@pytest.fixture(scope="module")
def api(server):
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def test_no_address_is_left_out(server):
    assert set(server.http.get("/openapi.json").json()["paths"]) == set(ADDRESSES)


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("address", ADDRESSES)
def test_every_answer_is_as_described(api, address, mode):
    (operation,) = (found.ok() for found in api.get_all_operations() if found.ok().path == address)
    if operation.method == "get" and mode.is_negative:
        pytest.skip("takes no input")

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    def answers(case):
        response = case.call(timeout=30)
        assert response.status_code < 500 or response.status_code == 503, response.status_code
        if response.status_code >= 400:
            assert response.json().keys() == {"error", "message"}
        case.validate_response(response, checks=CHECKS)

    answers()
