"""The routes around generation: models, health, metrics, what is in force, tokens, the cache.

Each answers from the service; none starts a request.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from twinpool import __version__
from twinpool.engine.client import EngineGone
from twinpool.engine.protocol import EngineFacts
from twinpool.errors import ConfigError
from twinpool.scheduling.events import Snapshot
from twinpool.server.body import read_schema
from twinpool.server.errors import bad_request, from_twinpool, unavailable
from twinpool.server.logprobs import TokenNames
from twinpool.server.messages import render_chat
from twinpool.server.responses import (
    DetokenizeReply,
    ModelCard,
    ModelList,
    TokenizeReply,
    encode,
)
from twinpool.server.schema import DetokenizeBody, TokenizeBody
from twinpool.server.service import Service, off_loop
from twinpool.telemetry.exposition import CONTENT_TYPE, render

SNAPSHOT_WAIT_S = 2.0


class Operations:
    """The routes, as methods over one service.

    Args:
        service: What they answer from.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self, _request: Request) -> Response:
        """Answer 200 while the engine process is alive, else 503."""
        service = self._service
        body = {"status": service.client.state.value}
        return _json(body, 200 if service.is_alive else 503)

    async def ready(self, _request: Request) -> Response:
        """Answer 200 when a request that comes now would be served, else 503."""
        service = self._service
        status = "draining" if service.is_draining else service.client.state.value
        if service.is_ready:
            return _json({"status": "ready"})
        raise unavailable(f"not ready: {status}", "not_ready")

    async def metrics(self, _request: Request) -> Response:
        """Answer in the text format 0.0.4, whatever the Accept header says."""
        service = self._service
        text = render(
            service.recorder,
            await self._snapshot(),
            is_up=service.is_ready or service.is_draining,
            num_restarts=service.client.restarts,
        )
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    async def models(self, _request: Request) -> Response:
        """List the one model."""
        return _json(ModelList(data=[self._card(self._facts())]))

    async def model(self, request: Request) -> Response:
        """Show the one model by any of its names."""
        facts = self._facts()
        self._service.check_model(request.path_params["name"], facts)
        return _json(self._card(facts))

    async def server_info(self, _request: Request) -> Response:
        """Show every effective value, where it came from, and what the pools look like now."""
        service = self._service
        facts = self._facts()
        snapshot = await self._snapshot()
        values = (*facts.settings, *service.settings)
        return _json(
            {
                "version": __version__,
                "status": service.client.state.value,
                "served_model_name": service.names(facts)[0],
                "settings": {
                    value.name: {"value": value.value, "source": value.source, "why": value.why}
                    for value in values
                },
                "limits": msgspec.to_builtins(service.limits),
                "engine_restarts": service.client.restarts,
                "snapshot": None if snapshot is None else msgspec.to_builtins(snapshot),
            }
        )

    async def model_info(self, _request: Request) -> Response:
        """Show what the model is."""
        facts = self._facts()
        return _json(
            {
                "model_path": facts.model,
                "served_names": self._service.names(facts),
                "architecture": facts.architecture,
                "has_tokenizer": facts.tokenizer_dir is not None,
                "context_tokens": facts.context_tokens,
                "max_request_tokens": facts.max_request_tokens,
                "vocab_size": facts.vocab_size,
                "eos_token_ids": facts.eos_token_ids,
                "generation_defaults": msgspec.to_builtins(facts.generation),
                **facts.model_facts,
            }
        )

    async def flush_cache(self, _request: Request) -> Response:
        """Drop the prefix cache."""
        self._facts()
        try:
            is_clean = await self._service.client.flush()
        except EngineGone as error:
            raise from_twinpool(error) from None
        return _json({"success": True, "is_empty": is_clean})

    async def tokenize(self, request: Request) -> Response:
        """Turn a text, or a chat, into token ids."""
        facts = self._facts()
        service = self._service
        body = await read_schema(request, TokenizeBody, service.limits.max_body_bytes)
        service.check_model(body.model, facts)
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("send prompt or messages, one of them", "prompt")
        tools = service.require_text("tokenize", "prompt")
        if body.messages is not None:
            try:
                chat = await render_chat(
                    tools,
                    body.messages,
                    body.chat_template_kwargs,
                    add_generation_prompt=body.add_generation_prompt is not False,
                )
            except ConfigError as error:
                raise from_twinpool(error) from None
            tokens = chat.tokens
        else:
            text = body.prompt or ""
            adds = body.add_special_tokens is not False
            tokens = await off_loop(
                lambda: tools.tokenizer.encode(text, add_special_tokens=adds), len(text)
            )
        names = TokenNames(tools.tokenizer)
        return _json(
            TokenizeReply(
                count=len(tokens),
                max_model_len=facts.max_request_tokens,
                tokens=tokens,
                token_strs=[names.name(t) for t in tokens] if body.return_token_strs else None,
            )
        )

    async def detokenize(self, request: Request) -> Response:
        """Turn token ids into text, special tokens included."""
        facts = self._facts()
        service = self._service
        body = await read_schema(request, DetokenizeBody, service.limits.max_body_bytes)
        service.check_model(body.model, facts)
        for token in body.tokens:
            if not 0 <= token < facts.vocab_size:
                raise bad_request(
                    f"tokens: one is not a token id below {facts.vocab_size}", "tokens"
                )
        tokenizer = service.require_text("detokenize", "tokens").tokenizer
        text = await off_loop(
            lambda: tokenizer.decode(body.tokens, skip_special_tokens=False), len(body.tokens)
        )
        return _json(DetokenizeReply(prompt=text))

    def _facts(self) -> EngineFacts:
        """Return the engine's facts; they outlive it, so a restart does not hide them."""
        facts = self._service.client.info
        if facts is None:
            raise unavailable("the engine is starting", "engine_unavailable")
        return facts

    def _card(self, facts: EngineFacts) -> ModelCard:
        return ModelCard(
            id=self._service.names(facts)[0],
            created=self._service.created_s,
            root=facts.model,
            max_model_len=facts.max_request_tokens,
        )

    async def _snapshot(self) -> Snapshot | None:
        """Return a fresh snapshot; the last one when the engine is busy or gone."""
        client = self._service.client
        try:
            return await client.snapshot(SNAPSHOT_WAIT_S)
        except EngineGone:
            return client.last_snapshot


def _json(body: Any, status: int = 200) -> Response:
    return Response(encode(body), status, media_type="application/json")
