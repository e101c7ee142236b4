"""Colors of categories, phases and parts differ for every common kind of color vision, in both themes."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from vramscope.dashboard.figures.drawing.theme import CATEGORY_COLOR, PART_COLOR, PHASE_COLOR, palette_css
from vramscope.dashboard.figures.steps import ORDER

from vramscope.model.marks import Category

Colors = NDArray[np.float64]
VISION = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    # Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.01182, 0.04294, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.3039),
    ),
}
PALETTES = {
    "category": {each.name: color for each, color in CATEGORY_COLOR.items()},
    "phase": {each.name: color for each, color in PHASE_COLOR.items()},
    "part": PART_COLOR,
}
GRAYS = {("category", "UNKNOWN"), ("phase", "OTHER"), ("phase", "ZERO_GRAD"), ("part", "requested")}
"""They say that something is not of interest, wherever they are."""
NEIGHBOURS = {
    "category": "PARAMETER-GRADIENT PARAMETER-OPTIMIZER_STATE PARAMETER-BUFFER PARAMETER-ACTIVATION "
    "GRADIENT-OPTIMIZER_STATE GRADIENT-ACTIVATION GRADIENT-TEMPORARY OPTIMIZER_STATE-ACTIVATION "
    "OPTIMIZER_STATE-TEMPORARY ACTIVATION-TEMPORARY ACTIVATION-INPUT ACTIVATION-WORKSPACE "
    "TEMPORARY-WORKSPACE SHARDED_PARAMETER-UNSHARDED_PARAMETER ACTIVATION-UNSHARDED_PARAMETER",
    "phase": "FORWARD-BACKWARD BACKWARD-OPTIMIZER OPTIMIZER-FORWARD OPTIMIZER-ZERO_GRAD ZERO_GRAD-FORWARD "
    "DATA-FORWARD FORWARD-LOSS LOSS-BACKWARD BACKWARD-RECOMPUTE OPTIMIZER-EVAL EVAL-FORWARD",
    "part": "requested-rounding requested-inactive_split rounding-pending rounding-inactive_split "
    "pending-inactive_split inactive_split-releasable releasable-private_pools private_pools-outside "
    "nccl-outside outside-others",
}
"""Pairs that touch in the charts of a training: in the bands, the lane of phases, the stacks of parts."""
OF_SHARDS = {Category.SHARDED_PARAMETER, Category.UNSHARDED_PARAMETER, Category.SHARDED_GRADIENT}
OF_WHOLE = {Category.PARAMETER, Category.GRADIENT}
"""A training has the parameters and gradients of either way."""
SURFACES = {"light": "#FFFFFF", "dark": "#151B21"}


def oklab(hexadecimal: str, vision: str) -> Colors:
    """Björn Ottosson's OKLab (2020) of a color as an eye of that kind sees it; 0.02 is just noticeable."""
    srgb = np.array([int(hexadecimal[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(VISION[vision]) @ linear, 0, 1)
    cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    opponent = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return np.asarray(opponent @ np.cbrt(cones @ seen))


@pytest.mark.parametrize("vision", VISION)
def test_no_two_colors_look_alike(vision: str) -> None:
    colors = {
        (p, name): oklab(color, vision) for p, known in PALETTES.items() for name, color in known.items()
    }
    close = []
    for one, other in combinations(colors, 2):
        distance = float(np.linalg.norm(colors[one] - colors[other]))
        least = 0.07 if one[0] == other[0] else 0.0 if {one, other} <= GRAYS else 0.035
        if distance < least:
            close.append((one, other, round(distance, 3)))

    assert close == []


@pytest.mark.parametrize("vision", VISION)
def test_what_a_training_keeps_between_steps_is_told_apart_at_a_glance(vision: str) -> None:
    colors = [
        oklab(CATEGORY_COLOR[each], vision)
        for each in (Category.GRADIENT, Category.OPTIMIZER_STATE, Category.WORKSPACE)
    ]

    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(colors, 2)) > 0.1


def touching(palette: str) -> set[tuple[str, ...]]:
    """Pairs that touch; in the stack of a step also those between which one category is absent."""
    pairs = {tuple(pair.split("-")) for pair in NEIGHBOURS[palette].split()}
    for other_way in OF_SHARDS, OF_WHOLE:
        names = [each.name for each in ORDER if palette == "category" and each not in other_way]
        pairs |= {*pairwise(names), *zip(names, names[2:], strict=False)}
    return pairs


@pytest.mark.parametrize("palette", PALETTES)
def test_neighbours_of_a_chart_differ_in_grey(palette: str) -> None:
    lightness = {name: float(oklab(color, "normal")[0]) for name, color in PALETTES[palette].items()}
    close = [
        pair for pair in sorted(touching(palette)) if abs(lightness[pair[0]] - lightness[pair[1]]) < 0.08
    ]

    assert close == []


@pytest.mark.parametrize("theme", SURFACES)
def test_every_color_stands_out_from_the_page(theme: str) -> None:
    surface = oklab(SURFACES[theme], "normal")
    pale = {
        (p, name): round(float(np.linalg.norm(oklab(color, "normal") - surface)), 3)
        for p, known in PALETTES.items()
        for name, color in known.items()
        if np.linalg.norm(oklab(color, "normal") - surface) < 0.1
    }

    assert pale == {}


def test_the_style_sheet_has_the_colors_of_the_palettes() -> None:
    css = palette_css()

    assert f".part-activation{{background:{PALETTES['category']['ACTIVATION']}}}" in css
    assert f".phase-backward{{background:{PALETTES['phase']['BACKWARD']}}}" in css
    assert f".part-pending{{background:{PART_COLOR['pending']}}}" in css
    assert css.count("{") == len(CATEGORY_COLOR) + len(PHASE_COLOR) + len(PART_COLOR)
