"""SGLang's names that the plugin uses and SGLang does not promise to keep, and whether the installed one has them."""

from emblema.served.private_names import NamesOf, check_table, names_of

NAMES: tuple[NamesOf, ...] = (
    names_of(
        "sglang.srt.managers.scheduler", "Scheduler",
        "_add_request_to_queue get_next_batch_to_run abort_request on_idle is_fully_idle server_args tree_cache "
        "tp_worker token_to_kv_pool_allocator model_config init_weight_updater",
    ),
    names_of(
        "sglang.srt.managers.scheduler_components.weight_updater", "SchedulerWeightUpdaterManager",
        "update_weights_from_disk begin_weight_update update_weights_from_ipc offload_tags",
    ),
    names_of("sglang.srt.managers.io_struct", "AbortReq", "rid abort_all"),
    names_of(
        "sglang.srt.managers.schedule_batch", "Req",
        "rid origin_input_ids origin_input_ids_unpadded multimodal_inputs sampling_params cache_salt extra_key lora_id "
        "input_embeds positional_embed_overrides session return_logprob logprob_start_len return_hidden_states "
        "finished_reason is_retracted cached_tokens set_finish_with_abort",
    ),
    names_of(
        "sglang.srt.managers.schedule_batch", "MultimodalInputs",
        "mm_items mrope_positions mrope_position_delta mrope_position_delta_repeated_cache",
    ),
    names_of(
        "sglang.srt.managers.schedule_batch", "MultimodalDataItem",
        "hash offsets feature model_specific_data set_hash padding_sequence is_image",
    ),
    names_of("sglang.srt.managers.mm_schedule", "EmbeddingResult", "embedding"),
    names_of("sglang.srt.mem_cache.base_prefix_cache", "BasePrefixCache", "match_prefix"),
    names_of("sglang.srt.mem_cache.base_prefix_cache", "MatchResult", "device_prefix_len"),
    names_of("sglang.srt.model_executor.model_runner", "ModelRunner", "forward memory_pool_config"),
    names_of("sglang.srt.model_executor.pool_configurator", "MemoryPoolConfig", "max_running_requests"),
    names_of("sglang.srt.models.transformers", "MultiModalMixin", "get_image_feature"),
    names_of(
        "sglang.srt.layers.attention.torch_native_backend", "TorchNativeAttnBackend", "_run_sdpa_forward_extend"
    ),
    names_of(
        "sglang.srt.model_executor.forward_batch_info", "ForwardBatch",
        "forward_mode batch_size input_ids req_pool_indices req_pool_indices_cpu seq_lens seq_lens_cpu seq_lens_sum "
        "orig_seq_lens out_cache_loc out_cache_loc_virtual positions mrope_positions mm_token_modalities mm_inputs "
        "rids lora_ids return_logprob top_logprobs_nums token_ids_logprobs capture_hidden_mode extend_num_tokens "
        "extend_seq_lens extend_seq_lens_cpu extend_prefix_lens extend_prefix_lens_cpu extend_start_loc "
        "extend_logprob_start_lens_cpu global_num_token_non_padded global_num_token_non_padded_cpu",
    ),
    names_of(
        "sglang.srt.layers.logits_processor", "LogitsProcessorOutput",
        "next_token_logits hidden_states customized_info",
    ),
    names_of(
        "sglang.srt.mem_cache.memory_pool", "ReqToTokenPool", "req_to_token size available_size alloc_rows free_rows"
    ),
    names_of(
        "sglang.srt.mem_cache.memory_pool", "MHATokenToKVPool", "get_key_buffer get_value_buffer store_dtype dtype"
    ),
    names_of(
        "sglang.srt.mem_cache.allocator.base", "BaseTokenToKVPoolAllocator", "available_size alloc free page_size"
    ),
    names_of("sglang.srt.mem_cache.multimodal_cache", "MultiModalStaticCache", "get_single set"),
    names_of("sglang.srt.plugins.hook_registry", "HookRegistry", "register", private=False),
)  # fmt: skip
"""All that would break the plugin without an error at the import, if it moved."""


def check_names() -> None:
    """Refuse an SGLang that lacks a name which the plugin uses.

    Raises:
        EmblemaError: it lacks some; the first three are told.
    """
    check_table(NAMES, "SGLang")
