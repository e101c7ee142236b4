"""The answer of ``vramscope fit`` for machines: schema 1, of which fields are only ever added."""

from dataclasses import asdict
from typing import Any

from vramscope.analysis.fit import BASIS
from vramscope.analysis.fit.answer import FitAnswer, Placed, Reruns, differs_from_recorded
from vramscope.analysis.strategies import NOT_ESTIMATED, Strategies
from vramscope.analysis.what_if import ReplayResult
from vramscope.model.cards import BASIS as CARDS_BASIS
from vramscope.model.cards import Card


def as_json(answers: list[FitAnswer]) -> dict[str, Any]:
    """Return schema 1, of which fields are only ever added; the first answer is the whole one."""
    answer = answers[0]
    return {
        "schema": 1,
        "recordings": [_recording(each) for each in answers],
        "rank": answer.rank,
        "device": answer.device,
        "outside_bytes": answer.outside_bytes,
        "outside_is_measured": answer.is_outside_measured,
        "limit_bytes": answer.limit_bytes,
        "growth": answer.growth or None,
        "settings": _settings(answer),
        "conf": None if answer.as_asked is None else _outcome(answer, answer.as_asked),
        "cards": [
            {
                "card": each.target.label,
                "capacity_bytes": each.target.total_bytes,
                "verdict": each.verdict.value,
                "reason": each.reason or None,
                "as_it_is": _outcome(answer, each.plain) | {"fits": each.verdict.fits},
                "advised": each.chosen and _outcome(answer, each.chosen),
            }
            for each in answer.placed
        ],
        "smallest_card": {
            "as_it_is": _card(answer.smallest_card),
            "advised": _card(answer.smallest_card_chosen),
            "basis": CARDS_BASIS,
        },
        "batch": _batch(answer),
        "strategies": answer.strategies and _strategies(answer.strategies),
        "reruns": answer.reruns and _reruns(answer.reruns, answer.recorded_allocated_bytes),
        "prediction": answer.prediction and answer.prediction.to_json(),
        "basis": BASIS,
    }


def _recording(answer: FitAnswer) -> dict[str, Any]:
    first: Placed | None = answer.placed[0] if answer.placed else None
    outcome = first.plain if first else answer.as_recorded
    ending = answer.ending if answer.is_open else ""
    return {
        "rank": answer.rank,
        "device": answer.device,
        "fits": answer.fits,
        "verdict": first.verdict.value if first else None,
        "reason": answer.problem or (first.reason if first else "") or ending or None,
        "recorded_peak_reserved_bytes": None if answer.problem else answer.recorded_peak_bytes,
        "capacity_bytes": first and first.target.total_bytes,
        "is_reproduced": None if answer.problem else answer.is_reproduced,
        "recorded_peak_allocated_bytes": None if answer.problem else answer.recorded_allocated_bytes,
        "is_lower_bound": None if answer.problem else answer.is_open,
        "as_it_is": outcome and _outcome(answer, outcome) | {"fits": answer.fits},
    }


def _settings(answer: FitAnswer) -> dict[str, Any] | None:
    found = answer.settings
    if found is None:
        return None
    return {
        "recorded_peak_reserved_bytes": found.recorded_peak_bytes,
        "is_reproduced": answer.is_reproduced,
        "as_it_is": _outcome(answer, found.base),
        "trials": [
            {"name": trial.candidate.name, "conf": trial.candidate.conf} | _outcome(answer, trial.outcome)
            for trial in found.trials
        ],
        "advised": found.advised and found.advised.candidate.name,
        "reason": found.reason,
        "environment": found.environment or None,
        "call": (found.advised and found.advised.candidate.call) or None,
    }


def _outcome(answer: FitAnswer, outcome: ReplayResult) -> dict[str, Any]:
    # Without a card, or without the end of the run, nothing fits for certain.
    is_decided = not outcome.fits or (answer.placed and not answer.ending)
    return {
        "fits": outcome.fits if is_decided else None,
        "capacity_bytes": outcome.capacity_bytes,
        "peak_reserved_bytes": outcome.peak_reserved_bytes,
        "peak_allocated_bytes": outcome.peak_allocated_bytes,
        "segments": outcome.n_segments - outcome.n_mappings,
        "mappings": outcome.n_mappings,
        "retries": outcome.n_retries,
        "failed_at_event": outcome.failed_at,
        "failed_bytes": outcome.failed_bytes,
        "failed_where": None if outcome.failed_at is None else answer.moments.get(outcome.failed_at),
        "in_use_then_bytes": outcome.failed_requested_bytes,
    }


def _batch(answer: FitAnswer) -> dict[str, Any] | None:
    fit = answer.batch
    if fit is None:
        return None
    rooms = [(each.target.total_bytes, each.room_bytes) for each in answer.placed]
    largest = [(total, fit.fitting(room)) for total, room in rooms]
    return {
        "unit": fit.unit,
        "sizes": list(fit.sizes),
        "shapes": list(fit.shapes),
        "steps": fit.n_steps,
        "error_bytes": fit.error_bytes,
        "problem": fit.problem or None,
        "estimates": [
            {
                "size": size,
                "peak_allocated_bytes": {
                    "low": each.low_bytes,
                    "likely": each.likely_bytes,
                    "high": each.high_bytes,
                },
                "peak_reserved_bytes": each.reserved_bytes,
                "phase": each.phase.name.lower(),
                "fits": [each.fits(room) for _, room in rooms],
            }
            for size, each in fit.rows()
        ],
        "largest": [
            {"capacity_bytes": size, "size": each.size, "is_limited_by_data": each.is_limited_by_data}
            for size, each in largest
            if each is not None
        ],
    }


def _card(card: Card | None) -> dict[str, Any] | None:
    return None if card is None else {"name": card.label, "total_bytes": card.total_bytes}


def _strategies(found: Strategies) -> dict[str, Any]:
    advised = [asdict(each) | {"phase": each.phase.name.lower()} for each in found.advised]
    return {
        "peak_bytes": found.peak_bytes,
        "phase": found.phase.name.lower(),
        "unknown_bytes": found.unknown_bytes,
        "advised": advised,
        "without_effect": list(found.without_effect),
        "undecided": [asdict(each) for each in found.undecided],
        "by_phase": found.by_phase,
        "path": found.path or None,
        "not_estimated": NOT_ESTIMATED,
    }


def _reruns(found: Reruns, recorded_bytes: int) -> dict[str, Any]:
    return {
        "basis": "dry run",
        "command": found.command,
        "card": found.card,
        "capacity_bytes": found.capacity_bytes,
        "problem": found.problem or None,
        "wanted": found.n_wanted,
        "as_it_is": found.plain and asdict(found.plain),
        "differs_from_recorded": differs_from_recorded(found, recorded_bytes),
        "rows": [
            {
                "name": row.name,
                "how": row.how,
                "effect": found.effect(row).value,
                "saved_bytes": found.saved_bytes(row),
                "peak": row.peak and asdict(row.peak),
                "problem": row.problem or None,
            }
            for row in found.rows
        ],
    }
