"""Answers to questions about pictures: in a chat, or of a run whose inputs are pictures and a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from qkv.data.records.conversations.contents import with_pictures
from qkv.runs.chats.chat import open_model
from qkv.runs.inference.predict import predict
from qkv.runs.run import Run, task_of
from qkv.system.errors import UserError

if TYPE_CHECKING:
    from qkv.runs.chats.model import ChatModel, RunningAnswer

_WAY_OUT = "'qkv chat' reads one from a file, with --chat-template FILE and /image FILE"


class PictureQuestions:
    """Model that answers questions about pictures.

    A model with a chat template reads a message that begins with the pictures. Any other model reads a row of its run's
    inputs: pictures and one text.
    """

    def __init__(self, run: Run):
        """Raises ``UserError`` for a model that reads no pictures beside a text."""
        data = run.recipe.data
        self.run, self.text = run, data.text_input
        self.pictures = [name for name, each in data.processors.items() if each.of_images] if data.inputs else []
        if not self.pictures or not self.text:
            raise UserError(
                f"{run.folder} answers no questions about pictures: it does not read both, pictures and text"
            )

    @property
    def chats(self) -> bool:
        """True if the model answers in a chat."""
        has_template = self.run.tokenizer.chat_template is not None
        return has_template or not {*self.pictures, self.text} <= {*task_of(self.run).asks}

    @cached_property
    def model(self) -> ChatModel:
        """Model of the chats. Raises ``UserError`` if it has no chat template."""
        return open_model(self.run, way_out=_WAY_OUT)

    def answer(self, question: str, pictures: Sequence[Any]) -> RunningAnswer:
        """Begin the answer to a question about pictures: names of files, data URIs, or images in memory.

        Raises ``UserError``.
        """
        try:
            content = with_pictures(question, pictures)
        except ValueError as error:
            raise UserError(f"images: {error}") from None
        return self.model.answer([{"role": "user", "content": content}])

    def predict(self, question: str, pictures: Sequence[Any]) -> dict[str, Any]:
        """Predict from one row: the question, and one picture for each picture input of the run, in this order.

        Raises ``UserError``.
        """
        if len(pictures) != len(self.pictures):
            names = ", ".join(self.pictures)
            raise UserError(f"images: {len(pictures)} given, but {self.run.folder} reads one each for {names}")
        assert self.text is not None
        (answer,) = predict(self.run, [{**dict(zip(self.pictures, pictures, strict=True)), self.text: question}])
        return answer


def ask_about(run: Run, questions: Sequence[str], pictures: Sequence[Any]) -> list[dict[str, Any]]:
    """Answer questions about pictures; return mappings with ``answer`` and ``probabilities`` of labels, None if the
    answer is written. Raises ``UserError``.
    """
    model = PictureQuestions(run)
    if model.chats:
        return [{"answer": _whole(model.answer(each, pictures)), "probabilities": None} for each in questions]
    return [_plain(model.predict(each, pictures)) for each in questions]


def _whole(answer: RunningAnswer) -> str:
    for _ in answer:
        pass
    return answer.whole.content


def _plain(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {"answer": answer["answer"], "probabilities": answer.get("probabilities")}
