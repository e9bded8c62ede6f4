"""What docs/scale.md says of vLLM's engine is what `emblema vllm-serve` gives to it."""

import re
from pathlib import Path

import yaml

from emblema.vllm.serving import ENCODINGS, WORKER, transfer_config

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


def test_the_arguments_of_vllm_are_those_of_our_own_server():
    (written,) = [
        text for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL) if "llm_configs" in text
    ]
    (application,) = yaml.safe_load(written)["applications"]
    (config,) = application["args"]["llm_configs"]
    given = config["engine_kwargs"]
    assert given["kv_transfer_config"] == transfer_config(Path("/shared/emblema")) | {
        "kv_connector_extra_config": {"store": "/shared/emblema", "strategy": "auto"}
    }
    assert given["ec_transfer_config"] == ENCODINGS
    assert given["worker_cls"] == WORKER
    router = config["deployment_config"]["request_router_config"]["request_router_class"]
    path, _, name = router.partition(":")
    source = PAGE.parents[1] / "src" / (path.replace(".", "/") + ".py")
    assert f"class {name}(" in source.read_text()
