"""The tokens that are told spell the reply: with characters of several tokens, stop strings and end tokens."""

import random
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from emblema.serve.token_logprobs import TokenLogprobs
from emblema.session.decode_batch import TokenProbability
from emblema.session.decoding import Sampling
from emblema.session.replies import Piece, Reply, ReplyText
from emblema.session.requests import Usage

TEXTS = ("a b c", "für é", "日本語 text", "🙂 a 🙂", "tent tent")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A token a byte, and one that ends replies."""
    letters = sorted(ByteLevel.alphabet())
    plain = Tokenizer(BPE({letter: index for index, letter in enumerate(letters)}, []))
    plain.pre_tokenizer, plain.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>")


def pieces(tokenizer: Any, tokens: list[int], sampling: Sampling) -> list[Piece]:
    text = ReplyText(tokenizer, frozenset({tokenizer.eos_token_id}), sampling)
    made = []
    for token in tokens:
        fresh, reason = text.push(token)
        told = TokenProbability(token, -0.5, ((token, -0.5), (tokenizer.eos_token_id, float("-inf"))))
        reply = None
        if reason is not None:
            reply = Reply(text.text, text.token_ids, reason, Usage("full", 1, 0, 1, 0, 0, 0.0), (), None)  # type: ignore[arg-type]
        made.append(Piece(fresh, reply, told))
        if reply is not None:
            return made
    raise AssertionError("the reply has no end")


@pytest.mark.parametrize("seed", range(60))
def test_joined_they_spell_the_reply(tokenizer: Any, seed: int) -> None:
    rnd = random.Random(seed)
    ids = [token for _ in range(rnd.randint(1, 4)) for token in tokenizer(rnd.choice(TEXTS))["input_ids"]]
    # Replies may end inside a character, at a stop string, or at the most tokens.
    ids = ids[: rnd.randint(1, len(ids))]
    stop = rnd.choice([(), ("t t",), ("本",), ("b",), ("c", "🙂 a")])
    ids.append(tokenizer.eos_token_id)
    made = pieces(tokenizer, ids, Sampling(max_new_tokens=rnd.choice([len(ids) - 1, len(ids)]), stop=stop))
    logprobs = TokenLogprobs(tokenizer)
    told = [logprobs.push(piece) for piece in made]
    reply = made[-1].reply
    assert reply is not None and "".join(made) == reply.text
    entries = [entry for each in told for entry in each]
    assert "".join(entry["token"] for entry in entries) == reply.text
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == reply.text.encode()
    assert len(entries) <= len(reply.token_ids)
    if not stop:
        assert len(entries) == len(reply.token_ids)
    # While the reply is made, no token is told before its text.
    given = spelled = 0
    for piece, each in zip(made, told, strict=True):
        given += len(piece)
        spelled += sum(len(entry["token"]) for entry in each)
        assert spelled <= given


def test_what_is_likely_is_told_in_the_same_words(tokenizer: Any) -> None:
    ids = [*tokenizer("é b")["input_ids"], tokenizer.eos_token_id]
    logprobs = TokenLogprobs(tokenizer)
    entries = [entry for piece in pieces(tokenizer, ids, Sampling()) for entry in logprobs.push(piece)]
    assert [entry["token"] for entry in entries] == ["", "é", " ", "b"]
    for entry in entries[1:]:
        assert [each["token"] for each in entry["top_logprobs"]] == [entry["token"], "<end>"]
        assert entry["top_logprobs"][1]["logprob"] == -9999.0
