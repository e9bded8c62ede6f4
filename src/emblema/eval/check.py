"""The fidelity report: how far blind reuse and patches are from re-prefill, on a person's own pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, permutations

import numpy as np
from rich.console import Console

from emblema.engine.engine import Engine
from emblema.errors import PromptError
from emblema.eval.metrics import PLATEAU, Share, agreement, eta, flip_recovery
from emblema.eval.progress import steps
from emblema.kv.chunk import Chunk
from emblema.link.executor import LinkTrace
from emblema.link.lanes import Lane
from emblema.link.policy.certificate import PROVISIONAL
from emblema.link.policy.samples import Sample, compare, divergence, first_token
from emblema.link.strategies.base import Strategy
from emblema.link.strategies.query import QueryStrategy
from emblema.session.decoding import DecodeStart, Sampler, Sampling, decode
from emblema.session.policy_runtime import PolicyRuntime
from emblema.session.prompt_reader import PromptPart, slid

SETTINGS = ("visible", "slid")
SHARES = ("patch-6%", "patch-25%")
FULL, BLIND = "full", "blind"
QUERY = QueryStrategy(0.25, least_margin=0.0)
"""What `auto` does with pictures in a combination that it does not know; here every answer stands, sure or not."""
QUESTIONS = ("What is shown in the first picture?", "What have the pictures in common?", "Describe the last picture.")


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """The answer to a prompt under a strategy.

    Attributes:
        logits: of the answer's first token, [vocab] float32.
        token_ids: the greedy answer.
        trace: what ran.
        rank: the largest rank of a patch used.
        margin: by how much the two likeliest first tokens' probabilities differ after a second pass; else None.
    """

    logits: np.ndarray
    token_ids: tuple[int, ...]
    trace: LinkTrace
    rank: int
    margin: float | None = None


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A strategy in a setting, over all orders and questions.

    Attributes:
        divergence, worst: mean and largest KL from re-prefill at the answer's first token, nats.
        first_token, greedy: share of prompts with re-prefill's first token, and with its whole greedy answer.
        patch_share: bytes of the patches over bytes of the KV of the pictures that are in the window.
        computed: mean rows computed.
        rank: the largest rank used.
        unsure: of a second pass, the share of prompts that `auto` would compute in full after all; else None.
        wrong: of a second pass, the share with another first token than re-prefill among the others; else None.
    """

    setting: str
    strategy: str
    prompts: int
    divergence: float
    worst: float
    eta: float
    first_token: float
    greedy: float
    flips: Share
    patch_share: float
    computed: float
    rank: int
    unsure: float | None = None
    wrong: float | None = None


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check measured.

    Attributes:
        kinds: of content.
        samples: of each strategy but re-prefill, prompt by prompt, what the fidelity log of `auto` takes in.
    """

    pictures: int
    questions: tuple[str, ...]
    orders: tuple[tuple[int, ...], ...]
    answer_tokens: int
    rows: tuple[CheckRow, ...]
    kinds: tuple[str, ...] = ()
    samples: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)

    @property
    def strategies(self) -> tuple[str, ...]:
        """Names in the order measured, re-prefill first."""
        return tuple(dict.fromkeys(row.strategy for row in self.rows))

    def row(self, setting: str, strategy: str) -> CheckRow:
        """Return the row of a setting and a strategy."""
        return next(row for row in self.rows if (row.setting, row.strategy) == (setting, strategy))

    @property
    def plateau(self) -> int | None:
        """The smallest rank measured that removes as good as all of the KL that the largest removes, in every setting.

        As good as all is `PLATEAU`, 94 %. None where patches remove none.
        """
        ranks = sorted({row.rank for row in self.rows if row.rank})
        removed = {
            (row.setting, row.rank): self.row(row.setting, BLIND).divergence - row.divergence
            for row in self.rows
            if row.rank
        }
        settings = {setting for setting, _ in removed}
        if not ranks or any(removed.get((setting, ranks[-1]), 0.0) <= 0 for setting in settings):
            return None
        return next(
            rank
            for rank in ranks
            if all(removed.get((setting, rank), 0.0) >= PLATEAU * removed[setting, ranks[-1]] for setting in settings)
        )


def measure(
    engine: Engine,
    pictures: Sequence[Chunk],
    questions: Sequence[str],
    *,
    ranks: Sequence[int] = (4, 16, 64),
    orders: int = 4,
    answer_tokens: int = 12,
    screen: Console | None = None,
) -> CheckResult:
    """Ask each question about the pictures in up to `orders` orders, all visible and with all but the last slid away.

    Raises:
        PromptError: there are fewer than two pictures, or no questions.
    """
    if len(pictures) < 2:
        raise PromptError(f"{len(pictures)} picture: give two or more, a single one has no other to be conditioned on")
    if not questions:
        raise PromptError("no questions: give one or more")
    strategies = (FULL, BLIND, *dict.fromkeys((*(f"patch-{rank}" for rank in ranks), *SHARES)), QUERY.name)
    chosen = tuple(spread(len(pictures), orders))
    answers: dict[tuple[str, str], list[CheckAnswer]] = {}
    held: dict[str, list[int]] = {setting: [] for setting in SETTINGS}
    total = len(SETTINGS) * len(chosen) * len(questions) * len(strategies)
    with steps(screen or Console(quiet=True), f"{total} prompts", total) as advance:
        for order in chosen:
            for setting in SETTINGS:
                window = [pictures[index] for index in order]
                parts: list[PromptPart] = list(window)
                if setting == "slid":
                    parts = [*(slid(picture) for picture in window[:-1]), window[-1]]
                    window = window[-1:]
                for question in questions:
                    held[setting].append(sum(chunk.bytes for chunk in window))
                    for strategy in strategies:
                        taken = QUERY if strategy == QUERY.name else strategy
                        answer = answer_of(engine, [*parts, question], taken, answer_tokens)
                        answers.setdefault((setting, strategy), []).append(answer)
                        advance()
    rows = [
        row_of(setting, name, answers[setting, FULL], answers[setting, BLIND], answers[setting, name], held[setting])
        for setting in SETTINGS
        for name in strategies
    ]
    samples = {
        name: tuple(
            compare(full.logits, own.logits)
            for setting in SETTINGS
            for full, own in zip(answers[setting, FULL], answers[setting, name], strict=True)
        )
        for name in strategies[1:]
    }
    kinds = tuple(dict.fromkeys(chunk.kind for chunk in pictures))
    return CheckResult(len(pictures), tuple(questions), chosen, answer_tokens, tuple(rows), kinds, samples)


def teach_policy(result: CheckResult, policy: PolicyRuntime) -> tuple[int | None, int]:
    """Hand what was measured to the policy of a store: the plateau, and how patched and read contents answered.

    Patches are measured as `auto` forms them from now on: at the plateau, or without one at a quarter of the bytes.

    Returns:
        The plateau, and how many measurements were handed over.
    """
    plateau = result.plateau
    if plateau is not None:
        policy.set_plateau(plateau)
    named = [row.strategy for row in result.rows if row.rank and row.rank == plateau]
    count = 0
    lanes = ((Lane.PATCH, (named or SHARES[-1:])[0]), (Lane.QUERY, QUERY.name))
    for lane, strategy in lanes:
        for sample in result.samples[strategy]:
            for kind in result.kinds:
                policy.record(kind, lane, sample.kl, sample.agrees, sample.margin)
                count += 1
    return plateau, count


def spread(count: int, most: int) -> list[tuple[int, ...]]:
    """Return up to `most` orders of `count` pictures, evenly out of the first thousand; the given order is first."""
    every = list(islice(permutations(range(count)), 1000))
    places = np.linspace(0, len(every) - 1, min(most, len(every))).round().astype(int)
    return [every[place] for place in places]


def answer_of(engine: Engine, parts: list[PromptPart], strategy: str | Strategy, tokens: int) -> CheckAnswer:
    """Link a prompt and answer it greedily, in the model's chat template if it has one."""
    template = bool(engine.template.preparer.chat_template)
    prefill = engine.prefill(parts, strategy, template=template, reserve=tokens)
    logits = prefill.logits.float().cpu().numpy()
    if not prefill.usage.finite:
        # What follows is full prefill's answer, not the strategy's.
        logits = np.full_like(logits, np.nan)
    sampler = Sampler(Sampling(max_new_tokens=tokens))
    found = tuple(decode(engine.adapter, DecodeStart.after(prefill.prompt, prefill.linked), sampler, engine.end_tokens))
    ranks = [part.patch.rank for part in prefill.plan.ranges if part.patch is not None]
    return CheckAnswer(logits, found, prefill.trace, max(ranks, default=0), prefill.usage.margin)


def row_of(
    setting: str,
    strategy: str,
    full: Sequence[CheckAnswer],
    blind: Sequence[CheckAnswer],
    own: Sequence[CheckAnswer],
    held: Sequence[int],
) -> CheckRow:
    """Return a row from answers to the same prompts."""
    losses = [divergence(answer.logits, other.logits) for answer, other in zip(full, own, strict=True)]
    floors = [divergence(answer.logits, other.logits) for answer, other in zip(full, blind, strict=True)]
    firsts = [[first_token(answer.logits) for answer in answers] for answers in (full, blind, own)]
    same = [answer.token_ids == other.token_ids for answer, other in zip(full, own, strict=True)]
    margins = [answer.margin for answer in own if answer.margin is not None]
    standing = [
        first != other
        for first, other, answer in zip(firsts[0], firsts[2], own, strict=True)
        if answer.margin is not None and answer.margin >= PROVISIONAL
    ]
    return CheckRow(
        setting=setting,
        strategy=strategy,
        prompts=len(own),
        divergence=float(np.mean(losses)),
        worst=max(losses),
        eta=eta(losses, floors),
        first_token=agreement(firsts[0], firsts[2]),
        greedy=float(np.mean(same)),
        flips=flip_recovery(*firsts),
        patch_share=sum(answer.trace.patch_bytes for answer in own) / sum(held),
        computed=float(np.mean([answer.trace.computed + answer.trace.repeated for answer in own])),
        rank=max(answer.rank for answer in own),
        unsure=1 - len(standing) / len(margins) if margins else None,
        wrong=float(np.mean(standing)) if standing else 0.0 if margins else None,
    )
