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
        found = differences(manifest, target.running())
        left_alone = [one for one in found if one.action == "remove" and not prune]
        todo = [one for one in found if one not in left_alone]
        blocked = [one for one in todo if one.problem or target.cannot(one)]
        doable = [one for one in todo if one not in blocked]
        if show == "text":
            _show(doable, [one._replace(problem=one.problem or target.cannot(one)) for one in blocked], left_alone)
        if not dry_run:
            if confirm and any(one.action == "remove" for one in doable):
                _confirm(doable)
            for one in doable:
                target.bring_about(one, manifest)
        if show == "json":
            write_json(
                {
                    "applied" if not dry_run else "would_apply": [_document(one) for one in doable],
                    "blocked": [_document(one, one.problem or target.cannot(one)) for one in blocked],
                    "not_in_manifest": [_document(one) for one in left_alone],
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
            users={one.name: json.loads(one.rights) for one in access.users} if kept else None,
            tokens={one.id: _token(one) for one in access.tokens} if kept else None,
            brokers={one.id: f"{one.host}:{one.port}" for one in metadata.brokers} if metadata.cluster_id else None,
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
        return ManifestTopic(topic.partitions, topic.replication or None, dict(topic.options), schema)

    def cannot(self, one: Difference) -> str:
        """Why this cannot be done here, if it cannot."""
        if one.kind in ("user", "token") and not self._of_cluster:
            return "a single broker keeps it in its access file, and in the tokens beside it: change those"
        return ""

    def bring_about(self, one: Difference, manifest: ClusterManifest) -> None:
        """Do it; doing it twice does no harm."""
        from headwater.v1 import broker_pb2 as pb

        if one.kind == "user":
            rights = json.dumps((manifest.users or {}).get(one.name, {}))
            change = pb.SetAccessRequest(users=[pb.AccessUser(name=one.name, rights=rights)])
            if one.action == "remove":
                change = pb.SetAccessRequest(remove_users=[one.name])
            self._connection.call("SetAccess", change)
        elif one.kind == "token":
            token = (manifest.tokens or {}).get(one.name, {})
            change = pb.SetAccessRequest(tokens=[pb.AccessToken(**token)] if token else [])
            if one.action == "remove":
                change = pb.SetAccessRequest(remove_tokens=[one.name])
            self._connection.call("SetAccess", change)
        elif one.kind == "topic" and one.action == "remove":
            self._connection.call("DeleteTopic", pb.DeleteTopicRequest(name=one.name))
        elif one.kind == "topic":
            self._topic_as(one, (manifest.topics or {})[one.name])

    def _topic_as(self, one: Difference, topic: ManifestTopic) -> None:
        from headwater.v1 import broker_pb2 as pb

        schema = b"" if topic.schema is None else topic.schema.payload.serialize().to_pybytes()
        if one.action == "add":
            create = pb.CreateTopicRequest(
                name=one.name,
                partitions=topic.partitions or 1,
                replication=topic.replication or 0,
                options=dict(topic.options),
                schema=schema,
                exist_ok=True,
            )
            self._connection.call("CreateTopic", create)
            return
        alter = pb.AlterTopicRequest(name=one.name, partitions=topic.partitions or 0, options=dict(topic.options))
        self._connection.call("AlterTopic", alter)
        if schema:
            self._connection.call("EvolveTopic", pb.EvolveTopicRequest(name=one.name, schema=schema))


def _token(one: pb.AccessToken) -> dict[str, Any]:
    return {
        "id": one.id,
        "user": one.user,
        "salt": one.salt,
        "hash": one.hash,
        "created": one.created,
        "expires": one.expires if one.HasField("expires") else None,
    }


def _confirm(doable: Sequence[Difference]) -> None:
    removed = [f"{one.kind} {one.name}" for one in doable if one.action == "remove"]
    if not sys.stdin.isatty():
        raise StoreError(
            f"{len(removed)} are removed, and nobody is there to be asked: give --yes, or leave out --prune"
        )
    if not typer.confirm(f"Remove {len(removed)}, with all records of topics?", err=True):
        raise StoreError("nothing was done")


def _show(doable: Sequence[Difference], blocked: Sequence[Difference], left_alone: Sequence[Difference]) -> None:
    people = console()
    for one in doable:
        people.print(Text.assemble(_SIGNS[one.action], shown(str(one))), soft_wrap=True)
    for one in blocked:
        people.print(
            Text.assemble(("✗ ", "bold red"), shown(str(one)), shown(f" ({one.problem})", "dim")), soft_wrap=True
        )
    for one in left_alone:
        told = f"  {one.kind} {one.name} is not in the manifest, and stays"
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


def _document(one: Difference, problem: str = "") -> dict[str, Any]:
    found = {"kind": one.kind, "name": one.name, "action": one.action, "details": list(one.details)}
    return found | ({"problem": problem} if problem else {})
