"""Methods that run a plan: a blocking one, and a coroutine. The logic is the plan's alone."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..session import Plan
from ..wire import Answer

Arguments = ParamSpec("Arguments")
Owner = TypeVar("Owner")


def blocking(
    plan: Callable[Concatenate[Owner, Arguments], Plan[Answer]],
) -> Callable[Concatenate[Any, Arguments], Answer]:
    """A blocking method that runs ``plan``. Its signature and docstring are the plan's."""

    @wraps(plan)
    def read(owner: Any, /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Answer:
        answer: Answer = owner._run(plan(owner, *arguments, **options))
        return answer

    return read


def awaiting(
    plan: Callable[Concatenate[Owner, Arguments], Plan[Answer]],
) -> Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Answer]]:
    """A coroutine method that runs ``plan``. Its signature and docstring are the plan's."""

    @wraps(plan)
    async def read(owner: Any, /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Answer:
        answer: Answer = await owner._run(plan(owner, *arguments, **options))
        return answer

    return read
