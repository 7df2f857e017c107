"""A survey: a whole store at one moment, in numbers. Topics that cannot be read are named, and do not hide the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headwater.core.errors import HeadwaterError, StoreClosed, UnknownTopic
from headwater.streams.catalog import TopicInfo
from headwater.streams.group import GroupInfo
from headwater.streams.topic import TopicPartition, TopicStatistics

if TYPE_CHECKING:
    from headwater.streams.store import Store


_NOT_LED: Final = "one of its partitions is led by nobody, or by a broker that does not answer"


@dataclass(frozen=True, slots=True)
class Survey:
    """Topics and groups as they were at `time_ns`; internal topics are left out."""

    time_ns: int
    infos: dict[str, TopicInfo] = field(default_factory=dict)
    topics: dict[str, TopicStatistics] = field(default_factory=dict)
    groups: dict[str, GroupInfo] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    """The reason for each `topic NAME` or `group NAME` that could not be read."""

    @classmethod
    def of(cls, store: Store, now_ns: int) -> Survey:
        """Look at everything. It takes a look at the files of each partition, or some calls of a broker."""
        survey = cls(now_ns)
        names = store.topics()
        survey._look_at_topics(store, names)
        for name in store.group_names():
            try:
                survey.groups[name] = store.group(name).describe()
            except StoreClosed:
                raise
            except (HeadwaterError, OSError) as error:
                survey.problems[f"group {name}"] = str(error)
        return survey

    def _look_at_topics(self, store: Store, names: list[str]) -> None:
        known: dict[str, TopicStatistics] | None = None
        try:
            known = {topic.name: topic for topic in store.statistics().topics}  # of a broker it is one call
        except StoreClosed:
            raise
        except (HeadwaterError, OSError):
            pass  # one of them: which one is found out below
        for name in names:
            try:
                self.infos[name] = store.recall_topic(name)
                if known is None:
                    self.topics[name] = store.topic(name).statistics()
                elif name in known:
                    self.topics[name] = known[name]
                else:
                    store.describe_topic(name)
                    self.problems[f"topic {name}"] = _NOT_LED
            except StoreClosed:
                raise
            except UnknownTopic:
                self.infos.pop(name, None)  # deleted since its name was read
            except (HeadwaterError, OSError) as error:
                self.problems[f"topic {name}"] = str(error)

    def lags(self) -> dict[str, dict[TopicPartition, int]]:
        """For each group how many records it has yet to acknowledge, in partitions where it has a position."""
        names = {info.uuid: name for name, info in self.infos.items() if name in self.topics}
        group_lags: dict[str, dict[TopicPartition, int]] = {}
        for group, info in self.groups.items():
            lags = group_lags[group] = {}
            for (uuid, number), position in info.positions.items():
                partitions = self.topics[names[uuid]].partitions if uuid in names else ()
                if number < len(partitions):
                    lags[TopicPartition(names[uuid], number)] = max(partitions[number].end - position.offset, 0)
        return group_lags
