"""Completion for bash, zsh and fish, printed from the parsers of the commands."""

from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path

from vramscope.commands import Command, described

_ZSH = """\
#compdef vramscope
autoload -U +X compinit && compinit
autoload -U +X bashcompinit && bashcompinit
"""


def run(args: Namespace) -> int:
    """Print the script of completion for a shell; return the exit code."""
    from vramscope import commands, registry

    offered = registry.parts(commands, Command, refused=lambda *_: None)
    parsers = {name: _parser(command) for name, command in offered.items()}
    print(_SHELLS[args.shell](parsers), end="")
    return 0


def _parser(command: Command) -> ArgumentParser:
    parser = ArgumentParser(command.name, description=command.help)
    command.arguments(parser)
    return parser


def _options(parser: ArgumentParser) -> list[Action]:
    """The options of a command that its help shows."""
    return [action for action in parser._actions if action.option_strings and action.help != SUPPRESS]


def _choices(action: Action) -> str:
    return " ".join(map(str, action.choices or ()))


def _plain(text: str | None) -> str:
    """A text that no shell takes for anything else."""
    return "".join(letter if letter not in "'\"[]:$`\\" else " " for letter in text or "")


def _bash(parsers: Mapping[str, ArgumentParser]) -> str:
    choices = [
        f'  "{name} {option}") known="{_choices(action)}" ;;'
        for name, parser in parsers.items()
        for action in _options(parser)
        for option in action.option_strings
        if action.choices
    ]
    flags = {
        name: " ".join(option for action in _options(parser) for option in action.option_strings)
        for name, parser in parsers.items()
    }
    options = [f'    {name}) known="{of}" ;;' for name, of in flags.items()]
    script = Path(__file__).with_suffix(".bash").read_text(encoding="utf-8")
    for name, lines in (("commands", [" ".join(parsers)]), ("choices", choices), ("options", options)):
        script = script.replace(f"@{name}@", "\n".join(lines))
    return script


def _fish(parsers: Mapping[str, ArgumentParser]) -> str:
    lines = ["complete -c vramscope -n __fish_use_subcommand -f"]
    for name, parser in parsers.items():
        lines.append(
            f"complete -c vramscope -n __fish_use_subcommand -a {name} -d '{_plain(parser.description)}'"
        )
        for action in _options(parser):
            flags = " ".join(
                f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
                for option in action.option_strings
            )
            value = f" -x -a '{_choices(action)}'" if action.choices else "" if action.nargs == 0 else " -r"
            where = f"-n '__fish_seen_subcommand_from {name}'"
            about = _plain((action.help or "") % {"choices": _choices(action)})
            lines.append(f"complete -c vramscope {where} {flags}{value} -d '{about}'")
    return "\n".join(lines) + "\n"


_SHELLS = {"bash": _bash, "zsh": lambda parsers: _ZSH + _bash(parsers), "fish": _fish}

COMMAND = described("completion", run)
