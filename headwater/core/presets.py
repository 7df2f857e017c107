"""Presets: configurations of everything in a store, for a purpose.

A preset is where a store begins; what a program says explicitly goes over it. None of them gives up durability: every
preset syncs before it acknowledges. To trade that for speed, say `sync` yourself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, get_type_hints

from headwater.core.config import ConsumerConfig, ProducerConfig, StewardConfig, TopicConfig
from headwater.core.errors import InvalidConfiguration
from headwater.core.options import KIB, MIB, PIB, TIB, Option, count, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """The default configuration of a store's topics, producers, consumers and stewards."""

    topic: TopicConfig = field(default_factory=TopicConfig)
    """For topics that are created. Those that are there keep what they were made with."""
    producer: ProducerConfig = field(default_factory=ProducerConfig)
    consumer: ConsumerConfig = field(default_factory=ConsumerConfig)
    steward: StewardConfig = field(default_factory=StewardConfig)

    def __post_init__(self) -> None:
        for noun, kind in nouns().items():
            value = getattr(self, noun)
            if not isinstance(value, kind):
                raise InvalidConfiguration(f"{noun} must be a {kind.__name__}, not {value!r:.60}")


def nouns() -> dict[str, type[Any]]:
    """Return the nouns that a preset configures, with the class of each configuration."""
    return get_type_hints(Preset)


DEFAULT: Final = Preset()
"""For most programs: records are durable and visible within milliseconds. It costs a frame and a sync for each few
milliseconds of records; if they come in a steady stream, THROUGHPUT makes fewer and larger ones of them."""

THROUGHPUT: Final = Preset(
    topic=TopicConfig(segment_bytes=1024 * MIB),
    producer=ProducerConfig(linger=0.1, batch_records=50_000, batch_bytes=4 * MIB),
    consumer=ConsumerConfig(fetch_bytes=4 * MIB, max_poll_records=5000),
)
"""For the most records per second: large frames, so that a sync and the work for each frame serve many records. It
costs time until a record is visible, up to 0.1 s; memory, about 8 MiB per partition in a producer and more in a
consumer; disk, since retention waits for segments of 1 GiB; and after a crash up to 5000 records are handled again."""

COMPRESSION: Final = Preset(
    topic=TopicConfig(compression="zstd", compression_threshold=256),
    producer=ProducerConfig(linger=0.1, batch_records=50_000, batch_bytes=4 * MIB),
)
"""For the least disk: zstd, in frames large enough for it to find what repeats. It costs the producers' processors, and
the readers' too, who get a decompressed copy instead of a view; time until a record is visible, up to 0.1 s; and
memory, about 8 MiB per partition in a producer. Values that are encrypted or compressed already gain nothing."""

MANY_PROCESSES: Final = Preset(
    topic=TopicConfig(lock_timeout=60.0),
    producer=ProducerConfig(linger=0.02, block_timeout=90.0),
    consumer=ConsumerConfig(max_poll_records=100, max_poll_interval=60.0, refresh_interval=0.25),
)
"""For many processes on the same topics, such as the workers of a web server: they take the partitions' locks less
often and wait longer for them, and a group soon goes on without a member that is dead or hangs. It costs time until a
record is visible, 20 ms and more when many write; a minute until a stopped writer is reported; four looks at the
store's files per second in each process; and a worker that takes over a minute for 100 records loses its partitions."""


def sized(*, partitions: int, memory: int) -> Preset:
    """For little memory, or many partitions: a producer and a consumer of so many partitions in all, each holding what
    it can hold, stay within `memory` bytes. The memory of Python and Arrow themselves, and of the records that a poll
    has handed to you, is not counted. Compaction remembers keys in a quarter of it, and takes more while it works.

    Arrow's usual allocator, mimalloc, keeps memory that was freed: 40 to 65 MB beyond this were measured, of which 3
    were in use. With `ARROW_DEFAULT_MEMORY_POOL=system` in the environment it gives them back, and for 200,000 records
    of 1 KB in 4 partitions with 32 MiB the process grew by 15 MB. `pyarrow.default_memory_pool().release_unused()`
    gives them back at once.

    It costs speed: frames get as small as the memory demands, and small frames are slow and large on disk. Compaction
    removes less where keys are many, and values larger than a 16th of the memory are refused.
    """
    Option("partitions", None, (), count(1, 1_000_000)).check(partitions)
    Option("memory", None, (), size(_LEAST * partitions, PIB)).check(memory)
    batch = min(memory // (_COPIES * partitions), 4 * MIB)
    return Preset(
        topic=TopicConfig(
            max_value_bytes=min(memory // 16, 10 * MIB),
            max_frame_bytes=min(memory // 8, 64 * MIB),
            compaction_memory=min(memory // 4, TIB),
        ),
        producer=ProducerConfig(batch_bytes=batch, batch_records=min(batch // _SMALL_RECORD, 50_000)),
        consumer=ConsumerConfig(fetch_bytes=batch),
    )


_COPIES: Final = 16
"""The number of copies of a batch's bytes for each partition, at worst: as objects and encoded in the producer, as
read and as objects in the consumer, where a record of 16 bytes takes 20 times as much."""

_SMALL_RECORD: Final = 64
"""Smaller records count for so many bytes: that is what their objects take anyway."""

_LEAST: Final = 64 * KIB
"""With less memory for a partition there would be no batches to speak of."""
