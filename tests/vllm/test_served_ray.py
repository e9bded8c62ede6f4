"""vLLM replicas behind Ray Serve's own LLM application, with our connector over one folder; `make test-vllm-ray`."""

import base64
import io
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("ray", reason="Ray is not installed beside vLLM: run `make test-vllm-ray`")

import ray
import yaml
from ray import serve
from ray.serve.llm import build_openai_app

from emblema.vllm.serving import transfer_config
from tests.vllm.models import bundled

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
REPLICAS = 2
QUESTION = "on which land does the moon stand ?"


def application(store: Path) -> dict[str, Any]:
    """Return the arguments in docs/scale.md, for a bundled model on a CPU."""
    written = next(text for text in PAGE.read_text().split("```yaml\n") if "llm_configs" in text).partition("```")[0]
    arguments = yaml.safe_load(written)["applications"][0]["args"]
    (config,) = arguments["llm_configs"]
    folder = str(bundled("reference").folder)
    config["model_loading_config"] = {"model_id": "reference", "model_source": folder}
    config["deployment_config"]["num_replicas"] = REPLICAS
    config["engine_kwargs"]["kv_transfer_config"] = transfer_config(store, "blind", least_rows=0)
    config["engine_kwargs"] |= {
        "dtype": "float32", "enforce_eager": True, "block_size": 32, "max_model_len": 4096, "seed": 0,
        "kv_cache_memory_bytes": 64 << 20,
    }  # fmt: skip
    config |= {"placement_group_config": {"bundles": [{"CPU": 1}]}, "runtime_env": {"env_vars": ENVIRONMENT}}
    return dict(arguments)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def client(store: Path) -> Iterator[httpx.Client]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ray.init(include_dashboard=False, num_cpus=8)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(build_openai_app(application(store)), name="vllm", route_prefix="/")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as made:
            yield made
    finally:
        serve.shutdown()
        ray.shutdown()


def ask(client: httpx.Client, pngs: list[bytes]) -> tuple[str, dict[str, Any]]:
    urls = [f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in pngs]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    body = {"model": "reference", "max_tokens": 4, "temperature": 0,
            "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}]}  # fmt: skip
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    return told["choices"][0]["message"]["content"], told.get("kv_transfer_params") or {}


def test_replicas_take_what_others_captured(client: httpx.Client, store: Path, episode: Any) -> None:
    pngs = []
    for page in episode.pages[:3]:
        file = io.BytesIO()
        page.image().save(file, "PNG")
        pngs.append(file.getvalue())
    first, _ = ask(client, pngs)
    end = time.monotonic() + 120
    while len(list(store.rglob("*.safetensors"))) < len(pngs):
        assert time.monotonic() < end, "the pictures were not captured"
        time.sleep(0.5)
    linked = [ask(client, pngs[::-1]) for _ in range(8)]
    assert [report["emblema"]["strategy"] for _, report in linked] == ["blind"] * 8
    # Each replica takes them from the folder, whichever captured them.
    assert all(report["emblema"]["linked_tokens"] > 0 for _, report in linked)
    assert len({text for text, _ in linked}) == 1
    assert first
