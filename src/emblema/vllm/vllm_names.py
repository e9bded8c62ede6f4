"""vLLM's names that the plugin uses and vLLM does not promise to keep, and whether the installed vLLM has them.

`internals` and `attention` read all fields; `connectors`, `encoder_connector` and `worker` override methods, and
`captures` takes pages.
"""

from emblema.served.private_names import NamesOf, check_table, names_of

NAMES: tuple[NamesOf, ...] = (
    names_of(
        "vllm.v1.request", "Request",
        "request_id prompt_token_ids prompt_embeds sampling_params lora_request resumable kv_transfer_params "
        "cache_salt mm_features block_hashes _block_hasher update_block_hashes prefill_stats num_prompt_tokens "
        "num_preemptions",
    ),
    names_of("vllm.v1.metrics.stats", "PrefillStats", "set num_local_cached_tokens num_external_cached_tokens"),
    names_of("vllm.v1.core.block_pool", "BlockPool", "get_num_free_blocks get_new_blocks free_blocks hash_block_size"),
    names_of("vllm.v1.core.kv_cache_manager", "KVCacheManager", "get_block_ids"),
    names_of(
        "vllm.model_executor.layers.attention.attention", "set_default_quant_scales",
        "_k_scale _v_scale _k_scale_float _v_scale_float",
    ),
    names_of("vllm.model_executor.layers.attention", "Attention",
        "impl kv_cache kv_cache_dtype sliding_window has_sink",
    ),
    names_of("vllm.model_executor.layers.attention", "MLAAttention", "impl kv_cache kv_cache_dtype"),
    names_of("vllm.config.compilation", "CompilationConfig", "static_forward_context"),
    names_of("vllm.config", "VllmConfig", "use_v2_model_runner"),
    names_of(
        "vllm.config", "ParallelConfig",
        "tensor_parallel_size pipeline_parallel_size data_parallel_size decode_context_parallel_size "
        "prefill_context_parallel_size",
    ),
    names_of("vllm.config", "MultiModalConfig", "video_pruning_rate"),
    names_of("vllm.config", "ModelConfig", "is_mm_prefix_lm quantization quantization_config"),
    names_of("vllm.forward_context", "ForwardContext", "attn_metadata slot_mapping"),
    names_of("vllm.distributed.parallel_state", "GroupCoordinator", "cpu_group rank_in_group"),
    names_of("vllm.multimodal.inputs", "MultiModalFeatureSpec", "data modality identifier mm_position", private=False),
    names_of("vllm.multimodal.inputs", "PlaceholderRange", "offset length is_embed", private=False),
    names_of(
        "vllm.v1.core.sched.output", "SchedulerOutput",
        "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens total_num_scheduled_tokens "
        "scheduled_encoder_inputs free_encoder_mm_hashes finished_req_ids preempted_req_ids kv_cache_block_copies "
        "kv_connector_metadata",
        private=False,
    ),
    names_of(
        "vllm.v1.core.sched.output", "NewRequestData",
        "req_id prompt_token_ids mm_features sampling_params pooling_params block_ids num_computed_tokens lora_request "
        "prefill_token_ids",
        private=False,
    ),
    names_of(
        "vllm.v1.core.sched.output", "CachedRequestData",
        "req_ids resumed_req_ids new_token_ids new_block_ids num_computed_tokens num_output_tokens",
        private=False,
    ),
    names_of("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", "_dummy_run"),
    names_of("vllm.v1.worker.worker_base", "WorkerBase", "execute_model sample_tokens", private=False),
    names_of(
        "vllm.v1.worker.gpu_worker", "Worker",
        "start_weight_update reload_weights reset_weights sleep wake_up reset_encoder_cache "
        "get_kv_connector_handshake_metadata", private=False,
    ),
    names_of(
        "vllm.distributed.kv_transfer.kv_connector.v1.base", "KVConnectorBase_V1",
        "register_kv_caches wait_for_save build_connector_worker_meta build_connector_meta update_connector_output "
        "get_num_new_matched_tokens update_state_after_alloc get_transfer_results on_new_request request_finished "
        "bind_gpu_block_pool bind_kv_cache_manager "
        "has_pending_push_work get_kv_connector_stats _get_connector_metadata get_handshake_metadata "
        "set_xfer_handshake_metadata requires_kv_delivery",
        private=False,
    ),
    names_of(
        "vllm.distributed.kv_transfer.kv_connector.v1.base", "SupportsHMA", "request_finished_all_groups",
        private=False,
    ),
    names_of(
        "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector", "MultiConnector", "sub_connectors",
        private=False,
    ),
    names_of(
        "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector", "MultiKVConnectorMetadata", "metadata",
        private=False,
    ),
    names_of(
        "vllm.v1.outputs", "KVConnectorOutput", "kv_connector_worker_meta finished_recving failed_recving",
        private=False,
    ),
    names_of(
        "vllm.distributed.kv_transfer.kv_connector.v1.base", "KVConnectorTransferResults",
        "finished_recving failed_recving",
        private=False,
    ),
    names_of("vllm.v1.attention.backend", "AttentionImpl", "forward num_heads scale"),
    names_of(
        "vllm.v1.attention.backends.cpu_attn", "CPUAttentionMetadata",
        "query_start_loc seq_lens block_table max_query_len max_seq_len scheduler_metadata causal",
    ),
    names_of("vllm.v1.attention.backends.cpu_attn", "CPUAttentionBackendImpl", "num_kv_heads head_size kv_cache_dtype"),
    names_of("vllm.model_executor.models.interfaces", "SupportsMRoPE", "get_mrope_input_positions", private=False),
    names_of(
        "vllm.model_executor.models.interfaces_base", "VllmModelForTextGeneration", "compute_logits", private=False
    ),
    names_of(
        "vllm.distributed.ec_transfer.ec_connector.base", "ECConnectorBase",
        "start_load_caches save_caches has_cache_item update_state_after_alloc build_connector_meta",
        private=False,
    ),
)  # fmt: skip
"""All that would break the plugin without an error at the import, if it moved."""


def check_names() -> None:
    """Refuse a vLLM that lacks a name which the plugin uses.

    Raises:
        EmblemaError: it lacks some; the first three are told.
    """
    check_table(NAMES, "vLLM", ", or serve without the emblema connector")
