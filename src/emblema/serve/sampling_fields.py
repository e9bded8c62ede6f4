"""How a reply's tokens are chosen, as clients write it."""

from typing import Annotated

from pydantic import BaseModel, Field, field_validator

from emblema.serve.client_body import ClientBody
from emblema.session.decoding import Sampling

CHOICES = 8
"""Replies to one request, at most."""
BIASES = 1_024
"""Tokens that a request gives a bias, at most."""


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
