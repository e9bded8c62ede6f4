"""The replies of one model that are being made: decoded as one batch, and let go as they end."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from emblema.engine.engine import Engine
from emblema.engine.generation import Generation
from emblema.errors import EmblemaError, PromptError
from emblema.models.adapter import Adapter
from emblema.models.decode_steps import step_recorder
from emblema.session.decode_batch import DecodeBatch, DecodeSequence, NextToken
from emblema.session.decoding import DecodeStart, Sampler
from emblema.session.replies import Piece, ReplyWriter
from emblema.session.session import DECODE_RESERVE


@dataclass(frozen=True, slots=True)
class _Reply:
    """A reply in the batch, or one that waits for room in it."""

    generation: Generation
    sequence: DecodeSequence
    writer: ReplyWriter
    choice: int

    def give(self, token: NextToken) -> bool:
        """Deliver a token; return whether the reply goes on."""
        piece = self.writer.push(token.token)
        piece.probability, piece.choice = token.probability, self.choice
        self.generation.give(piece)
        return piece.reply is None


@dataclass(frozen=True, slots=True)
class _Turn:
    """A reply that is decoded by itself, because its model may ask for more on the way."""

    generation: Generation
    pieces: Iterator[Piece]


class ReplyBatch:
    """Replies under way. The caller's thread owns the model.

    Args:
        adapter: the model.
        most_rows: rows of the longest sequence times the number of sequences, at most.
    """

    def __init__(self, adapter: Adapter, most_rows: int) -> None:
        self._batch = DecodeBatch(adapter, most_rows, None if adapter.sharded else step_recorder(adapter.device))
        self._replies: dict[DecodeSequence, _Reply] = {}
        self._waiting: deque[tuple[_Reply, DecodeStart]] = deque()
        self._turns: list[_Turn] = []

    def __len__(self) -> int:
        return len(self._replies) + len(self._waiting) + len(self._turns)

    @property
    def full(self) -> bool:
        """Whether a reply waits for room, so that no other should begin."""
        return bool(self._waiting)

    @property
    def generations(self) -> list[Generation]:
        """All of them."""
        replies: list[_Reply | _Turn] = [*self._replies.values(), *(reply for reply, _ in self._waiting), *self._turns]
        return list(dict.fromkeys(reply.generation for reply in replies))

    def begin(self, engine: Engine, generation: Generation) -> None:
        """Link a request's prompt, deliver the first token of its replies, and take them on.

        Raises:
            EmblemaError: the request is not right.
        """
        request = generation.request
        if request.retrieval is not None and generation.choices > 1:
            raise PromptError("a reply that may search is made alone: ask for one choice")
        reserve = 0 if request.retrieval is None else DECODE_RESERVE
        prefill = engine.begin(request, generation.began, reserve)
        # Decoded media are let go with the prompt that they were read into.
        generation.request = replace(request, parts=())
        if request.retrieval is not None:
            turn = _Turn(generation, engine.retrieving(prefill, request).pieces(generation.began))
            self._turns.append(turn)
            self._advance(turn)
            engine.session.after_answer()
            return
        if generation.choices > 1 and generation.choices * prefill.prompt.tokens > self._batch.most_rows:
            # Some would wait for others, and nothing else may begin meanwhile.
            raise PromptError(
                f"{generation.choices} replies to a prompt of {prefill.prompt.tokens} rows are more than is decoded at "
                "once: ask for fewer choices"
            )
        start = DecodeStart.after(prefill.prompt, prefill.linked)
        room = engine.session.room_after(prefill.prompt)
        most = min(room, request.sampling.max_new_tokens)
        samplings = [request.sampling.of_choice(choice, most) for choice in range(generation.choices)]
        # A first token that cannot be chosen ends the request before any of its replies is taken on.
        sequences = [DecodeSequence(start, Sampler(sampling), request.likeliest) for sampling in samplings]
        for choice, (sequence, sampling) in enumerate(zip(sequences, samplings, strict=True)):
            writer = engine.session.writer(prefill, sampling, generation.began)
            reply = _Reply(generation, sequence, writer, choice)
            if reply.give(sequence.first):
                self._waiting.append((reply, start))
        self._admit()
        # With the first token out, what the prompt teaches is learnt before its rows are let go.
        engine.session.after_answer()

    def step(self) -> None:
        """Deliver the next token of every reply."""
        self.step_batch()
        for turn in list(self._turns):
            self._advance(turn)

    def step_batch(self) -> None:
        """Deliver the next token of the replies that are decoded together."""
        for sequence, token in self._batch.step():
            reply = self._replies.get(sequence)
            if reply is None:
                # Another reply of the same request has failed in this step.
                continue
            if isinstance(token, EmblemaError):
                reply.generation.fail(token)
                self.remove([reply.generation])
            elif not reply.give(token):
                self._leave(sequence)
        self._admit()

    def remove(self, generations: list[Generation]) -> None:
        """Let replies go before their end."""
        for sequence in [key for key, reply in self._replies.items() if reply.generation in generations]:
            self._leave(sequence)
        self._waiting = deque(pair for pair in self._waiting if pair[0].generation not in generations)
        self._turns = [turn for turn in self._turns if turn.generation not in generations]
        self._admit()

    def _leave(self, sequence: DecodeSequence) -> None:
        self._batch.remove(sequence)
        del self._replies[sequence]

    def _admit(self) -> None:
        while self._waiting and self._batch.has_room(self._waiting[0][1].table.length):
            reply, start = self._waiting.popleft()
            self._batch.admit(start, reply.sequence)
            self._replies[reply.sequence] = reply

    def _advance(self, turn: _Turn) -> None:
        try:
            turn.generation.give(next(turn.pieces))
        except Exception as error:
            turn.generation.fail(error)
        if turn.generation.over:
            self._turns.remove(turn)
