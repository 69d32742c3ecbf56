"""The defaults, as one table: a change of a default is a change of this file."""

from __future__ import annotations

from twinpool.settings.resolve import resolve

DEFAULTS = """
model_path | | null | default
skip_tokenizer_init | --skip-tokenizer-init | false | default
dtype | --dtype | null | default
debug_poison | --debug-poison | false | default
memory_mode | --memory | elastic | default
pool_memory | --pool-memory | null | default
mem_fraction_static | --mem-fraction-static | 0.6 | assumed
mamba_full_memory_ratio | --mamba-full-memory-ratio | 0.9 | default
max_mamba_cache_size | --max-mamba-cache-size | null | default
max_total_tokens | --max-total-tokens | null | default
page_size | --page-size | 1 | default
kv_cache_dtype | --kv-cache-dtype | null | default
mamba_ssm_dtype | --mamba-ssm-dtype | null | default
mamba_radix_cache_strategy | --mamba-radix-cache-strategy | direct | default
disable_radix_cache | --disable-radix-cache | false | default
radix_eviction_policy | --radix-eviction-policy | value | default
marconi_alpha | --marconi-alpha | 1.0 | assumed
mamba_max_states_per_path | --mamba-max-states-per-path | -1 | default
schedule_policy | --schedule-policy | least-work | default
max_running_requests | --max-running-requests | null | default
chunked_prefill_size | --chunked-prefill-size | 512 | assumed
max_prefill_tokens | --max-prefill-tokens | 16384 | default
mamba_track_interval | --mamba-track-interval | 256 | default
disable_overlap_schedule | --disable-overlap-schedule | false | default
tp | --tp | 1 | default
pp | --pp | 1 | default
speculative_num_draft_tokens | --speculative-num-draft-tokens | 0 | default
host | --host | 127.0.0.1 | default
port | --port | 8000 | default
api_keys | --api-key | 0 set | default
served_model_name | --served-model-name | null | default
max_queue | --max-queue | 1024 | default
max_body_bytes | --max-body-bytes | 16777216 | default
max_choices | --max-choices | 16 | default
max_prompts | --max-prompts | 256 | default
max_stop_strings | --max-stop-strings | 16 | default
drain_timeout_s | --drain-timeout | 30.0 | default
record | --record | null | default
log_level | --log-level | info | default
enable_cache_report | --enable-cache-report | true | default
enable_metrics | --enable-metrics | true | default
"""


def _shown(value: object) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def test_defaults_table() -> None:
    lines = [
        " | ".join((str(row["name"]), str(row["flag"]), _shown(row["value"]), str(row["source"])))
        for row in resolve({}).rows()
    ]
    assert [line.replace("|  |", "| |") for line in lines] == DEFAULTS.strip().splitlines()
