"""Servers and requests that are not linked: each says why, once, and answers as stock SGLang does."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from emblema.sglang.hooks import unfit
from emblema.sglang.requests import describe_request
from tests.vllm.models import Subject

OPTIONS = {
    "tp_size": 1, "pp_size": 1, "dp_size": 1, "attn_cp_size": 1, "dcp_size": 1, "speculative_algorithm": None,
    "disaggregation_mode": "null", "enable_two_batch_overlap": False, "enable_hierarchical_cache": False,
}  # fmt: skip


def pool_of(kind: str = "memory_pool.MHATokenToKVPool", **more: Any) -> Any:
    """A pool of one of SGLang's classes, without memory."""
    import importlib

    module, _, name = kind.partition(".")
    found = getattr(importlib.import_module(f"sglang.srt.mem_cache.{module}"), name)
    pool = object.__new__(found)
    for key, value in ({"store_dtype": torch.bfloat16, "dtype": torch.bfloat16} | more).items():
        setattr(pool, key, value)
    return pool


def refusal_of(pool: Any = None, model: Any = None, **options: Any) -> str | None:
    from sglang.srt.server_args import ServerArgs

    assert all(hasattr(ServerArgs, name) or name in ServerArgs.__annotations__ for name in OPTIONS)
    runner = SimpleNamespace(token_to_kv_pool=pool or pool_of(), dtype=torch.bfloat16, model=model)
    return unfit(SimpleNamespace(server_args=SimpleNamespace(**OPTIONS | options)), runner)


@pytest.mark.parametrize(
    "options, told",
    [
        ({"tp_size": 2}, "tp_size is 2: what its workers take and keep is not agreed between them"),
        ({"pp_size": 2}, "pp_size is 2"),
        ({"dp_size": 4}, "dp_size is 4"),
        ({"attn_cp_size": 2}, "attn_cp_size is 2"),
        ({"dcp_size": 2}, "dcp_size is 2"),
        ({"speculative_algorithm": "EAGLE"}, "EAGLE drafts from rows that are not there where others are taken"),
        ({"disaggregation_mode": "prefill"}, "prefill and decode are disaggregated"),
        ({"enable_two_batch_overlap": True}, "two halves of a batch overlap"),
        ({"enable_hierarchical_cache": True}, "its hierarchical cache would keep approximate rows"),
    ],
)
def test_a_server_is_refused_by_its_options(options: dict[str, Any], told: str) -> None:
    assert refusal_of() is None
    refusal = refusal_of(**options)
    assert refusal is not None and refusal.startswith(told) and "\n" not in refusal


@pytest.mark.parametrize(
    "kind",
    ["memory_pool.MLATokenToKVPool", "memory_pool.HybridLinearKVPool", "swa_memory_pool.SWAKVPool",
     "memory_pool.MHATokenToKVPoolFP4"],
)  # fmt: skip
def test_latents_hybrids_windows_and_other_pools_are_refused_by_name(kind: str) -> None:
    refusal = refusal_of(pool_of(kind))
    assert refusal == f"its pool of rows is a {kind.partition('.')[2]}; rows are written into MHATokenToKVPool alone"


def test_pools_of_another_data_type_are_refused() -> None:
    refusal = refusal_of(pool_of(dtype=torch.float8_e4m3fn, store_dtype=torch.uint8))
    assert refusal == "its pool keeps torch.float8_e4m3fn, the model computes torch.bfloat16"
    assert refusal_of(pool_of(dtype=torch.float16, store_dtype=torch.float16)) is not None


def test_models_that_sglang_runs_by_transformers_forward_are_refused() -> None:
    from sglang.srt.models.transformers import TransformersMultiModalForCausalLM

    refusal = refusal_of(model=object.__new__(TransformersMultiModalForCausalLM))
    assert refusal is not None and refusal.startswith("SGLang has no such model of its own")


def request_of(**more: Any) -> Any:
    """SGLang's request with one picture."""
    media = SimpleNamespace(
        offsets=[(2, 4)], hash=7, feature=torch.ones(2), model_specific_data={}, is_image=lambda: True
    )
    given = {
        "multimodal_inputs": SimpleNamespace(mm_items=[media]), "sampling_params": SimpleNamespace(custom_params=None),
        "origin_input_ids": [1] * 6, "origin_input_ids_unpadded": [1] * 6, "cache_salt": None, "extra_key": None,
        "lora_id": None, "input_embeds": None, "positional_embed_overrides": None, "session": None,
        "return_logprob": False, "logprob_start_len": -1, "return_hidden_states": False,
    }  # fmt: skip
    return SimpleNamespace(**given | more)


def shown(**more: Any) -> Any:
    media = request_of().multimodal_inputs.mm_items[0]
    return SimpleNamespace(mm_items=[SimpleNamespace(**vars(media) | more)])


@pytest.mark.parametrize(
    "more, told",
    [
        ({"input_embeds": [[0.0]]}, "its prompt is given as embeddings"),
        ({"positional_embed_overrides": object()}, "its prompt is given as embeddings"),
        ({"lora_id": "adapter"}, "it uses a low-rank adapter, under which chunks would be others"),
        ({"session": object()}, "it belongs to a session, whose turns share rows"),
        ({"return_logprob": True, "logprob_start_len": 3}, "log-probabilities of its prompt need every row computed"),
        ({"return_hidden_states": True}, "hidden states of its prompt need every row computed"),
        ({"multimodal_inputs": shown(is_image=lambda: False)}, "media of another kind than pictures are not linked"),
        ({"multimodal_inputs": shown(offsets=[(2, 3), (4, 5)])}, "a picture of it stands at several places"),
        ({"multimodal_inputs": shown(offsets=None)}, "a picture of it stands at several places"),
    ],
)
def test_a_request_is_computed_plainly(more: dict[str, Any], told: str) -> None:
    assert describe_request(request_of()).checked().why_plain() is None
    assert describe_request(request_of(**more)).checked().why_plain() == told


def test_a_picture_that_is_not_there_is_computed_plainly() -> None:
    """SGLang takes features that other processes hold; what they show cannot be checked."""
    told = describe_request(request_of(multimodal_inputs=shown(feature=None))).checked().why_plain()
    assert told == "a picture is not there to be checked against its name"


def with_processor(subject: Subject, folder: Path) -> Subject:
    """Return a LLaVA-NeXT with a file that the published checkpoints have, and vLLM does not need."""
    shutil.copytree(subject.folder, folder)
    config = json.loads((folder / "config.json").read_text())
    processor = {
        "processor_class": "LlavaNextProcessor", "image_token": "<image>", "num_additional_image_tokens": 1,
        "patch_size": config["vision_config"]["patch_size"],
        "vision_feature_select_strategy": config["vision_feature_select_strategy"],
    }  # fmt: skip
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return replace(subject, folder=folder)


@pytest.mark.slow
def test_llava_next_is_served_plainly(
    serve: Callable[..., Any], subjects: Callable[[str], Subject], tmp_path: Path
) -> None:
    """SGLang falls back to transformers' class, which refuses a step with some rows of a picture."""
    subject = with_processor(subjects("llava-next"), tmp_path / "model")
    served = serve(subject, tmp_path / "store")
    given = subject.prompt(1, seed=62)
    first = served.ask(given, tokens=3)
    assert first.report == {} and served.ask(given, tokens=3).tokens == first.tokens
    assert "nothing is linked or kept by this server: SGLang has no such model of its own" in served.log()
