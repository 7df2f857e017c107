"""A chart of bars as SVG: candles for prices, one panel for each symbol. It needs nothing but text."""

from __future__ import annotations

from datetime import datetime
from html import escape
from typing import Final, NamedTuple

_WIDTH: Final = 900
_PANEL: Final = 220
_MARGIN: Final = 60
_UP: Final = "#1a8f5a"
_DOWN: Final = "#c0392b"


class Bar(NamedTuple):
    """One minute of one symbol."""

    minute: datetime
    symbol: str
    open: float
    high: float
    low: float
    close: float
    volume: int


def draw(bars: list[Bar]) -> str:
    """The chart: a panel for each symbol, a candle for each bar."""
    symbols = sorted({bar.symbol for bar in bars})
    height = _PANEL * len(symbols) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_MARGIN}" y="26" font-size="18">One-minute bars, from ticks in a Headwater topic</text>',
    ]
    for number, symbol in enumerate(symbols):
        own = sorted((bar for bar in bars if bar.symbol == symbol), key=lambda bar: bar.minute)
        parts += _panel(own, symbol, 40 + number * _PANEL)
    return "\n".join([*parts, "</svg>", ""])


def _panel(bars: list[Bar], symbol: str, top: int) -> list[str]:
    low, high = min(bar.low for bar in bars), max(bar.high for bar in bars)
    span = (high - low) or 1.0
    bottom = top + _PANEL - 40

    def at(price: float) -> float:
        return round(bottom - (price - low) / span * (_PANEL - 60), 1)

    step = (_WIDTH - 2 * _MARGIN) / len(bars)
    parts = [
        f'<text x="{_MARGIN}" y="{top + 12}" font-size="14" font-weight="bold">{escape(symbol)}</text>',
        f'<line x1="{_MARGIN}" y1="{bottom}" x2="{_WIDTH - _MARGIN}" y2="{bottom}" stroke="#ccc"/>',
        *(
            f'<text x="{_WIDTH - _MARGIN + 5}" y="{at(price) + 4}" font-size="11" fill="#666">{price:,.2f}</text>'
            for price in (low, high)
        ),
    ]
    for number, bar in enumerate(bars):
        middle = round(_MARGIN + (number + 0.5) * step, 1)
        colour = _UP if bar.close >= bar.open else _DOWN
        upper, lower = at(max(bar.open, bar.close)), at(min(bar.open, bar.close))
        width = round(min(step * 0.6, 40), 1)
        parts += [
            f'<line x1="{middle}" y1="{at(bar.high)}" x2="{middle}" y2="{at(bar.low)}" stroke="{colour}"/>',
            _rectangle(middle - width / 2, upper, width, max(lower - upper, 1), colour),
            f'<text x="{middle - 14}" y="{bottom + 14}" font-size="10" fill="#666">{bar.minute:%H:%M}</text>',
        ]
    return parts


def _rectangle(left: float, top: float, width: float, height: float, colour: str) -> str:
    attributes = f'x="{round(left, 1)}" y="{round(top, 1)}" width="{width}" height="{round(height, 1)}"'
    return f'<rect {attributes} fill="{colour}"/>'
