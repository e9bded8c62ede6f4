"""What form a reply has to have: any text, JSON, or JSON of a schema."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from emblema.serve.client_body import ClientBody
from emblema.session.grammar import json_rule


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
