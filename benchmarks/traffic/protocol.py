"""The protocol of traffic, as the page states it: written before the run."""

PROTOCOL = (
    "## Protocol",
    "This was written before the run. The seed was drawn once, is part of the command, and decides all traffic. Every "
    "method has an engine and a store of its own on the same weights, and they take turns: each request goes to every "
    "method, another one first each time, in one process with one thread, so that a busy machine slows all of them "
    "alike. Nothing is left out: times of the first requests count, and a method that is given up on a request (a "
    "second pass that was not sure) is charged for both attempts. Before the first request each method serves two "
    "requests on an engine that is thrown away, so that nothing is timed that happens once in a process.",
    "**Requests.** `rag`: pages were added before, and a request names some of them in random order, one or two "
    "legends among them; 80 % of the questions need a legend and a map, and every question can be answered from the "
    "pages shown. `rag-slid`: the same, with the legends slid: they condition the pages after them, and the question "
    "reads those pages only, so that an answer is lost where a page's rows do not hold what it took from a legend. "
    "`agent`: the last six screenshots are sent whole at each turn as pictures, as a client of OpenAI's interface "
    "does; now and then an earlier one comes back, or the window begins again empty; three questions in ten, where "
    "there is one, are about a land whose legend was dropped: nothing that is sent tells it, or a legend that comes "
    "after the map does. `talks`: each conversation opens with ten of the pages in an order of its own, and is sent "
    "whole at each of its five turns; the answers in it are re-prefill's, so that every method sees the same prompt. "
    "`novelty`: every picture is new.",
    "**Counted.** *rows*: rows that were computed before the answer by the reply's own `usage`: in the prompt, again "
    "in a second pass, in an attempt that was given up, and, by `auto`, of new pictures prefilled alone; over the "
    "prompt's rows. *rows run*: every row that the decoder ran, "
    "also for pictures prefilled alone, for patches that are formed, and for all that is done after the answer, a row "
    "that ran in some layers alone as that share of one; adding the pages of `rag` is not counted, as every method "
    "does it. *TTFT*: from the call to the first token, encoding of pictures included; p50 is the median of the ratios "
    "to re-prefill's for the same request, a moment before or after, as the machine's load changes in a run, and p99 "
    "the ratio of both p99 (of 200 requests nearly the slowest). *throughput*: answers of one token a second of wall "
    "clock, with all that is done after an answer waited for, over re-prefill's; *CPU*: seconds of the processor, over "
    "re-prefill's. *agrees*: the first token is re-prefill's. *right*: the answer is the pages'. *fell back*: computed "
    "in full because the second pass was not sure. *wrong, accepted*: first tokens that are not re-prefill's, of the "
    "answers that did not fall back. *MB kept*: in the store at the end, pages and kept prompts included. `full` and "
    "`prefix` keep the encoder's output of pictures that they saw (not in MB) and prefill none alone; the other "
    "methods but `auto` prefill new pictures alone when they first come. `auto` runs with its default policy and its "
    "background work.",
    "**Bars** are held on stretches of 40 requests: *first requests on* is the worst stretch for rows and the first "
    "one for TTFT, *after* is the last. A bar that is an aim is reported beside the others. Intervals: 95 %, bootstrap "
    "over requests (`talks`: over conversations; `agent`: over blocks of eight turns).",
)
MORE_STAGES = ("rag-few", "rag-many", "learning", "growth-24", "growth-100", "growth-1000")
MORE = (
    "**More stages.** `rag-few` and `rag-many` show 2 and 16 pages in place of 8. `learning`: as `rag`, with "
    "`auto-still`, which is `auto` that learns nothing more from half of the requests on: what `auto` costs beside it "
    "from there on is what learning costs. `growth-24`, `-100`, `-1000`: as `rag-zipf`, with so many pages, by `full` "
    "and `auto` alone. *MB learnt*: patches and pairs, without pages and kept prompts; a bound of half of the pages' "
    "bytes was stated before the run. *Taken by a request*: of the pieces (a patch, or the pairs of a page) that are "
    "kept at the end, those that a request was served with at least once."
)
"""What the page says beside where one of `MORE_STAGES` was measured."""
