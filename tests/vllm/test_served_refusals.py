"""What the plugin says no to before anything runs: other versions, and servers that it has not been tried on."""

import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from emblema.errors import EmblemaError
from emblema.store import Store
from emblema.vllm import internals
from emblema.vllm.media_digests import MediaDigests
from emblema.vllm.planner import RequestPlanner
from tests.vllm.requests import planner_of


def server(**changes: Any) -> tuple[Any, Any]:
    """A configuration that fits, with changes by dotted names written with two underscores."""
    config = SimpleNamespace(
        speculative_config=None,
        use_v2_model_runner=False,
        quant_config=None,
        scheduler_config=SimpleNamespace(async_scheduling=False),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            data_parallel_size=1,
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", enable_prefix_caching=True),
        model_config=SimpleNamespace(
            dtype="float32", multimodal_config=SimpleNamespace(mm_processor_cache_gb=4, video_pruning_rate=None)
        ),
    )
    kept = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=FullAttentionSpec())])
    for name, value in changes.items():
        if name == "groups":
            kept.kv_cache_groups = value
            continue
        *path, last = name.split("__")
        place: Any = config
        for part in path:
            place = getattr(place, part)
        setattr(place, last, value)
    return config, kept


class FullAttentionSpec:
    """As vLLM calls it."""


class MLAAttentionSpec:
    """As vLLM calls it."""


class SlidingWindowSpec:
    """As vLLM calls it."""


def test_a_server_that_fits() -> None:
    assert internals.unfit(*server()) is None
    assert internals.unfit(*server(parallel_config__tensor_parallel_size=2)) is None


@pytest.mark.parametrize("changes", [
    {"cache_config__cache_dtype": "float32"},
    {"cache_config__cache_dtype": "fp8"},
    {"cache_config__cache_dtype": "fp8_e4m3"},
    {"cache_config__cache_dtype": "fp8_e5m2"},
    {"groups": [SimpleNamespace(kv_cache_spec=MLAAttentionSpec())]},
    {"quant_config": object()},
])  # fmt: skip
def test_pages_of_8_bits_latents_and_quantised_weights_fit(changes: dict[str, Any]) -> None:
    assert internals.unfit(*server(**changes)) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculative_config": object()}, "speculative"),
        ({"parallel_config__pipeline_parallel_size": 2}, "--tensor-parallel-size"),
        ({"parallel_config__decode_context_parallel_size": 2}, "context parallel"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "context parallel"),
        ({"cache_config__cache_dtype": "int8_per_token_head"}, "quantised"),
        ({"cache_config__cache_dtype": "fp8_ds_mla"}, "quantised"),
        ({"cache_config__cache_dtype": "fp8", "groups": [SimpleNamespace(kv_cache_spec=MLAAttentionSpec())]},
         "latents are quantised"),
        ({"groups": [SimpleNamespace(kv_cache_spec=FullAttentionSpec())] * 2}, "several kinds"),
        ({"groups": [SimpleNamespace(kv_cache_spec=SlidingWindowSpec())]}, "SlidingWindowSpec"),
        ({"model_config__multimodal_config__video_pruning_rate": 0.5}, "video_pruning_rate"),
        ({"cache_config__enable_prefix_caching": False, "model_config__multimodal_config__mm_processor_cache_gb": 0},
         "no digest"),
    ],
)  # fmt: skip
def test_servers_that_compute_everything(changes: dict[str, Any], words: str) -> None:
    assert words in (internals.unfit(*server(**changes)) or "")


def transfer(*connectors: str, inside: bool = True, policy: str = "recompute") -> Any:
    """What a server is told of its connectors."""
    extra = {"connectors": [{"kv_connector": name} for name in connectors]}
    name = "MultiConnector" if inside else next(iter(connectors), None)
    return SimpleNamespace(kv_connector=name, kv_connector_extra_config=extra, kv_load_failure_policy=policy)


@pytest.mark.parametrize(
    ("connectors", "words"),
    [
        (None, "first one inside MultiConnector"),
        (transfer("ExampleConnector", inside=False), "ExampleConnector"),
        (transfer(), "first one"),
        (transfer("OffloadingConnector", "EmblemaConnector"), "first one"),
        (transfer("EmblemaConnector", "OffloadingConnector", "LMCacheConnectorV1"), "beside LMCacheConnectorV1"),
        (transfer("EmblemaConnector", "EmblemaConnector"), "beside EmblemaConnector"),
        (transfer("EmblemaConnector", policy="fail"), "recompute"),
        (transfer("EmblemaConnector", inside=False, policy="fail"), "recompute"),
    ],
)
def test_the_worker_refuses_connectors_that_do_not_fit(connectors: Any, words: str) -> None:
    """Nothing would be linked, or rows that are not exact would be given to others."""
    from emblema.vllm import EmblemaWorker

    with pytest.raises(EmblemaError, match=words):
        EmblemaWorker(vllm_config=SimpleNamespace(kv_transfer_config=connectors))


@pytest.mark.parametrize("beside", [(), ("OffloadingConnector",), ("SimpleCPUOffloadConnector",)])
def test_connectors_that_fit(beside: tuple[str, ...]) -> None:
    from emblema.vllm.other_connectors import check_transfer

    check_transfer(transfer("EmblemaConnector", *beside))
    check_transfer(transfer("EmblemaConnector", inside=False))


def test_what_weights_are_quantised_by_is_part_of_a_models_name() -> None:
    """FP8 and others may be made of plain files while they are loaded, which the files do not tell."""
    config, _ = server()
    config.load_config = SimpleNamespace(load_format="auto")
    ways: list[tuple[str | None, Any]] = [(None, None), ("fp8", None), ("awq", None), ("gptq", None)]
    ways += [("compressed-tensors", None), ("fp8", {"linear": "fp8_per_block"}), ("fp8", {"linear": "mxfp8"})]
    told = set()
    for kind, details in ways:
        config.model_config.quantization, config.model_config.quantization_config = kind, details
        config.model_config.seed = 0
        told.add(internals.loading(config))
    assert len(told) == len(ways)


def test_engines_of_a_model_with_experts_step_together() -> None:
    """Where vLLM leaves an engine its `data_parallel_size`; those of a dense model get 1 before anything is made."""
    from vllm.config import ParallelConfig

    dense = ParallelConfig(data_parallel_size=2, data_parallel_rank=1)
    assert internals.steps_together(SimpleNamespace(parallel_config=dense))
    dense.reconfigure_for_independent_dp_rank()
    assert not internals.steps_together(SimpleNamespace(parallel_config=dense))


def test_engines_that_step_together_link_nothing() -> None:
    """Rows beside a step would run in steps that the scheduler left empty."""
    config, caches = server()
    assert internals.unfit(config, caches) is None
    config.parallel_config.data_parallel_size = 2
    assert "step together" in (internals.unfit(config, caches) or "")


def vllm_request(**changes: Any) -> Any:
    """A request of vLLM's with a picture that is not linked, as far as the plugin looks at it."""
    from vllm.multimodal.inputs import PlaceholderRange

    picture = SimpleNamespace(modality="image", identifier="a", mm_position=PlaceholderRange(1, 2), data=None)
    given = {
        "request_id": "1", "mm_features": [picture], "prompt_token_ids": [1, 9, 9, 2], "prompt_embeds": None,
        "sampling_params": SimpleNamespace(prompt_logprobs=None), "lora_request": None, "resumable": False,
        "cache_salt": None, "kv_transfer_params": None,
    }  # fmt: skip
    return SimpleNamespace(**given | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "not there to be checked"),
        ({"sampling_params": SimpleNamespace(prompt_logprobs=1)}, "prompt_logprobs needs every row"),
        ({"sampling_params": SimpleNamespace(prompt_logprobs=None, prompt_logprob_token_ids=[1])}, "prompt_logprobs"),
        ({"sampling_params": None}, "pooling"),
        ({"lora_request": object()}, "low-rank adapter"),
        ({"prompt_embeds": object()}, "embeddings"),
        ({"resumable": True}, "still being written"),
        ({"kv_transfer_params": {"emblema": {"strategi": "blind"}}}, "'strategi'"),
        ({"kv_transfer_params": {"emblema": "blind"}}, "give an object"),
        ({"kv_transfer_params": {"emblema": {"margin": 7}}}, "from 0 to 1"),
    ],
)
def test_a_request_that_is_not_linked_says_why(changes: dict[str, Any], words: str) -> None:
    with Store() as store:
        planner, shown = planner_of(store, "blind"), MediaDigests()
        described = partial(internals.describe_request, vllm_request(**changes), shown)
        until = time.monotonic() + 30
        while not planner.prepare("1", described):
            assert time.monotonic() < until
            time.sleep(0.001)
        report = planner.finish("1")
        planner.maker.close()
    assert report is not None and report["strategy"] == "plain" and words in str(report["remark"])
    assert (report["prompt_tokens"], report["media_tokens"], report["linked_tokens"]) == (4, 2, 0)


def test_every_request_to_a_server_that_links_nothing_says_why() -> None:
    with Store() as store:
        planner = RequestPlanner(None, store, "blind", True, 2048, 8, refusal="speculative decoding is on")
        assert planner.prepare("1", partial(internals.describe_request, vllm_request(), MediaDigests()))
        report = planner.finish("1")
    assert report is not None and report["remark"] == "speculative decoding is on" and report["media_tokens"] == 2
