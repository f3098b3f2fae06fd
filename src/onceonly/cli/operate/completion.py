"""``onceonly completion``: what a shell needs to complete commands, options, groups and windows."""

from __future__ import annotations

import os
from pathlib import PurePath

import click
from click.shell_completion import get_completion_class

from onceonly.cli.common import Command, Exit, Refused

_SHELLS = ("bash", "zsh", "fish")


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
@click.pass_context
def completion(ctx: click.Context, *, shell: str | None) -> None:
    """Print the completion script for SHELL.

    Without SHELL for the one you are in. It completes commands, options and windows, and groups where
    ONCEONLY_STORE is set.

    \b
    bash:  eval "$(onceonly completion bash)"             in ~/.bashrc
    zsh:   eval "$(onceonly completion zsh)"              in ~/.zshrc
    fish:  onceonly completion fish | source              in config.fish
    """
    chosen = shell or PurePath(os.environ.get("SHELL", "")).name
    kind = get_completion_class(chosen) if chosen in _SHELLS else None
    if kind is None:
        msg = f"which shell? Name one of {', '.join(_SHELLS)}"
        raise Refused(msg, Exit.USAGE)
    whole = ctx.find_root()
    click.echo(kind(whole.command, {}, "onceonly", "_ONCEONLY_COMPLETE").source())
