"""``/v1/completions`` and ``/v1/chat/completions``."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from qkv.generation.decode.sample import TokenScore
from qkv.generation.decode.score import score_tokens
from qkv.serving.engine.model import ServedModel
from qkv.serving.engine.service import Service
from qkv.serving.errors import ApiError, as_api_error
from qkv.serving.http.answers import AnswerLayout, AskedTexts, ChoicesLayout, answer
from qkv.serving.http.forms import ChatForm, CompletionForm
from qkv.serving.http.reading import read_body, unless_dropped
from qkv.serving.requests.bodies import CompletionBody
from qkv.serving.requests.chats import ChatBody
from qkv.serving.requests.tools import CallForm, CallReader, call_form, call_or_answer, required_call
from qkv.system.errors import UserError


async def completions(http: HttpRequest, service: Service) -> Response:
    """Answer ``POST /v1/completions``: texts that continue prompts or, with an encoder, are generated from them."""
    body = await read_body(http, CompletionBody, service.limits)
    model = writer(service, body.model)
    texts, form = await asyncio.to_thread(_asked_to_continue, model, body, service)
    if body.echo and body.logprobs is not None:
        form.score_echoes(await unless_dropped(http, _prompt_scores(model, texts, body.logprobs)))
    return await answer(http, texts)


async def _prompt_scores(model: ServedModel, texts: AskedTexts, count: int) -> list[tuple[list[int], list[TokenScore]]]:
    """Score the prompt of each text; return (tokens, scores) of each. Prompts are scored one by one, so that other
    requests are decoded in between.
    """
    scores = dict[tuple[int, ...], list[TokenScore]]()
    for request in texts.requests:
        prompt = tuple(request.prompt)
        if prompt not in scores:
            scores[prompt] = await model.worker.call(partial(score_tokens, model.run.model, prompt, count))
    return [(list(request.prompt), scores[tuple(request.prompt)]) for request in texts.requests]


async def chat(http: HttpRequest, service: Service) -> Response:
    """Answer ``POST /v1/chat/completions``: the next messages of an assistant, or tool calls."""
    body = await read_body(http, ChatBody, service.limits)
    model = writer(service, body.model)
    texts = await asyncio.to_thread(asked_to_chat, model, body, service, ChoicesLayout())
    return await answer(http, texts)


def writer(service: Service, name: str | None) -> ServedModel:
    """Return the model ``name``. Raises ``ApiError`` if it does not generate text."""
    model = service.model(name)
    if not model.writes:
        can = ", ".join(model.to_dict()["capabilities"])
        sentence = f"the model {model.name!r} does not generate text; its capabilities: {can}"
        raise ApiError(sentence, param="model", code="no_text")
    return model


def _asked_to_continue(model: ServedModel, body: CompletionBody, service: Service) -> tuple[AskedTexts, CompletionForm]:
    echoes, requests, read = list[str](), [], 0
    try:
        prompts = [model.prompt(prompt) for prompt in body.prompt]
        for prompt, ids in zip(body.prompt, prompts, strict=True):
            several = model.requests(ids, body, body.max_tokens, body.structure)
            text = prompt if isinstance(prompt, str) else model.tokenizer.decode(ids)
            echoes += [text if body.echo else ""] * len(several)
            requests += several
            read += len(ids)
    except UserError as error:
        raise as_api_error(error, "prompt") from None
    if body.echo and body.logprobs is not None and model.run.model.encoder is not None:
        sentence = "echo: the prompt of a model with an encoder has no log-probabilities; leave echo or logprobs out"
        raise ApiError(sentence, param="echo", code="invalid_value")
    form = CompletionForm(model.tokenizer, body.alternatives is not None, echoes)
    return AskedTexts(model, body, form, requests, read, service.metrics, ChoicesLayout()), form


def asked_to_chat(model: ServedModel, body: ChatBody, service: Service, layout: AnswerLayout) -> AskedTexts:
    """Convert a chat request to requests for the model's queue, with the format of the answer. Raises ``ApiError``."""
    messages = body.to_template()
    most_new = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    variables = {**(body.chat_template_kwargs or {}), **({"tools": body.usable} if body.usable else {})}
    try:
        form = _call_form(model, body)
        opening = f"{form.begin}\n" if form and form.begin and body.required else ""
        spans, inputs = model.read_pictures(body.pictures)
        ids = model.chat_prompt(messages, variables, opening, spans)
        structure = body.structure
        if form and body.required:
            structure = required_call(body.required, form)
        elif form and structure:
            form = form._replace(begin="", end="")  # the answer is JSON: a call, or an object that the schema allows
            structure = call_or_answer(body.tools, form, structure)
        requests = model.requests(ids, body, most_new, structure, inputs)
    except UserError as error:
        raise as_api_error(error, "messages") from None
    most = 1 if body.parallel_tool_calls is False else None
    readers = [CallReader(form, body.names, bool(body.required), most) if form else None for _ in requests]
    answered = ChatForm(model.tokenizer, body.alternatives is not None, readers)
    return AskedTexts(model, body, answered, requests, len(ids), service.metrics, layout)


def _call_form(model: ServedModel, body: ChatBody) -> CallForm | None:
    """Return the text form in which the model writes tool calls; None if no tool may be called. Raises ``ApiError`` for
    a chat template that does not support tools.
    """
    called = any(message.calls for message in body.messages)
    if not (body.usable or called):
        return None
    if not model.template.reads_tools:
        param = "tools" if body.usable else "messages"
        raise ApiError(f"{param}: the chat template of the model {model.name!r} does not support tools", param=param)
    return call_form(model.template) if body.usable else None
