"""Completions of a text as it is, without a chat template."""

from typing import Any

from fastapi import Response
from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from emblema.engine.generation import GenerateRequest
from emblema.serve.chat import Called, respond
from emblema.serve.client_body import ClientBody
from emblema.serve.faults import ServeError, missing
from emblema.serve.parts import refuse_large
from emblema.serve.replies import Answer, Choice, CompletionForm, Entries, Json
from emblema.serve.reply_fields import OTHER_SAMPLING, SamplingFields
from emblema.serve.token_logprobs import TokenLogprobs

LONGEST = 16
"""Tokens of a completion whose request does not say, as OpenAI has it."""


class CompletionRequest(ClientBody, SamplingFields):
    """The body of `POST /v1/completions`."""

    passed = {"user": None, "metadata": None, "store": None, "service_tier": None, "suffix": ("",), "echo": (False,)}
    elsewhere = OTHER_SAMPLING | {"echo": (), "suffix": (), "response_format": ({"type": "text"},)}
    model: str = Field(max_length=1_000)
    prompt: str
    max_tokens: int = Field(LONGEST, ge=1)
    logprobs: int | None = Field(None, ge=0, le=20)
    strategy: str | None = Field(None, max_length=100)

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_text(cls, given: Any) -> Any:
        text = given[0] if isinstance(given, list) and len(given) == 1 else given
        if not isinstance(text, str):
            said = "give one text: several, and lists of token ids, are not offered here"
            raise PydanticCustomError("one_text", said)  # type: ignore[arg-type]
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PydanticCustomError("unicode", "give a text that is valid Unicode") from error
        return text


class TextForm(CompletionForm):
    """Choices as completions have them."""

    kind, chunk_kind, id_prefix = "text_completion", "text_completion", "cmpl"

    def whole(self, choice: Choice) -> Json:
        """Return a finished choice."""
        return _written(choice, choice.text, choice.told, choice.finish_reason, 0)

    def parts(self, choice: Choice, fresh: str, entries: Entries) -> list[Json]:
        """Return what a stream tells of a piece; the last part of a choice says why it ended."""
        if not fresh and not entries and choice.finish_reason is None:
            return []
        offset = choice.characters
        choice.characters += sum(len(entry["token"]) for entry in entries)
        return [_written(choice, fresh, entries, choice.finish_reason, offset)]


def _written(choice: Choice, text: str, entries: Entries, reason: str | None, offset: int) -> Json:
    logprobs = None if choice.logprobs is None else _listed(entries, offset)
    return {"index": choice.index, "text": text, "finish_reason": reason, "logprobs": logprobs}


def _listed(entries: Entries, offset: int) -> Json:
    """Return tokens' probabilities as lists; the first token begins at so many characters of the text."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [{each["token"]: each["logprob"] for each in entry["top_logprobs"]} for entry in entries],
        "text_offset": offsets,
    }


async def completions(body: CompletionRequest, call: Called) -> Response:
    """Go on after a text."""
    service = call.service
    if body.model != service.settings.name:
        raise missing("model", body.model)
    refuse_large(service.settings, 0, len(body.prompt))
    engine = service.engine_of(call.tenant)
    session = engine.engine.session

    def read() -> tuple[list[int], str | None]:
        """Return the prompt's tokens, as the tokenizer begins a text, and the words that the model does not know."""
        return session.tokenizer(body.prompt)["input_ids"], session.remark_on(body.prompt)

    async def ask(answer: Answer) -> tuple[GenerateRequest, int]:
        ids, remark = await engine.beside.run(call.tenant.owner, read)
        if not ids:
            raise ServeError(400, "the prompt is empty: give a text", None, "prompt")
        answer.remarks += [] if remark is None else [remark]
        strategy, sampling = body.strategy or service.settings.strategy, body.sampling_of(body.max_tokens)
        return GenerateRequest([ids], strategy, sampling, template=False, likeliest=body.logprobs), len(ids)

    told = [None if body.logprobs is None else TokenLogprobs(session.tokenizer) for _ in range(body.n)]
    choices = [Choice(index, each) for index, each in enumerate(told)]
    form = TextForm(service.settings.name, body.tells_usage)
    return await respond(call, form, choices, ask, body.stream)
