"""Decoding several sequences at once: one forward a step makes a token of each."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.errors import EmblemaError, ModelError
from emblema.models.adapter import Adapter
from emblema.models.decode_steps import DecodeSteps, StepRecorder
from emblema.session.decoding import NOT_FINITE, DecodeStart, Sampler


@dataclass(frozen=True, slots=True)
class TokenProbability:
    """A token's probability where it was chosen.

    Attributes:
        token: the token.
        logprob: its log-probability under the model, before bias, penalties and temperature.
        likeliest: the likeliest tokens in its place with their log-probabilities, the likeliest first.
    """

    token: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class NextToken:
    """A token of one sequence; `probability` where the sequence asks for it."""

    token: int
    probability: TokenProbability | None


class DecodeSequence:
    """A sequence that is decoded in a batch.

    Args:
        start: where decoding begins.
        sampler: chooses its tokens.
        likeliest: how many of the likeliest tokens are told for every token; None tells no probabilities.

    Attributes:
        first: its first token, from the prompt's logits.
    """

    def __init__(self, start: DecodeStart, sampler: Sampler, likeliest: int | None = None) -> None:
        self._sampler, self._likeliest = sampler, likeliest
        self.row, self.position = start.row, start.position
        self.first = self.choose(start.logits)
        self.last = self.first.token

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, and nothing is told but the token."""
        return self._sampler.greedy and self._likeliest is None

    def choose(self, logits: Tensor, likeliest_token: int | None = None) -> NextToken:
        """Return the next token for logits [vocab] float32, whose largest may be known."""
        if likeliest_token is not None and self.greedy:
            return NextToken(likeliest_token, None)
        token = self._sampler(logits)
        told = None if self._likeliest is None else probability_of(logits, token, self._likeliest)
        return NextToken(token, told)


class DecodeBatch:
    """Sequences of one model that are decoded together.

    Args:
        adapter: the model; one thread owns it.
        most_rows: rows of the longest sequence times the number of sequences, at most.
        recorder: records steps; None runs each of them.
    """

    def __init__(self, adapter: Adapter, most_rows: int, recorder: StepRecorder | None = None) -> None:
        self.adapter, self.most_rows = adapter, most_rows
        self._table = adapter.batch_table(padded=recorder is not None)
        self._steps = None if recorder is None else DecodeSteps(adapter, self._table, recorder)
        self._sequences: list[DecodeSequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def bytes(self) -> int:
        """Bytes of the sequences' rows, padding included."""
        return self._table.bytes

    def has_room(self, rows: int) -> bool:
        """Return whether a sequence of so many rows fits beside the others; a batch without any takes all lengths."""
        return not self._sequences or self._table.padded_rows(rows + 1) <= self.most_rows

    def admit(self, start: DecodeStart, sequence: DecodeSequence) -> None:
        """Take a sequence in, after its first token; its rows are copied.

        Weights that are others than at the last admission are the ones of all steps from here on.
        """
        if self._steps is not None:
            self._steps.follow_weights()
        if self.adapter.keeps_states:
            self.adapter.make_states(start.table)
        self._table.admit(start.table)
        self._sequences.append(sequence)

    def remove(self, sequence: DecodeSequence) -> None:
        """Let a sequence go."""
        number = self._sequences.index(sequence)
        self._table.release(number)
        last = self._sequences.pop()
        if last is not sequence:
            self._sequences[number] = last

    def step(self) -> list[tuple[DecodeSequence, NextToken | EmblemaError]]:
        """Run the last token of every sequence, and return the next ones.

        A sequence of which no token can be chosen has an error in place of it, and cannot go on.
        """
        sequences = list(self._sequences)
        if not sequences:
            return []
        tokens, positions, rows = torch.tensor([[each.last, each.position, each.row] for each in sequences]).unbind(1)
        if self._steps is None:
            logits = self.adapter.decode(tokens, positions, rows, self._table)
        else:
            logits = self._steps.decode(tokens, positions, rows)
        # The largest is NaN where any is.
        largest, likeliest = logits.max(dim=1)
        # Both come from the device at once; float32 holds any token.
        known, chosen_tokens = torch.stack((largest, likeliest.to(largest.dtype))).tolist()
        chosen: list[tuple[DecodeSequence, NextToken | EmblemaError]] = []
        for index, sequence in enumerate(sequences):
            if not math.isfinite(known[index]):
                chosen.append((sequence, ModelError(NOT_FINITE)))
                continue
            try:
                made = sequence.choose(logits[index], int(chosen_tokens[index]))
            except EmblemaError as error:
                chosen.append((sequence, error))
                continue
            sequence.last = made.token
            sequence.row += 1
            sequence.position += 1
            chosen.append((sequence, made))
        return chosen


def probability_of(logits: Tensor, token: int, likeliest: int) -> TokenProbability:
    """Return a token's probability under logits [vocab] float32, and so many of the likeliest tokens."""
    logprobs = torch.log_softmax(logits.double(), dim=0)
    best = logprobs.topk(min(likeliest, len(logprobs)))
    pairs = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return TokenProbability(token, float(logprobs[token]), pairs)
