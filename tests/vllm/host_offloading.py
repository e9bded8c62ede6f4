"""vLLM's offloading connector on a CPU: its own manager and scheduler, with copies that need no GPU."""

from typing import Any

import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class HostOffloadingSpec(CPUOffloadingSpec):
    """Keeps pages in host memory, as vLLM's spec of the same shape does beside a GPU."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        return HostCopies(kv_caches, self.num_chunks)


class HostCopies(OffloadingWorker):
    """Copies pages at once; one page is one chunk."""

    def __init__(self, kv_caches: CanonicalKVCaches, chunks: int) -> None:
        self._pages = [each.tensor for each in kv_caches.tensors]
        self._kept = [torch.zeros(chunks, pages.shape[1], dtype=pages.dtype) for pages in self._pages]
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        for pages, kept in zip(self._pages, self._kept, strict=True):
            kept[dst_spec.block_ids] = pages[src_spec.block_ids]
        return self._finish(job_id, len(src_spec.block_ids))

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        for pages, kept in zip(self._pages, self._kept, strict=True):
            pages[dst_spec.block_ids] = kept[src_spec.block_ids]
        return self._finish(job_id, len(src_spec.block_ids))

    def _finish(self, job_id: int, blocks: int) -> bool:
        size = blocks * sum(pages.shape[1] for pages in self._pages)
        self._done.append(TransferResult(job_id, success=True, transfer_size=size, transfer_time=0.001))
        return True

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Return at once: copies are made when they are asked for."""


OFFLOADING = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "HostOffloadingSpec", "spec_module_path": "tests.vllm.host_offloading",
        "cpu_bytes_to_use": 64 << 20,
    },
}  # fmt: skip
"""One of several connectors, as a server is told of it."""
