"""Write the golden data from the code as it is: `python -m tests.golden.make [PART ...]`.

The data are only ever written again when the format's version changes or a strategy is added, by whoever decides that:
they hold what users have on disk and what they were told. A refactor never runs this; it adapts `pieces.py`,
`observe.py`, `running.py` and `typed.py` to new names, and the data stay.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.golden import answers, interface, observe, running, typed

DATA = Path(__file__).parent / "data"


def write(name: str, value: Any) -> None:
    """Write a JSON file, one line for each of its inner values."""
    (DATA / f"{name}.json").write_text(text(value, 3 if name in ("plans", "traces", "http") else 2) + "\n")


def text(value: Any, depth: int, indent: int = 0) -> str:
    """JSON whose values below some depth are on one line."""
    inner = "\n" + " " * (indent + 1)
    if depth == 0 or not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, list):
        lines = [text(item, depth - 1, indent + 1) for item in value]
        return f"[{inner}{f',{inner}'.join(lines)}]"
    lines = [
        f"{json.dumps(key, ensure_ascii=False)}: {text(item, depth - 1, indent + 1)}" for key, item in value.items()
    ]
    return f"{{{inner}{f',{inner}'.join(lines)}}}"


def write_files() -> None:
    """Write a file for each record, and what is to be read from it."""
    folder = DATA / "files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    said = {}
    for name, record in observe.records():
        data = observe.file_bytes(record)
        (folder / f"{name}.safetensors").write_bytes(data)
        said[name] = observe.read_back(data)
    write("files", said)


def write_store() -> None:
    """Write a store's folder, and what is to be read from it."""
    folder = DATA / "store"
    shutil.rmtree(folder, ignore_errors=True)
    observe.write_folder(folder)
    copy = DATA / "store-copy"
    shutil.copytree(folder, copy)
    try:
        write("store", observe.read_folder(copy))
    finally:
        shutil.rmtree(copy)


def write_models() -> None:
    """Write the clip and what tiny models make of their inputs, with the version of transformers that they are of."""
    import transformers

    running.write_clip(running.CLIP)
    identities = {name: running.model_identities(name) for name in running.FAMILIES}
    write("models", {"transformers": transformers.__version__, **identities})
    write("traces", {name: running.traces(name) for name in running.FAMILIES})


def write_answers() -> None:
    """Write the answers of the bundled models, with the processor that they were made on."""
    found = {model: answers.answer_words(model) for model in answers.MODELS}
    write("answers", {"processor": answers.processor_name(), **found})


PARTS = {
    "identities": lambda: write("identities", observe.identities()),
    "files": write_files,
    "store": write_store,
    "plans": lambda: write("plans", observe.plans()),
    "models": write_models,
    "commands": lambda: write("commands", typed.commands()),
    "answers": write_answers,
    "http": lambda: write("http", interface.http_schema()),
    "interface": lambda: write("interface", interface.public_names()),
    "vllm": lambda: write("vllm", typed.vllm_names()),
}


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
