"""What users type and read: commands and options, vLLM's class paths, options and metrics."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

Json = Any

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "src" / "emblema" / "vllm"


def commands() -> Json:
    """By command the sorted names of its options, and of its arguments in their order."""
    from emblema.cli.app import app

    return dict(_commands(typer.main.get_command(app), ""))


def _commands(command: Any, path: str) -> Iterator[tuple[str, Json]]:
    options = sorted(
        name
        for given in command.params
        if given.param_type_name == "option"
        for name in (*given.opts, *given.secondary_opts)
    )
    arguments = [given.name for given in command.params if given.param_type_name == "argument"]
    yield path, {"options": options, "arguments": arguments}
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(inner, f"{path} {name}".strip())


def vllm_names() -> Json:
    """What the plugin is called by: read from its source, so that no vLLM is needed."""
    from emblema.served.settings import PluginSettings

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        "entry point": project["entry-points"]["vllm.general_plugins"],
        "extra": sorted(name for name in project["optional-dependencies"] if name == "vllm"),
        "classes": {name: _is_class(name) for name in CLASSES},
        "connectors": sorted(_registered()),
        "metrics": sorted(_metrics()),
        "connector's options": sorted(PluginSettings.__dataclass_fields__),
        "worker in the command line": _said("serving.py", "emblema.vllm.EmblemaWorker"),
    }


CLASSES = (
    "emblema.vllm.EmblemaConnector",
    "emblema.vllm.EmblemaEncoderConnector",
    "emblema.vllm.EmblemaWorker",
)


def _tree(file: str) -> ast.Module:
    return ast.parse((PLUGIN / file).read_text())


def _is_class(path: str) -> bool:
    """Whether a path names a class: defined in its module, or given out by the package from one of its modules."""
    *modules, name = path.removeprefix("emblema.vllm.").split(".")
    if not modules:
        parts = next(
            ast.literal_eval(node.value)
            for node in _tree("__init__.py").body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        )
        modules = parts[name].split(".")
    tree = _tree("/".join(modules) + ".py")
    return any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body)


def _registered() -> Iterator[list[str]]:
    """What `register` tells vLLM of each connector: name, module, class."""
    for node in ast.walk(_tree("plugin.py")):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "register_connector":
            yield [ast.literal_eval(argument) for argument in node.args]


def _metrics() -> Iterator[str]:
    """The counters' names: a fixed beginning, and the keys of the tables of counters."""
    tree = _tree("prompt_counts.py")
    beginning = next(
        node.values[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        and isinstance(node.values[0], ast.Constant)
        and node.values[0].value.startswith("vllm:")
    )
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            yield from (f"{beginning}{key}" for key in ast.literal_eval(node.value))


def _said(file: str, text: str) -> bool:
    """Whether a file holds a string."""
    return any(isinstance(node, ast.Constant) and node.value == text for node in ast.walk(_tree(file)))
