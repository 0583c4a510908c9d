"""``/v1/completions`` and ``/v1/chat/completions``."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

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
from qkv.serving.requests.effects import tell
from qkv.serving.requests.structure import Structure
from qkv.serving.requests.tools import call_or_answer, plain_calls, required_call
from qkv.system.errors import UserError
from qkv.tokenizers.answers.form import NO_TOOLS, AnswerForm, calls_of
from qkv.tokenizers.answers.reader import AnswerReader


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
    http.state.ignored += texts.ignored
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
    most_new = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    try:
        form = _answer_form(model, body)
        messages, (variables, ignored) = form.to_template(body.to_template()), template_variables(model, body)
        structure, form, begin = _structure(model, body, form)
        spans, inputs = model.read_pictures(body.pictures)
        ids = model.chat_prompt(messages, variables, "", spans)
        end = model.prompt_end(ids)
        constrained = form.thinking is not None and structure is not None and not body.continues
        opening = (form.thinking.closing(end, call=bool(begin)) if form.thinking and constrained else "") + begin
        if opening:
            ids = model.chat_prompt(messages, variables, opening, spans)
        requests = model.requests(ids, body, most_new, structure, inputs, model.chat_ends)
    except UserError as error:
        raise as_api_error(error, "messages") from None

    def reader() -> AnswerReader:
        answer_reader = form.reader(end, body.usable or (), 1 if body.parallel_tool_calls is False else None)
        if body.continues and form.thinking is not None:
            answer_reader.begin(form.thinking.header)
        answer_reader.begin(body.start + opening)
        return answer_reader

    answered = ChatForm(model.tokenizer, body.alternatives is not None, reader, len(requests))
    tell(ignored, body, service.limits.strict)
    return AskedTexts(model, body, answered, requests, len(ids), service.metrics, layout, ignored)


def _structure(model: ServedModel, body: ChatBody, form: AnswerForm) -> tuple[Structure | None, AnswerForm, str]:
    """Return the constraint of the answers, the form in which they are read, and the text with which a required call
    begins.
    """
    if not body.usable:
        return body.structure, form, ""
    calls = calls_of(model.template, form)
    if body.required:
        return required_call(body.required, calls), form, f"{calls.begin}{calls.gap}"
    if body.structure:  # the answer is JSON: a call, or an object that the schema allows
        plain = plain_calls(calls)
        return call_or_answer(body.tools, plain, body.structure), replace(form, calls=plain), ""
    return None, form, ""


def _answer_form(model: ServedModel, body: ChatBody) -> AnswerForm:
    """Return the form of the model's answers. Raises ``ApiError`` for a chat with tools whose template does not support
    them.
    """
    called = any(message.calls for message in body.messages)
    if (body.usable or called) and not model.template.reads_tools:
        param = "tools" if body.usable else "messages"
        raise ApiError(f"{param}: {NO_TOOLS}", param=param, code="invalid_value")
    return model.answer_form


def template_variables(model: ServedModel, body: ChatBody) -> tuple[dict[str, Any], list[str]]:
    """Return (variables of the chat template that a request sets, parameters that the template does not read).

    ``reasoning_effort`` is the variable of that name or, in a template that only switches reasoning on and off,
    "none" switches it off.
    """
    template, variables = model.template, dict(body.chat_template_kwargs or {})
    ignored = [f"chat_template_kwargs.{name}" for name in variables if not template.reads(name)]
    switch = next((name for name in ("enable_thinking", "thinking") if template.reads(name)), None)
    for name, value in (("reasoning_effort", body.reasoning_effort), ("enable_thinking", body.enable_thinking)):
        if value is None:
            continue
        if template.reads(name):
            variables.setdefault(name, value)
        elif switch:
            variables.setdefault(switch, value not in ("none", False))
        else:
            ignored.append(name)
    if body.continues or body.add_generation_prompt is False:
        variables["add_generation_prompt"] = False
    return {**variables, **({"tools": body.usable} if body.usable else {})}, ignored
