"""vLLM in this process, on a CPU, with the plugin: what all tests of it use."""

import os

# Read by vLLM when it is imported.
os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    OMP_NUM_THREADS="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="WARNING",
)

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from emblema.vllm.serving import ENCODINGS, WORKER
from tests.vllm.cells import Cell

VOCAB_TOP = -1


def plugin_options(store: Path, strategy: str = "blind", **extra: Any) -> dict[str, Any]:
    """What `vllm serve` is given beside the model; `auto` links all that it may, whatever that costs."""
    return {
        "kv_transfer_config": {
            "kv_connector": "EmblemaConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"store": str(store), "strategy": strategy, "least_rows": 0, **extra},
        },
        "ec_transfer_config": dict(ENCODINGS),
        "worker_cls": WORKER,
    }


@dataclass
class Answer:
    """What a request gave: its first token's log-probabilities by token id, its tokens, and what the plugin reports."""

    logits: torch.Tensor
    tokens: list[int]
    cached: int
    report: dict[str, Any]


class Served:
    """A model in vLLM; `store` None is plain vLLM."""

    def __init__(
        self, folder: Path, store: Path | None, vocabulary: int, strategy: str = "blind", **options: Any
    ) -> None:
        from vllm import LLM

        settings = {
            "dtype": "float32", "enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 64 << 20,
            "skip_mm_profiling": True, "max_model_len": 4096, "limit_mm_per_prompt": {"image": 10, "video": 0},
            "max_logprobs": vocabulary, "seed": 0, "disable_log_stats": False,
            **Cell.read(os.environ).options,
        }  # fmt: skip
        own = {} if store is None else plugin_options(store, strategy, **options.pop("extra", {}))
        self.llm = LLM(str(folder), **settings | own | options)
        self.vocabulary = vocabulary
        self.count = 0

    @property
    def scheduler(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.scheduler

    @property
    def connector(self) -> Any:
        """The scheduler's side of ours."""
        from emblema.vllm.other_connectors import own_connector

        return own_connector(self.scheduler.connector)

    @property
    def planner(self) -> Any:
        return self.connector.planner

    @property
    def captures(self) -> Any:
        return self.connector.captures

    @property
    def kv_worker(self) -> Any:
        from tests.vllm.ranks import own_worker

        return own_worker()

    @property
    def store(self) -> Any:
        return self.kv_worker.store.whole

    def on_ranks(self, action: Callable[..., Any], *given: Any) -> list[Any]:
        """Call a function with the worker of each rank, and the same arguments, in its process."""
        executor = self.llm.llm_engine.engine_core.engine_core.model_executor
        answers: list[Any] = executor.collective_rpc(action, args=given)
        return answers

    def params(self, options: dict[str, Any] | None = None, tokens: int = 1, **more: Any) -> Any:
        from vllm import SamplingParams

        extra = {} if options is None else {"extra_args": {"kv_transfer_params": {"emblema": options}}}
        fixed = {"temperature": 0.0, "max_tokens": tokens, "logprobs": self.vocabulary, "ignore_eos": True}
        return SamplingParams(**fixed | extra | more)

    def ask(
        self,
        token_ids: Sequence[int],
        pictures: Sequence[Image.Image],
        options: dict[str, Any] | None = None,
        tokens: int = 1,
        salt: str | None = None,
        names: list[str] | None = None,
        **more: Any,
    ) -> Answer:
        """One request alone; `names` are the pictures' as a client gives them."""
        return self.ask_all([(token_ids, pictures)], options, tokens, salt, names, **more)[0]

    def ask_all(
        self,
        prompts: Iterable[tuple[Sequence[int], Sequence[Image.Image]]],
        options: dict[str, Any] | None = None,
        tokens: int = 1,
        salt: str | None = None,
        names: list[str] | None = None,
        **more: Any,
    ) -> list[Answer]:
        """Requests at once."""
        given = []
        for token_ids, pictures in prompts:
            prompt: dict[str, Any] = {"prompt_token_ids": list(token_ids)}
            if pictures:
                prompt["multi_modal_data"] = {"image": list(pictures)}
            if names is not None:
                prompt["multi_modal_uuids"] = {"image": names}
            if salt is not None:
                prompt["cache_salt"] = salt
            given.append(prompt)
        from vllm.exceptions import VLLMValidationError

        try:
            outputs = self.llm.generate(given, self.params(options, tokens, **more), use_tqdm=False)
        except VLLMValidationError as error:
            # vLLM's encoder cache is as large as a step.
            if Cell.read(os.environ).chunk is not None and "encoder cache size" in str(error):
                pytest.skip(f"vLLM takes no picture of this model with so few tokens a step: {error}")
            raise
        return [self._answer(output) for output in outputs]

    def _answer(self, output: Any) -> Answer:
        logits = torch.full((self.vocabulary,), float("-inf"))
        for token, entry in output.outputs[0].logprobs[0].items():
            logits[token] = entry.logprob
        report = (output.kv_transfer_params or {}).get("emblema", {})
        return Answer(logits, list(output.outputs[0].token_ids), output.num_cached_tokens or 0, report)

    def step_while_asked(self, seconds: float, idle: bool = False) -> int:
        """Make steps as the engine's own loop does, for some seconds; return how many.

        Args:
            seconds: at most.
            idle: whether to go on when no step is asked for.
        """
        core = self.llm.llm_engine.engine_core.engine_core
        steps, deadline = 0, time.monotonic() + seconds
        while time.monotonic() < deadline:
            if core.scheduler.has_requests() or core.batch_queue:
                core.step_fn()
                steps += 1
            elif idle:
                time.sleep(0.005)
            else:
                break
        return steps

    def settle(self) -> None:
        """Let the server do what it does in idle moments, and the pages' side keep what it read."""
        self.step_while_asked(60)
        from tests.vllm.ranks import drain

        self.on_ranks(drain)

    def forget_prefixes(self) -> None:
        """vLLM's own prefix cache, emptied."""
        self.llm.reset_prefix_cache()

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()
