"""Rows of each prompt that are given from outside, as vLLM counts them: those that other connectors gave, and ours."""

from dataclasses import dataclass
from typing import Any

from emblema.served.request_plan import RequestPlan
from emblema.vllm import internals


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Rows of a prompt that were given from outside.

    Attributes:
        other: rows of its beginning that another connector gave.
        linked: rows of media that were taken from the store.
        patched: how many of these have a patch.
    """

    other: int = 0
    linked: int = 0
    patched: int = 0


class PromptRows:
    """Tells vLLM how many rows of each request were given from outside, and knows what it was told.

    vLLM counts a prompt once, with its first token, and as it was scheduled first: what is linked anew after a
    preemption does not count.
    """

    def __init__(self) -> None:
        self._given: dict[str, GivenRows] = {}

    def await_load(self, request: Any) -> None:
        """Note that a request waits for rows of ours, so that none of them come from another connector."""
        if not request.num_preemptions:
            self._given[request.request_id] = GivenRows()

    def fail_load(self, request: Any) -> None:
        """Note that they did not come: whatever else has rows of the request is asked again."""
        if not request.num_preemptions:
            self._given.pop(request.request_id, None)

    def follow(self, request: Any, plan: RequestPlan | None) -> None:
        """Tell vLLM of a request that is scheduled; `plan` is None where it is computed plainly."""
        if internals.is_counted(request):
            return
        name = request.request_id
        given = self._given.get(name) or GivenRows(internals.external_rows(request))
        if plan is not None:
            given = GivenRows(given.other, plan.linked, plan.patched)
        if internals.count_given(request, given.other + given.linked):
            self._given[name] = given

    def end(self, request: Any) -> GivenRows:
        """Forget a request, and return what vLLM counted of it; nothing where it ended before its first token."""
        given = self._given.pop(request.request_id, GivenRows())
        return given if internals.is_counted(request) else GivenRows()
