"""Our prefix cache beside those of other engines: the same prompts, each through its own cache.

A request is matched, locked, given rows for what is new (others are evicted for it), put into the
cache and released, one after the other and in tokens, as an engine would. No states take part: KV
is what all of them keep in the same way. A peer runs where its package can be imported, and is left
out otherwise. Tried with SGLang 0.5.23 and vLLM 0.33.0.

What is counted is the cache's own work: prompts come as each wants its ids. vLLM knows a prompt by
hashes of its blocks, so making them counts; their share is told apart.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.replay import agents
from benchmarks.roofline import describe_machine
from twinpool.memory.eviction import eviction_policy
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.replay.load import ClosedLoad, Load, OpenLoad, Turns
from twinpool.replay.units import Ticket
from twinpool.traces.shapes import ChatShape
from twinpool.traces.synthesis import make_chat

Tokens = npt.NDArray[np.int32]

PAGE_TOKENS = 64
# A key of a unit becomes as many tokens as a unit has, all of them int32.
KEY_MASK = (1 << 31) // PAGE_TOKENS - 1


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in their order, and the rows that all caches get."""

    tickets: list[Ticket]
    num_rows: int


class Peer(Protocol):
    """A prefix cache of some engine.

    Attributes:
        extra_s: Named parts of the time that `serve` took, in all.
    """

    extra_s: dict[str, float]

    def prepare(self, tokens: Tokens) -> Any:
        """Return a prompt as the engine has it; not timed."""
        ...

    def serve(self, namespace: str, prompt: Any) -> int:
        """Take a prompt through the cache; returns how many of its tokens were there."""
        ...


class Twinpool:
    """Our cache, by `joint-lru`."""

    def __init__(self, num_rows: int) -> None:
        self.extra_s: dict[str, float] = {}
        self._cache = PrefixCache(
            num_rows=num_rows,
            num_slots=1,
            policy=eviction_policy("joint-lru"),
            page_size=PAGE_TOKENS,
            needs_state=False,
        )

    def prepare(self, tokens: Tokens) -> Tokens:
        """Return the tokens themselves."""
        return tokens

    def serve(self, namespace: str, prompt: Tokens) -> int:
        """See `Peer`."""
        cache = self._cache
        match = cache.match(namespace, prompt)
        node = cache.lock(match)
        new = cache.room.take_rows(len(prompt) - match.depth)
        rows = np.concatenate([node.path_rows(), new])
        inserted = cache.insert(namespace, node, prompt, rows, [])
        cache.rows.free(rows[inserted.duplicate_start : inserted.duplicate_end])
        cache.rows.free(rows[len(prompt) :])
        cache.unlock(node)
        cache.unlock(inserted.node)
        return match.depth


class Sglang:
    """SGLang's cache of KV alone, with the tree in Python or in Rust, by its default: LRU."""

    def __init__(self, num_rows: int, core: str) -> None:
        self.extra_s: dict[str, float] = {}
        self._torch: Any = importlib.import_module("torch")
        # One core for all of them.
        self._torch.set_num_threads(1)
        mem = "sglang.srt.mem_cache"
        pools: Any = importlib.import_module(f"{mem}.allocator")
        cache: Any = importlib.import_module(f"{mem}.unified_radix_cache")
        kinds: Any = importlib.import_module(f"{mem}.unified_cache.component_type")
        params: Any = importlib.import_module(f"{mem}.cache_init_params")
        self._verbs: Any = importlib.import_module(f"{mem}.base_prefix_cache")
        self._key: Any = importlib.import_module(f"{mem}.radix_cache").RadixKey
        self._pool = pools.PagedTokenToKVPoolAllocator(
            num_rows, PAGE_TOKENS, self._torch.float16, "cpu", None, False
        )
        self._cache = cache.UnifiedRadixCache(
            params.CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=self._pool,
                page_size=PAGE_TOKENS,
                tree_components=(kinds.ComponentType.FULL,),
                tree_core_backend=core,
            )
        )
        # It answers with another core where it cannot load the one that was asked for.
        used = self._cache._tree_core_backend
        if used != core:
            raise ImportError(f"its core in {core} is not to be had, it takes that in {used}")

    def prepare(self, tokens: Tokens) -> array[int]:
        """Return the tokens as an array of long integers."""
        return array("q", tokens.astype(np.int64).tobytes())

    def serve(self, namespace: str, prompt: array[int]) -> int:
        """See `Peer`."""
        cache, pool, verbs = self._cache, self._pool, self._verbs
        known = self._key(prompt, namespace, limit=len(prompt) - 1)
        match = cache.match_prefix(verbs.MatchPrefixParams(key=known))
        hit: int = match.device_prefix_len
        lock = cache.lock(match.last_device_node)
        missing = len(prompt) - hit - pool.available_size()
        if missing > 0:
            cache.evict_for_alloc(verbs.EvictParams(num_tokens=missing))
        new = pool.alloc(len(prompt) - hit)
        rows = self._torch.cat([cache.path_device_indices(match.last_device_node), new])
        # It frees the duplicates behind `prev_prefix_len` itself.
        cache.insert(
            verbs.InsertParams(
                key=self._key(prompt, namespace), value=rows, prev_prefix_len=hit, inserted_len=hit
            )
        )
        cache.unlock(lock)
        return hit


class Vllm:
    """vLLM's block manager with one group of full attention, its default hash: SHA-256."""

    def __init__(self, num_rows: int) -> None:
        self.extra_s = {"hashing": 0.0}
        torch: Any = importlib.import_module("torch")
        layout: Any = importlib.import_module("vllm.v1.kv_cache_interface")
        blocks: Any = importlib.import_module("vllm.v1.core.kv_cache_utils")
        hashing: Any = importlib.import_module("vllm.utils.hashing")
        sampling: Any = importlib.import_module("vllm.sampling_params")
        manager: Any = importlib.import_module("vllm.v1.core.kv_cache_manager")
        self._request: Any = importlib.import_module("vllm.v1.request").Request
        spec = layout.FullAttentionSpec(
            block_size=PAGE_TOKENS, num_kv_heads=1, head_size=64, dtype=torch.float16
        )
        config = layout.KVCacheConfig(
            # It keeps one block for itself.
            num_blocks=num_rows // PAGE_TOKENS + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[layout.KVCacheGroupSpec(["layer"], spec)],
        )
        self._manager = manager.KVCacheManager(
            config,
            max_model_len=num_rows,
            scheduler_block_size=PAGE_TOKENS,
            hash_block_size=PAGE_TOKENS,
        )
        blocks.init_none_hash(hashing.sha256)
        self._hasher = blocks.get_request_block_hasher(PAGE_TOKENS, hashing.sha256)
        self._sampling = sampling.SamplingParams(max_tokens=1)
        self._count = 0

    def prepare(self, tokens: Tokens) -> list[int]:
        """Return the tokens as a list."""
        ids: list[int] = tokens.tolist()
        return ids

    def serve(self, namespace: str, prompt: list[int]) -> int:
        """See `Peer`."""
        self._count += 1
        began = time.perf_counter()
        request = self._request(
            request_id=str(self._count),
            prompt_token_ids=prompt,
            sampling_params=self._sampling,
            pooling_params=None,
            cache_salt=namespace or None,
            block_hasher=self._hasher,
        )
        self.extra_s["hashing"] += time.perf_counter() - began
        found, hit, *_ = self._manager.get_computed_blocks(request)
        taken = self._manager.allocate_slots(request, len(prompt) - hit, hit, found)
        assert taken is not None, "a prompt that does not fit"
        self._manager.free(request)
        return int(hit)


PEERS: dict[str, Callable[[int], Peer]] = {
    "twinpool": Twinpool,
    "sglang, tree in Python": lambda num_rows: Sglang(num_rows, "python"),
    "sglang, tree in Rust": lambda num_rows: Sglang(num_rows, "rust"),
    "vllm": Vllm,
}


def agent_turns(num_requests: int, num_rows: int) -> Workload:
    """Return requests of the 48 recorded lanes, answered at once, so that lanes take turns."""
    setup = agents(0.0)
    return Workload(
        _taken(ClosedLoad(setup.trace, setup.turns, setup.starts or ()), num_requests), num_rows
    )


def chat_turns(num_sessions: int, num_requests: int, num_rows: int) -> Workload:
    """Return requests of generated chats, in the order of their times."""
    trace = make_chat(ChatShape(sessions=num_sessions, rate=4.0), seed=0)
    return Workload(_taken(OpenLoad(trace, Turns(unit_tokens=PAGE_TOKENS)), num_requests), num_rows)


def _taken(load: Load, num_requests: int) -> list[Ticket]:
    taken: list[Ticket] = []
    while len(taken) < num_requests and (now_s := load.next_s(None)) is not None:
        taken.append(load.take())
        load.done(taken[-1], now_s)
    return taken


def tokens_of(ticket: Ticket) -> Tokens:
    """Return a prompt in tokens, whole units of them; unlike keys share no token."""
    firsts = (ticket.prompt & KEY_MASK) * PAGE_TOKENS
    places = np.arange(PAGE_TOKENS, dtype=np.int32)
    tokens: Tokens = np.add.outer(firsts, places).ravel()
    return tokens


def figures(peer: Peer, workload: Workload) -> dict[str, Any]:
    """Take all requests through a cache."""
    seconds, hit, total = 0.0, 0, 0
    for ticket in workload.tickets:
        tokens = tokens_of(ticket)
        prompt = peer.prepare(tokens)
        began = time.perf_counter()
        hit += peer.serve(ticket.namespace, prompt)
        seconds += time.perf_counter() - began
        total += len(tokens)
    return {
        "seconds": seconds,
        "requests_per_s": round(len(workload.tickets) / seconds),
        "prompt_tokens_per_s": round(total / seconds),
        "hit_rate": round(hit / total, 4),
        **{f"share_{name}": round(part / seconds, 2) for name, part in peer.extra_s.items()},
    }


def usable() -> dict[str, Callable[[int], Peer]]:
    """Return the peers that run here; says of each other one why it does not."""
    found: dict[str, Callable[[int], Peer]] = {}
    for name, make in PEERS.items():
        # Foreign packages fail in any way when a part is missing or of another version.
        try:
            peer = make(4 * PAGE_TOKENS)
            tokens = np.arange(2 * PAGE_TOKENS, dtype=np.int32)
            hits = [peer.serve("", peer.prepare(tokens)) for _ in range(2)]
        except Exception as error:
            if name == "twinpool":
                raise
            reason = (str(error).splitlines() or [""])[0]
            print(f"{name}: left out: {type(error).__name__}: {reason}")
            continue
        assert hits == [0, PAGE_TOKENS], f"{name} finds {hits} tokens"
        found[name] = make
    return found


def compare(
    peers: dict[str, Callable[[int], Peer]], workload: Workload, runs: int
) -> dict[str, Any]:
    """Measure all peers on one workload, the best of several runs; `time_by_ours` is a ratio."""
    found: dict[str, Any] = {}
    # Runs of one peer are apart, so that a busy neighbour disturbs all alike.
    for _ in range(runs):
        for name, make in peers.items():
            now = figures(make(workload.num_rows), workload)
            if name not in found or now["seconds"] < found[name]["seconds"]:
                found[name] = now
    ours = found["twinpool"]["seconds"]
    for row in found.values():
        row["time_by_ours"] = round(row["seconds"] / ours, 1)
        row["seconds"] = round(row["seconds"], 3)
    prompts = [len(ticket.prompt) * PAGE_TOKENS for ticket in workload.tickets]
    return {
        "requests": len(prompts),
        "prompt_tokens": sum(prompts),
        "rows": workload.num_rows,
        **found,
    }


def main(argv: list[str] | None = None) -> None:
    """Measure and print; `argv` are the flags, those of the process when None."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--agent-rows", type=int, default=6_000_000)
    parser.add_argument("--chats", type=int, default=2000)
    parser.add_argument("--chat-requests", type=int, default=6000)
    parser.add_argument("--chat-rows", type=int, default=200_000)
    wanted = parser.parse_args(argv)
    peers = usable()
    found = {
        "machine": describe_machine(),
        "agents": compare(peers, agent_turns(wanted.requests, wanted.agent_rows), wanted.runs),
        "chats": compare(
            peers, chat_turns(wanted.chats, wanted.chat_requests, wanted.chat_rows), wanted.runs
        ),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
