"""Metrics in the format of Prometheus."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from qkv.generation.queue.requests import TextDelta
from qkv.serving.engine.worker import LoadCounts, Mailbox, Worker

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
GAUGES: Mapping[str, tuple[str, Callable[[LoadCounts], int]]] = {
    "qkv_requests_running": ("Texts that are being generated.", lambda counts: counts.running),
    "qkv_requests_waiting": ("Waiting texts, embeddings and predictions.", lambda counts: counts.waiting),
    "qkv_state_bytes": ("Bytes of decoding states.", lambda counts: counts.nbytes),
    "qkv_kept_state_bytes": ("Bytes of states in the prefix cache.", lambda counts: counts.kept),
}
"""Gauges read from a worker at each scrape."""
COUNTERS: Mapping[str, tuple[str, Callable[[LoadCounts], int]]] = {
    "qkv_shared_prompts": ("Prompts that started from the prefix cache.", lambda counts: counts.hits),
    "qkv_shared_prompt_tokens": ("Prompt tokens found in the prefix cache.", lambda counts: counts.shared),
}
"""Counters read from a worker at each scrape."""


class Metrics:
    """Metrics of a server, in a separate Prometheus registry."""

    def __init__(self, workers: Mapping[str, Worker], weight_bytes: int):
        """``workers``: workers by the name of their model. ``weight_bytes``: bytes of the weights of all models."""
        self.registry = CollectorRegistry()
        Gauge("qkv_weight_bytes", "Bytes of the weights of all models.", registry=self.registry).set(weight_bytes)
        self.registry.register(_OfWorkers(workers))
        self._http = Counter(
            "qkv_http_requests", "HTTP requests by path and status.", ["path", "status"], registry=self.registry
        )
        self._read = Counter("qkv_prompt_tokens", "Prompt tokens.", ["model"], registry=self.registry)
        self._written = Counter("qkv_generated_tokens", "Generated tokens.", ["model"], registry=self.registry)
        self._finished = Counter(
            "qkv_texts", "Finished texts by reason of their end.", ["model", "reason"], registry=self.registry
        )
        self._first = Histogram(
            "qkv_first_token_seconds",
            "Time from a request to its first token.",
            ["model"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self._whole = Histogram(
            "qkv_request_seconds",
            "Time from a request to its last token.",
            ["model"],
            registry=self.registry,
            buckets=_SECONDS,
        )

    def count_http(self, path: str, status: int) -> None:
        """Count an HTTP request."""
        self._http.labels(path, str(status)).inc()

    def count_read(self, model: str, tokens: int) -> None:
        """Count tokens of texts to embed."""
        self._read.labels(model).inc(tokens)

    def count_texts(self, model: str, reason: str, number: int = 1) -> None:
        """Count ``number`` texts that ended for ``reason``."""
        if number:
            self._finished.labels(model, reason).inc(number)

    async def watched(
        self, model: str, read: int, mailbox: Mailbox, begun: float
    ) -> AsyncIterator[tuple[int, TextDelta]]:
        """Yield the pieces of ``mailbox``, and record tokens and times. read: number of prompt tokens. begun: time at
        which the request arrived, by ``time.monotonic``.
        """
        self._read.labels(model).inc(read)
        first = True
        async for index, piece in mailbox:
            if first and piece.tokens:
                self._first.labels(model).observe(time.monotonic() - begun)
                first = False
            self._written.labels(model).inc(len(piece.tokens))
            if piece.finished:
                self.count_texts(model, piece.finished)
            yield index, piece
        self._whole.labels(model).observe(time.monotonic() - begun)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


class _OfWorkers(Collector):
    def __init__(self, workers: Mapping[str, Worker]):
        self._workers = workers

    def collect(self) -> Iterable[Metric]:
        return self._families()

    def _families(self) -> Iterator[Metric]:
        counts = {model: worker.counts for model, worker in self._workers.items()}
        for kind, table in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, (description, value) in table.items():
                family = kind(name, description, labels=["model"])
                for model, count in counts.items():
                    family.add_metric([model], value(count))
                yield family
