"""Load a model and its processor from a hub name, a folder, or a bundled or pretrained model."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from emblema.errors import ModelError
from emblema.extras import import_extra
from emblema.kv.device import default_device
from emblema.models.names import BUNDLED, bundled_folder, check_model_name
from emblema.models.pretrained import PRETRAINED, pretrained_folder
from emblema.models.video_settings import VideoSettings

DeviceMap = str | Mapping[str, int | str | torch.device]
"""How layers are shared out over devices, as transformers reads it."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The parts of a processor that are needed, where a full one cannot be imported (no torchvision)."""

    tokenizer: Any
    image_processor: Any = None
    feature_extractor: Any = None
    chat_template: str | None = None
    video_settings: VideoSettings | None = None


def model_source(name: str | Path) -> str:
    """Return the folder of a bundled or a pretrained model, and any other name as it is.

    Raises:
        ModelError: a pretrained model cannot be downloaded, or the name can be no model's.
    """
    if str(name) in BUNDLED:
        return str(bundled_folder(str(name)))
    if str(name) in PRETRAINED:
        return str(pretrained_folder(str(name)))
    check_model_name(name)
    return str(name)


def load_model(
    name: str | Path,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    device_map: DeviceMap | None = None,
    max_memory: Mapping[int | str, int | str] | None = None,
) -> tuple[Any, Any]:
    """Load a model in eval mode, and its processor (or a Bundle of the processor's parts).

    Args:
        name: one of `BUNDLED` or `PRETRAINED`, a folder, or a Hugging Face id.
        device: where to put it; by default (None or `auto`) the accelerator that torch finds, or the CPU.
        dtype: dtype of the weights; the checkpoint's own by default. Rotary tables stay float32 either way.
        device_map: in place of `device`, how transformers shares the layers out over several devices: `auto`, or a
            device by module; needs the extra `sharded`.
        max_memory: with `device_map`, how much of each device's memory it may take, as transformers reads it.

    Raises:
        ModelError: nothing loadable is there, a weight is missing or of another shape, or the device cannot be used.
        EmblemaError: `device_map` needs a package that is not installed.
    """
    from transformers import AutoConfig

    source = model_source(name)
    place = default_device() if device is None or device == "auto" else _usable(device)
    shared: dict[str, Any] = {}
    if device_map is not None:
        if device is not None:
            raise ModelError("Both device and device_map are given: give one of the two.")
        import_extra("accelerate", "sharded")
        shared = {"device_map": device_map, "max_memory": None if max_memory is None else dict(max_memory)}
    elif max_memory is not None:
        raise ModelError("max_memory is given without device_map, which it belongs to.")
    try:
        config = AutoConfig.from_pretrained(source)
        # Weights of another shape are told by `_check_weights`, which names them.
        model, loaded = _model_class(config).from_pretrained(
            source,
            dtype="auto" if dtype is None else dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **shared,
        )
        _check_weights(loaded, str(name))
        model = model.eval() if shared else model.eval().to(place)
    except ModelError:
        raise
    except ImportError as error:
        raise ModelError(
            f"transformers cannot import what {str(name)!r} needs: {_first_line(error)} A torchvision built for "
            "another torch is a common cause: uninstall it (Emblema works without), or install the one for your torch."
        ) from error
    except Exception as error:  # A damaged checkpoint fails in whatever part of transformers meets the damage first.
        raise ModelError(
            f"Could not load the model {str(name)!r}: {_first_line(error)} Give a bundled model "
            f"({', '.join((*BUNDLED, *PRETRAINED))}), the folder of a whole checkpoint, or a Hugging Face id."
        ) from error
    return model, load_processor(source)


def _usable(device: str | torch.device) -> torch.device:
    """Return the device, once something could be put there."""
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, TypeError, ImportError) as error:
        raise ModelError(
            f"The device {str(device)!r} cannot be used: {_first_line(error)} Give 'cpu', or one that torch finds."
        ) from error
    if place.type == "meta":
        raise ModelError("The device 'meta' holds no weights: give 'cpu', or one that torch finds.")
    return place


def _check_weights(loaded: dict[str, Any], name: str) -> None:
    """Refuse a model of which transformers filled some weights with random numbers; tied ones are not among these."""
    remedy = "download or save the checkpoint again, whole, with the config.json that belongs to it."
    if missing := sorted(loaded["missing_keys"]):
        raise ModelError(f"The model {name!r} lacks {missing[0]} (weights missing: {len(missing)}): {remedy}")
    if mismatched := sorted(loaded["mismatched_keys"]):
        key, found, wanted = mismatched[0]
        raise ModelError(
            f"In the model {name!r} {key} has shape {tuple(found)}, and not {tuple(wanted)} "
            f"(weights that do not fit: {len(mismatched)}): {remedy}"
        )


def _first_line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line if line.endswith(".") else f"{line}."


def _model_class(config: Any) -> Any:
    import transformers

    thinker = {"qwen2_5_omni": "Qwen2_5OmniThinker", "qwen3_omni_moe": "Qwen3OmniMoeThinker"}.get(config.model_type)
    if thinker is not None:
        return getattr(transformers, f"{thinker}ForConditionalGeneration")
    for architecture in getattr(config, "architectures", None) or ():
        found = getattr(transformers, architecture, None)
        if found is None:
            continue
        if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
            raise ModelError(f"The architecture {architecture!r} in config.json is no model: correct it there.")
        return found
    return transformers.AutoModelForImageTextToText


def load_processor(source: str) -> Any:
    """Load the full processor where it can be imported, else its parts."""
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(source)
    except Exception as error:
        # Video processors, and processors that hold one, need torchvision; the parts do not, and tell what is broken.
        _log.debug(
            "%s: its parts are loaded in place of a full processor (%s: %s)", source, type(error).__name__, error
        )
        return load_parts(source)
    if not hasattr(processor, "tokenizer"):
        return load_parts(source)
    processor.tokenizer = _as_named(source, processor.tokenizer)
    return processor


def load_parts(source: str) -> Bundle:
    """Tokenizer, image processor and feature extractor of a checkpoint, each where it has one."""
    from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoTokenizer

    with _reading("a tokenizer", source):
        tokenizer = _as_named(source, AutoTokenizer.from_pretrained(source))
    parts: list[Any] = []
    for loader in (AutoImageProcessor, AutoFeatureExtractor):
        try:
            parts.append(loader.from_pretrained(source))
        except Exception as error:
            _log.debug("%s: no %s (%s)", source, loader.__name__, type(error).__name__)
            parts.append(_pil_image_processor(source) if loader is AutoImageProcessor else None)
    image, audio = parts
    if audio is not None and not hasattr(audio, "sampling_rate"):
        audio = None
    return Bundle(tokenizer, image, audio, _chat_template(source, tokenizer), _video_settings(source))


def _as_named(source: str, found: Any) -> Any:
    """Return a checkpoint's tokenizer, loaded again where it names the class that takes its file as it is.

    For some types of models the automatic loader takes their own class all the same, which splits text otherwise.
    """
    from transformers import PreTrainedTokenizerFast

    named = (_listing(source, "tokenizer_config.json") or {}).get("tokenizer_class")
    if named != "PreTrainedTokenizerFast" or type(found) is PreTrainedTokenizerFast:
        return found
    return PreTrainedTokenizerFast.from_pretrained(source)


def _video_settings(source: str) -> VideoSettings | None:
    """Return the settings of the checkpoint's video processor; None where it has none, and clips follow pictures."""
    found = (_listing(source, "processor_config.json") or {}).get("video_processor")
    values = found if isinstance(found, dict) else _listing(source, "video_preprocessor_config.json")
    return VideoSettings(values) if isinstance(values, dict) else None


def _pil_image_processor(source: str) -> Any:
    """Load the image processor's PIL form by its name: before 5.19 the automatic loader wants torchvision for it."""
    import transformers

    name = str((_listing(source, "preprocessor_config.json") or {}).get("image_processor_type", ""))
    found = getattr(transformers, f"{name.removesuffix('Pil').removesuffix('Fast')}Pil", None)
    with _reading("preprocessor_config.json", source):
        return None if found is None else found.from_pretrained(source)


def _chat_template(source: str, tokenizer: Any) -> str | None:
    if tokenizer.chat_template:
        return str(tokenizer.chat_template)
    text = _text(source, "chat_template.jinja")
    listed = _listing(source, "chat_template.json") if text is None else None
    with _reading("chat_template.json", source):
        return text if listed is None else str(listed["chat_template"])


@contextmanager
def _reading(part: str, source: str) -> Iterator[None]:
    """Tell in one line which part of a checkpoint cannot be read."""
    try:
        yield
    except Exception as error:
        raise ModelError(
            f"Could not load {part} from {source!r}: {_first_line(error)} Download or save the checkpoint again."
        ) from error


def _listing(source: str, name: str) -> dict[str, Any] | None:
    """Return what a JSON file of a checkpoint holds; None where it has none of this name."""
    text = _text(source, name)
    with _reading(name, source):
        found = None if text is None else json.loads(text)
        if not isinstance(found, dict | None):
            raise ValueError(f"it holds a {type(found).__name__}, not an object.")
        return found


def _text(source: str, name: str) -> str | None:
    from transformers.utils import cached_file

    found = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    with _reading(name, source):
        return None if found is None else Path(found).read_text(encoding="utf-8")
