"""The time of a token while patches are formed beside it."""

from dataclasses import replace

import numpy as np

from benchmarks.cost.decoding import Decoding
from benchmarks.cost.forming import form_job
from benchmarks.cost.subject import BEFORE, QUESTION, CostSubject
from benchmarks.table import Cell, Table
from emblema.link.policy.policy import Policy
from emblema.session.patch_worker import PatchWorker

QUIET, FORMING = "nothing beside it", "patches formed beside it"
POLICY = Policy(forming_seconds=None, forming_bytes=2**40)
ROUNDS, JOBS = 3, 4
"""Runs of either kind, and patches that are queued for one."""


def jitter_table(subject: CostSubject, rows: int, tokens: int, chunk: int, strategy: str) -> Table:
    """Return the times of tokens with and without forming, in turns.

    Args:
        subject: the model.
        rows: rows decoded after.
        tokens: tokens of a run.
        chunk: rows of the chunk whose patch is formed again and again.
        strategy: of the patch's rank.
    """
    decoding, worker = Decoding(subject, rows, tokens), PatchWorker()
    spent: dict[str, list[float]] = {QUIET: [], FORMING: []}
    with subject.prompt(2 * chunk + BEFORE + QUESTION, 2) as kept:
        job = form_job(subject, kept, subject.rank(strategy, chunk))
        decoding.token_seconds()
        for _ in range(ROUNDS):
            spent[QUIET] += decoding.token_seconds()
            for place in range(JOBS):
                key = replace(job.key, antecedents=(*job.key.antecedents, str(place)))
                worker.submit(replace(job, key=key), POLICY)
            spent[FORMING] += decoding.token_seconds()
            worker.settle()
    worker.close()
    found: list[tuple[Cell, ...]] = []
    for name, seconds in spent.items():
        middle, late, worst = np.quantile(seconds, (0.5, 0.95, 1.0)) * 1e3
        found.append((name, len(seconds), float(middle), float(late), float(worst)))
    return Table(
        "jitter",
        "The time of a token while patches are formed",
        f"Greedy, after {rows:,} rows; {worker.statistics.formed} patches ({strategy} of {chunk:,} rows) were formed.",
        ("tokens with", "tokens", "p50 ms", "p95 ms", "longest ms"),
        tuple(found),
    )
