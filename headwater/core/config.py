"""Configuration, one typed dataclass per noun, checked where it is made.

An option is one field: its type says what it may be, its docstring what breaks when it is turned too far either way.
Times are seconds, sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from headwater.core.address import check_cluster_name, parse_address, parse_endpoints
from headwater.core.errors import InvalidConfiguration
from headwater.core.options import (
    CENTURY,
    DAY,
    EIB,
    GIB,
    HOUR,
    KIB,
    MIB,
    MINUTE,
    PIB,
    TIB,
    Options,
    Text,
    count,
    seconds,
    size,
)

Sync = Literal["always", "never"] | float
Compression = Literal["none", "zstd", "lz4"]
Acks = Literal["all", "leader", "none"]
OnLoss = Literal["raise", "skip"]
OnUnsoundEnd = Literal["repair", "raise"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "text"]

DEFAULT_REPLICATION: Final = 3
"""The default number of replicas of a topic in a cluster, if there are as many brokers."""

PATH: Final = Text("a path")
_ADDRESS: Final = Text("host:port", parse_address)
_ENDPOINTS: Final = Text("host:port, several with commas between", parse_endpoints)
_CLUSTER: Final = Text("a name of letters, digits, '.', '_' and '-'", check_cluster_name)
_USER: Final = Text("a name")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionConfig(Options):
    """Options for the log of a partition. Times are seconds, sizes are bytes."""

    sync: Annotated[Sync, seconds(0.001, HOUR)] = "always"
    """When appends reach the disk. "always": before they are acknowledged or visible, so each pays for a sync. A
    number: at most so much later. "never": when the kernel likes. The last two acknowledge what a power loss can take
    back, the longer the more."""

    segment_bytes: Annotated[int, size(4 * KIB, TIB)] = 256 * MIB
    """A segment is closed when the next append would take it past this. Retention and compaction work on whole closed
    segments: large ones delay both, and need that much free disk to be compacted; small ones cost files, descriptors
    and a sync of the directory each."""

    segment_age: Annotated[float, seconds(0.001, CENTURY)] = DAY
    """A segment is closed when its first append is older than this, so that quiet logs expire too. Too long keeps
    records that retention wants gone; too short makes many small files."""

    index_interval: Annotated[int, size(128, GIB)] = 64 * KIB
    """One index entry for each so many bytes of log, at most one for four frames. Larger makes finding an offset or a
    time read more headers; smaller makes larger indexes, 32 bytes an entry, and slower appends."""

    max_frame_bytes: Annotated[int, size(4 * KIB, GIB)] = 64 * MIB
    """Larger frames are refused. A reader holds at least one whole frame: set high, one frame can take that much of
    every reader's memory. Set low, batches are cut, and a record that fits no frame is refused."""

    lock_timeout: Annotated[float, seconds(0, HOUR)] = 10.0
    """The time that an append waits for another process before it raises PartitionBusy. Too short makes errors of a
    busy minute; too long hides a stopped process behind a program that seems to hang."""

    retention_age: Annotated[float | None, seconds(0, CENTURY)] = None
    """Closed segments older than this, by the time of closing, are deleted. Shorter than your longest outage, and
    what nobody had read may be gone; None lets the log grow for ever, unless the next one is set."""

    retention_bytes: Annotated[int | None, size(0, EIB)] = None
    """The oldest closed segments of a partition are deleted while it is larger than this. Smaller than what is written
    during an outage, and what nobody had read may be gone; None lets it fill the disk, unless the one before is set."""

    retention_segments: Annotated[int, count(1, 1 << 30)] = 1
    """So many segments are kept, the growing one included, whatever the limits of age and bytes say. More than a few
    makes these limits mean nothing; 1 can leave no more than the growing segment."""

    delete_grace: Annotated[float, seconds(0, CENTURY)] = DAY
    """Compaction keeps a delete marker for so long after its segment was closed. A reader that is behind by more than
    this may never see a deletion; longer keeps the markers of keys long gone."""

    compaction_memory: Annotated[int, size(4 * KIB, TIB)] = 256 * MIB
    """About how much memory compaction spends on remembering keys. With less than the keys need, it removes less;
    with more than the machine has, the kernel ends the process."""

    producer_expiry: Annotated[float, seconds(1, CENTURY)] = 7 * DAY
    """A producer silent for so long is forgotten. Shorter than its pauses, and a retry of its last batch is refused;
    longer makes every new segment carry producers that never come back."""

    mapping_cache_bytes: Annotated[int, size(0, PIB)] = GIB
    """The address space, not memory, that the readers of one partition keep mapped. Less than a segment maps files
    anew for every read; too much, times the partitions, meets the limits of the system."""

    recovery: OnUnsoundEnd = "repair"
    """The treatment of an unsound end that a crash, a failed sync or a lost file has left. "repair": cut what
    was never acknowledged, go on, and report it. "raise": change nothing and raise RecoveryRefused, so nobody can use
    the log before someone has looked; `hw check --repair` repairs it then. Replicas of a cluster always repair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig(PartitionConfig):
    """Options for a topic: those of its partitions, and the limits that each record is checked against."""

    compression: Compression = "none"
    """The compression of frames (record batches). zstd is small, lz4 is fast. Both cost the producer time, and
    readers get a decompressed copy instead of a view on the file; "none" costs disk."""

    compression_threshold: Annotated[int, size(0, GIB)] = 512
    """Smaller frames are left as they are. At 0, frames that are too small to gain anything pay for it too; too high,
    and nothing is compressed."""

    compact: bool = False
    """Keep only the newest record of each key. Then every record needs a key, and older ones vanish under readers that
    are behind; without it, a log of changes grows for ever."""

    max_key_bytes: Annotated[int, size(0, MIB)] = KIB
    """Longer keys are refused. Compaction holds keys in memory, so long ones make it remove less; at 0 only empty keys
    are left."""

    max_value_bytes: Annotated[int, size(0, GIB)] = 10 * MIB
    """Larger values are refused. A reader holds at least one whole value: set high, one record can take that much of
    every reader's memory. A record that fits no frame is refused whatever this says."""

    max_headers_bytes: Annotated[int, size(0, 16 * MIB)] = 64 * KIB
    """Headers that are longer together, names and values, are refused. Set high, readers pay for them with every
    record; at 0 there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(Options):
    """Options for a producer, which gathers records into frames (record batches). Times are seconds, sizes are
    bytes."""

    linger: Annotated[float, seconds(0, HOUR)] = 0.005
    """The age that a record may reach before its batch is written (up to ten times that if a busy sender would
    otherwise do little but write and sync). Longer makes larger frames and later records, and a crash takes more
    that was pending; at 0 every record is a frame and a sync of its own."""

    batch_records: Annotated[int, count(1, 10_000_000)] = 20_000
    """A batch of so many records is written by the call that fills it. Small ones cost time and space for each frame;
    large ones make that call slow, and consumers turn a whole frame into records at once."""

    batch_bytes: Annotated[int, size(1, GIB)] = 2 * MIB
    """So is a batch of so many bytes. Small ones cost time and space for each frame; large ones take their size of
    memory, about twice, for each partition."""

    atomic_bytes: Annotated[int, size(1, GIB)] = 32 * MIB
    """`send_batch` writes the rows of one partition as one frame, all of them or none, up to so many bytes, and half of
    the topic's `max_frame_bytes` at most. Larger batches become frames of `batch_bytes`. Small cuts batches that belong
    together; large ones take their size of memory, about three times, and once more in each reader."""

    block_timeout: Annotated[float, seconds(0, HOUR)] = 30.0
    """The time that a call waits while the batch before its own is still being written. Then it raises BufferFull,
    at 0 at once; too long, and a slow disk makes your program stand still. `producer(create=True)` waits as long for
    brokers that a new topic needs, and then raises TooFewBrokers."""

    close_timeout: Annotated[float, seconds(0, HOUR)] = 10.0
    """The time that the end of the program waits for pending records. Records that are not written by then are lost,
    and that is logged; too long, and a program that should end is killed instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(Options):
    """Options for a consumer and its place in a group. Times are seconds, sizes are bytes."""

    fetch_bytes: Annotated[int, size(1, GIB)] = 4 * MIB
    """About how much is read from one partition at a time; at least one frame. Small ones cost calls; large ones are
    held for each partition, and read again when it moves to another member."""

    max_poll_records: Annotated[int, count(1, 10_000_000)] = 500
    """The number of records that an iteration takes at a time. Positions are committed between them: a crash repeats
    up to so many, and they have to be handled within `max_poll_interval`. Small ones commit more often than needed."""

    max_poll_interval: Annotated[float, seconds(0.01, 7 * DAY)] = 5 * MINUTE
    """A member that does not poll for so long loses its partitions to the others. Shorter than the slowest handling,
    and records are handled twice; longer leaves the partitions of a member that hangs unread."""

    refresh_interval: Annotated[float, seconds(0.001, HOUR)] = 1.0
    """The interval at which a consumer looks for new topics, new partitions and dead members. Longer leaves them
    unread for so long; shorter costs a look at the store's files each time."""

    auto_ack: bool = False
    """Take a record as done when the next poll comes. Convenient, and right if your handling never fails: a record that
    it failed on is not seen again. Without it, what you forget to acknowledge comes again."""

    on_loss: OnLoss = "raise"
    """If retention has removed records before this consumer has read them: `raise` has `poll` raise DataLost, with the
    offsets, until you seek; `skip` logs them and goes on, so records go missing and only the log tells."""

    auto_commit_records: Annotated[int | None, count(1, 1 << 40)] = None
    """With `auto_ack`, commit when so many records are done, or after the next one's time if that comes first. A crash
    repeats up to so many more; few cost a commit for almost every poll. With neither of both, every poll commits."""

    auto_commit_interval: Annotated[float | None, seconds(0.001, HOUR)] = None
    """With `auto_ack`, commit so long after the first record is done, while polls go on or wait. A crash repeats what
    was done in that time, and other programs see the group's progress as late; short ones cost more commits."""

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        if not self.auto_ack and (self.auto_commit_records is not None or self.auto_commit_interval is not None):
            raise InvalidConfiguration(
                "auto_commit_records and auto_commit_interval are for consumers with auto_ack: add auto_ack=True, or "
                "leave them out and call commit() when you like"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StewardConfig(Options):
    """Options for a steward (the log cleaner). Each topic says in its own configuration what it keeps. Times are
    seconds, sizes are bytes."""

    interval: Annotated[float, seconds(0.001, 7 * DAY)] = MINUTE
    """The time that a steward rests between two passes. Longer lets logs outgrow their limits by what is written
    meanwhile; shorter costs a look at every partition each time."""

    total_bytes: Annotated[int | None, size(0, EIB)] = None
    """While all topics together are larger than this, the oldest closed segments go, wherever they are, whatever their
    topics' own limits say: a busy topic then takes from the quiet ones. Compacted topics are counted and spared, for
    their oldest records may be the present ones. None lets the store fill the disk."""

    protect_unread: bool = True
    """Keep what a group that has read a partition has yet to acknowledge there. False lets slow groups lose records;
    True lets a group that has stopped hold its records until it expires, or until one of the next two is reached."""

    force_after: Annotated[float | None, seconds(0, CENTURY)] = None
    """Segments closed for longer than this go, read or not. Set it lower than your longest outage and groups lose
    records; None lets a stuck group fill the disk."""

    force_bytes: Annotated[int | None, size(0, EIB)] = None
    """The oldest segments of a partition that is larger than this go, read or not: the same bargain, by size."""

    scrub_interval: Annotated[float, seconds(0, CENTURY)] = 7 * DAY
    """Closed segments that nobody has verified for so long are read again, so that damage is met before someone needs
    the records; where a cluster has others, it is repaired. Longer lets damage to several copies come together; shorter
    reads the whole store more often."""

    scrub_bytes_per_second: Annotated[int | None, size(64 * KIB, TIB)] = 8 * MIB
    """The number of bytes that scrubbing reads in a second. Less than a store has in an interval, and it takes
    longer than that; much, and whoever reads and writes feels it. None verifies nothing: damage is then met by
    whoever reads it."""

    group_expiry: Annotated[float, seconds(0, CENTURY)] = 7 * DAY
    """A group without members is forgotten so long after its last commit, and protects nothing then. Shorter than its
    pauses, and it begins again where its `start` says; longer lets groups that never come back hold records. Positions
    in topics that are gone are forgotten as long after their last commit."""

    history: Annotated[float | None, seconds(0.1, DAY)] = 15.0
    """The interval at which a steward in the background, or the brokers of a cluster, note how fast topics grow and
    how far groups are behind, for the charts of the console. Shorter costs a look at every partition each time, and
    reaches less far back, because the internal topic `__history` is bounded; None notes nothing, and charts begin
    when the console is opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(Options):
    """Options for a broker that serves a store. Times are seconds, sizes are bytes."""

    directory: Annotated[str | None, PATH] = None
    """The store that is served, made if there is none: on the command line, the argument. A broker wants it for itself;
    while it serves, nobody else can open it, and while others have it open, it does not start."""

    listen: Annotated[str, _ADDRESS] = "127.0.0.1:6174"
    """The address that clients connect to; port 0 is any that is free. Beyond 127.0.0.1 it needs an access file and
    TLS, or the flag that says that anyone may do anything."""

    advertise: Annotated[str | None, _ADDRESS] = None
    """The address that clients are told to connect to, if it is another than the broker's own: behind a proxy, or in
    a container. An address that clients do not reach makes them fail after the first answer; None is `listen`."""

    broker_id: Annotated[int | None, count(0, (1 << 31) - 1)] = None
    """Its number among the brokers of a cluster. Two of one number are taken for one, so the second is refused while
    the first is alive. None takes a number that no broker has had, and keeps it in the directory: another directory is
    another broker then, so one that replaces a lost disk has to say its number to be taken for the same."""

    etcd: Annotated[str | None, _ENDPOINTS] = None
    """The members of the etcd by which brokers form a cluster, with commas between them. One that fails is left for the
    next, so name all; None is a broker on its own, which needs no etcd."""

    cluster: Annotated[str, _CLUSTER] = "main"
    """The cluster's name in etcd. Brokers of one name belong together; two clusters that share an etcd and a name would
    be taken for one."""

    replication: Annotated[int | None, count(1, 100)] = None
    """The number of brokers that keep each partition (the replication factor), for topics that do not say so
    themselves. With one, its death is an outage and its disk's death a loss; each one more costs a copy. None is
    three, or all where there are fewer."""

    auto_create_partitions: Annotated[int | None, count(1, 10_000)] = None
    """The number of partitions of a topic that is created because someone produces plain records to it and it does not
    exist, as clients in other languages may expect. Then a mistyped name makes a topic instead of an error; the caller
    needs the right to administer it. None creates none; programs in Python ask for it with `producer(create=True)`."""

    internal_partitions: Annotated[int, count(1, 1000)] = 3
    """The number of partitions of the cluster's own topics when they are created; groups are spread over them. Few
    make few brokers keep all groups; each one more is a log on every replica, and commits that go to different ones
    share no write and no sync. It cannot be changed afterwards."""

    catch_up_bytes_per_second: Annotated[int | None, size(64 * KIB, TIB)] = None
    """The number of bytes that a broker fetches in a second from all partitions together in which it is not in sync.
    Less than producers write, and it never comes to be in sync again; None fetches as fast as it can, and producers
    may feel it."""

    replica_timeout: Annotated[float | None, seconds(1, 365 * DAY)] = 15 * MINUTE
    """The replicas of a broker that is gone for so long move to others by themselves, a few partitions at a time.
    Short, and a long restart copies everything that the broker holds; long, and partitions have a replica less for so
    long. None leaves that to operators. It should be the same for all brokers."""

    replica_min_brokers: Annotated[int, count(1, 1000)] = 3
    """So many brokers must be alive, or nothing moves by itself away from those that are gone. With fewer, the ones
    that are left may have no room for all replicas, and a network that fails may be what is wrong."""

    auto_rebalance: bool = False
    """Move replicas by themselves to brokers that were added, until all hold and lead about as much, as `hw cluster
    rebalance` does. Copying costs disks and network at a time that nobody chooses; without it, a new broker holds
    new topics only."""

    etcd_lease: Annotated[float, seconds(2, HOUR)] = 10.0
    """The time for which a broker counts as alive after etcd has last heard of it; whole seconds, rounded up. Short,
    and a pause of the machine or of etcd costs it what it leads; long, and what a machine that vanishes has led is
    led by nobody for so long. A process that ends is noticed at once."""

    etcd_user: Annotated[str | None, _USER] = None
    """The user name of the broker at etcd. Everyone who can write to etcd rules the cluster: without a user, that is
    anyone who reaches it."""

    etcd_password_file: Annotated[str | None, PATH] = None
    """The file with that user's password, and nothing else. Let nobody else read it."""

    etcd_tls_ca: Annotated[str | None, PATH] = None
    """The authority, in PEM, that etcd's certificate comes from. With it, connections to etcd are encrypted; without
    it, passwords are sent only within this machine."""

    etcd_tls_certificate: Annotated[str | None, PATH] = None
    """The broker's certificate in PEM, for an etcd that asks for one. Such an etcd talks to nobody without."""

    etcd_tls_key: Annotated[str | None, PATH] = None
    """Its key in PEM, unencrypted. Let nobody else read the file."""

    etcd_unsafe_version: bool = False
    """Use etcd 3.5.0 to 3.5.5 as well. Those can corrupt their data when they are killed, and with it the cluster's:
    for demonstrations only; without it, such a broker does not start."""

    access: Annotated[str | None, PATH] = None
    """The access file: users and their rights. With it, what is not allowed is denied; without it, whoever reaches the
    broker may do everything."""

    tls_certificate: Annotated[str | None, PATH] = None
    """The broker's certificate in PEM, with those between it and the authority. It must name the host that clients
    connect to, or they refuse it; without one, nothing is encrypted."""

    tls_key: Annotated[str | None, PATH] = None
    """Its key in PEM, unencrypted. Let nobody else read the file: who has it can pass for the broker."""

    tls_client_ca: Annotated[str | None, PATH] = None
    """The authority, in PEM, that the certificates of clients come from. With it, every client needs one, also those
    with tokens; without it, clients are known by tokens only."""

    insecure_no_authentication: bool = False
    """Listen beyond this machine without knowing who calls. Anyone who reaches the port can then read, write and delete
    everything; without it, such a broker does not start."""

    metrics: Annotated[str | None, _ADDRESS] = None
    """The address at which metrics are served by HTTP, with `/healthz` and `/readyz`. Metrics name topics and
    groups: with an access file they need a token with the right to read the broker; None serves none, and nobody
    sees the broker get slow."""

    console: Annotated[str | None, _ADDRESS] = None
    """The address at which a process beside the broker serves the console by HTTP. With an access file people sign
    in with their tokens and do what their users may; without one, whoever has the link that is logged gets in. None
    is no."""

    console_write: bool = False
    """Let the console change things too: topics, records, positions of groups. With an access file, each user's rights
    still hold; without one, whoever has the link can do everything."""

    log_level: LogLevel = "info"
    """The least level that is logged. "debug" tells of every connection, which is a lot; "error" hides what is
    denied."""

    log_format: LogFormat = "auto"
    """The form of the log: "json" is one object a line for machines, "text" is for people, and hard to search.
    "auto": text on a terminal, else JSON."""

    threads: Annotated[int, count(1, 1024)] = 16
    """The number of threads that write, and of others that read. Fewer make partitions wait for one another's syncs;
    more than there are busy partitions, or clients that read, do nothing."""

    max_message_bytes: Annotated[int, size(64 * KIB, GIB)] = 64 * MIB
    """Larger requests are refused. Smaller than the frames that producers make (`batch_bytes`, `atomic_bytes`), and
    these cannot write; large ones are held in memory whole, for each call."""

    max_decoded_bytes: Annotated[int, size(64 * KIB, GIB)] = 256 * MIB
    """Frames that would be larger when decompressed are refused, before they are. Small refuses what compresses well;
    large lets a few kilobytes take that much memory of the broker, and of every reader."""

    max_in_flight_bytes: Annotated[int, size(MIB, TIB)] = 512 * MIB
    """So many bytes of requests that are being written, and as many of answers on their way, are held at a time. Beyond
    that callers wait. Small makes fast disks idle; large can take that much memory, twice."""

    max_connection_bytes: Annotated[int, size(64 * KIB, TIB)] = 64 * MIB
    """The same for one connection. Small makes a fast client wait for itself; large lets one greedy client take
    everybody's share."""

    max_connections: Annotated[int, count(1, 1_000_000)] = 10_000
    """Calls of more connections than this are refused. Each costs a descriptor and some memory."""

    max_calls: Annotated[int, count(1, 1_000_000)] = 1000
    """The number of calls that one connection may have open at a time; further ones wait at the client. Waiting
    consumers have one each; few of them make clients with many consumers wait for themselves."""

    max_response_bytes: Annotated[int, size(64 * KIB, GIB)] = 32 * MIB
    """No fetch returns much more than this, whatever it asks for; at least one frame. Large answers are held in memory
    whole; small ones cost more calls."""

    max_wait: Annotated[float, seconds(0, HOUR)] = 60.0
    """No fetch waits for longer than this, whatever it asks for. Long waits hide clients that are gone; short ones cost
    calls that return nothing."""

    session_timeout: Annotated[float, seconds(0.1, HOUR)] = 10.0
    """A member of a group that is silent for so long is taken out, unless it asked for another time. Shorter than a
    pause of its network or its program, and its records are handled twice; longer leaves the partitions of a dead
    member unread."""

    heartbeat_interval: Annotated[float, seconds(0.01, HOUR)] = 3.0
    """The interval at which members are asked for a heartbeat, at most a third of the session's timeout, so that two
    heartbeats can be lost. Shorter costs calls."""

    drain_timeout: Annotated[float, seconds(0, HOUR)] = 30.0
    """The time that a broker that is told to stop waits for the calls that it has accepted. Shorter breaks calls
    off, which clients repeat elsewhere; longer than whoever stops it has patience, and it is killed instead."""

    steward: bool = True
    """Clean the store in the background, as its topics want it. Without it, logs grow until someone does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig(Options):
    """Options for a client of a broker. Times are seconds, sizes are bytes."""

    timeout: Annotated[float, seconds(0.1, HOUR)] = MINUTE
    """The time for which a call goes on trying while no broker answers; then it raises BrokerUnavailable. Shorter
    than a restart of the broker, and that is seen as errors; longer lets a program wait for a broker that never
    comes back."""

    attempt_timeout: Annotated[float, seconds(0.1, HOUR)] = 20.0
    """The time that one attempt waits for its answer before the connection counts as dead and the next attempt
    begins. Short ones give up on calls that are only slow; long ones hang on connections that a network has
    forgotten."""

    in_flight_bytes: Annotated[int, size(MIB, TIB)] = 64 * MIB
    """The number of bytes that a producer may have on their way before `send` waits for answers. Less than a few
    batches waits for the network after each; more takes that much memory while a broker is away."""

    acks: Acks = "all"
    """In a cluster, who must have records before they are acknowledged. "all" are the replicas that are in sync: what
    is acknowledged outlives the leader. "leader" is sooner, and a leader that dies takes what it alone has. "none",
    also with a single broker, promises nothing: records count as sent when they leave. Receipts have no offsets then,
    and what goes wrong is logged and raised by a later call; `flush` and `close` still wait for what is on its way."""

    fetch_total_bytes: Annotated[int, size(KIB, TIB)] = 16 * MIB
    """The number of bytes that a consumer fetches at a time from all its partitions together; about three times that
    is held. Small ones cost calls; large ones memory."""

    fetch_wait: Annotated[float, seconds(0.01, 10 * MINUTE)] = 10.0
    """The time that a fetch waits at the broker for the first record. Short ones ask in vain more often; longer than
    what proxies between here and the broker allow, and they cut the connection."""

    direct: bool = True
    """Read what a broker on this machine has from its files, and hand it large frames in its memory, where this program
    may: nothing of that is sent then, which takes a third less work. False has it all sent, as to another machine."""

    heartbeat: Annotated[float, seconds(0.01, HOUR)] = 3.0
    """The interval at which members of groups send heartbeats, or the broker's `heartbeat_interval` if that is
    shorter. Shorter costs calls."""

    session_timeout: Annotated[float | None, seconds(0.1, HOUR)] = None
    """The time for which members of groups may be silent before the broker takes them for dead. Shorter than a pause of
    the network or of this program, and their records are handled twice; longer leaves the partitions of dead members
    unread. None is the broker's `session_timeout`."""
