"""A reply that goes on over several requests: what was said, what was found, and the next request. No HTTP in here."""

from collections.abc import Mapping
from typing import Any

from emblema.vllm.asking import Asking, question_of
from emblema.vllm.pictures import Pictures

OTHERS = ("tools", "stop", "continue_final_message", "prompt_logprobs", "use_beam_search")
"""What a request may have that its answer cannot be continued with."""


def asked_for(body: Any, asking: Asking) -> Asking | None:
    """How a chat request wants its model's requests answered; None for one that is handed on as it is.

    Raises:
        EmblemaError: its wish is not right.
    """
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        return None
    given = body.get("kv_transfer_params")
    own = given.get("emblema") if isinstance(given, Mapping) else None
    wanted = asking.of_request(own.get("retrieval") if isinstance(own, Mapping) else None)
    if body.get("n") not in (None, 1) or any(body.get(name) for name in OTHERS):
        return None
    return wanted


class Reply:
    """One reply.

    Args:
        body: the client's request.
        asking: how the model asks.
        library: where what it asks for is found.

    Attributes:
        body: of the request to be sent next.
        found: what was found for each request that was answered.
        tokens: made so far.
    """

    def __init__(self, body: dict[str, Any], asking: Asking, library: Pictures) -> None:
        self.asking, self.library = asking, library
        self.stream = bool(body.get("stream"))
        self.usage_wanted = bool((body.get("stream_options") or {}).get("include_usage"))
        self.found: list[dict[str, Any]] = []
        self.tokens = 0
        self._question = question_of(body["messages"])
        self._turns = list(body["messages"])
        # The model's turn under way, of it what was said since the last request, and all that was said before it.
        self._turn = self._before = ""
        self.body = body | {"stop": [asking.end], "include_stop_str_in_output": True}
        if self.stream:
            self.body["stream_options"] = (body.get("stream_options") or {}) | {"include_usage": True}

    def goes_on(self, text: str, tokens: int) -> bool:
        """Take in an answer that stopped where a request ends; whether there is another request to send, as `body`.

        Raises:
            EmblemaError: what was found cannot be read.
        """
        query = self.asking.query(self._question, text, self._before)
        self.tokens += tokens
        self._turn += text
        self._before += text
        left = {}
        for name in ("max_tokens", "max_completion_tokens"):
            if isinstance(self.body.get(name), int):
                left[name] = self.body[name] - tokens
        if any(count < 1 for count in left.values()):
            return False
        body = self.body | left
        shown = [] if query is None else self._answer(query)
        if shown:
            self._turns += [{"role": "assistant", "content": self._turn}, {"role": "user", "content": shown}]
            self._turn = ""
            body |= {"messages": self._turns, "add_generation_prompt": True, "continue_final_message": False}
        else:
            said = {"role": "assistant", "content": self._turn}
            body |= {"messages": [*self._turns, said], "add_generation_prompt": False, "continue_final_message": True}
        if len(self.found) >= self.asking.most:
            body |= {"stop": [], "include_stop_str_in_output": False}
        self.body = body
        return True

    def _answer(self, query: str) -> list[dict[str, Any]]:
        """The turn that shows what was found; empty where nothing fits."""
        pictures = self.library.search(query, self.asking.count)
        shown = [{"type": "image_url", "image_url": {"url": one.address()}} for one in pictures]
        self.found.append({"query": query, "items": [one.name for one in pictures]})
        after = self._question if self.asking.after is None else self.asking.after
        return [*shown, {"type": "text", "text": after}] if shown and after else shown
