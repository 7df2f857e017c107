"""Groups: their members and positions, and resets of positions, which can be looked at first."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from headwater.console.messages import start_from_text
from headwater.console.page_request import NotFound, PageRequest
from headwater.core.errors import HeadwaterError, InvalidConfiguration, OffsetOutOfRange
from headwater.streams.group import Commit
from headwater.streams.topic import TopicPartition


def listed(request: PageRequest) -> dict[str, Any]:
    """Every group: its members, its topics, and how far it is behind."""
    survey = request.watch.survey
    if survey is None:
        return {"ready": False, "groups": [{"name": name} for name in request.store.group_names()]}
    groups = []
    for name, lags in survey.lags().items():
        info = survey.groups[name]
        topics = sorted({tp.topic for tp in [*lags, *info.owners]})
        groups.append(
            {
                "name": name,
                "members": len(info.members),
                "topics": topics,
                "lag": sum(lags.values()),
                "worst": max(lags.values(), default=0),
                "generation": info.generation,
                "last": max((position.committed_ns for position in info.positions.values()), default=0) / 1e6 or None,
            }
        )
    return {"ready": True, "groups": groups, "problems": survey.problems, "error": request.watch.error}


def shown_group(request: PageRequest) -> dict[str, Any]:
    """One group: its members and each partition's position, owner and lag."""
    name = request.path["group"]
    if name not in request.store.group_names():
        raise NotFound(f"group {name!r} does not exist")
    info = request.store.group(name).describe()
    survey = request.watch.survey
    names = _names(request, {uuid for uuid, _ in info.positions})
    partitions: list[dict[str, Any]] = []
    seen: set[TopicPartition] = set()
    for (uuid, number), position in sorted(
        info.positions.items(), key=lambda item: (names.get(item[0][0], ""), item[0])
    ):
        topic = names.get(uuid)
        tp = TopicPartition(topic or f"deleted topic {uuid.hex()[:8]}", number)
        seen.add(tp)
        statistics = survey.topics.get(topic) if survey is not None and topic is not None else None
        known = statistics is not None and number < len(statistics.partitions)
        end = statistics.partitions[number].end if statistics is not None and known else None
        partitions.append(
            {
                "topic": tp.topic,
                "deleted": topic is None,
                "partition": number,
                "offset": position.offset,
                "start": statistics.partitions[number].start if statistics is not None and known else None,
                "end": end,
                "lag": None if end is None else max(end - position.offset, 0),
                "committed": position.committed_ns / 1e6,
                "commits": position.commits,
                "owner": info.owners.get(tp),
            }
        )
    partitions += [
        {"topic": tp.topic, "partition": tp.partition, "offset": None, "lag": None, "owner": owner}
        for tp, owner in sorted(info.owners.items())
        if tp not in seen
    ]
    return {
        "name": name,
        "generation": info.generation,
        "lag": sum(row["lag"] or 0 for row in partitions),
        "members": [
            {
                "id": member_id,
                "client": member.client,
                "topics": member.topics,
                "joined": member.joined_ns / 1e6,
                "partitions": [str(tp) for tp, owner in sorted(info.owners.items()) if owner == member_id],
                "waits_for": [
                    str(tp)
                    for tp, target in sorted(info.target.items())
                    if target == member_id and info.owners.get(tp) != member_id
                ],
            }
            for member_id, member in info.members.items()
        ],
        "partitions": partitions,
    }


def _names(request: PageRequest, wanted: set[bytes]) -> dict[bytes, str]:
    """Topics by their identity; those that were made since the store was last looked at are asked for."""
    survey = request.watch.survey
    names = {info.uuid: topic for topic, info in survey.infos.items()} if survey is not None else {}
    if not wanted <= names.keys():
        for new in set(request.store.topic_names()) - set(names.values()):
            with suppress(HeadwaterError):  # deleted meanwhile, or not for this user
                names[request.store.topic(new).info.uuid] = new
    return names


def planned_reset(request: PageRequest) -> dict[str, Any]:
    """Answer with the plan of a reset: the present position of each partition, and the one that it would get."""
    name, topic = request.path["group"], request.store.topic(request.given("topic", str))
    info = topic.info
    chosen = request.body.get("partitions")
    numbers = chosen or list(range(info.partitions))
    if not isinstance(numbers, list) or not all(isinstance(number, int) for number in numbers):
        raise InvalidConfiguration("partitions must be a list of numbers")
    start = start_from_text(request.given("to", str))
    positions = request.store.group(name).committed() if name in request.store.group_names() else {}
    rows = []
    for number in numbers:
        try:
            after = topic.offset_of(start, number)
        except OffsetOutOfRange as error:
            after = error.start if error.offset < error.start else error.end
        before = positions.get((info.uuid, number))
        bounds = topic.partition(number).bounds()
        rows.append(
            {
                "partition": number,
                "before": None if before is None else before.offset,
                "after": after,
                "start": bounds.start,
                "end": bounds.end,
                "change": None if before is None else after - before.offset,
                "lag": bounds.end - after,
            }
        )
    return {"group": name, "topic": topic.name, "uuid": info.uuid.hex(), "rows": rows}


def reset(request: PageRequest) -> dict[str, Any]:
    """Reset positions as shown: `uuid` and `positions` are those of the plan."""
    name, topic = request.path["group"], request.store.topic(request.given("topic", str))
    info = topic.info
    if request.given("uuid", str) != info.uuid.hex():
        raise InvalidConfiguration(
            f"topic {topic.name!r} was deleted and created again since the difference was shown: look again"
        )
    positions = {}
    for text, offset in request.given("positions", dict).items():
        number = int(text) if text.isdecimal() else -1
        if not 0 <= number < info.partitions or not isinstance(offset, int) or isinstance(offset, bool):
            raise InvalidConfiguration(f"{text!r:.20}: {offset!r:.20} is not a position in {topic.name!r}")
        bounds = topic.partition(number).bounds()
        positions[TopicPartition(topic.name, number)] = Commit(
            (info.uuid, number), min(max(offset, bounds.start), bounds.end)
        )
    request.store.group(name).reset(positions)
    request.watch.look_now()
    return {"group": name, "reset": len(positions)}
