"""`hw cluster rebalance` and `hw cluster remove-broker`: replicas move to where they should be, while all goes on."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from headwater.cli.cluster.status import table
from headwater.cli.output import Yes, console, shown, size, wants_json
from headwater.cli.remote import HERE, BrokerAddress, TlsAuthority, TlsCertificate, TlsKey, credentials_of
from headwater.core.address import Address, parse_store
from headwater.core.errors import StoreError

if TYPE_CHECKING:
    from headwater.client.credentials import Credentials
    from headwater.v1 import broker_pb2 as pb

_TIMEOUT: Final = 30.0
_LOOK: Final = 0.5
_INTERRUPTED: Final = 130

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would move, and move nothing.")]
Cancel = Annotated[bool, typer.Option("--cancel", help="Cancel the moves that are not done.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, one document per line, as in a pipe.")]


def rebalance(
    address: BrokerAddress = HERE,
    yes: Yes = False,
    dry_run: DryRun = False,
    cancel: Cancel = False,
    tls_ca: TlsAuthority = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    as_json: AsJson = False,
) -> None:
    """Move replicas until every broker holds and leads about as much: after brokers were added, for instance.

    The plan is shown first. Producers and consumers go on meanwhile, and no partition ever has fewer replicas in
    sync than before; how fast brokers copy, `catch_up_bytes_per_second` bounds. Ctrl-C stops to watch, no more: the
    same command watches again. It needs the right to administer the broker; a token is taken from
    HEADWATER_CLIENT_TOKEN.
    """
    _Mover(parse_store(address), credentials_of(tls_ca, tls_certificate, tls_key), (), wants_json(as_json)).move(
        yes=yes, dry_run=dry_run, cancel=cancel
    )


def remove_broker(
    broker: Annotated[int, typer.Argument(min=0, max=2**31 - 1, metavar="ID", help="The id of the broker.")],
    address: BrokerAddress = HERE,
    yes: Yes = False,
    dry_run: DryRun = False,
    cancel: Cancel = False,
    tls_ca: TlsAuthority = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    as_json: AsJson = False,
) -> None:
    """Move everything that a broker holds to the others, so that it can be stopped for good. It may be dead already.

    The plan is shown first. From then on the broker gets no new replicas, until `--cancel`. Ctrl-C stops to
    watch, no more: the same command watches again.
    """
    _Mover(parse_store(address), credentials_of(tls_ca, tls_certificate, tls_key), (broker,), wants_json(as_json)).move(
        yes=yes, dry_run=dry_run, cancel=cancel
    )


class _Mover:
    """One command: the plan, the question, and the moves that can be watched from then on."""

    def __init__(
        self, addresses: list[Address], credentials: Credentials, remove: tuple[int, ...], as_json: bool
    ) -> None:
        self._addresses = addresses
        self._credentials = credentials
        self._remove = remove
        self._as_json = as_json

    def _call(self, method: str, request: object) -> Any:
        from headwater.client.cluster_status import call

        return call(self._addresses, self._credentials, method, request, _TIMEOUT)

    def move(self, *, yes: bool, dry_run: bool, cancel: bool) -> None:
        from headwater.v1 import broker_pb2 as pb

        if cancel:
            self._cancel()
            return
        plan: pb.Moves = self._call("PlanMoves", pb.PlanMovesRequest(remove=self._remove))
        self._show(plan.moves)
        if dry_run:
            return
        if plan.moves or self._remove:
            if plan.moves and not yes:
                self._confirm()
            request = pb.BeginMovesRequest(moves=plan.moves, remove=self._remove)
            begun = self._call("BeginMoves", request).begun
            if begun < len(plan.moves):
                raise StoreError(
                    f"{len(plan.moves) - begun} of {len(plan.moves)} partitions have changed meanwhile, and stay where "
                    f"they are: run it again"
                )
        self._watch()
        self._tell_done()

    def _cancel(self) -> None:
        from headwater.v1 import broker_pb2 as pb

        count = self._call("CancelMoves", pb.CancelMovesRequest(remove=self._remove)).cancelled
        if self._as_json:
            _write({"cancelled": count})
        else:
            noun = "partition stays" if count == 1 else "partitions stay"
            told = f"{count:,} {noun} where they were; what was done stays"
            console().print(Text.assemble(("✓ ", "bold green"), told))

    def _show(self, moves: Sequence[pb.Move]) -> None:
        total = sum(move.bytes for move in moves)
        if self._as_json:
            _write({"plan": [_document(move) for move in moves], "bytes": total})
            return
        people = console()
        if not moves:
            return
        rows = table("partition", "from", "to", "bytes")
        for move in moves:
            rows.add_row(
                shown(f"{move.topic}/{move.partition}"),
                " ".join(map(str, move.replicas)),
                " ".join(map(str, move.to)),
                size(move.bytes),
            )
        people.print(rows)
        people.print()
        noun = "partition moves" if len(moves) == 1 else "partitions move"
        people.print(f"{len(moves):,} {noun}, {size(total)} are copied")

    def _confirm(self) -> None:
        if not sys.stdin.isatty():
            raise StoreError("there is no terminal to ask at: give --yes to move them, or --dry-run to see the plan")
        if not typer.confirm("Move them?", err=True):
            raise StoreError("nothing was done")

    def _watch(self) -> None:
        """Follow all moves, also those that others have begun, until they are done."""
        first = self._under_way()
        if not first:
            return
        sizes = {(move.topic, move.partition): move.bytes for move in first}
        try:
            if self._as_json:
                self._watch_lines(sizes, first)
            else:
                self._watch_bar(sizes, first)
        except KeyboardInterrupt:
            if not self._as_json:
                people = console(stderr=True)
                people.print(Text("the moves continue; run it again to watch them, or --cancel them", "dim"))
            raise typer.Exit(_INTERRUPTED) from None

    def _under_way(self) -> Sequence[pb.Move]:
        from headwater.v1 import broker_pb2 as pb

        answer: pb.Moves = self._call("ListMoves", pb.ListMovesRequest())
        return answer.moves

    def _watch_lines(self, sizes: dict[tuple[str, int], int], moves: Sequence[pb.Move]) -> None:
        last: dict[str, Any] = {}
        while moves:
            now = _progress(sizes, moves)
            if now != last:
                _write(now)
            last = now
            time.sleep(_LOOK)
            moves = self._under_way()

    def _watch_bar(self, sizes: dict[tuple[str, int], int], moves: Sequence[pb.Move]) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[about]}")
        with Progress(*columns, console=console(), transient=True) as bar:
            task = bar.add_task("moving", total=1.0, about="")
            while moves:
                now = _progress(sizes, moves)
                about = f"{now['moved']}/{now['partitions']} partitions, {size(now['copied'])} of {size(now['bytes'])}"
                if now["waits_for"]:
                    about += f", brokers {' '.join(map(str, now['waits_for']))} catch up"
                bar.update(task, completed=now["copied"], total=max(now["bytes"], 1), about=about)
                time.sleep(_LOOK)
                moves = self._under_way()

    def _tell_done(self) -> None:
        if self._as_json:
            _write({"done": True})
            return
        done = "all replicas are where they should be"
        if self._remove:
            done = f"broker {self._remove[0]} holds nothing any more, and can be stopped"
        console().print(Text.assemble(("✓ ", "bold green"), done))


def _progress(sizes: dict[tuple[str, int], int], moves: Sequence[pb.Move]) -> dict[str, Any]:
    """Return the progress of all moves that were ever seen. Moves that are no longer under way are done."""
    left = {(move.topic, move.partition): move for move in moves}
    for key, move in left.items():
        sizes[key] = max(sizes.get(key, 0), move.bytes)
    copied = sum(left[key].copied if key in left else whole for key, whole in sizes.items())
    return {
        "moved": len(sizes) - len(left),
        "partitions": len(sizes),
        "copied": copied,
        "bytes": sum(sizes.values()),
        "waits_for": sorted({broker for move in moves for broker in move.missing}),
    }


def _document(move: pb.Move) -> dict[str, Any]:
    return {
        "partition": f"{move.topic}/{move.partition}",
        "from": list(move.replicas),
        "to": list(move.to),
        "bytes": move.bytes,
    }


def _write(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()
