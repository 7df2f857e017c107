"""The names that a query in SQL reads from, found without Spark: enough to draw the graph and to catch misspelt names.

Spark itself parses the query when the pipeline runs.
"""

from __future__ import annotations

import re
from typing import Final

_SKIPPED: Final = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_TOKEN: Final = re.compile(r"`[^`]+`|[A-Za-z_]\w*|\d+|\S")
_NAME: Final = re.compile(r"`[^`]+`|[A-Za-z_]\w*")
_WORDS_AFTER_FROM: Final = (
    "where group order having limit union intersect except minus window qualify lateral on using tablesample select "
    "cluster distribute sort offset left right full inner outer cross semi anti natural"
)
_WORDS_BEFORE_QUERY: Final = "from join in exists as and or not by when then else all"
_ENDS_OF_FROM: Final = frozenset(_NAME.findall(_WORDS_AFTER_FROM))
_BEFORE_PARENTHESIS: Final = _ENDS_OF_FROM | frozenset(_NAME.findall(_WORDS_BEFORE_QUERY))


def read_names(query: str) -> list[str]:
    """Return the names behind FROM and JOIN, in order, each once, without those that the query defines by WITH.

    Names with a dot (tables of a catalogue, files) and functions are left out.
    """
    tokens = _TOKEN.findall(_SKIPPED.sub(" '' ", query))
    words = [token.lower() for token in tokens]
    own = {words[at].strip("`") for at in range(len(words) - 2) if words[at + 1] == "as" and words[at + 2] == "("}
    names: list[str] = []
    in_function: list[bool] = []
    for at, word in enumerate(words):
        if word == "(":
            before = words[at - 1] if at else ""
            opens_query = words[at + 1 : at + 2] in (["select"], ["with"])
            in_function.append(bool(_NAME.fullmatch(before)) and before not in _BEFORE_PARENTHESIS and not opens_query)
        elif word == ")" and in_function:
            in_function.pop()
        elif word == "join" or (word == "from" and not any(in_function[-1:]) and words[at - 1] != "distinct"):
            names += [name for name in _relations(tokens, words, at + 1) if name.lower() not in own]
    return list(dict.fromkeys(names))


def _relations(tokens: list[str], words: list[str], at: int) -> list[str]:
    """The names of a FROM clause up to the end of its list: `a x, b AS y`."""
    names = []
    expecting = True
    while at < len(words):
        word, after = words[at], words[at + 1] if at + 1 < len(words) else ""
        if word in _ENDS_OF_FROM or word in (")", ";", "join", "("):
            break
        if word == ",":
            expecting = True
        elif expecting:
            expecting = False
            if _NAME.fullmatch(word) and after not in (".", "("):
                names.append(tokens[at].strip("`"))
            if after == ".":
                at += 2
        at += 1
    return names
