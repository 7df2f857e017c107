"""`hw cluster apply` and `hw cluster export`: a cluster, or a single broker, as one document."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

import typer
from rich.text import Text

from headwater.cli.output import Json, console, shown, wants_json, write_json
from headwater.cli.remote import HERE, BrokerAddress, TlsAuthority, TlsCertificate, TlsKey, credentials_of
from headwater.core.address import Address, parse_store
from headwater.core.config import ClientConfig
from headwater.core.errors import InvalidConfiguration, PermissionDenied, StoreError

if TYPE_CHECKING:
    from headwater.broker.manifest import ClusterManifest, Difference, ManifestTopic
    from headwater.client.connection import Connection
    from headwater.client.credentials import Credentials
    from headwater.v1 import broker_pb2 as pb

_TIMEOUT: Final = 60.0
_SIGNS: Final = {"add": ("+ ", "bold green"), "change": ("~ ", "bold yellow"), "remove": ("- ", "bold red")}


def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A manifest: YAML, JSON or TOML.")],
    address: BrokerAddress = HERE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove topics, users and tokens that the manifest does not name.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before something is removed.")] = False,
    tls_ca: TlsAuthority = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    as_json: Json = False,
) -> None:
    """Apply a file to a cluster: topics and permissions. Doing it again changes nothing.

    Everything that is not in the file stays, unless `--prune` is given. The exit code is 1 if something differs from
    the file and cannot be changed from here, such as a broker that has to be started. It needs the right to administer
    the broker and the topics; a token is taken from HEADWATER_CLIENT_TOKEN.
    """
    failed = apply_manifest(
        read(file),
        parse_store(address),
        credentials_of(tls_ca, tls_certificate, tls_key),
        dry_run=dry_run,
        prune=prune,
        confirm=not yes,
        show="json" if wants_json(as_json) else "text",
    )
    raise typer.Exit(1 if failed else 0)


def export(
    address: BrokerAddress = HERE,
    form: Annotated[
        Literal["yaml", "json"], typer.Option("--format", metavar="FORMAT", help="How it is written: yaml or json.")
    ] = "yaml",
    tls_ca: TlsAuthority = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
) -> None:
    """Write the brokers, topics and permissions of a cluster, or of a single broker, as a manifest.

    Of tokens it has the salted hashes, as the cluster keeps them. Records are not in it.
    """
    with _Target(parse_store(address), credentials_of(tls_ca, tls_certificate, tls_key)) as target:
        document = target.running().document()
    if form == "json":
        write_json(document)
    else:
        import yaml

        sys.stdout.write(yaml.safe_dump(document, sort_keys=False, allow_unicode=False))
        sys.stdout.flush()


def read(file: Path) -> ClusterManifest:
    """The manifest in a file; raises InvalidConfiguration."""
    from headwater.broker.manifest import read_manifest

    try:
        return read_manifest(file)
    except OSError as error:
        raise InvalidConfiguration(f"{file}: {error.strerror}") from error


def apply_manifest(
    manifest: ClusterManifest,
    addresses: list[Address],
    credentials: Credentials,
    *,
    dry_run: bool = False,
    prune: bool = False,
    confirm: bool = True,
    show: Literal["text", "json", "nothing"] = "nothing",
) -> list[Difference]:
    """Apply a manifest and tell of each change. Return the changes that failed."""
    from headwater.broker.manifest import differences

    with _Target(addresses, credentials) as target:
        all_differences = differences(manifest, target.running())
        left_alone = [difference for difference in all_differences if difference.action == "remove" and not prune]
        todo = [difference for difference in all_differences if difference not in left_alone]
        blocked = [difference for difference in todo if difference.problem or target.cannot(difference)]
        doable = [difference for difference in todo if difference not in blocked]
        if show == "text":
            _show(
                doable,
                [
                    difference._replace(problem=difference.problem or target.cannot(difference))
                    for difference in blocked
                ],
                left_alone,
            )
        if not dry_run:
            if confirm and any(difference.action == "remove" for difference in doable):
                _confirm(doable)
            for difference in doable:
                target.bring_about(difference, manifest)
        if show == "json":
            write_json(
                {
                    "applied" if not dry_run else "would_apply": [_document(difference) for difference in doable],
                    "blocked": [
                        _document(difference, difference.problem or target.cannot(difference)) for difference in blocked
                    ],
                    "not_in_manifest": [_document(difference) for difference in left_alone],
                }
            )
        elif show == "text":
            _conclude(doable, blocked, dry_run=dry_run, unenforced=bool(manifest.users) and not target.enforced)
    return blocked


class _Target:
    """The brokers that a manifest is for."""

    def __init__(self, addresses: list[Address], credentials: Credentials) -> None:
        from headwater.client.connection import Connection

        self._connection: Connection = Connection(addresses, ClientConfig(timeout=_TIMEOUT), credentials)
        self._of_cluster = False
        self.enforced = False
        """True if the broker has permissions at all."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def running(self) -> ClusterManifest:
        """Return the present state as a manifest."""
        from headwater.broker.manifest import ClusterManifest
        from headwater.v1 import broker_pb2 as pb

        metadata: pb.Metadata = self._connection.call("GetMetadata", pb.GetMetadataRequest(brokers_only=True))
        listed: pb.ListTopicsResponse = self._connection.call("ListTopics", pb.ListTopicsRequest())
        try:
            access: pb.AccessRules = self._connection.call("GetAccess", pb.GetAccessRequest())
        except PermissionDenied as error:
            raise StoreError(f"{error}: a manifest needs the right to administer the broker") from None
        self._of_cluster, self.enforced = access.of_cluster, access.enforced
        kept = access.of_cluster or access.enforced
        return ClusterManifest(
            topics={topic.name: self._topic(topic) for topic in listed.topics},
            users={user.name: json.loads(user.rights) for user in access.users} if kept else None,
            tokens={token.id: _token(token) for token in access.tokens} if kept else None,
            brokers={broker.id: f"{broker.host}:{broker.port}" for broker in metadata.brokers}
            if metadata.cluster_id
            else None,
            cluster=metadata.cluster_id or None,
        )

    def _topic(self, topic: pb.Topic) -> ManifestTopic:
        from headwater.broker.manifest import ManifestTopic
        from headwater.core.schema import Schema
        from headwater.v1 import broker_pb2 as pb

        schema = None
        if not topic.raw:
            schema = Schema.deserialize(
                self._connection.call("GetSchema", pb.GetSchemaRequest(topic=topic.name)).schema
            )
        replicas = topic.replication or None, topic.min_insync or None
        return ManifestTopic(topic.partitions, replicas[0], dict(topic.options), schema, replicas[1])

    def cannot(self, difference: Difference) -> str:
        """Why this cannot be done here, if it cannot."""
        if difference.kind in ("user", "token") and not self._of_cluster:
            return "a single broker keeps it in its access file, and in the tokens beside it: change those"
        return ""

    def bring_about(self, difference: Difference, manifest: ClusterManifest) -> None:
        """Do it; doing it twice does no harm."""
        from headwater.v1 import broker_pb2 as pb

        if difference.kind == "user":
            rights = json.dumps((manifest.users or {}).get(difference.name, {}))
            change = pb.SetAccessRequest(users=[pb.AccessUser(name=difference.name, rights=rights)])
            if difference.action == "remove":
                change = pb.SetAccessRequest(remove_users=[difference.name])
            self._connection.call("SetAccess", change)
        elif difference.kind == "token":
            token = (manifest.tokens or {}).get(difference.name, {})
            change = pb.SetAccessRequest(tokens=[pb.AccessToken(**token)] if token else [])
            if difference.action == "remove":
                change = pb.SetAccessRequest(remove_tokens=[difference.name])
            self._connection.call("SetAccess", change)
        elif difference.kind == "topic" and difference.action == "remove":
            self._connection.call("DeleteTopic", pb.DeleteTopicRequest(name=difference.name))
        elif difference.kind == "topic":
            self._topic_as(difference, (manifest.topics or {})[difference.name])

    def _topic_as(self, difference: Difference, topic: ManifestTopic) -> None:
        from headwater.v1 import broker_pb2 as pb

        schema = b"" if topic.schema is None else topic.schema.payload.serialize().to_pybytes()
        if difference.action == "add":
            create = pb.CreateTopicRequest(
                name=difference.name,
                partitions=topic.partitions or 1,
                replication=topic.replication or 0,
                min_insync=topic.min_insync or 0,
                options=dict(topic.options),
                schema=schema,
                exist_ok=True,
            )
            self._connection.call("CreateTopic", create)
            return
        alter = pb.AlterTopicRequest(
            name=difference.name,
            partitions=topic.partitions or 0,
            options=dict(topic.options),
            replication=topic.replication or 0,
            min_insync=topic.min_insync or 0,
        )
        self._connection.call("AlterTopic", alter)
        if schema:
            self._connection.call("EvolveTopic", pb.EvolveTopicRequest(name=difference.name, schema=schema))


def _token(token: pb.AccessToken) -> dict[str, Any]:
    return {
        "id": token.id,
        "user": token.user,
        "salt": token.salt,
        "hash": token.hash,
        "created": token.created,
        "expires": token.expires if token.HasField("expires") else None,
    }


def _confirm(doable: Sequence[Difference]) -> None:
    removed = [f"{difference.kind} {difference.name}" for difference in doable if difference.action == "remove"]
    if not sys.stdin.isatty():
        raise StoreError(
            f"{len(removed)} would be removed, and there is no terminal to ask at: give --yes, or leave out --prune"
        )
    if not typer.confirm(f"Remove {len(removed)} topics, users or tokens, with all records of the topics?", err=True):
        raise StoreError("nothing was done")


def _show(doable: Sequence[Difference], blocked: Sequence[Difference], left_alone: Sequence[Difference]) -> None:
    people = console()
    for difference in doable:
        people.print(Text.assemble(_SIGNS[difference.action], shown(str(difference))), soft_wrap=True)
    for difference in blocked:
        people.print(
            Text.assemble(("✗ ", "bold red"), shown(str(difference)), shown(f" ({difference.problem})", "dim")),
            soft_wrap=True,
        )
    for difference in left_alone:
        told = f"  {difference.kind} {difference.name} is not in the manifest, and stays"
        people.print(shown(told, "dim"), soft_wrap=True)


def _conclude(doable: Sequence[Difference], blocked: Sequence[Difference], *, dry_run: bool, unenforced: bool) -> None:
    people = console()
    if unenforced:
        told = "permissions are kept, and nobody goes by them: brokers do that have an access file (--access)"
        people.print(Text.assemble(("! ", "bold yellow"), told), soft_wrap=True)
    if blocked:
        return
    if not doable:
        people.print(Text.assemble(("✓ ", "bold green"), "all is as the manifest says"))
    elif not dry_run:
        people.print(Text.assemble(("✓ ", "bold green"), f"{len(doable):,} changes were made"))


def _document(difference: Difference, problem: str = "") -> dict[str, Any]:
    document = {
        "kind": difference.kind,
        "name": difference.name,
        "action": difference.action,
        "details": list(difference.details),
    }
    return document | ({"problem": problem} if problem else {})
