"""The console's text can be read, in light and in dark: contrast as WCAG 2.2 measures it, by the style sheet."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

STYLE = (Path(str(resources.files("headwater.console"))) / "static" / "style.css").read_text(encoding="utf-8")
PARTS = (Path(str(resources.files("headwater.console"))) / "static" / "parts.css").read_text(encoding="utf-8")
COLOURS = {
    name: (light, dark)
    for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", STYLE)
}
TEXT = 4.5
DRAWING = 3.0
PAIRS = [
    *((text, ground, TEXT) for text in ("text", "muted", "accent") for ground in ("ground", "surface", "raised")),
    *((text, "surface", TEXT) for text in ("good", "warn", "bad")),
    *((f"{name}", f"{name}-soft", TEXT) for name in ("accent", "good", "warn", "bad")),
    *((text, "ground", TEXT) for text in ("warn", "bad", "good")),
    ("text", "accent-soft", TEXT),
    ("muted", "accent-soft", TEXT),
    ("warn", "raised", TEXT),
    ("bad", "raised", TEXT),
    ("on-accent", "accent", TEXT),
    ("on-danger", "danger", TEXT),
    *((f"series-{number}", "surface", DRAWING) for number in range(1, 9)),
]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_everything_that_is_written_can_be_read(theme: int) -> None:
    unreadable = {
        f"{text} on {ground}": round(contrast(COLOURS[text][theme], COLOURS[ground][theme]), 2)
        for text, ground, least in PAIRS
        if contrast(COLOURS[text][theme], COLOURS[ground][theme]) < least
    }
    assert unreadable == {}


def test_every_colour_has_a_name_and_both_themes() -> None:
    for sheet in (re.sub(r":root \{.*?\n\}", "", STYLE, flags=re.DOTALL), PARTS):
        assert re.findall(r"#[0-9a-fA-F]{3,8}\b", sheet) == []
        assert set(re.findall(r"var\(--([\w-]+)\)", sheet)) <= {*COLOURS, "radius", "shadow", "nav", "top", "columns"}


def test_contrast_is_measured_as_it_should_be() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
