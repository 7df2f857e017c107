"""`hw cluster`: try a cluster on this machine, see how one is, and help it where it cannot help itself."""

from __future__ import annotations

import typer

from headwater.cli.cluster import elect as cluster_elect
from headwater.cli.cluster import manifest as cluster_manifest
from headwater.cli.cluster import move as cluster_move
from headwater.cli.cluster import status as cluster_status
from headwater.cli.cluster import up as cluster_up

app = typer.Typer(
    no_args_is_help=True,
    help="Brokers that replicate each other: see how a cluster is, or try one on this machine.",
    epilog="[bold]Examples[/]\n\n"
    "  hw cluster up                    etcd and three brokers here, until Ctrl-C\n"
    "  hw cluster status                brokers, leaders, in-sync replicas, lag\n"
    "  hw cluster apply cluster.yaml    topics and permissions as a file says\n"
    "  hw cluster export                the present state as such a file\n"
    "  hw cluster rebalance             let every broker hold and lead about as much\n"
    "  hw cluster remove-broker 3       move everything away from a broker\n"
    "  hw cluster elect orders/0 --broker 2    lead again a partition that has lost its leaders, at a loss",
)

app.command(
    name="up",
    epilog="[bold]Examples[/]\n\n"
    "  hw cluster up                          three brokers; their files are removed at the end\n"
    "  hw cluster up ~/cluster --brokers 5    files are kept, and used again the next time\n"
    "  hw cluster up --port 0 | jq .store     any free ports, told as JSON",
)(cluster_up.up)

app.command(
    name="status",
    epilog="[bold]Examples[/]\n\n"
    "  hw cluster status                                     the one on this machine\n"
    "  hw cluster status hw://a.example:6174,b.example:6174 --tls-ca ca.pem\n"
    "  hw cluster status | jq .under_replicated",
)(cluster_status.status)

app.command(
    name="elect",
    epilog="[bold]Examples[/]\n\n"
    "  hw cluster elect orders/0 --broker 2                  shows what may be lost, and asks\n"
    "  hw cluster elect orders/0 hw://a.example:6174 --broker 2 --accept-loss",
)(cluster_elect.elect)

app.command(
    name="rebalance",
    epilog="[bold]Examples[/]\n\n"
    "  hw cluster rebalance                     shows what would move, and asks\n"
    "  hw cluster rebalance --dry-run | jq .plan\n"
    "  hw cluster rebalance --cancel            ends the moves that are not done",
)(cluster_move.rebalance)

app.command(
    name="remove-broker",
    epilog="[bold]Examples[/]\n\n"
    "  hw cluster remove-broker 3               shows what would move, and asks\n"
    "  hw cluster remove-broker 3 hw://a.example:6174 --yes\n"
    "  hw cluster remove-broker 3 --cancel      it may hold replicas again",
)(cluster_move.remove_broker)

app.command(
    name="apply",
    epilog="[bold]Examples[/]\n\n"
    "  hw cluster apply cluster.yaml --dry-run      the difference\n"
    "  hw cluster apply cluster.yaml --prune        also removes everything else, after a question",
)(cluster_manifest.apply)

app.command(
    name="export",
    epilog="[bold]Examples[/]\n\n"
    "  hw cluster export > cluster.yaml             to apply elsewhere, or later\n"
    "  hw cluster export --format json | jq .topics",
)(cluster_manifest.export)
