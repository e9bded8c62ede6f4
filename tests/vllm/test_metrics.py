"""vLLM's metrics under the names of the embedded engine's."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from emblema.vllm.metrics import SharedNames


def test_a_registry_tells_the_same_facts_under_both_names() -> None:
    registry = CollectorRegistry()
    registry.register(SharedNames(registry))
    assert generate_latest(registry) == b"", "what is not there is not told"
    labels = ["model_name"]
    Gauge("vllm:num_requests_waiting", "w", labels, registry=registry).labels("m").set(3)
    Histogram("vllm:time_to_first_token_seconds", "t", labels, registry=registry, buckets=(1,)).labels("m").observe(0.5)
    linked = Counter("vllm:emblema_prompt_rows", "r", [*labels, "source"], registry=registry)
    linked.labels("m", "patched").inc(7)
    rows = Counter("vllm:prompt_tokens_by_source", "p", [*labels, "source"], registry=registry)
    for source, count in {"local_compute": 20, "local_cache_hit": 5, "external_kv_transfer": 7}.items():
        rows.labels("m", source).inc(count)
    lines = generate_latest(registry).decode().splitlines()
    told = dict(line.rsplit(" ", 1) for line in lines if line.startswith("emblema_") and "_created" not in line)
    assert told == {
        'emblema_requests_waiting{model_name="m"}': "3.0",
        'emblema_time_to_first_token_seconds_bucket{le="1.0",model_name="m"}': "1.0",
        'emblema_time_to_first_token_seconds_bucket{le="+Inf",model_name="m"}': "1.0",
        'emblema_time_to_first_token_seconds_count{model_name="m"}': "1.0",
        'emblema_time_to_first_token_seconds_sum{model_name="m"}': "0.5",
        'emblema_prompt_rows_total{model_name="m",source="patched"}': "7.0",
        'emblema_prompt_rows_total{model_name="m",source="computed"}': "20.0",
        'emblema_prompt_rows_total{model_name="m",source="prefix"}': "5.0",
    }
