"""Logs go to stderr through structlog, as JSON lines or, on a terminal, as coloured text."""

from __future__ import annotations

import logging
import sys
from io import StringIO
from typing import Literal, TextIO

import structlog

from tokens.errors import printable

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
        else [_printable, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_traceback)]
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


def _printable(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Names and texts of others are in lines: a terminal must not obey them, nor may they look like lines of ours."""
    return {name: printable(value) if isinstance(value, str) else value for name, value in event.items()}


def _traceback(out: TextIO, raised: structlog.typing.ExcInfo) -> None:
    """Not rich's: it shows local variables, so passwords and rows. Indented: a message may have lines."""
    text = StringIO()
    structlog.dev.plain_traceback(text, raised)
    out.write("\n".join(f"  {printable(line)}" if line else "" for line in text.getvalue().split("\n")))
