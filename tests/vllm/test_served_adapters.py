"""A low-rank adapter (LoRA): its requests are computed plainly and say so, those without one are linked beside them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.vllm.models import TEXT, Subject
from tests.vllm.test_served_safety import learn

RANK = 8


def save_adapter(folder: Path) -> Path:
    """Write an adapter of the queries of every layer, in PEFT's form."""
    folder.mkdir()
    width = TEXT["num_attention_heads"] * TEXT["head_dim"]
    generator = torch.Generator().manual_seed(5)
    weights = {}
    for layer in range(TEXT["num_hidden_layers"]):
        name = f"base_model.model.model.language_model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, TEXT["hidden_size"], generator=generator)
        weights[f"{name}.lora_B.weight"] = torch.randn(width, RANK, generator=generator)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_requests_with_an_adapter_are_computed_plainly_and_say_so(bench: Any, subject: Subject, tmp_path: Path) -> None:
    from vllm.lora.request import LoRARequest

    served = bench.serve(subject.folder, tmp_path / "store", subject.vocabulary, enable_lora=True, max_lora_rank=RANK)
    given = subject.prompt(2, seed=64)
    learn(served, given)
    adapter = LoRARequest("own", 1, str(save_adapter(tmp_path / "adapter")))
    prompt = {"prompt_token_ids": given.token_ids, "multi_modal_data": {"image": given.pictures}}
    plain = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    before = len(served.store.tenant())
    (output,) = served.llm.generate(
        [prompt], served.params({"strategy": "blind"}), lora_request=adapter, use_tqdm=False
    )
    report = output.kv_transfer_params["emblema"]
    assert (report["strategy"], report["linked_tokens"]) == ("plain", 0) and "adapter" in report["remark"]
    served.settle()
    assert len(served.store.tenant()) == before, "nothing is captured under an adapter"
    served.forget_prefixes()
    linked = served.ask(given.token_ids, given.pictures, {"strategy": "blind"})
    assert linked.report["linked_tokens"] > 0
    with_adapter = torch.tensor([output.outputs[0].logprobs[0][token].logprob for token in range(subject.vocabulary)])
    assert float((with_adapter - plain.logits).abs().max()) > 1e-3
