"""vLLM's worker with linked steps: `--worker-cls emblema.vllm.EmblemaWorker`, for either model runner."""

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.platforms import current_platform

from emblema.vllm.connectors import EmblemaConnector
from emblema.vllm.other_connectors import check_transfer, own_connector, own_message

if TYPE_CHECKING or not current_platform.is_cpu():
    from vllm.v1.worker.gpu_worker import Worker
else:
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker


class EmblemaWorker(Worker):
    """Has each step rewritten before the model's runner sees it; see `step_rewriter`.

    Rows are of the weights that the server was started with: once these change, nothing is taken or kept any more.

    Raises:
        EmblemaError: see `check_transfer`.
    """

    def __init__(self, vllm_config: Any, *given: Any, **named: Any) -> None:
        check_transfer(vllm_config.kv_transfer_config)
        super().__init__(vllm_config, *given, **named)

    def execute_model(self, scheduler_output: Any) -> Any:
        connector, message = _connector(), own_message(scheduler_output.kv_connector_metadata)
        if connector is None or message is None:
            return super().execute_model(scheduler_output)
        with connector.rewrites(scheduler_output, message.step, self.get_model) as rewritten:
            result = super().execute_model(rewritten)
        empty = scheduler_output.total_num_scheduled_tokens == 0
        if result is None and empty and rewritten.total_num_scheduled_tokens:
            # Nobody asks for the tokens of a step that the scheduler left empty.
            return self.sample_tokens(None)
        return result

    def get_kv_connector_handshake_metadata(self) -> Any:
        connector = _connector()
        if connector is not None:
            connector.measure(self.model_runner._dummy_run)
        return super().get_kv_connector_handshake_metadata()

    def start_weight_update(self) -> None:
        self._stop_linking()
        super().start_weight_update()

    def reload_weights(self, *args: Any, **kwargs: Any) -> None:
        self._stop_linking()
        super().reload_weights(*args, **kwargs)

    def reset_weights(self) -> None:
        self._stop_linking()
        super().reset_weights()

    def sleep(self, level: int = 1) -> None:
        connector = _connector()
        if connector is not None:
            # The pages are given back to the device.
            connector.give_up_captures(asleep=True)
        super().sleep(level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        super().wake_up(tags)
        connector = _connector()
        if connector is not None:
            connector.give_up_captures(asleep=False)

    def reset_encoder_cache(self) -> None:
        super().reset_encoder_cache()
        connector = _connector()
        if connector is not None:
            connector.forget_encodings()

    def _stop_linking(self) -> None:
        connector = _connector()
        if connector is not None and connector.kv_worker is not None:
            connector.kv_worker.stop("the model's weights were changed")


def _connector() -> EmblemaConnector | None:
    return own_connector(get_kv_transfer_group()) if has_kv_transfer_group() else None
