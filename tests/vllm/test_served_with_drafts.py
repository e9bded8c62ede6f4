"""Speculative decoding, served plainly. Last of these files: what vLLM imports for it spoils the next engine here."""

import pytest


@pytest.mark.nightly
def test_speculative_decoding_serves_plainly(bench, cell, subjects, tmp_path) -> None:
    if cell.scheduling == "async" or cell.runner == "v2":
        pytest.skip("vLLM refuses n-grams with asynchronous scheduling, and V2's kernel for them does not run on a CPU")
    subject = subjects("qwen2.5-vl")
    given = subject.prompt(2, seed=1)
    served = bench.serve(
        subject.folder, tmp_path / "store", subject.vocabulary,
        speculative_config={"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3},
    )  # fmt: skip
    first, second = (served.ask(given.token_ids, given.pictures, logprobs=1, tokens=4) for _ in range(2))
    assert first.report == second.report and "speculative" in first.report["remark"] and first.tokens == second.tokens
