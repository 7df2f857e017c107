"""`hw cheat`: every command on one page."""

from __future__ import annotations

from typing import Any, Final

import typer
from rich.text import Text

from headwater.cli.output import Json, console, write_json

app = typer.Typer(add_completion=False)

SHEET: Final[dict[str, list[tuple[str, str]]]] = {
    "Which store": [
        ("hw … --store events", "a directory"),
        ("hw … --store hw://host:6174", "a broker; several with commas, any of which may answer"),
        ("export HEADWATER_STORE=events", "for this shell"),
        ("hw context add prod hw://host:6174 --use", "for good, under a name; then --store @prod"),
    ],
    "Topics": [
        ("hw topic create orders -p 4", "raw: bytes, with keys and headers"),
        ("hw topic create trades -c symbol:string -c price:float64", "typed: columns"),
        ("hw topic list", "all, with sizes"),
        ("hw topic describe orders", "partitions, configuration, readers"),
        ("hw topic alter orders --set retention_age=7d", "any option of docs/configuration.md"),
        ("hw topic copy orders --to-store @prod", "records, keys, headers, times"),
    ],
    "Records": [
        ("echo 'two teas' | hw produce orders", "lines"),
        ("hw produce trades trades.parquet --create", "files, by their columns"),
        ("hw consume orders --from -10 --follow", "the last ones, and new ones"),
        ("hw consume orders --from @-1h --where \"key = 'cust-7'\"", "by time, by filter"),
        ("hw consume trades -c symbol,price -o parquet > t.parquet", "columns, to a file"),
        ("hw tail 'orders.*'", "live; the space bar pauses"),
        ('hw sql "SELECT symbol, max(price) FROM trades GROUP BY ALL"', "SQL over topics"),
    ],
    "Groups": [
        ("hw group list", "members, positions and lag"),
        ("hw lag --watch", "live"),
        ("hw group reset billing --to @-1h --dry-run", "what would change"),
    ],
    "Care": [
        ("hw check events", "verify every frame"),
        ("hw backup /backups/events", "again later: only new records"),
        ("hw restore /backups/events events", "the same offsets, the same positions"),
        ("hw steward --dry-run", "what retention would remove"),
        ("hw inspect events/orders/0/state", "the content of a file"),
        ("hw unlock events/orders/0", "the holder of a lock"),
        ("hw doctor", "what works on this machine"),
    ],
    "Serving": [
        ("hw broker events", "the same streams at hw://127.0.0.1:6174"),
        ("hw cluster up", "three brokers that replicate each other"),
        ("hw pipeline run revenue.yaml", "topics and files through SQL, by Spark"),
    ],
}


@app.command(epilog="[bold]Examples[/]\n\n  hw cheat\n  hw cheat --json | jq '.Topics'")
def cheat(as_json: Json = False) -> None:
    """Show the most used commands on one page."""
    if as_json:
        document: dict[str, Any] = {
            heading: [{"command": command, "about": about} for command, about in lines]
            for heading, lines in SHEET.items()
        }
        write_json(document)
        return
    people = console()
    width = max(len(command) for lines in SHEET.values() for command, _ in lines)
    for number, (heading, lines) in enumerate(SHEET.items()):
        if number:
            people.print()
        people.print(Text(heading, "bold cyan"))
        for command, about in lines:
            people.print(Text.assemble((f"  {command:<{width}}", "bold"), (f"  {about}", "dim")), soft_wrap=True)
