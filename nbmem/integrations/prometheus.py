"""Export the cards of a running kernel to Prometheus.

They are served as text, as a collector, or at a port.

Nothing is read between two scrapes. A scrape reads counters in its own thread. The thread does not
use the kernel, touches no tensor, and starts CUDA on no card. An unknown figure is left out, as
Prometheus requires: never 0.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.core.runtime.entry_points import entry, fault_note

if TYPE_CHECKING:
    from nbmem.frontends.sidebar.card_reader import CardReader
    from nbmem.frontends.sidebar.messages import CardSample

logger = logging.getLogger("nbmem")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of the text format: https://prometheus.io/docs/instrumenting/exposition_formats/"""


class Family(NamedTuple):
    """One metric: a gauge in bytes.

    Attributes:
        name: `nbmem_allocated_bytes`.
        meaning: One sentence.
        rows: Labels and bytes.
    """

    name: str
    meaning: str
    rows: tuple[tuple[dict[str, str], int], ...]


FIGURES = (
    ("nbmem_allocated_bytes", "allocated", "Bytes in live blocks of torch's allocator."),
    ("nbmem_peak_allocated_bytes", "peak", "Highest allocated bytes, by torch's own counter."),
    ("nbmem_reserved_bytes", "reserved", "Bytes that torch holds from the driver."),
    ("nbmem_process_bytes", "process", "What the driver counts for this process."),
    ("nbmem_free_bytes", "free", "Bytes of the card that nobody uses."),
    ("nbmem_card_bytes", "total", "The whole card."),
)
"""(metric, field of a CardSample, meaning)"""
BY_CATEGORY = ("nbmem_category_bytes", "Allocated bytes by category, while a trace runs.")


class CardMetrics:
    """A reader of the cards from which torch holds memory.

    One reader serves one scrape after the other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reader: CardReader | None = None

    def families(self) -> list[Family]:
        """Return every metric; without rows before torch holds card memory."""
        samples = self._read()
        found = [Family(name, meaning, _rows(samples, field)) for name, field, meaning in FIGURES]
        return [*found, Family(*BY_CATEGORY, tuple(_by_category(samples)))]

    def _read(self) -> tuple[CardSample, ...]:
        if "torch" not in sys.modules:
            return ()
        from nbmem.api.tracing import running_recorder
        from nbmem.frontends.sidebar.card_reader import CardReader

        with self._lock:
            if self._reader is None:
                self._reader = CardReader()
            recorder = running_recorder()
            found = self._reader.read(None if recorder is None else recorder.progress())
            return tuple(replace(one, peak=self._reader.torchs_peak(one)) for one in found)


_cards = CardMetrics()


def text() -> str:
    """Return the cards in Prometheus's text format.

    Use it for an endpoint or a `.prom` file of your own.
    """
    return "".join(_written(family) for family in _cards.families())


class Collector:
    """A collector for a registry of prometheus_client.

    Usage: `REGISTRY.register(Collector())`.
    """

    @entry("this scrape", otherwise=lambda _self: iter(()))
    def collect(self) -> Iterator[Any]:
        """Return the metrics of a scrape."""
        return iter([_gauge(family) for family in _cards.families()])

    def on_fault(self, part: str, err: BaseException) -> None:
        """Warn of what nbmem lost; other collectors of the registry go on."""
        logger.warning("%s", fault_note(part, err))


def serve(port: int = 9400, host: str = "127.0.0.1") -> ThreadingHTTPServer:
    """Serve the text at `http://HOST:PORT/metrics` in a thread.

    It runs until `.shutdown()`, or until the kernel ends.

    Args:
        port: The port; 0 for any free one (then `server_port`).
        host: The address; the default is for this machine alone.

    Raises:
        OSError: The port is in use, or not allowed.
    """
    server = ThreadingHTTPServer((host, port), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="nbmem metrics", daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    """A handler that answers `GET /metrics`, and nothing else."""

    @entry("this scrape")
    def do_GET(self) -> None:
        """Answer a scrape."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        body = text().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        """Write nothing: stderr is the notebook's."""

    def on_fault(self, part: str, err: BaseException) -> None:
        """Warn of what nbmem lost; Prometheus sees a scrape that failed."""
        logger.warning("%s", fault_note(part, err))


def _rows(samples: tuple[CardSample, ...], field: str) -> tuple[tuple[dict[str, str], int], ...]:
    found = (({"card": str(card.index)}, getattr(card, field)) for card in samples)
    return tuple((labels, size) for labels, size in found if size is not None)


def _by_category(samples: tuple[CardSample, ...]) -> Iterator[tuple[dict[str, str], int]]:
    for card in samples:
        for key, _, size in card.by_category:
            yield {"card": str(card.index), "category": key}, size


def _written(family: Family) -> str:
    head = f"# HELP {family.name} {family.meaning}\n# TYPE {family.name} gauge\n"
    rows = [f"{family.name}{{{_labels(labels)}}} {size}\n" for labels, size in family.rows]
    return head + "".join(rows)


def _labels(labels: dict[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


def _gauge(family: Family) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    labels = list(family.rows[0][0]) if family.rows else []
    gauge = GaugeMetricFamily(family.name, family.meaning, labels=labels)
    for row, size in family.rows:
        gauge.add_metric(list(row.values()), size)
    return gauge
