"""How a reply's tokens are chosen and what form it has to have, as clients write it."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from emblema.serve.client_body import ClientBody
from emblema.session.decoding import Sampling
from emblema.session.grammar import json_rule

CHOICES = 8
"""Replies to one request, at most."""
BIASES = 1_024
"""Tokens that a request gives a bias, at most."""
OTHER_SAMPLING: dict[str, Sequence[object]] = {
    "repetition_penalty": (1,), "top_k": (0, -1), "min_p": (0,), "min_tokens": (0,), "best_of": (1,),
    "ignore_eos": (False,), "stop_token_ids": ([],), "structured_outputs": (), "guided_json": (), "guided_regex": (),
    "guided_choice": (), "guided_grammar": (),
}  # fmt: skip
"""Fields that another engine serves, and the values of each that change no answer."""


class StreamOptions(ClientBody):
    """What a stream tells beside its text."""

    passed = {"include_obfuscation": None, "continuous_usage_stats": (False,)}
    include_usage: bool = False


class SamplingFields(BaseModel):
    """Fields of a request of any endpoint that writes text."""

    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    n: int = Field(1, ge=1, le=CHOICES)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: dict[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=-100, le=100)]] = Field(
        {}, max_length=BIASES
    )

    @field_validator("stop")
    @classmethod
    def _few_stops(cls, stop: str | list[str] | None) -> str | list[str] | None:
        if isinstance(stop, list) and len(stop) > 4:
            raise ValueError("give at most 4 stop strings")
        return stop or None

    @property
    def tells_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling_of(self, most: int) -> Sampling:
        """Return how up to so many tokens are chosen; greedily unless a temperature is given."""
        return Sampling.of(
            max_new_tokens=most,
            temperature=self.temperature or 0.0,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=None if self.seed is None else self.seed % 2**63,
            stop=self.stop,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
        )


class SchemaFormat(ClientBody):
    """A JSON schema. With `strict` a keyword that cannot be followed is refused, else it is passed over."""

    passed = {"description": None}
    name: str = Field(max_length=64)
    accepted: dict[str, Any] = Field({"type": "object"}, alias="schema")
    strict: bool = False


class ResponseFormat(ClientBody):
    """The field `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None

    @model_validator(mode="after")
    def _schema_is_there(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError("missing", "the field json_schema goes with the type json_schema, and no other")
        return self

    @property
    def rule(self) -> str | None:
        """The rule of what the reply has to be; None for any text, `PromptError` for a schema of too many levels."""
        if self.type == "text":
            return None
        wanted = self.json_schema
        if wanted is None:
            return json_rule({"type": "object"}, strict=True)
        return json_rule(wanted.accepted, strict=wanted.strict)
