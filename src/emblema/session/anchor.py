"""The anchor: what a prompt of a model always begins with, and chunks are prefilled after."""

from emblema.errors import PromptError
from emblema.models.prepare import Preparer
from emblema.session.prompt_reader import PromptReader
from emblema.session.turn_tokenizer import TurnTokenizer


def find_anchor(preparer: Preparer | None) -> tuple[int, ...]:
    """Return the token ids that the chat template writes before the first piece of a user's turn.

    Where there is no template, the token that the tokenizer puts in front of every text, if there is one.
    """
    if preparer is None:
        return ()
    try:
        return TurnTokenizer(PromptReader(preparer, 0)).opening()
    except PromptError:
        first = preparer.tokenizer("")["input_ids"][:1]
        return tuple(first) if first and first[0] == preparer.tokenizer.bos_token_id else ()
