"""Requests that the server's own description allows, and such as it does not: none fails within the server."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from tests.serve.servers import Running

EXAMPLES = 40


@pytest.mark.nightly
def test_no_request_fails_within_the_server(server: Running) -> None:
    schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json")
    failed: list[str] = []
    count, asked = 0, 0
    modes = schemathesis.GenerationMode
    for found in schema.get_all_operations():
        operation = found.ok()
        count += 1

        def ask(case: object) -> None:
            nonlocal asked
            asked += 1
            response = case.call(timeout=60)  # type: ignore[attr-defined]
            if response.status_code >= 500:
                failed.append(f"{response.status_code}: {case.as_curl_command()[:2_000]}")  # type: ignore[attr-defined]

        for mode in (modes.POSITIVE, modes.NEGATIVE):
            try:
                cases = operation.as_strategy(generation_mode=mode)
                bounded = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
                bounded(given(case=cases)(ask))()
            except Exception as error:
                # Some operations take nothing that could be wrong.
                if "Unsatisfiable" not in type(error).__name__ and "Impossible" not in str(error):
                    raise
    assert not failed, failed[:3]
    assert count > 8 and asked > 200
