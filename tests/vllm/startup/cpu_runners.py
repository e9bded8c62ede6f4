"""The second model runner and asynchronous scheduling on a CPU, where vLLM's platform runs neither.

Nothing of vLLM or Triton is imported before somebody asks for it, and no file is changed. The environment says what is
wanted; processes that vLLM starts inherit it.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, MutableMapping, Sequence
from types import ModuleType
from typing import Any

RUNNER, SCHEDULING = "EMBLEMA_VLLM_RUNNER", "EMBLEMA_VLLM_SCHEDULING"
"""Names in the environment: `v1` or `v2`, `sync` or `async`."""
PATIENCE = "EMBLEMA_VLLM_PATIENCE"
"""Names there the seconds that servers wait for plans and for what is staged: on a busy machine too, where they would
compute plainly."""


class AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Changes one module when it has been imported."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self.name, self.change = name, change
        self._stock: Any = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if found is not None:
            self._stock, found.loader = found.loader, self
        return found

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._stock.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._stock.exec_module(module)
        self.change(module)


class ActiveDriver:
    """Says that it may be used; the interpreter never asks it for anything else."""

    @staticmethod
    def is_active() -> bool:
        return True


class InterpretedBackend:
    """Stands where triton-cpu has its entry."""

    driver = ActiveDriver
    compiler = None


def add_backend(backends: ModuleType) -> None:
    """Tell vLLM that Triton has a backend for CPUs: its interpreter runs the kernels in Python."""
    backends.backends.setdefault("cpu", InterpretedBackend)


def keep_scheduling(platform: ModuleType) -> None:
    """Let the CPU's platform leave asynchronous scheduling as the server was configured."""
    stock = platform.CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        wanted = vllm_config.scheduler_config.async_scheduling
        stock(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = wanted

    platform.CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def prepare(environment: MutableMapping[str, str]) -> None:
    """Make this process ready for what the environment names; before vLLM and Triton are imported in it.

    Args:
        environment: of this process; gets what Triton, torch and vLLM read when they are imported.

    Raises:
        RuntimeError: Triton is there already, and compiles.
    """
    runner = environment.get(RUNNER)
    if runner is not None:
        environment["VLLM_USE_V2_MODEL_RUNNER"] = "1" if runner == "v2" else "0"
    if runner == "v2":
        # Several workers would compile helpers together with Triton's kernels, which are Python here.
        environment.update(TRITON_INTERPRET="1", TORCHDYNAMO_DISABLE="1")
        _change("triton.backends", add_backend)
    if environment.get(SCHEDULING) == "async":
        _change("vllm.platforms.cpu", keep_scheduling)


def wait_long(environment: MutableMapping[str, str]) -> None:
    """Make a server wait as long as the environment says."""
    seconds = environment.get(PATIENCE)

    def change(module: ModuleType) -> None:
        for name in ("PLANNING_SECONDS", "STAGING_SECONDS"):
            if hasattr(module, name):
                setattr(module, name, float(seconds or 0))

    if seconds is not None:
        _change("emblema.vllm.planner", change)
        _change("emblema.vllm.kv_worker", change)


def _change(name: str, change: Callable[[ModuleType], None]) -> None:
    if any(isinstance(finder, AfterImport) and finder.name == name for finder in sys.meta_path):
        return
    if name in sys.modules:
        raise RuntimeError(f"{name} is imported already: say which runner is wanted before")
    sys.meta_path.insert(0, AfterImport(name, change))
