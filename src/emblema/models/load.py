"""Load a model and its processor from a hub name, a folder, or the bundled reference model."""

import json
import logging
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from emblema.errors import ModelError

REFERENCE = "reference"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The parts of a processor that are needed, where a full one cannot be imported (no torchvision)."""

    tokenizer: Any
    image_processor: Any = None
    feature_extractor: Any = None
    chat_template: str | None = None


def reference_folder() -> Path:
    """Where the bundled model lies."""
    return Path(str(files("emblema"))) / "assets" / "reference"


def load_model(
    name: str | Path, device: str | torch.device | None = None, dtype: torch.dtype | str | None = None
) -> tuple[Any, Any]:
    """A model in eval mode, and its processor (or a Bundle of the processor's parts).

    Args:
        name: `reference`, a folder, or a Hugging Face id.
        device: where to put it; the CPU by default.
        dtype: dtype of the weights; the checkpoint's own by default. Rotary tables stay float32 either way.

    Raises:
        ModelError: nothing loadable is there; the message says what was tried.
    """
    from transformers import AutoConfig

    source = str(reference_folder() if str(name) == REFERENCE else name)
    try:
        config = AutoConfig.from_pretrained(source)
        model = _model_class(config).from_pretrained(source, dtype="auto" if dtype is None else dtype)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"Could not load the model {str(name)!r}: {_first_line(error)}") from error
    except ImportError as error:
        raise ModelError(
            f"transformers cannot import what {str(name)!r} needs: {_first_line(error)} A torchvision built for "
            "another torch is a common cause: uninstall it (Emblema works without), or install the one for your torch."
        ) from error
    model = model.eval()
    if device is not None:
        model = model.to(device)
    return model, load_processor(source)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _model_class(config: Any) -> Any:
    import transformers

    thinker = {"qwen2_5_omni": "Qwen2_5OmniThinker", "qwen3_omni_moe": "Qwen3OmniMoeThinker"}.get(config.model_type)
    if thinker is not None:
        return getattr(transformers, f"{thinker}ForConditionalGeneration")
    for architecture in getattr(config, "architectures", None) or ():
        if (found := getattr(transformers, architecture, None)) is not None:
            return found
    return transformers.AutoModelForImageTextToText


def load_processor(source: str) -> Any:
    """The full processor where it can be imported, else its parts: tokenizer, image processor, feature extractor."""
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(source)
    except (ImportError, ValueError, OSError, AttributeError, TypeError, KeyError) as error:
        # Video processors, and the processors that hold one, need torchvision; the parts do not.
        _log.info("%s: its parts are loaded in place of a full processor (%s: %s)", source, type(error).__name__, error)
        return load_parts(source)
    return processor if hasattr(processor, "tokenizer") else load_parts(source)


def load_parts(source: str) -> Bundle:
    """Tokenizer, image processor and feature extractor of a checkpoint, each where it has one."""
    from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ModelError(f"Could not load a tokenizer from {source!r}: {error}") from error
    parts: list[Any] = []
    for loader in (AutoImageProcessor, AutoFeatureExtractor):
        try:
            parts.append(loader.from_pretrained(source))
        except (OSError, ValueError, ImportError) as error:
            _log.info("%s: no %s (%s)", source, loader.__name__, type(error).__name__)
            parts.append(_pil_image_processor(source) if loader is AutoImageProcessor else None)
    image, audio = parts
    if audio is not None and not hasattr(audio, "sampling_rate"):
        audio = None
    return Bundle(tokenizer, image, audio, _chat_template(source, tokenizer))


def _pil_image_processor(source: str) -> Any:
    """The image processor's PIL form by its name: before 5.19 the automatic loader wants torchvision even for that."""
    import transformers

    path = _file(source, "preprocessor_config.json")
    if path is None:
        return None
    name = str(json.loads(path.read_text(encoding="utf-8")).get("image_processor_type", ""))
    found = getattr(transformers, f"{name.removesuffix('Pil').removesuffix('Fast')}Pil", None)
    return None if found is None else found.from_pretrained(source)


def _chat_template(source: str, tokenizer: Any) -> str | None:
    if tokenizer.chat_template:
        return str(tokenizer.chat_template)
    for name in ("chat_template.jinja", "chat_template.json"):
        path = _file(source, name)
        if path is None:
            continue
        text = path.read_text(encoding="utf-8")
        if name.endswith(".json"):
            return str(json.loads(text)["chat_template"])
        return text
    return None


def _file(source: str, name: str) -> Path | None:
    from transformers.utils import cached_file

    found = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    return Path(found) if found else None
