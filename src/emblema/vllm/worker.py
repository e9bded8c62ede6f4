"""vLLM's worker with linked steps: `--worker-cls emblema.vllm.EmblemaWorker`, for either model runner."""

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.platforms import current_platform

from emblema.vllm.connectors import EmblemaConnector, StepMessage

if TYPE_CHECKING or not current_platform.is_cpu():
    from vllm.v1.worker.gpu_worker import Worker
else:
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker


class EmblemaWorker(Worker):
    """Has each step rewritten before the model's runner sees it; see `step_rewriter`."""

    def execute_model(self, scheduler_output: Any) -> Any:
        connector = get_kv_transfer_group() if has_kv_transfer_group() else None
        message = scheduler_output.kv_connector_metadata
        if not isinstance(connector, EmblemaConnector) or not isinstance(message, StepMessage):
            return super().execute_model(scheduler_output)
        with connector.rewrites(scheduler_output, message.step, self.get_model) as rewritten:
            result = super().execute_model(rewritten)
        empty = scheduler_output.total_num_scheduled_tokens == 0
        if result is None and empty and rewritten.total_num_scheduled_tokens:
            # Nobody asks for the tokens of a step that the scheduler left empty.
            return self.sample_tokens(None)
        return result
