"""``/v1/completions`` and ``/v1/chat/completions``."""

from __future__ import annotations

import asyncio

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from qkv.serving.answers import AskedTexts, answer
from qkv.serving.bodies import ChatBody, CompletionBody
from qkv.serving.errors import ApiError, as_api_error
from qkv.serving.forms import ChatForm, CompletionForm
from qkv.serving.model import ServedModel
from qkv.serving.reading import read_body
from qkv.serving.service import Service
from qkv.spec.errors import UserError


async def completions(http: HttpRequest, service: Service) -> Response:
    """Answer ``POST /v1/completions``: texts that continue prompts; from a model with an encoder, texts written from
    them.
    """
    body = await read_body(http, CompletionBody, service.limits)
    model = _writer(service, body.model)
    asked = await asyncio.to_thread(_asked_to_continue, model, body, service)
    return await answer(http, asked)


async def chat(http: HttpRequest, service: Service) -> Response:
    """Answer ``POST /v1/chat/completions``."""
    body = await read_body(http, ChatBody, service.limits)
    model = _writer(service, body.model)
    asked = await asyncio.to_thread(_asked_to_chat, model, body, service)
    return await answer(http, asked)


def _writer(service: Service, name: str | None) -> ServedModel:
    model = service.model(name)
    if not model.writes:
        can = ", ".join(model.to_dict()["capabilities"])
        raise ApiError(f"the model {model.name!r} does not write text; it has: {can}", param="model", code="no_text")
    return model


def _asked_to_continue(model: ServedModel, body: CompletionBody, service: Service) -> AskedTexts:
    echoes, requests, read = list[str](), [], 0
    try:
        prompts = [model.prompt(given) for given in body.prompt]
        for given, ids in zip(body.prompt, prompts, strict=True):
            several = model.requests(ids, body, body.max_tokens)
            text = given if isinstance(given, str) else model.tokenizer.decode(ids)
            echoes += [text if body.echo else ""] * len(several)
            requests += several
            read += len(ids)
    except UserError as error:
        raise as_api_error(error, "prompt") from None
    if body.echo and body.logprobs is not None:
        sentence = "logprobs: they are those of new tokens, and echo asks for those of the prompt too; leave one out"
        raise ApiError(sentence, param="logprobs", code="invalid_value")
    form = CompletionForm(model.tokenizer, body.alternatives is not None, echoes)
    return AskedTexts(model, body, form, requests, read, service.metrics)


def _asked_to_chat(model: ServedModel, body: ChatBody, service: Service) -> AskedTexts:
    messages = [message.to_template() for message in body.messages]
    asked = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    try:
        ids = model.chat_prompt(messages, body.chat_template_kwargs or {})
        ended = body if body.stop is not None else body.changed(stop=model.template.stop or None)
        requests = model.requests(ids, ended, asked)
    except UserError as error:
        raise as_api_error(error, "messages") from None
    form = ChatForm(model.tokenizer, body.alternatives is not None)
    return AskedTexts(model, body, form, requests, len(ids), service.metrics)
