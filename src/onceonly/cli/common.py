"""What the commands share: options and their environment twins, exit codes, errors, safe text."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from onceonly.errors import ConfigurationError, InFlight, InvalidKey, OnceonlyError, StoreError
from onceonly.protocols import Store
from onceonly.settings import check_name
from onceonly.stores import open_store
from onceonly.windows import seconds

F = TypeVar("F", bound=Callable[..., Any])


class Exit(IntEnum):
    """What a script can tell from a command's end. A signal ends it with 128 + its number."""

    DONE = 0
    NOTHING = 1  # nothing was found, or nothing was to be done
    USAGE = 2  # an option or setting is wrong
    STORE = 3  # the store could not be reached, or it or an output could not be written
    IN_FLIGHT = 4  # a live claim is in the way
    INPUT = 5  # the input is malformed


_INTERRUPTED, _BROKEN_PIPE = 128 + 2, 128 + 13  # as the shell tells it


class Refused(click.ClickException):
    """An error of ours, told in one line."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(message)
        self.exit_code = int(code)  # type: ignore[misc]


def refused(error: OnceonlyError) -> Refused:
    if isinstance(error, InFlight):
        return Refused(str(error), Exit.IN_FLIGHT)
    if isinstance(error, InvalidKey):
        return Refused(str(error), Exit.USAGE)
    return Refused(str(error), Exit.STORE if isinstance(error, StoreError) else Exit.USAGE)


@contextmanager
def told() -> Iterator[None]:
    """Errors of the library and of the outputs become errors of the command: one line, an exit code, no
    traceback."""
    try:
        yield
    except OnceonlyError as error:
        raise refused(error) from error
    except KeyboardInterrupt:  # click would end with 1, which says that there was nothing to do
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:  # the reader has left, and needs no more
        _drop_output()
        sys.exit(_BROKEN_PIPE)
    except OSError as error:
        _drop_output()
        msg = f"{error.filename or 'the standard output'}: {error.strerror}"
        raise Refused(msg, Exit.STORE) from error


def _drop_output() -> None:
    """What Python still holds for the standard output cannot be written, and it would try at the end."""
    with suppress(OSError, AttributeError), Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


class Command(click.Command):
    """A command whose errors are :func:`told`."""

    def invoke(self, ctx: click.Context) -> Any:
        with told():
            return super().invoke(ctx)


class Group(click.Group):
    """A group of such commands; it may be called without one, and has options that its commands inherit."""

    command_class = Command

    def invoke(self, ctx: click.Context) -> Any:
        with told():
            return super().invoke(ctx)


def _inherited(ctx: click.Context, parameter: click.Parameter, value: object) -> object:
    """``onceonly claims --store X release`` is the same as ``onceonly claims release --store X``."""
    name = parameter.name or ""
    above = {} if ctx.parent is None else ctx.parent.params
    if name in above and ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
        return above[name]
    return value


def refuse_unheard(ctx: click.Context) -> None:
    """An option before a subcommand that does not have it would be ignored, and the operator not know."""
    group, name = ctx.command, ctx.invoked_subcommand or ""
    chosen = group.commands[name] if isinstance(group, click.Group) else group
    heard = {option.name for option in chosen.params if option.callback is _inherited}
    for option in group.params:
        given = ctx.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if given and option.name not in heard:
            msg = f"{option.opts[0]} before {name!r} would do nothing: put what {name!r} has behind it"
            raise click.UsageError(msg)


def complete_group(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Group names, if a store was given. A shell that completes must never see an error."""
    with suppress(Exception), opened(ctx.params.get("store")) as store:
        return [name for name in store.groups() if name.startswith(incomplete)]
    return []


def among(store: Store, group: str | None) -> str:
    """For an answer that is empty: in which group, and which there are. A typo is no good news."""
    names = store.groups()
    if group is None or group in names:
        return "" if group is None else f" in group {group!r}"
    there = f"the store has {', '.join(names)}" if names else "the store has none"
    return f" in group {group!r}, and no record of that group at all; {there}"


def length(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """A callback: a duration such as 15m. A wrong one is told by its option, or by its variable."""
    try:
        return None if value is None else seconds(value, name="duration")
    except ConfigurationError as error:
        raise click.BadParameter(str(error), ctx, parameter) from error


def give_twins(command: click.Command, prefix: str = "ONCEONLY") -> None:
    """Let every option be set in the environment, under the name that a user types."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.envvar is None and parameter.expose_value:
            flag = max(parameter.opts, key=len).lstrip("-").replace("-", "_")
            parameter.envvar, parameter.show_envvar = f"{prefix}_{flag}".upper(), True
    for each in getattr(command, "commands", {}).values():
        give_twins(each, f"{prefix}_{each.name}")


def store_option(fn: F) -> F:
    return click.option(
        "--store",
        metavar="URL",
        envvar="ONCEONLY_STORE",
        show_envvar=True,
        callback=_inherited,
        help="The store of your workers, such as sqlite:///payments.db",
    )(fn)


def group_option(fn: F) -> F:
    return click.option(
        "--group",
        metavar="NAME",
        envvar="ONCEONLY_GROUP",
        show_envvar=True,
        callback=_inherited,
        shell_complete=complete_group,
        help="Who processes the messages.",
    )(fn)


def json_option(fn: F) -> F:
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        envvar="ONCEONLY_JSON",
        show_envvar=True,
        callback=_inherited,
        help="For machines.",
    )(fn)


@contextmanager
def opened(url: str | None, *, create: bool = False, bulk: bool = False) -> Iterator[Store]:
    """The store by URL, closed at the end. One that is not there yet is an error unless it may be created."""
    if not url:
        msg = "no store given: pass --store sqlite:///payments.db, or set ONCEONLY_STORE"
        raise Refused(msg, Exit.USAGE)
    try:
        store = open_store(url, create=create, bulk=bulk)
    except ConfigurationError as error:
        msg = f"{error}{_from_environment('store')}"
        raise Refused(msg, Exit.USAGE) from error
    try:
        yield store
    finally:
        store.close()


def needed_group(group: str | None) -> str:
    if group is None:
        msg = "no group given: pass --group NAME, or set ONCEONLY_GROUP"
        raise Refused(msg, Exit.USAGE)
    try:
        return check_name("group", group)
    except ConfigurationError as error:
        msg = f"{error}{_from_environment('group')}"
        raise Refused(msg, Exit.USAGE) from error


def _from_environment(option: str) -> str:
    ctx = click.get_current_context(silent=True)
    source = ctx and ctx.get_parameter_source(option)
    return f" (from ONCEONLY_{option.upper()})" if source is ParameterSource.ENVIRONMENT else ""


def safe(text: str) -> str:
    """Keys and names come from messages: nothing in them may steer a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
