"""Log-probabilities of a reply's tokens, as OpenAI's clients expect them: joined, the tokens spell the text."""

from dataclasses import dataclass
from typing import Any

from emblema.session.decode_batch import TokenProbability
from emblema.session.replies import Piece, TextDecoder

FLOOR = -9999.0
"""JSON has no infinity; this is what OpenAI sends for a token out of reach."""


@dataclass(slots=True)
class _Token:
    text: str
    logprob: float
    likeliest: list[dict[str, Any]]

    def entry(self) -> dict[str, Any]:
        return _spelled(self.text, self.logprob) | {"top_logprobs": self.likeliest}


class TokenLogprobs:
    """Tells each token of a reply once its text is certain.

    An end token is not told, nor a token of a stop string; one that a stop string cuts has the text that is left of it.

    Args:
        tokenizer: of the model.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._decoder = TextDecoder(tokenizer, skip_special_tokens=True)
        self._special = frozenset(tokenizer.all_special_ids)
        self._waiting: list[_Token] = []
        # Characters of the reply that were given, and those of the tokens that were told.
        self._given = self._told = 0

    def push(self, piece: Piece) -> list[dict[str, Any]]:
        """Take the next piece of the reply, and return the entries of the tokens that it makes certain."""
        self._given += len(piece)
        ending = piece.reply
        if piece.probability is not None:
            ends = ending is not None and len(ending.token_ids) == len(self._decoder.token_ids)
            if not ends:
                self._waiting.append(self._read(piece.probability))
        if ending is not None:
            return self._rest(len(ending.text))
        count, told = 0, self._told
        for index, token in enumerate(self._waiting):
            told += len(token.text)
            if told > self._given:
                break
            if token.text:
                count, self._told = index + 1, told
        entries = [token.entry() for token in self._waiting[:count]]
        del self._waiting[:count]
        return entries

    def _read(self, probability: TokenProbability) -> _Token:
        likeliest = [_spelled(self._name(token), logprob) for token, logprob in probability.likeliest]
        return _Token(self._decoder.push(probability.token), probability.logprob, likeliest)

    def _name(self, token: int) -> str:
        """Return the text that a token would add; of a control token its own name."""
        special = token in self._special
        return ("" if special else self._decoder.peek(token)) or str(self._tokenizer.decode([token]))

    def _rest(self, length: int) -> list[dict[str, Any]]:
        """Return the entries of the tokens that are left, up to the end of a text of so many characters."""
        rest = self._decoder.finish()
        if self._waiting:
            self._waiting[-1].text += rest
        entries = []
        for token in self._waiting:
            whole = token.text
            token.text = whole[: length - self._told]
            self._told += len(token.text)
            if token.text or not whole:
                entries.append(token.entry())
        return entries


def _spelled(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "bytes": list(text.encode()), "logprob": max(logprob, FLOOR)}
