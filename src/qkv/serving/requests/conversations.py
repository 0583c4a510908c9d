"""Messages of earlier responses, which a request continues by ``previous_response_id``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from qkv.serving.errors import ApiError
from qkv.serving.limits import MAX_RESPONSES, RESPONSE_BYTES
from qkv.serving.requests.chats import ChatMessage

Messages = tuple[ChatMessage, ...]


class Conversations:
    """Messages up to the end of the latest responses, in memory, by the id of the response.

    At most ``MAX_RESPONSES`` responses with ``RESPONSE_BYTES`` bytes are kept; the oldest are removed first.
    """

    def __init__(self, most: int = MAX_RESPONSES, most_bytes: int = RESPONSE_BYTES):
        self._most, self._most_bytes, self._nbytes = most, most_bytes, 0
        self._messages: OrderedDict[str, tuple[Messages, int]] = OrderedDict()

    def add(self, name: str, messages: Sequence[ChatMessage]) -> None:
        """Keep the messages of the response ``name``, its own included."""
        size = sum(len(message.model_dump_json()) for message in messages)
        self._messages[name] = (tuple(messages), size)
        self._nbytes += size
        while len(self._messages) > self._most or self._nbytes > self._most_bytes:
            _, (_, removed) = self._messages.popitem(last=False)
            self._nbytes -= removed

    def find(self, name: str) -> Messages:
        """Return the messages of the response ``name``. Raises ``ApiError``."""
        if name not in self._messages:
            sentence = (
                f"previous_response_id: there is no response {name!r}; this server keeps the latest {self._most:,} in "
                "memory, without those with store false; send the earlier items in input"
            )
            raise ApiError(sentence, 404, param="previous_response_id", code="previous_response_not_found")
        return self._messages[name][0]
