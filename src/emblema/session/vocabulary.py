"""Words that a model does not know: small models have a closed list of words, and all others are one token to them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NAMED = 8
"""Unknown words that a remark names, at most."""
LONGEST = 20
"""Characters of a word that are shown."""
EMPTY = "the answer is empty: the model ended it at once"


@dataclass(frozen=True, slots=True)
class ClosedVocabulary:
    """The words of a tokenizer that has whole words alone.

    Attributes:
        backend: the tokenizer of the package `tokenizers`.
        words: their token ids, by word.
    """

    backend: Any
    words: Mapping[str, int]

    def remark(self, texts: Iterable[str]) -> str | None:
        """Return what a reply says of texts' unknown words; None where there are none. Punctuation is not counted."""
        found = [word for text in texts for word in self._split(text)]
        unknown = [word for word in found if word not in self.words]
        if not unknown:
            return None
        names = list(dict.fromkeys(unknown))
        shown = [name if len(name) <= LONGEST else f"{name[:LONGEST]}…" for name in names[:NAMED]]
        more = ", …" if len(names) > NAMED else ""
        return f"{len(unknown):,} of {len(found):,} words are unknown to this model: {', '.join(shown)}{more}"

    def _split(self, text: str) -> Iterator[str]:
        normalizer, splitter = self.backend.normalizer, self.backend.pre_tokenizer
        written = text if normalizer is None else normalizer.normalize_str(text)
        pieces = [written] if splitter is None else [piece for piece, _ in splitter.pre_tokenize_str(written)]
        return (piece for piece in pieces if any(character.isalnum() for character in piece))


def closed_vocabulary(tokenizer: Any) -> ClosedVocabulary | None:
    """Return a tokenizer's words if it has whole words alone; None for one that can write any text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or type(backend.model).__name__ != "WordLevel":
        return None
    return ClosedVocabulary(backend, backend.get_vocab(with_added_tokens=False))


def texts_of(prompt: Any) -> Iterator[str]:
    """Return the texts of a prompt, of parts or of messages; media, chunks and token ids are passed over."""
    for part in (prompt,) if isinstance(prompt, str) else prompt:
        if isinstance(part, str):
            yield part
        elif isinstance(part, Mapping):
            content = part.get("content", part.get("text"))
            if isinstance(content, str):
                yield content
            elif isinstance(content, list | tuple):
                yield from texts_of(content)
