"""SGLang on a CPU, with the plugin or without it: what all tests of it use."""

import base64
import io
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from emblema.sglang.plugin import OPTIONS
from tests.sglang.engine_process import EngineProcess
from tests.vllm.models import Given, Subject

SETTINGS = {
    "device": "cpu", "attention_backend": "torch_native", "sampling_backend": "pytorch", "grammar_backend": "none",
    "mm_attention_backend": "sdpa", "dtype": "float32", "disable_cuda_graph": True, "enable_multimodal": True,
    "disable_overlap_schedule": True, "max_total_tokens": 8192, "context_length": 4096, "mem_fraction_static": 0.3,
    "max_running_requests": 8, "log_level": "warning", "skip_server_warmup": True, "random_seed": 0,
    "sleep_on_idle": True,
}  # fmt: skip
CAPTURE_SECONDS = 60.0


@dataclass(frozen=True)
class Answer:
    """What a request gave: its first token's log-probabilities by token id, its tokens, and what the plugin reports.

    There is a report each time that the whole prompt was there: more than one of a request that was retracted.
    """

    logits: torch.Tensor
    tokens: list[int]
    cached: int
    reports: tuple[dict[str, Any], ...]

    @property
    def report(self) -> dict[str, Any]:
        """The first; empty where there is none."""
        return self.reports[0] if self.reports else {}


class Served:
    """A model in SGLang; `store` None is plain SGLang."""

    def __init__(
        self, subject: Subject, store: Path | None, strategy: str = "blind", plugin: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        from transformers import AutoTokenizer

        self.subject = subject
        self.tokenizer = AutoTokenizer.from_pretrained(subject.folder)
        variables = {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", OPTIONS: ""}
        if store is not None:
            variables[OPTIONS] = json.dumps({"store": str(store), "strategy": strategy, **(plugin or {})})
        self._folder = tempfile.TemporaryDirectory(prefix="sglang-")
        self.engine = EngineProcess(
            {"model_path": str(subject.folder), **SETTINGS, **options}, variables | (environment or {}),
            Path(self._folder.name) / "log",
        )  # fmt: skip

    def text(self, prompt: Given) -> str:
        """Return a text with a prompt's tokens; SGLang looks for a picture's markers with nothing between."""
        marks = [*prompt.subject.before, prompt.subject.image, *prompt.subject.after]
        whole = self.tokenizer.decode(prompt.token_ids)
        text = whole.replace(self.tokenizer.decode(marks), "".join(self.tokenizer.convert_ids_to_tokens(marks)))
        assert self.tokenizer(text, add_special_tokens=False).input_ids == prompt.token_ids
        return text

    def body(self, prompt: Given, options: dict[str, Any] | None, tokens: int, **more: Any) -> dict[str, Any]:
        """Return what `Engine.generate` is given."""
        sampling: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
        if options is not None:
            sampling["custom_params"] = {"emblema": options}
        return {
            "prompt": self.text(prompt),
            "image_data": [_address(image) for image in prompt.pictures] or None,
            "sampling_params": sampling,
            "return_logprob": True,
            "logprob_start_len": -1,
            "token_ids_logprob": list(range(self.subject.vocabulary)),
            **more,
        }

    def ask(self, prompt: Given, options: dict[str, Any] | None = None, tokens: int = 1, **more: Any) -> Answer:
        """One request alone."""
        return _answer(self.engine.call("generate", **self.body(prompt, options, tokens, **more)))

    def ask_all(
        self, prompts: Sequence[Given], options: Sequence[dict[str, Any] | None], tokens: int = 1, **more: Any
    ) -> list[Answer]:
        """Requests at once."""
        bodies = [
            self.body(prompt, own, tokens, **more) for prompt, own in zip(prompts, options, strict=True)
        ]  # fmt: skip
        names = ("prompt", "image_data", "sampling_params", "token_ids_logprob")
        given = {name: [body[name] for body in bodies] for name in names}
        alike = {"return_logprob": True, "logprob_start_len": -1, **more}
        return [_answer(told) for told in self.engine.call("generate", **given, **alike)]

    def learn(self, prompt: Given, **more: Any) -> dict[str, Any]:
        """Show pictures until they are stored; return the last report."""
        until = time.monotonic() + CAPTURE_SECONDS
        while True:
            report = self.ask(prompt, {"strategy": "full", "pieces": True}, **more).report
            if report["stored"]:
                self.forget_prefixes()
                return report
            if time.monotonic() > until:
                raise TimeoutError(f"pictures were not stored: {report}")
            time.sleep(0.2)

    def forget_prefixes(self) -> None:
        """Empty SGLang's prefix cache."""
        until = time.monotonic() + CAPTURE_SECONDS
        while not self.engine.call("flush"):
            if time.monotonic() > until:
                raise TimeoutError("the cache was not flushed")
            time.sleep(0.1)

    def log(self) -> str:
        """Return what its processes wrote."""
        return self.engine.log.read_text()

    def close(self) -> None:
        """End its processes."""
        self.engine.close()
        self._folder.cleanup()


def _address(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _answer(told: dict[str, Any]) -> Answer:
    meta = told["meta_info"]
    first = meta["output_token_ids_logprobs"][0]
    logits = torch.zeros(len(first))
    for value, token, *_ in first:
        logits[token] = value
    tokens = [token for _, token, *_ in meta["output_token_logprobs"]]
    reports = tuple(report for report in meta.get("emblema") or () if report)
    return Answer(logits, tokens, meta["cached_tokens"], reports)
