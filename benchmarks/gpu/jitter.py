"""The time of a token while patches are formed beside it."""

import time
from dataclasses import replace

import numpy as np
import torch

from benchmarks.cost.decoding import Decoding
from benchmarks.cost.forming import form_job, true_chunks
from benchmarks.cost.subject import BEFORE, QUESTION, CostSubject
from benchmarks.table import Cell, Table
from emblema.kv.device import wait_for
from emblema.link.policy.policy import Policy
from emblema.session.decoding import DecodeStart, Sampler, Sampling
from emblema.session.patch_worker import PatchWorker

QUIET, FORMING = "nothing beside it", "patches formed beside it"
POLICY = Policy(forming_seconds=None, forming_bytes=2**40)


def jitter_table(subject: CostSubject, rows: int, tokens: int, chunk: int, jobs: int, strategy: str) -> Table:
    """Return the times of tokens with and without forming, in turns.

    Args:
        subject: the model.
        rows: rows decoded after.
        tokens: tokens of a run.
        chunk: rows of the chunk whose patch is formed again and again.
        jobs: patches that are queued for a run.
        strategy: of the patch's rank.
    """
    decoding = Decoding(subject, rows, tokens)
    worker = PatchWorker()
    spent: dict[str, list[float]] = {QUIET: [], FORMING: []}
    formed = 0
    with subject.prompt(2 * chunk + BEFORE + QUESTION, 2) as kept:
        prompt = true_chunks(subject, kept)
        job = form_job(subject, prompt, subject.rank(strategy, chunk))
        _token_seconds(subject, decoding)
        for _ in range(3):
            spent[QUIET] += _token_seconds(subject, decoding)
            for place in range(jobs):
                worker.submit(replace(job, key=replace(job.key, held_out=str(place))), POLICY)
            spent[FORMING] += _token_seconds(subject, decoding)
            worker.settle()
        formed = worker.statistics.formed
    worker.close()
    found: list[tuple[Cell, ...]] = []
    for name, seconds in spent.items():
        middle, late, worst = np.quantile(seconds, (0.5, 0.95, 1.0)) * 1e3
        found.append((name, len(seconds), float(middle), float(late), float(worst)))
    return Table(
        "jitter",
        "The time of a token while patches are formed",
        f"Greedy, after {rows:,} rows; {formed} patches ({strategy} of {chunk:,} rows) were formed in all.",
        ("tokens with", "tokens", "p50 ms", "p95 ms", "longest ms"),
        tuple(found),
    )


@torch.inference_mode()
def _token_seconds(subject: CostSubject, decoding: Decoding) -> list[float]:
    start = DecodeStart(decoding.table, decoding.logits, decoding.rows, decoding.rows, subject.adapter.axes)
    stream = decoding.solo.tokens(start, Sampler(Sampling(max_new_tokens=decoding.tokens + 1)), frozenset())
    next(stream)
    seconds = []
    wait_for(subject.device)
    began = time.perf_counter()
    for _ in stream:
        wait_for(subject.device)
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
    decoding.table.truncate(decoding.rows)
    return seconds
