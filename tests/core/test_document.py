"""Documents: each key of a TOML file is found on its line, however the file is written."""

from __future__ import annotations

from pathlib import Path

from headwater.core.document import Kind, read_document

TEXT = '''# a comment, [no.table]
name = "a"
"quoted.name" = { inner = 1, "x y" = { z = 2 } }

[sinks.totals]  # a table
topic = "t"
sql = """
[not.a.table]
neither = "a key"
"""
many = [
  "x", # ]
  "y",
]
a.b . "c" = 'it'
  [[rows]]
  n = 1
[[rows]]
m = 2
[sinks]
other.topic = 3
'''


def test_every_key_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text(TEXT)
    document = read_document(tmp_path / "file.toml", Kind("a file", "a mapping"))
    assert document.lines == {
        ("name",): 2,
        ("quoted.name",): 3,
        ("quoted.name", "inner"): 3,
        ("quoted.name", "x y"): 3,
        ("quoted.name", "x y", "z"): 3,
        ("sinks",): 5,
        ("sinks", "totals"): 5,
        ("sinks", "totals", "topic"): 6,
        ("sinks", "totals", "sql"): 7,
        ("sinks", "totals", "many"): 11,
        ("sinks", "totals", "a"): 15,
        ("sinks", "totals", "a", "b"): 15,
        ("sinks", "totals", "a", "b", "c"): 15,
        ("rows",): 16,
        ("rows", "n"): 17,
        ("rows", "m"): 19,
        ("sinks", "other"): 21,
        ("sinks", "other", "topic"): 21,
    }
    assert document.line(("sinks", "totals", "nothing")) == 5
