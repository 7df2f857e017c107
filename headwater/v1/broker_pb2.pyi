from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Acks(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACKS_UNSPECIFIED: _ClassVar[Acks]
    ACKS_ALL: _ClassVar[Acks]
    ACKS_LEADER: _ClassVar[Acks]
    ACKS_NONE: _ClassVar[Acks]

class PartitionWork(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PARTITION_WORK_UNSPECIFIED: _ClassVar[PartitionWork]
    PARTITION_WORK_ROLL: _ClassVar[PartitionWork]
    PARTITION_WORK_TRUNCATE: _ClassVar[PartitionWork]
    PARTITION_WORK_DELETE_BEFORE: _ClassVar[PartitionWork]
    PARTITION_WORK_COMPACT: _ClassVar[PartitionWork]
    PARTITION_WORK_RETAIN: _ClassVar[PartitionWork]
ACKS_UNSPECIFIED: Acks
ACKS_ALL: Acks
ACKS_LEADER: Acks
ACKS_NONE: Acks
PARTITION_WORK_UNSPECIFIED: PartitionWork
PARTITION_WORK_ROLL: PartitionWork
PARTITION_WORK_TRUNCATE: PartitionWork
PARTITION_WORK_DELETE_BEFORE: PartitionWork
PARTITION_WORK_COMPACT: PartitionWork
PARTITION_WORK_RETAIN: PartitionWork

class Error(_message.Message):
    __slots__ = ("kind", "message", "attributes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    attributes: str
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., attributes: _Optional[str] = ...) -> None: ...

class GetMetadataRequest(_message.Message):
    __slots__ = ("topics", "brokers_only")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    BROKERS_ONLY_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    brokers_only: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., brokers_only: _Optional[bool] = ...) -> None: ...

class Metadata(_message.Message):
    __slots__ = ("cluster_id", "brokers", "topics", "broker_id", "version")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerAddress]
    topics: _containers.RepeatedCompositeFieldContainer[TopicMetadata]
    broker_id: int
    version: str
    def __init__(self, cluster_id: _Optional[str] = ..., brokers: _Optional[_Iterable[_Union[BrokerAddress, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicMetadata, _Mapping]]] = ..., broker_id: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class BrokerAddress(_message.Message):
    __slots__ = ("id", "host", "port")
    ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    id: int
    host: str
    port: int
    def __init__(self, id: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class TopicMetadata(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionMetadata]
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[PartitionMetadata, _Mapping]]] = ...) -> None: ...

class PartitionMetadata(_message.Message):
    __slots__ = ("partition", "leader", "leader_epoch", "replicas", "in_sync", "moving_to")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    MOVING_TO_FIELD_NUMBER: _ClassVar[int]
    partition: int
    leader: int
    leader_epoch: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    in_sync: _containers.RepeatedScalarFieldContainer[int]
    moving_to: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, partition: _Optional[int] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., in_sync: _Optional[_Iterable[int]] = ..., moving_to: _Optional[_Iterable[int]] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "uuid", "partitions", "schema_ids", "options", "created_ns", "raw", "replication", "min_insync")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_IDS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CREATED_NS_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    MIN_INSYNC_FIELD_NUMBER: _ClassVar[int]
    name: str
    uuid: bytes
    partitions: int
    schema_ids: _containers.RepeatedScalarFieldContainer[int]
    options: _containers.ScalarMap[str, str]
    created_ns: int
    raw: bool
    replication: int
    min_insync: int
    def __init__(self, name: _Optional[str] = ..., uuid: _Optional[bytes] = ..., partitions: _Optional[int] = ..., schema_ids: _Optional[_Iterable[int]] = ..., options: _Optional[_Mapping[str, str]] = ..., created_ns: _Optional[int] = ..., raw: _Optional[bool] = ..., replication: _Optional[int] = ..., min_insync: _Optional[int] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("name", "partitions", "schema", "options", "exist_ok", "internal", "replication", "min_insync")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    EXIST_OK_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    MIN_INSYNC_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    schema: bytes
    options: _containers.ScalarMap[str, str]
    exist_ok: bool
    internal: bool
    replication: int
    min_insync: int
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., schema: _Optional[bytes] = ..., options: _Optional[_Mapping[str, str]] = ..., exist_ok: _Optional[bool] = ..., internal: _Optional[bool] = ..., replication: _Optional[int] = ..., min_insync: _Optional[int] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("internal",)
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    internal: bool
    def __init__(self, internal: _Optional[bool] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ...) -> None: ...

class DescribeTopicRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class AlterTopicRequest(_message.Message):
    __slots__ = ("name", "partitions", "options", "replication", "min_insync")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    MIN_INSYNC_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    options: _containers.ScalarMap[str, str]
    replication: int
    min_insync: int
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., options: _Optional[_Mapping[str, str]] = ..., replication: _Optional[int] = ..., min_insync: _Optional[int] = ...) -> None: ...

class EvolveTopicRequest(_message.Message):
    __slots__ = ("name", "schema")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    name: str
    schema: bytes
    def __init__(self, name: _Optional[str] = ..., schema: _Optional[bytes] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetSchemaRequest(_message.Message):
    __slots__ = ("topic", "schema_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    schema_id: int
    def __init__(self, topic: _Optional[str] = ..., schema_id: _Optional[int] = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("id", "schema")
    ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    id: int
    schema: bytes
    def __init__(self, id: _Optional[int] = ..., schema: _Optional[bytes] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("key", "value", "headers", "timestamp_ns", "offset")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    headers: _containers.ScalarMap[str, bytes]
    timestamp_ns: int
    offset: int
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., headers: _Optional[_Mapping[str, bytes]] = ..., timestamp_ns: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class OpenProducerRequest(_message.Message):
    __slots__ = ("producer_id", "secret")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    producer_id: bytes
    secret: bytes
    def __init__(self, producer_id: _Optional[bytes] = ..., secret: _Optional[bytes] = ...) -> None: ...

class OpenProducerResponse(_message.Message):
    __slots__ = ("producer_id", "epoch", "secret")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    producer_id: bytes
    epoch: int
    secret: bytes
    def __init__(self, producer_id: _Optional[bytes] = ..., epoch: _Optional[int] = ..., secret: _Optional[bytes] = ...) -> None: ...

class ProduceRequest(_message.Message):
    __slots__ = ("id", "topic", "topic_uuid", "partition", "records", "acks", "borrow_bytes", "region", "machine", "frames")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    BORROW_BYTES_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    id: int
    topic: str
    topic_uuid: bytes
    partition: int
    records: _containers.RepeatedCompositeFieldContainer[Record]
    acks: Acks
    borrow_bytes: int
    region: Region
    machine: bytes
    frames: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, id: _Optional[int] = ..., topic: _Optional[str] = ..., topic_uuid: _Optional[bytes] = ..., partition: _Optional[int] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., acks: _Optional[_Union[Acks, str]] = ..., borrow_bytes: _Optional[int] = ..., region: _Optional[_Union[Region, _Mapping]] = ..., machine: _Optional[bytes] = ..., frames: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ProduceResponse(_message.Message):
    __slots__ = ("id", "base_offset", "end_offset", "duplicate", "places", "error", "memory")
    ID_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    id: int
    base_offset: int
    end_offset: int
    duplicate: bool
    places: _containers.RepeatedCompositeFieldContainer[Place]
    error: Error
    memory: LentMemory
    def __init__(self, id: _Optional[int] = ..., base_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., duplicate: _Optional[bool] = ..., places: _Optional[_Iterable[_Union[Place, _Mapping]]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., memory: _Optional[_Union[LentMemory, _Mapping]] = ...) -> None: ...

class LentMemory(_message.Message):
    __slots__ = ("file", "key", "size")
    FILE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    file: str
    key: bytes
    size: int
    def __init__(self, file: _Optional[str] = ..., key: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class Region(_message.Message):
    __slots__ = ("position", "length")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    position: int
    length: int
    def __init__(self, position: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("partition", "offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class SyncRequest(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ...) -> None: ...

class SyncResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TopicPartition(_message.Message):
    __slots__ = ("topic", "partition", "topic_uuid")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_uuid: bytes
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_uuid: _Optional[bytes] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("positions", "max_bytes", "max_wait_ms", "as_records", "group", "member_id", "generation", "machine")
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    AS_RECORDS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedCompositeFieldContainer[FetchPosition]
    max_bytes: int
    max_wait_ms: int
    as_records: bool
    group: str
    member_id: str
    generation: int
    machine: bytes
    def __init__(self, positions: _Optional[_Iterable[_Union[FetchPosition, _Mapping]]] = ..., max_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., as_records: _Optional[bool] = ..., group: _Optional[str] = ..., member_id: _Optional[str] = ..., generation: _Optional[int] = ..., machine: _Optional[bytes] = ...) -> None: ...

class FetchPosition(_message.Message):
    __slots__ = ("partition", "offset", "timestamp_ns", "end", "where")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    partition: TopicPartition
    offset: int
    timestamp_ns: int
    end: int
    where: str
    def __init__(self, partition: _Optional[_Union[TopicPartition, _Mapping]] = ..., offset: _Optional[int] = ..., timestamp_ns: _Optional[int] = ..., end: _Optional[int] = ..., where: _Optional[str] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("partitions", "generation")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[FetchedPartition]
    generation: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[FetchedPartition, _Mapping]]] = ..., generation: _Optional[int] = ...) -> None: ...

class FetchedPartition(_message.Message):
    __slots__ = ("topic", "partition", "log_start", "log_end", "durable_end", "next_offset", "lag", "error", "records", "padding", "extents", "filtered", "frames")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    DURABLE_END_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    FILTERED_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    log_start: int
    log_end: int
    durable_end: int
    next_offset: int
    lag: int
    error: Error
    records: _containers.RepeatedCompositeFieldContainer[Record]
    padding: bytes
    extents: _containers.RepeatedCompositeFieldContainer[Extent]
    filtered: bool
    frames: bytes
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., log_start: _Optional[int] = ..., log_end: _Optional[int] = ..., durable_end: _Optional[int] = ..., next_offset: _Optional[int] = ..., lag: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., padding: _Optional[bytes] = ..., extents: _Optional[_Iterable[_Union[Extent, _Mapping]]] = ..., filtered: _Optional[bool] = ..., frames: _Optional[bytes] = ...) -> None: ...

class Extent(_message.Message):
    __slots__ = ("file", "log", "position", "length", "stamp")
    FILE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    file: str
    log: bytes
    position: int
    length: int
    stamp: int
    def __init__(self, file: _Optional[str] = ..., log: _Optional[bytes] = ..., position: _Optional[int] = ..., length: _Optional[int] = ..., stamp: _Optional[int] = ...) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("partition", "offset", "timestamp_ns", "max_records", "max_bytes", "max_wait_ms")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    partition: TopicPartition
    offset: int
    timestamp_ns: int
    max_records: int
    max_bytes: int
    max_wait_ms: int
    def __init__(self, partition: _Optional[_Union[TopicPartition, _Mapping]] = ..., offset: _Optional[int] = ..., timestamp_ns: _Optional[int] = ..., max_records: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("records", "next_offset", "log_start", "log_end", "lag")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    next_offset: int
    log_start: int
    log_end: int
    lag: int
    def __init__(self, records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., next_offset: _Optional[int] = ..., log_start: _Optional[int] = ..., log_end: _Optional[int] = ..., lag: _Optional[int] = ...) -> None: ...

class ListOffsetsRequest(_message.Message):
    __slots__ = ("partitions", "timestamp_ns")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    timestamp_ns: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ..., timestamp_ns: _Optional[int] = ...) -> None: ...

class ListOffsetsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionOffsets]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionOffsets, _Mapping]]] = ...) -> None: ...

class PartitionOffsets(_message.Message):
    __slots__ = ("topic", "partition", "log_start", "log_end", "durable_end", "offset_at", "error", "markers_until", "markers_state")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    DURABLE_END_FIELD_NUMBER: _ClassVar[int]
    OFFSET_AT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MARKERS_UNTIL_FIELD_NUMBER: _ClassVar[int]
    MARKERS_STATE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    log_start: int
    log_end: int
    durable_end: int
    offset_at: int
    error: Error
    markers_until: int
    markers_state: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., log_start: _Optional[int] = ..., log_end: _Optional[int] = ..., durable_end: _Optional[int] = ..., offset_at: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., markers_until: _Optional[int] = ..., markers_state: _Optional[int] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, groups: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("name", "generation", "members", "partitions", "positions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    partitions: _containers.RepeatedCompositeFieldContainer[Ownership]
    positions: _containers.RepeatedCompositeFieldContainer[Position]
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., partitions: _Optional[_Iterable[_Union[Ownership, _Mapping]]] = ..., positions: _Optional[_Iterable[_Union[Position, _Mapping]]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("id", "topics", "joined_ns", "client", "static")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    JOINED_NS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    STATIC_FIELD_NUMBER: _ClassVar[int]
    id: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    joined_ns: int
    client: str
    static: bool
    def __init__(self, id: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., joined_ns: _Optional[int] = ..., client: _Optional[str] = ..., static: _Optional[bool] = ...) -> None: ...

class Ownership(_message.Message):
    __slots__ = ("topic", "partition", "owner", "target")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    owner: str
    target: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., owner: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("topic_uuid", "partition", "offset", "generation", "committed_ns", "commits")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_NS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: bytes
    partition: int
    offset: int
    generation: int
    committed_ns: int
    commits: int
    def __init__(self, topic_uuid: _Optional[bytes] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., generation: _Optional[int] = ..., committed_ns: _Optional[int] = ..., commits: _Optional[int] = ...) -> None: ...

class JoinGroupRequest(_message.Message):
    __slots__ = ("group", "topics", "client", "session_timeout_ms", "member_id", "static")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    STATIC_FIELD_NUMBER: _ClassVar[int]
    group: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    client: str
    session_timeout_ms: int
    member_id: str
    static: bool
    def __init__(self, group: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., client: _Optional[str] = ..., session_timeout_ms: _Optional[int] = ..., member_id: _Optional[str] = ..., static: _Optional[bool] = ...) -> None: ...

class JoinGroupResponse(_message.Message):
    __slots__ = ("member_id", "generation", "session_timeout_ms", "heartbeat_interval_ms")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    generation: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    def __init__(self, member_id: _Optional[str] = ..., generation: _Optional[int] = ..., session_timeout_ms: _Optional[int] = ..., heartbeat_interval_ms: _Optional[int] = ...) -> None: ...

class SettleGroupRequest(_message.Message):
    __slots__ = ("group", "member_id", "max_poll_interval_ms", "holding")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_POLL_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    HOLDING_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    max_poll_interval_ms: int
    holding: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., max_poll_interval_ms: _Optional[int] = ..., holding: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ...) -> None: ...

class SettleGroupResponse(_message.Message):
    __slots__ = ("generation", "owned", "leaving", "taken", "waiting")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    generation: int
    owned: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    leaving: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    taken: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    waiting: bool
    def __init__(self, generation: _Optional[int] = ..., owned: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ..., leaving: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ..., taken: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ..., waiting: _Optional[bool] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("group", "member_id", "polled", "generation", "max_wait_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    POLLED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    polled: bool
    generation: int
    max_wait_ms: int
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., polled: _Optional[bool] = ..., generation: _Optional[int] = ..., max_wait_ms: _Optional[int] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class LeaveGroupRequest(_message.Message):
    __slots__ = ("group", "member_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ...) -> None: ...

class LeaveGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Advance(_message.Message):
    __slots__ = ("topic", "partition", "topic_uuid", "offset", "known_generation")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    KNOWN_GENERATION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_uuid: bytes
    offset: int
    known_generation: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_uuid: _Optional[bytes] = ..., offset: _Optional[int] = ..., known_generation: _Optional[int] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("group", "member_id", "positions")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    positions: _containers.RepeatedCompositeFieldContainer[Advance]
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., positions: _Optional[_Iterable[_Union[Advance, _Mapping]]] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    def __init__(self, refused: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ...) -> None: ...

class CommitAllRequest(_message.Message):
    __slots__ = ("commits",)
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    commits: _containers.RepeatedCompositeFieldContainer[CommitRequest]
    def __init__(self, commits: _Optional[_Iterable[_Union[CommitRequest, _Mapping]]] = ...) -> None: ...

class CommitAllResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[CommitOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[CommitOutcome, _Mapping]]] = ...) -> None: ...

class CommitOutcome(_message.Message):
    __slots__ = ("response", "error")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    response: CommitResponse
    error: Error
    def __init__(self, response: _Optional[_Union[CommitResponse, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class ResetGroupRequest(_message.Message):
    __slots__ = ("group", "positions", "clamp")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    CLAMP_FIELD_NUMBER: _ClassVar[int]
    group: str
    positions: _containers.RepeatedCompositeFieldContainer[Advance]
    clamp: bool
    def __init__(self, group: _Optional[str] = ..., positions: _Optional[_Iterable[_Union[Advance, _Mapping]]] = ..., clamp: _Optional[bool] = ...) -> None: ...

class ResetGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExpireGroupRequest(_message.Message):
    __slots__ = ("group", "before_ns", "dry_run")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BEFORE_NS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    group: str
    before_ns: int
    dry_run: bool
    def __init__(self, group: _Optional[str] = ..., before_ns: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class ExpireGroupResponse(_message.Message):
    __slots__ = ("expired",)
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    expired: bool
    def __init__(self, expired: _Optional[bool] = ...) -> None: ...

class PollRequest(_message.Message):
    __slots__ = ("group", "member_id", "max_records", "max_wait_ms", "again")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    max_records: int
    max_wait_ms: int
    again: bool
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., max_records: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., again: _Optional[bool] = ...) -> None: ...

class PollResponse(_message.Message):
    __slots__ = ("partitions", "generation")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PolledPartition]
    generation: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[PolledPartition, _Mapping]]] = ..., generation: _Optional[int] = ...) -> None: ...

class PolledPartition(_message.Message):
    __slots__ = ("topic", "partition", "topic_uuid", "records", "next_offset", "lag")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_uuid: bytes
    records: _containers.RepeatedCompositeFieldContainer[Record]
    next_offset: int
    lag: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_uuid: _Optional[bytes] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., next_offset: _Optional[int] = ..., lag: _Optional[int] = ...) -> None: ...

class StageRequest(_message.Message):
    __slots__ = ("topic", "topic_uuid", "partition", "frames")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_uuid: bytes
    partition: int
    frames: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, topic: _Optional[str] = ..., topic_uuid: _Optional[bytes] = ..., partition: _Optional[int] = ..., frames: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Staged(_message.Message):
    __slots__ = ("token", "records")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    records: int
    def __init__(self, token: _Optional[bytes] = ..., records: _Optional[int] = ...) -> None: ...

class DropStagesRequest(_message.Message):
    __slots__ = ("staged",)
    STAGED_FIELD_NUMBER: _ClassVar[int]
    staged: _containers.RepeatedCompositeFieldContainer[Staged]
    def __init__(self, staged: _Optional[_Iterable[_Union[Staged, _Mapping]]] = ...) -> None: ...

class DropStagesResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommitTransactionRequest(_message.Message):
    __slots__ = ("staged", "writer", "sequence", "owner", "takeover", "group", "member_id", "inputs", "request_id")
    STAGED_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TAKEOVER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    staged: _containers.RepeatedCompositeFieldContainer[Staged]
    writer: str
    sequence: int
    owner: str
    takeover: bool
    group: str
    member_id: str
    inputs: _containers.RepeatedCompositeFieldContainer[Advance]
    request_id: bytes
    def __init__(self, staged: _Optional[_Iterable[_Union[Staged, _Mapping]]] = ..., writer: _Optional[str] = ..., sequence: _Optional[int] = ..., owner: _Optional[str] = ..., takeover: _Optional[bool] = ..., group: _Optional[str] = ..., member_id: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Advance, _Mapping]]] = ..., request_id: _Optional[bytes] = ...) -> None: ...

class CommitTransactionResponse(_message.Message):
    __slots__ = ("repeated", "generation", "applied")
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    repeated: bool
    generation: int
    applied: _containers.RepeatedCompositeFieldContainer[Applied]
    def __init__(self, repeated: _Optional[bool] = ..., generation: _Optional[int] = ..., applied: _Optional[_Iterable[_Union[Applied, _Mapping]]] = ...) -> None: ...

class Applied(_message.Message):
    __slots__ = ("topic", "topic_uuid", "partition", "base_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_uuid: bytes
    partition: int
    base_offset: int
    def __init__(self, topic: _Optional[str] = ..., topic_uuid: _Optional[bytes] = ..., partition: _Optional[int] = ..., base_offset: _Optional[int] = ...) -> None: ...

class RollForwardRequest(_message.Message):
    __slots__ = ("group", "dry_run")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    group: str
    dry_run: bool
    def __init__(self, group: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class RollForwardResponse(_message.Message):
    __slots__ = ("transactions",)
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: int
    def __init__(self, transactions: _Optional[int] = ...) -> None: ...

class GetStatisticsRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class Statistics(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicStatistics]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicStatistics, _Mapping]]] = ...) -> None: ...

class TopicStatistics(_message.Message):
    __slots__ = ("name", "partitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionStatistics]
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[PartitionStatistics, _Mapping]]] = ...) -> None: ...

class PartitionStatistics(_message.Message):
    __slots__ = ("log_start", "log_end", "durable_end", "segments", "bytes", "total_records", "total_frames", "total_bytes", "total_appends", "total_syncs", "last_append_ns", "recoveries", "damaged", "poisoned", "mapped_bytes", "counters")
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    DURABLE_END_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_RECORDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FRAMES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_APPENDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SYNCS_FIELD_NUMBER: _ClassVar[int]
    LAST_APPEND_NS_FIELD_NUMBER: _ClassVar[int]
    RECOVERIES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    POISONED_FIELD_NUMBER: _ClassVar[int]
    MAPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    log_start: int
    log_end: int
    durable_end: int
    segments: int
    bytes: int
    total_records: int
    total_frames: int
    total_bytes: int
    total_appends: int
    total_syncs: int
    last_append_ns: int
    recoveries: int
    damaged: int
    poisoned: bool
    mapped_bytes: int
    counters: Counters
    def __init__(self, log_start: _Optional[int] = ..., log_end: _Optional[int] = ..., durable_end: _Optional[int] = ..., segments: _Optional[int] = ..., bytes: _Optional[int] = ..., total_records: _Optional[int] = ..., total_frames: _Optional[int] = ..., total_bytes: _Optional[int] = ..., total_appends: _Optional[int] = ..., total_syncs: _Optional[int] = ..., last_append_ns: _Optional[int] = ..., recoveries: _Optional[int] = ..., damaged: _Optional[int] = ..., poisoned: _Optional[bool] = ..., mapped_bytes: _Optional[int] = ..., counters: _Optional[_Union[Counters, _Mapping]] = ...) -> None: ...

class Counters(_message.Message):
    __slots__ = ("writes", "write_ns", "shortest_write_ns", "longest_write_ns", "index_writes", "syncs", "sync_ns", "shortest_sync_ns", "longest_sync_ns", "compressed_frames", "compression_bytes_in", "compression_bytes_out", "compression_skipped", "compression_ns", "rotations", "rotation_ns", "readers", "reads", "cache_hits", "mappings", "remappings", "evictions", "errors", "last_error_ns", "retention_runs", "last_retention_ns", "retention_ns", "retention_records", "retention_bytes", "protected_bytes", "protected_segments", "removed_segments", "failed_writes", "failed_syncs", "failed_rotations", "failed_index_writes", "failed_recoveries", "failed_retentions")
    WRITES_FIELD_NUMBER: _ClassVar[int]
    WRITE_NS_FIELD_NUMBER: _ClassVar[int]
    SHORTEST_WRITE_NS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_WRITE_NS_FIELD_NUMBER: _ClassVar[int]
    INDEX_WRITES_FIELD_NUMBER: _ClassVar[int]
    SYNCS_FIELD_NUMBER: _ClassVar[int]
    SYNC_NS_FIELD_NUMBER: _ClassVar[int]
    SHORTEST_SYNC_NS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_SYNC_NS_FIELD_NUMBER: _ClassVar[int]
    COMPRESSED_FRAMES_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_SKIPPED_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_NS_FIELD_NUMBER: _ClassVar[int]
    ROTATIONS_FIELD_NUMBER: _ClassVar[int]
    ROTATION_NS_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    MAPPINGS_FIELD_NUMBER: _ClassVar[int]
    REMAPPINGS_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_NS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_RUNS_FIELD_NUMBER: _ClassVar[int]
    LAST_RETENTION_NS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_NS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_RECORDS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROTECTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROTECTED_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    FAILED_WRITES_FIELD_NUMBER: _ClassVar[int]
    FAILED_SYNCS_FIELD_NUMBER: _ClassVar[int]
    FAILED_ROTATIONS_FIELD_NUMBER: _ClassVar[int]
    FAILED_INDEX_WRITES_FIELD_NUMBER: _ClassVar[int]
    FAILED_RECOVERIES_FIELD_NUMBER: _ClassVar[int]
    FAILED_RETENTIONS_FIELD_NUMBER: _ClassVar[int]
    writes: int
    write_ns: int
    shortest_write_ns: int
    longest_write_ns: int
    index_writes: int
    syncs: int
    sync_ns: int
    shortest_sync_ns: int
    longest_sync_ns: int
    compressed_frames: int
    compression_bytes_in: int
    compression_bytes_out: int
    compression_skipped: int
    compression_ns: int
    rotations: int
    rotation_ns: int
    readers: int
    reads: int
    cache_hits: int
    mappings: int
    remappings: int
    evictions: int
    errors: int
    last_error_ns: int
    retention_runs: int
    last_retention_ns: int
    retention_ns: int
    retention_records: int
    retention_bytes: int
    protected_bytes: int
    protected_segments: int
    removed_segments: int
    failed_writes: int
    failed_syncs: int
    failed_rotations: int
    failed_index_writes: int
    failed_recoveries: int
    failed_retentions: int
    def __init__(self, writes: _Optional[int] = ..., write_ns: _Optional[int] = ..., shortest_write_ns: _Optional[int] = ..., longest_write_ns: _Optional[int] = ..., index_writes: _Optional[int] = ..., syncs: _Optional[int] = ..., sync_ns: _Optional[int] = ..., shortest_sync_ns: _Optional[int] = ..., longest_sync_ns: _Optional[int] = ..., compressed_frames: _Optional[int] = ..., compression_bytes_in: _Optional[int] = ..., compression_bytes_out: _Optional[int] = ..., compression_skipped: _Optional[int] = ..., compression_ns: _Optional[int] = ..., rotations: _Optional[int] = ..., rotation_ns: _Optional[int] = ..., readers: _Optional[int] = ..., reads: _Optional[int] = ..., cache_hits: _Optional[int] = ..., mappings: _Optional[int] = ..., remappings: _Optional[int] = ..., evictions: _Optional[int] = ..., errors: _Optional[int] = ..., last_error_ns: _Optional[int] = ..., retention_runs: _Optional[int] = ..., last_retention_ns: _Optional[int] = ..., retention_ns: _Optional[int] = ..., retention_records: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., protected_bytes: _Optional[int] = ..., protected_segments: _Optional[int] = ..., removed_segments: _Optional[int] = ..., failed_writes: _Optional[int] = ..., failed_syncs: _Optional[int] = ..., failed_rotations: _Optional[int] = ..., failed_index_writes: _Optional[int] = ..., failed_recoveries: _Optional[int] = ..., failed_retentions: _Optional[int] = ...) -> None: ...

class ListSegmentsRequest(_message.Message):
    __slots__ = ("partition",)
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    partition: TopicPartition
    def __init__(self, partition: _Optional[_Union[TopicPartition, _Mapping]] = ...) -> None: ...

class ListSegmentsResponse(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, segments: _Optional[_Iterable[str]] = ...) -> None: ...

class WorkOnPartitionRequest(_message.Message):
    __slots__ = ("partition", "work", "offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: TopicPartition
    work: PartitionWork
    offset: int
    def __init__(self, partition: _Optional[_Union[TopicPartition, _Mapping]] = ..., work: _Optional[_Union[PartitionWork, str]] = ..., offset: _Optional[int] = ...) -> None: ...

class WorkOnPartitionResponse(_message.Message):
    __slots__ = ("report",)
    REPORT_FIELD_NUMBER: _ClassVar[int]
    report: str
    def __init__(self, report: _Optional[str] = ...) -> None: ...

class RunStewardRequest(_message.Message):
    __slots__ = ("dry_run", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    options: _containers.ScalarMap[str, str]
    def __init__(self, dry_run: _Optional[bool] = ..., options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class RunStewardResponse(_message.Message):
    __slots__ = ("report",)
    REPORT_FIELD_NUMBER: _ClassVar[int]
    report: str
    def __init__(self, report: _Optional[str] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ("broker_id", "version", "state", "directory", "started_ns", "connections", "topics", "partitions", "in_flight_bytes", "produced_records", "produced_bytes", "fetched_bytes", "memory_bytes", "unhealthy")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNHEALTHY_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    version: str
    state: str
    directory: str
    started_ns: int
    connections: int
    topics: int
    partitions: int
    in_flight_bytes: int
    produced_records: int
    produced_bytes: int
    fetched_bytes: int
    memory_bytes: int
    unhealthy: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, broker_id: _Optional[int] = ..., version: _Optional[str] = ..., state: _Optional[str] = ..., directory: _Optional[str] = ..., started_ns: _Optional[int] = ..., connections: _Optional[int] = ..., topics: _Optional[int] = ..., partitions: _Optional[int] = ..., in_flight_bytes: _Optional[int] = ..., produced_records: _Optional[int] = ..., produced_bytes: _Optional[int] = ..., fetched_bytes: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., unhealthy: _Optional[_Iterable[str]] = ...) -> None: ...

class ReplicaFetch(_message.Message):
    __slots__ = ("topic_uuid", "partition", "replica", "incarnation", "epoch", "end", "durable_end", "last_epoch", "high_watermark", "max_bytes", "max_wait_ms", "producers_until", "mark", "damaged")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    DURABLE_END_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_UNTIL_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: bytes
    partition: int
    replica: int
    incarnation: int
    epoch: int
    end: int
    durable_end: int
    last_epoch: int
    high_watermark: int
    max_bytes: int
    max_wait_ms: int
    producers_until: int
    mark: int
    damaged: bool
    def __init__(self, topic_uuid: _Optional[bytes] = ..., partition: _Optional[int] = ..., replica: _Optional[int] = ..., incarnation: _Optional[int] = ..., epoch: _Optional[int] = ..., end: _Optional[int] = ..., durable_end: _Optional[int] = ..., last_epoch: _Optional[int] = ..., high_watermark: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., producers_until: _Optional[int] = ..., mark: _Optional[int] = ..., damaged: _Optional[bool] = ...) -> None: ...

class ReplicaFetched(_message.Message):
    __slots__ = ("topic_uuid", "partition", "epoch", "end", "high_watermark", "log_start", "diverging", "error", "producers", "epochs", "next_offset", "next_epoch", "compacted_until", "mark", "frames", "markers_until", "markers_state")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    DIVERGING_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    MARKERS_UNTIL_FIELD_NUMBER: _ClassVar[int]
    MARKERS_STATE_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: bytes
    partition: int
    epoch: int
    end: int
    high_watermark: int
    log_start: int
    diverging: EpochEnd
    error: Error
    producers: bytes
    epochs: _containers.RepeatedCompositeFieldContainer[EpochStart]
    next_offset: int
    next_epoch: int
    compacted_until: int
    mark: int
    frames: bytes
    markers_until: int
    markers_state: int
    def __init__(self, topic_uuid: _Optional[bytes] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., end: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_start: _Optional[int] = ..., diverging: _Optional[_Union[EpochEnd, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., producers: _Optional[bytes] = ..., epochs: _Optional[_Iterable[_Union[EpochStart, _Mapping]]] = ..., next_offset: _Optional[int] = ..., next_epoch: _Optional[int] = ..., compacted_until: _Optional[int] = ..., mark: _Optional[int] = ..., frames: _Optional[bytes] = ..., markers_until: _Optional[int] = ..., markers_state: _Optional[int] = ...) -> None: ...

class ReadReplicaRequest(_message.Message):
    __slots__ = ("topic_uuid", "partition", "start", "end", "max_bytes", "without_frames")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FRAMES_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: bytes
    partition: int
    start: int
    end: int
    max_bytes: int
    without_frames: bool
    def __init__(self, topic_uuid: _Optional[bytes] = ..., partition: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., max_bytes: _Optional[int] = ..., without_frames: _Optional[bool] = ...) -> None: ...

class ReadReplicaResponse(_message.Message):
    __slots__ = ("frames", "next_offset", "damaged_until", "epochs", "compacted_until", "markers_until")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    MARKERS_UNTIL_FIELD_NUMBER: _ClassVar[int]
    frames: bytes
    next_offset: int
    damaged_until: int
    epochs: _containers.RepeatedCompositeFieldContainer[EpochStart]
    compacted_until: int
    markers_until: int
    def __init__(self, frames: _Optional[bytes] = ..., next_offset: _Optional[int] = ..., damaged_until: _Optional[int] = ..., epochs: _Optional[_Iterable[_Union[EpochStart, _Mapping]]] = ..., compacted_until: _Optional[int] = ..., markers_until: _Optional[int] = ...) -> None: ...

class EpochStart(_message.Message):
    __slots__ = ("epoch", "start")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    start: int
    def __init__(self, epoch: _Optional[int] = ..., start: _Optional[int] = ...) -> None: ...

class EpochEnd(_message.Message):
    __slots__ = ("epoch", "end")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    end: int
    def __init__(self, epoch: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class ElectLeaderRequest(_message.Message):
    __slots__ = ("partition", "broker", "dry_run", "revision")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    partition: TopicPartition
    broker: int
    dry_run: bool
    revision: int
    def __init__(self, partition: _Optional[_Union[TopicPartition, _Mapping]] = ..., broker: _Optional[int] = ..., dry_run: _Optional[bool] = ..., revision: _Optional[int] = ...) -> None: ...

class ElectLeaderResponse(_message.Message):
    __slots__ = ("revision", "epoch", "replicas")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    epoch: int
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaStanding]
    def __init__(self, revision: _Optional[int] = ..., epoch: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[ReplicaStanding, _Mapping]]] = ...) -> None: ...

class ReplicaStanding(_message.Message):
    __slots__ = ("broker", "in_sync", "alive", "end")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    broker: int
    in_sync: bool
    alive: bool
    end: int
    def __init__(self, broker: _Optional[int] = ..., in_sync: _Optional[bool] = ..., alive: _Optional[bool] = ..., end: _Optional[int] = ...) -> None: ...

class ListReadersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListReadersResponse(_message.Message):
    __slots__ = ("coordinated", "groups", "readers")
    COORDINATED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    coordinated: _containers.RepeatedScalarFieldContainer[int]
    groups: _containers.RepeatedScalarFieldContainer[str]
    readers: _containers.RepeatedCompositeFieldContainer[Reader]
    def __init__(self, coordinated: _Optional[_Iterable[int]] = ..., groups: _Optional[_Iterable[str]] = ..., readers: _Optional[_Iterable[_Union[Reader, _Mapping]]] = ...) -> None: ...

class Reader(_message.Message):
    __slots__ = ("group", "topic_uuid", "partition", "offset")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic_uuid: bytes
    partition: int
    offset: int
    def __init__(self, group: _Optional[str] = ..., topic_uuid: _Optional[bytes] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class ListLogEndsRequest(_message.Message):
    __slots__ = ("partitions", "sizes")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    sizes: bool
    def __init__(self, partitions: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ..., sizes: _Optional[bool] = ...) -> None: ...

class ListLogEndsResponse(_message.Message):
    __slots__ = ("ends",)
    ENDS_FIELD_NUMBER: _ClassVar[int]
    ends: _containers.RepeatedCompositeFieldContainer[LogEnd]
    def __init__(self, ends: _Optional[_Iterable[_Union[LogEnd, _Mapping]]] = ...) -> None: ...

class LogEnd(_message.Message):
    __slots__ = ("topic_uuid", "partition", "epoch", "end", "bytes")
    TOPIC_UUID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    topic_uuid: bytes
    partition: int
    epoch: int
    end: int
    bytes: int
    def __init__(self, topic_uuid: _Optional[bytes] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., end: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class PlanMovesRequest(_message.Message):
    __slots__ = ("remove",)
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    remove: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, remove: _Optional[_Iterable[int]] = ...) -> None: ...

class Moves(_message.Message):
    __slots__ = ("moves",)
    MOVES_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[Move]
    def __init__(self, moves: _Optional[_Iterable[_Union[Move, _Mapping]]] = ...) -> None: ...

class Move(_message.Message):
    __slots__ = ("topic", "partition", "replicas", "to", "revision", "bytes", "copied", "missing")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    to: _containers.RepeatedScalarFieldContainer[int]
    revision: int
    bytes: int
    copied: int
    missing: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., to: _Optional[_Iterable[int]] = ..., revision: _Optional[int] = ..., bytes: _Optional[int] = ..., copied: _Optional[int] = ..., missing: _Optional[_Iterable[int]] = ...) -> None: ...

class BeginMovesRequest(_message.Message):
    __slots__ = ("moves", "remove")
    MOVES_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[Move]
    remove: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, moves: _Optional[_Iterable[_Union[Move, _Mapping]]] = ..., remove: _Optional[_Iterable[int]] = ...) -> None: ...

class BeginMovesResponse(_message.Message):
    __slots__ = ("begun",)
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    begun: int
    def __init__(self, begun: _Optional[int] = ...) -> None: ...

class CancelMovesRequest(_message.Message):
    __slots__ = ("remove",)
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    remove: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, remove: _Optional[_Iterable[int]] = ...) -> None: ...

class CancelMovesResponse(_message.Message):
    __slots__ = ("cancelled",)
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    cancelled: int
    def __init__(self, cancelled: _Optional[int] = ...) -> None: ...

class ListMovesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StagesRequest(_message.Message):
    __slots__ = ("partition", "writer", "portions")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    PORTIONS_FIELD_NUMBER: _ClassVar[int]
    partition: TopicPartition
    writer: bytes
    portions: _containers.RepeatedCompositeFieldContainer[StagedPortion]
    def __init__(self, partition: _Optional[_Union[TopicPartition, _Mapping]] = ..., writer: _Optional[bytes] = ..., portions: _Optional[_Iterable[_Union[StagedPortion, _Mapping]]] = ...) -> None: ...

class StagedPortion(_message.Message):
    __slots__ = ("number", "ranges")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    number: int
    ranges: _containers.RepeatedCompositeFieldContainer[StageRange]
    def __init__(self, number: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[StageRange, _Mapping]]] = ...) -> None: ...

class StageRange(_message.Message):
    __slots__ = ("epoch", "start", "end")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    start: int
    end: int
    def __init__(self, epoch: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class HoldStagesResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ApplyStagesResponse(_message.Message):
    __slots__ = ("applied",)
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    applied: _containers.RepeatedCompositeFieldContainer[AppliedPortion]
    def __init__(self, applied: _Optional[_Iterable[_Union[AppliedPortion, _Mapping]]] = ...) -> None: ...

class AppliedPortion(_message.Message):
    __slots__ = ("base_offset",)
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    def __init__(self, base_offset: _Optional[int] = ...) -> None: ...

class ListUndoneRequest(_message.Message):
    __slots__ = ("partition",)
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    partition: TopicPartition
    def __init__(self, partition: _Optional[_Union[TopicPartition, _Mapping]] = ...) -> None: ...

class ListUndoneResponse(_message.Message):
    __slots__ = ("coordinated", "undone")
    COORDINATED_FIELD_NUMBER: _ClassVar[int]
    UNDONE_FIELD_NUMBER: _ClassVar[int]
    coordinated: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    undone: _containers.RepeatedCompositeFieldContainer[StageRange]
    def __init__(self, coordinated: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ..., undone: _Optional[_Iterable[_Union[StageRange, _Mapping]]] = ...) -> None: ...

class GetAccessRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AccessRules(_message.Message):
    __slots__ = ("users", "tokens", "of_cluster", "enforced")
    USERS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    OF_CLUSTER_FIELD_NUMBER: _ClassVar[int]
    ENFORCED_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[AccessUser]
    tokens: _containers.RepeatedCompositeFieldContainer[AccessToken]
    of_cluster: bool
    enforced: bool
    def __init__(self, users: _Optional[_Iterable[_Union[AccessUser, _Mapping]]] = ..., tokens: _Optional[_Iterable[_Union[AccessToken, _Mapping]]] = ..., of_cluster: _Optional[bool] = ..., enforced: _Optional[bool] = ...) -> None: ...

class AccessUser(_message.Message):
    __slots__ = ("name", "rights")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RIGHTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    rights: str
    def __init__(self, name: _Optional[str] = ..., rights: _Optional[str] = ...) -> None: ...

class AccessToken(_message.Message):
    __slots__ = ("id", "user", "salt", "hash", "created", "expires")
    ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    id: str
    user: str
    salt: str
    hash: str
    created: float
    expires: float
    def __init__(self, id: _Optional[str] = ..., user: _Optional[str] = ..., salt: _Optional[str] = ..., hash: _Optional[str] = ..., created: _Optional[float] = ..., expires: _Optional[float] = ...) -> None: ...

class SetAccessRequest(_message.Message):
    __slots__ = ("users", "tokens", "remove_users", "remove_tokens")
    USERS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_USERS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[AccessUser]
    tokens: _containers.RepeatedCompositeFieldContainer[AccessToken]
    remove_users: _containers.RepeatedScalarFieldContainer[str]
    remove_tokens: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, users: _Optional[_Iterable[_Union[AccessUser, _Mapping]]] = ..., tokens: _Optional[_Iterable[_Union[AccessToken, _Mapping]]] = ..., remove_users: _Optional[_Iterable[str]] = ..., remove_tokens: _Optional[_Iterable[str]] = ...) -> None: ...

class SetAccessResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
