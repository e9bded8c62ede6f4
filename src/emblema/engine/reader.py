"""Reads what a caller gives as a prompt: parts, or messages in OpenAI's form, through the model's chat template."""

from collections.abc import Iterable, Mapping, Sequence

from emblema.engine.caution import Text
from emblema.engine.conversation import MediaReader, Message, PromptPart, Turn, items_of, readable, turns_of
from emblema.engine.rendering import plain, render, tokenize
from emblema.engine.template import ChatTemplate
from emblema.errors import ModelError, PromptError
from emblema.link.prompt import Part, TextPart
from emblema.models.prepare import Preparer

PromptLike = str | Sequence[PromptPart] | Sequence[Message]


class PromptReader:
    """Turns prompts into parts for one model."""

    def __init__(self, preparer: Preparer | None) -> None:
        self._template = None if preparer is None else ChatTemplate(preparer)

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template.

        Raises:
            ModelError: the model came without a processor.
        """
        if self._template is None:
            raise ModelError("this model came without a processor: only token ids with template=False can be prefilled")
        return self._template

    def parts(self, given: PromptLike, template: bool, read: MediaReader) -> list[Part]:
        """Prompt parts of what a caller gave; `template` wraps parts in one user turn, `read` reads media.

        Raises:
            PromptError: it is empty, or of another shape.
        """
        if isinstance(given, Mapping | bytes) or not isinstance(given, Iterable):
            raise PromptError(f"the prompt is a {type(given).__name__}: give a list of parts, or a list of messages")
        try:
            parts: list[PromptPart | Message] = [given] if isinstance(given, str) else list(given)
        except TypeError as error:
            raise PromptError(f"the prompt, a {type(given).__name__}, cannot be read as a list: {error}") from error
        if not parts:
            raise PromptError("the prompt is empty: give it at least one part of text or a chunk")
        messages = [part for part in parts if isinstance(part, Mapping)]
        if messages:
            if len(messages) != len(parts):
                raise PromptError("a prompt is made of parts or of messages, not of both")
            return render(turns_of(messages, read), self.template)
        items = [item for part in parts if not isinstance(part, Mapping) for item in items_of(part, read)]
        if template:
            return render([Turn("user", tuple(items))], self.template)
        written = any(isinstance(item, str) for item in items)
        return plain(items, self.template.tokenizer if written else None)

    def written(self, text: str) -> TextPart:
        """Text of the operator's own, as it is: it may spell control tokens."""
        return TextPart(tuple(self.template.tokenizer(text, add_special_tokens=False)["input_ids"]))

    def passage(self, text: str) -> tuple[int, ...]:
        """Token ids of a text passage; it cannot spell control tokens.

        Raises:
            PromptError: it is empty, or no text.
        """
        template = self.template
        pieces = tokenize([Text(readable(text), trusted=False)], template.tokenizer, template.controls, begin=False)
        ids = tuple(token for part in pieces if isinstance(part, TextPart) for token in part.token_ids)
        if not ids:
            raise PromptError("the text passage is empty")
        return ids
