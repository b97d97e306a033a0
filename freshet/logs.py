"""Logs go to stderr through structlog, as JSON lines or, on a terminal, as coloured text."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

Format = Literal["auto", "json", "console"]
_OF_STORAGE = ("aiobotocore", "boto3", "botocore", "fsspec", "s3fs")
"""At level debug they show how requests are signed."""
configured: tuple[Format, str] = ("auto", "info")
"""As `configure_logs` was called last, so that processes started from here log alike."""


def configure_logs(format: Format = "auto", level: str = "info") -> None:
    """Set up structlog and the standard library's logging (of libraries) for this process.

    ``auto``: console if stderr is a terminal, else JSON lines with ``timestamp`` (UTC), ``level``,
    ``event``, ``logger`` and the event's own fields.
    """
    global configured
    configured = format, level
    as_json = format == "json" or (format == "auto" and not sys.stderr.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
        if as_json
        # Not rich's traceback: it shows local variables, so passwords and rows.
        else [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for chatty in ("urllib3", "httpx2", "httpcore2", "jgo", "py4j", "asyncio", "uvicorn.access", *_OF_STORAGE):
        logging.getLogger(chatty).setLevel(max(number, logging.WARNING))
