"""The plugin as SGLang loads it: which SGLang it takes, its options, and the hooks that it registers."""

import json
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from emblema.errors import EmblemaError

if TYPE_CHECKING:
    from emblema.served.settings import PluginSettings

_log = logging.getLogger(__name__)
TESTED = "0.5.23"
OPTIONS = "EMBLEMA_SGLANG"
"""The variable with the plugin's options as JSON. SGLang's processes inherit it; without it nothing is hooked."""
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
TORCH_ATTENTION = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend._run_sdpa_forward_extend"
WEIGHT_CHANGES = ("update_weights_from_disk", "begin_weight_update", "update_weights_from_ipc")
"""What may change a model in place; all other changes of weights come after `begin_weight_update`."""


def check_version() -> None:
    """Refuse an SGLang other than the tested one.

    Raises:
        EmblemaError: the version is another, or SGLang cannot be imported.
    """
    try:
        from sglang.version import __version__ as found
    except ImportError as error:
        raise EmblemaError(f"SGLang cannot be imported ({error}): install sglang=={TESTED}") from error
    if str(found).partition("+")[0] != TESTED:
        raise EmblemaError(
            f"This is SGLang {found}; emblema's plugin has been tested with {TESTED} alone: install sglang=={TESTED}, "
            f"or serve without {OPTIONS}."
        )


def settings_of(environment: Mapping[str, str]) -> "PluginSettings | None":
    """Return the options in an environment; None where there are none.

    Raises:
        EmblemaError: they are not JSON, or not right.
    """
    from emblema.served.settings import PluginSettings

    written = environment.get(OPTIONS)
    if not written:
        return None
    try:
        given = json.loads(written)
    except ValueError as error:
        raise EmblemaError(f"{OPTIONS} is no JSON: {error}") from error
    if not isinstance(given, dict):
        raise EmblemaError(f"{OPTIONS} is no JSON object")
    return PluginSettings.read(given, OPTIONS)


def register() -> None:
    """Register the hooks; SGLang calls this in each of its processes, as an entry point of `sglang.srt.plugins`.

    SGLang logs what is raised here, and serves plainly.
    """
    settings = settings_of(os.environ)
    if settings is None:
        return
    check_version()
    from emblema.sglang.sglang_names import check_names

    check_names()
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from emblema.sglang.hooks import SchedulerHooks
    from emblema.sglang.run_attention import RunAttention

    attention = RunAttention()
    hooks = SchedulerHooks(settings, attention)
    for target, hook, kind in (
        (f"{SCHEDULER}.__init__", hooks.start, HookType.AFTER),
        (f"{SCHEDULER}._add_request_to_queue", hooks.hold, HookType.AROUND),
        (f"{SCHEDULER}.get_next_batch_to_run", hooks.release, HookType.BEFORE),
        (f"{SCHEDULER}.abort_request", hooks.release_all, HookType.BEFORE),
        (f"{SCHEDULER}.on_idle", hooks.spend_idle_moment, HookType.AROUND),
        (f"{RUNNER}.forward", hooks.forward, HookType.AROUND),
        (TORCH_ATTENTION, attention.attend, HookType.AROUND),
        *((f"{UPDATER}.{name}", hooks.stop, HookType.BEFORE) for name in WEIGHT_CHANGES),
    ):
        HookRegistry.register(target, hook, kind)
