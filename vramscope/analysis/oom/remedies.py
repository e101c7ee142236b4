"""What would have helped a run that ran out of memory, the surest first, and the command to try."""

import shlex
from dataclasses import dataclass

from vramscope.analysis.oom.cause import Room
from vramscope.analysis.settings_advice import SettingsAdvice, settings_advice
from vramscope.analysis.shared_results import shared_results
from vramscope.analysis.strategies import strategies
from vramscope.analysis.verdicts.missing import ended_short
from vramscope.model.cards import card_named
from vramscope.model.recording import Recording

_MOST_STRATEGIES = 4


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change that would have made room."""

    name: str
    how: str
    """The line to set or to write."""
    saved_bytes: int | None
    """Bytes by which the peak falls; None where the change moves free pieces together instead."""
    cost: str
    """What it costs; '' where nothing is known to."""
    basis: str
    """What the claim rests on."""
    is_replayed: bool = False
    """Whether the recorded requests were replayed with it and all were served, the one that failed too."""


@dataclass(frozen=True, slots=True)
class Remedies:
    """What would have helped, and the command to try."""

    lacking_bytes: int
    """Bytes that were lacking for the request that failed last; −1 where that is not recorded."""
    remedies: tuple[Remedy, ...] = ()
    no_setting: str = ""
    """Why no allocator setting is among the remedies; '' if one is."""
    command: str = ""
    """The command of the run, with the setting that helps; '' where the recording has no command."""


def remedies(recording: Recording, room: Room | None = None) -> Remedies:
    """Try every allocator setting and strategy on a recording: some 20 s per million events.

    *room* is None where the distribution of the device's bytes is not known. Returns those that help.
    """
    with shared_results():
        advice = settings_advice(recording)
        found = strategies(recording)
        helps = _settings(recording, advice)
        environment = advice.environment if helps else ""
        for each in found.advised[:_MOST_STRATEGIES]:
            helps = (*helps, Remedy(each.name, each.how, each.saved_bytes, each.cost, each.basis))
        return Remedies(
            lacking_bytes=-1 if room is None else max(room.over_limit_bytes, room.lacking_bytes),
            remedies=helps,
            no_setting="" if advice.advised else advice.reason,
            command=_command(recording, environment),
        )


def _settings(recording: Recording, advice: SettingsAdvice) -> tuple[Remedy, ...]:
    trial = advice.advised
    if trial is None or not trial.outcome.fits:
        return ()
    served = "the request that failed" if ended_short(recording) else "every request that failed"
    call = trial.candidate.call
    how = call if trial.candidate.empty_cache_after else "; ".join(filter(None, (advice.environment, call)))
    basis = f"replay of the recorded requests: {served} is served"
    return (Remedy(trial.candidate.name, how, None, "", basis, is_replayed=True),)


def _command(recording: Recording, environment: str) -> str:
    """Return a line for the shell; the recorded command of a script leaves out ``python``.

    A dry run is run dry again, for the same card and with its options: the machine need not have one.
    """
    command, device = recording.process.command, recording.device
    if not command:
        return ""
    name, _, value = environment.partition("=")
    words = [f"{name}={shlex.quote(value)}"] if environment else []
    if recording.source == "predicted":
        card = card_named(device.name)
        words += ["vramscope", "predict", "--card", shlex.quote(device.name)]
        if card is None or card.total_bytes != device.total_bytes:
            words += ["--capacity", f"{device.total_bytes}B"]
        words += [recording.process.dry_run] if recording.process.dry_run else []
    elif command.split(" ", 1)[0].endswith(".py"):
        words.append("python")
    return " ".join([*words, command])
