"""Recovery: what an opener does, under the lock, with whatever it finds.

The log is the truth and the state a hint. Recovery starts at the *floor*, the greatest offset that is known to have
been synced, from the state and from what later frames say of earlier ones. From there it adopts the longest run of
valid frames, whole atomic groups only, each of which must name the one before it. Everything behind them is cut.

Below the floor nothing is ever cut. A bad frame there is damage to what was acknowledged: it is passed over, reported,
and the good frames behind it are kept.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from headwater.core.config import PartitionConfig
from headwater.core.errors import Damaged, FrameDamaged, IndexDamaged, RecoveryRefused
from headwater.log.clock import Clock
from headwater.log.entropy import random_bytes
from headwater.log.files.disk import TEMPORARY, Disk, drop_page_cache
from headwater.log.files.index import (
    ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    NEVER,
    IndexBuilder,
    IndexHeader,
    open_index,
    pack_entry,
)
from headwater.log.files.marks import START_FILE, TRUNCATE_FILE, read_mark
from headwater.log.files.segment import (
    SEGMENT_HEADER_BYTES,
    SEGMENT_MAGIC,
    FrameFile,
    Segment,
    SegmentHeader,
    delete_segment,
    list_segments,
    new_segment_header,
    seed_of,
)
from headwater.log.files.segment_list import (
    COMPACTED,
    LIST_FILE,
    UNCUT,
    ListedSegment,
    SegmentList,
    Successor,
    lost_segment,
    replace_list,
    with_newest,
)
from headwater.log.files.state import BLANK, CHANGING, State, StatePage, begin_segment
from headwater.log.format.frame import NO_PRODUCER, FrameHeader
from headwater.log.format.schemas import Schemas
from headwater.log.read.tail import LogTail, rewrite, walk
from headwater.log.recover.damage import read_damage, with_damage, without_damage, write_damage
from headwater.log.recover.inventory import Inventory, described, take_inventory
from headwater.log.recover.report import Damage, RecoveryReport
from headwater.log.write.producers import ProducerTable, load_producers
from headwater.log.write.rewrite import copy_prefix, cut_segment

STATE_FILE: Final = "state"
_COPY: Final = 1024 * 1024


class Recovery:
    """One recovery of one partition, under its lock."""

    def __init__(
        self,
        directory: Path,
        config: PartitionConfig,
        disk: Disk,
        clock: Clock,
        schemas: Schemas,
        partition: bytes | None = None,
        *,
        thorough: bool = False,
    ) -> None:
        """A `thorough` recovery also opens files of closed segments that are as long as the list says."""
        self._directory = directory
        self._config = config
        self._disk = disk
        self._clock = clock
        self._schemas = schemas
        self._partition = partition
        self._thorough = thorough
        self.report = RecoveryReport(directory)

    def run(self) -> State:
        """Bring the files in order and return the published state."""
        for path in sorted(self._directory.glob(f"*{TEMPORARY}")):
            self._disk.unlink(path)
        known = self._read_state()
        if known is None or known.flags:
            # A process in the middle of a change may have died before the names it made or removed were durable.
            self._disk.sync_directory(self._directory)
        partition = self._identify(known)
        state = known or BLANK._replace(partition=partition, damaged=len(read_damage(self._directory)))
        start = max(state.start, self._read_mark(START_FILE) or 0)
        target = self._read_mark(TRUNCATE_FILE)
        if target is not None:
            start = min(start, target)
        inventory = self._take_inventory(known, partition, start)
        if known is None and (inventory.growing or inventory.closed):
            self.report.rebuilt.append(STATE_FILE)
        self.report.strangers = inventory.strangers
        state = state._replace(start=self._find_start(inventory, start, known=known is not None))
        if target is not None:
            return self._truncate(state, inventory, target)
        self.report.damage += inventory.damage
        if inventory.made:
            self.report.rebuilt.append(LIST_FILE)
        if inventory.growing is None:
            ends = inventory.closed[-1].end if inventory.closed else state.start
            base = max(state.durable_end, ends)
            if base > ends:
                lost = self._directory / f"{ends:020d}.log"
                self._lost(lost, 0, ends, base, "the end of the log is missing")
                self._refuse_if_told()
                inventory.closed.append(lost_segment(ends, base))
            state = self._begin(state, base, inventory)
        else:
            state = self._recover_end(state, inventory.growing, inventory)
        state = self._save_list(state, inventory)
        for path in inventory.leftovers:
            delete_segment(self._disk, path)
        return state if state == known else self._publish(state)

    def _find_start(self, inventory: Inventory, start: int, *, known: bool) -> int:
        """Return the start of the log: the offset up to which records were deleted, or else the first of its files."""
        if known:
            return start
        first = [entry.base for entry in inventory.closed[:1]] + ([inventory.growing.base] if inventory.growing else [])
        return max(start, min(first, default=start))

    def _take_inventory(self, state: State | None, partition: bytes, start: int) -> Inventory:
        """Hold the files against the list, after mending headers of files that prove to be the log's own."""
        inventory = take_inventory(self._directory, partition, state, start, thorough=self._thorough)
        listed = {entry.base: entry for entry in inventory.closed}
        mended = [self._mend_header(path, partition, listed.get(int(path.stem))) for path in inventory.garbled]
        if any(mended):
            inventory = take_inventory(self._directory, partition, state, start, thorough=self._thorough)
        return inventory

    def _save_list(self, state: State, inventory: Inventory) -> State:
        """Make the list say what the inventory does, durably; the state that goes with it."""
        wanted = list(with_newest(inventory.closed))
        generation = max(inventory.generation, state.list_generation, 1)
        unchanged = wanted == inventory.on_disk and len(wanted) == inventory.entries
        if not unchanged or state.list_generation > inventory.generation or inventory.made:
            if wanted == inventory.on_disk[: len(wanted)] and not inventory.made and inventory.generation == generation:
                listed = SegmentList.open(self._disk, self._directory, state.partition)
                try:
                    listed.cut(self._disk, len(wanted))
                finally:
                    listed.close(self._disk)
            elif wanted or inventory.generation:
                generation += 1
                replace_list(self._disk, self._directory, state.partition, generation, wanted)
                self._disk.sync_directory(self._directory)
            inventory.on_disk, inventory.entries, inventory.made = wanted, len(wanted), False
            inventory.generation = generation
        return state._replace(list_generation=generation, listed=len(wanted))

    # The identity of the partition, and its state.

    def _read_state(self) -> State | None:
        try:
            page = StatePage(self._disk, self._directory / STATE_FILE)
        except FileNotFoundError:
            return None
        try:
            return page.read()[0]
        finally:
            page.close()

    def _read_mark(self, name: str) -> int | None:
        try:
            return read_mark(self._directory, name)
        except Damaged:
            self._disk.unlink(self._directory / name)
            self.report.rebuilt.append(name)
            return None

    def _identify(self, state: State | None) -> bytes:
        if state is not None:
            return state.partition
        if self._partition is not None:
            return self._partition
        segments, strangers = list_segments(self._directory, None)
        if not segments and strangers:
            raise Damaged("neither the state nor any segment says which log this is", file=self._directory)
        return segments[0].header.partition if segments else random_bytes(16)

    def _publish(self, state: State, *, flags: int = 0) -> State:
        """Make the result durable: both copies, so that no older one can contradict it."""
        known = read_damage(self._directory)
        noted, new = with_damage(known, self.report.damage)
        if not flags and not self.report.clean:
            state = state._replace(recoveries=state.recoveries + 1, damaged=state.damaged + new)
        state = state._replace(flags=flags)
        path = self._directory / STATE_FILE
        try:
            page = StatePage(self._disk, path)
        except FileNotFoundError:
            StatePage.create(self._disk, path, state)
            self._sync_names()
            page = StatePage(self._disk, path)
        try:
            state = page.write_both(state)
            page.sync()
        finally:
            page.close()
        if not flags and noted != known:
            write_damage(self._disk, self._directory, noted)
        return state

    def _sync_names(self) -> None:
        """Make the partition's own name durable, and those above it: whoever created them may have died before."""
        self._disk.sync_directory(self._directory)
        for parent in self._directory.absolute().parents:
            with contextlib.suppress(PermissionError):
                self._disk.sync_directory(parent)

    def _mend_header(self, path: Path, partition: bytes, entry: ListedSegment | None) -> bool:
        """Give a segment whose header is damaged a new one, when a frame in it proves that it is ours.

        A closed one gets the very header that the list says it had.
        """
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        fd = self._disk.open(path)
        try:
            with contextlib.suppress(Damaged):
                SegmentHeader.unpack(os.pread(fd, SEGMENT_HEADER_BYTES, 0))
                return False  # a sound header, of another log or under another's name
            status = os.fstat(fd)
            base = int(path.stem)
            file = FrameFile(fd, status.st_size, seed_of(partition), path)
            first = file.find(SEGMENT_HEADER_BYTES, base)
            if first is None:
                return False
            former = entry.former(self._directory, partition) if entry is not None else None
            if former is not None and entry is not None and entry.former_length == status.st_size:
                header = former.header
            elif entry is not None and not entry.lost:
                header = entry.segment(self._directory, partition).header
            else:
                header = SegmentHeader(
                    SEGMENT_MAGIC,
                    partition,
                    log=random_bytes(16),
                    base=base,
                    created_ns=status.st_mtime_ns,
                    length=status.st_size if file.has_gaps(base) else 0,
                    chain=first[1].previous if first[0] == SEGMENT_HEADER_BYTES else 0,
                    reserved=0,
                )
            self._disk.write(fd, header.pack(), 0)
            self._disk.sync(fd)
            self.report.rebuilt.append(path.name)
        finally:
            self._disk.close(fd)
        return True

    def _lost(self, file: Path, position: int, offset: int, next_offset: int, reason: str) -> None:
        self.report.damage.append(Damage(file, position, offset, next_offset, reason))

    # The growing end.

    def _refuse_if_told(self) -> None:
        """Raise RecoveryRefused before anything of an unsound end is cut or given up, if the configuration says so."""
        if self._config.recovery == "raise":
            raise RecoveryRefused(self._directory, self.report)

    def _recover_end(self, state: State, active: Segment, inventory: Inventory) -> State:
        fd = self._disk.open(active.path)
        try:
            size = os.fstat(fd).st_size
            file = FrameFile(fd, size, seed_of(active.header.partition), active.path)
            same = state.segment == active.header.log
            if not same:
                # The process that created it may have died before its name was durable.
                self._disk.sync_directory(self._directory)
            elif not state.list_generation:  # written before there were lists, when nobody counted this
                walked = FrameFile(fd, state.position, file.seed, active.path)
                count = sum(frame.record_count for _, frame in walked.walk_stamped(SEGMENT_HEADER_BYTES, active.base))
                state = state._replace(records_before=state.total_records - count)
            if same and state.poisoned:
                return self._leave_poisoned(state, active, file, inventory)
            if same and state.durable_end == state.end and state.position == size:
                return self._extend_index(state._replace(flags=0), active, file, [])
            if active.header.compacted:  # it was followed by another one, which is gone
                last = max(_last_end(file), active.base)
                base = max(last, state.durable_end)
                if base > last:
                    self._lost(active.path, file.end, last, base, "the end of the log is missing")
                    self._refuse_if_told()
                if last > active.base:
                    inventory.closed.append(described(active, last, self._clock.now_ns()))
                if base > last:
                    inventory.closed.append(lost_segment(last, base))
                return self._begin(state, base, inventory)
            tail = self._tail(state, active, file, same)
            self.report.damage += tail.damage
            if tail.floor > tail.end:
                # Acknowledged records are missing. Their offsets are not given out again, their bytes not touched.
                self._lost(active.path, tail.position, tail.end, tail.floor, "the end of the log is missing")
                self._refuse_if_told()
                inventory.closed.append(described(active, tail.floor, self._clock.now_ns()))
                return self._begin(state, tail.floor, inventory)
            return self._adopt_tail(state, active, file, tail, same)
        finally:
            self._disk.close(fd)

    def _tail(self, state: State, active: Segment, file: FrameFile, same: bool) -> LogTail:
        """Walk from the floor if the log confirms what the state says of it, else from the segment's beginning."""
        floor = max(active.base, state.durable_end)
        if same and state.durable_position <= file.end and self._confirms(state, active, file):
            return walk(file, state.durable_position, state.durable_end, state.durable_stamp, floor)
        return walk(file, SEGMENT_HEADER_BYTES, active.base, active.header.chain, floor)

    def _confirms(self, state: State, active: Segment, file: FrameFile) -> bool:
        """Return whether a frame with the stamp that the state remembers ends where the state says."""
        position, stamp = SEGMENT_HEADER_BYTES, active.header.chain
        with (
            contextlib.suppress(IndexDamaged),
            open_index(active.index_path, active.header.log, state.index_entries) as entries,
        ):
            entry = entries.at_offset(state.durable_end - 1)
            position = entry.position if entry and entry.position < state.durable_position else position
        bounded = FrameFile(file.fd, state.durable_position, file.seed, file.path)
        try:
            for _, header in bounded.walk(position):
                stamp = header.stamp_crc
        except FrameDamaged:
            return False
        return stamp == state.durable_stamp

    def _adopt_tail(self, state: State, active: Segment, file: FrameFile, tail: LogTail, same: bool) -> State:
        """Make the adopted run durable and remove what is behind it."""
        if state.sequence:
            self.report.adopted_records = max(tail.end - state.end, 0)
        self.report.cut_bytes = max(file.end - tail.position, 0)
        if self.report.cut_bytes or (state.sequence and tail.end < state.end):
            self._refuse_if_told()
        log = active.header.log
        if same and tail.position < state.position:
            # A reader may have mapped what was published: those bytes go with the old file, which is left as it is.
            successor = copy_prefix(self._disk, active, file, tail.position)
            log = successor.header.log
            self._disk.rename(successor.path, active.path)
            self._disk.sync_directory(self._directory)
        else:
            if file.end > tail.position:
                self._disk.truncate(file.fd, tail.position)
            # A sync that failed in the dead writer has left its pages marked clean. Written again, they are dirty,
            # and this sync is about them.
            unsynced = (position for position, header in tail.frames if header.base_offset >= tail.floor)
            rewrite(self._disk, file.fd, next(unsynced, tail.position), tail.position)
            self._disk.sync(file.fd)
        adopted = [header for _, header in tail.frames if header.base_offset >= state.end]
        total = state.total_records + sum(header.record_count for header in adopted)
        settled = state._replace(
            flags=0,
            layout=state.layout + 1,
            total_records=total,
            total_frames=state.total_frames + len(adopted),
            total_bytes=state.total_bytes + sum(header.length for header in adopted),
            end=tail.end,
            position=tail.position,
            stamp=tail.stamp,
            durable_end=tail.end,
            durable_position=tail.position,
            durable_stamp=tail.stamp,
            segment=log,
            segment_base=active.base,
            segment_created_ns=state.segment_created_ns if same else active.header.created_ns,
        )
        if not same:  # then all of its frames were walked over
            settled = settled._replace(records_before=total - sum(header.record_count for _, header in tail.frames))
        if log != state.segment:
            settled = settled._replace(index_entries=0, index_position=0, identified_position=0)
            return self._rebuild_index(settled, active, file)
        return self._extend_index(settled, active, file, [frame for frame in tail.frames if frame[0] >= state.position])

    def _leave_poisoned(self, state: State, active: Segment, file: FrameFile, inventory: Inventory) -> State:
        """After a failed sync only what is read back from the device counts, and only up to the durable end."""
        drop_page_cache(file.fd)
        durable = FrameFile(file.fd, min(state.durable_position, file.end), file.seed, file.path)
        tail = walk(durable, SEGMENT_HEADER_BYTES, active.base, active.header.chain, state.durable_end)
        self.report.damage += tail.damage
        if tail.end < state.durable_end:
            self._lost(active.path, tail.position, tail.end, state.durable_end, "not on the device after a failed sync")
        self.report.dropped_records = max(state.end - state.durable_end, 0)
        self.report.cut_bytes = max(file.end - state.durable_position, 0)
        self.report.poisoned = True
        self._refuse_if_told()
        if state.durable_end > active.base:
            entry = described(active, state.durable_end, self._clock.now_ns(), flags=UNCUT)
            inventory.closed.append(entry._replace(length=state.durable_position))
        return self._begin(state, state.durable_end, inventory)

    def _begin(self, state: State, base: int, inventory: Inventory) -> State:
        """Go on in a new segment at `base`, behind those that are listed before it can be found."""
        state = self._save_list(state, inventory)
        header = new_segment_header(state.partition, base, self._clock.now_ns())
        path = self._directory / f"{base:020d}.log"
        if not path.with_suffix(".producers").exists():
            table = load_producers(self._directory, state.partition, base)
            self._disk.replace(path.with_suffix(".producers"), table.pack())
        self._disk.replace(path.with_suffix(".index"), IndexHeader(header.log, 0, NEVER, 0).pack(), sync=False)
        Segment.create(self._disk, self._directory, header)
        self._disk.sync_directory(self._directory)
        return begin_segment(state, header)

    def _truncate(self, state: State, inventory: Inventory, target: int) -> State:
        """Carry out a truncation whose intent is durable. Doing it twice does no harm.

        The list leaves out what is to go before any file does, and names both files while one takes the other's place.
        """
        self.report.truncated_to = target
        segments = list_segments(self._directory, state.partition)[0]
        self._remember_producers(state.partition, inventory.closed, target)
        inventory.closed = [entry for entry in inventory.closed if entry.base < target]
        if inventory.growing is not None and inventory.growing.base < target:
            inventory.closed.append(described(inventory.growing, target, self._clock.now_ns()))
        self.report.damage += [damage for damage in inventory.damage if damage.offset < target]
        successor = self._cut_last(inventory, target)
        state = self._save_list(state, inventory)
        kept = {entry.base for entry in inventory.closed}
        for segment in reversed(segments):
            if segment.base not in kept:
                delete_segment(self._disk, segment.path, producers=False)
        for snapshot in sorted(self._directory.glob("*.producers")):
            if snapshot.stem.isdecimal() and int(snapshot.stem) > target:
                self._disk.unlink(snapshot)
        if successor is not None:
            self._disk.rename(successor.path, self._directory / f"{inventory.closed[-1].base:020d}.log")
            self._disk.sync_directory(self._directory)
            inventory.closed[-1] = inventory.closed[-1].settled()
        state = self._begin(state, target, inventory)
        # The mark goes before anyone may append: else it would be found later, and cut what was appended since.
        state = self._publish(state, flags=CHANGING)
        self._disk.unlink(self._directory / TRUNCATE_FILE)
        self._disk.sync_directory(self._directory)
        known = read_damage(self._directory)
        if without_damage(known, target) != known:
            write_damage(self._disk, self._directory, without_damage(known, target))
        return self._publish(state)

    def _cut_last(self, inventory: Inventory, target: int) -> Successor | None:
        """End the last closed segment at `target`. If that takes another file, it is ready for its place."""
        if not inventory.closed:
            return None
        last = inventory.closed[-1] = inventory.closed[-1]._replace(end=target, sealed_ns=self._clock.now_ns())
        try:
            segment = Segment.read(self._directory / f"{last.base:020d}.log")
        except (FileNotFoundError, Damaged):
            return None  # it is lost, which the list goes on to say
        if segment.header.log != last.log:
            return None
        successor = cut_segment(self._disk, segment, target, self._schemas)
        if successor is not None:
            inventory.closed[-1] = last.replaced(successor)
        return successor

    def _remember_producers(self, partition: bytes, closed: list[ListedSegment], target: int) -> None:
        """Save who had written what below `target`, while the segments that tell are still there.

        Compaction forgets who wrote a record; the snapshot behind a compacted segment remembers, and may know of
        sequences beyond `target` too, which is the safe side.
        """
        snapshot = self._directory / f"{target:020d}.producers"
        if snapshot.exists():
            return
        table = None
        for entry in closed:
            if entry.base < target < entry.end and entry.flags & COMPACTED:
                with contextlib.suppress(Damaged, FileNotFoundError):
                    table = ProducerTable.load(self._directory / f"{entry.end:020d}.producers")
        table = table or load_producers(self._directory, partition, target)
        table.forget_beyond(target)
        self._disk.replace(snapshot, table.pack())
        self._disk.sync_directory(self._directory)

    # The index of the growing segment.

    def _extend_index(
        self, state: State, active: Segment, file: FrameFile, frames: list[tuple[int, FrameHeader]]
    ) -> State:
        """Index frames that were adopted behind those that are indexed; or everything, when the index is unsound."""
        if not index_sound(state, active):
            return self._rebuild_index(state, active, file)
        if not frames:
            return state
        builder = IndexBuilder(
            self._config.index_interval, position=state.index_position, max_timestamp=state.segment_max_timestamp
        )
        identified = state.identified_position
        for position, header in frames:
            builder.add(position, header.length, header.base_offset, header.max_timestamp)
            if header.producer_id != NO_PRODUCER:
                identified = position + header.length
        fd = self._disk.open(active.index_path)
        try:
            content = b"".join(pack_entry(state.segment, entry) for entry in builder.entries)
            self._disk.write(fd, content, INDEX_HEADER_BYTES + state.index_entries * ENTRY_BYTES)
        finally:
            self._disk.close(fd)
        return state._replace(
            segment_max_timestamp=builder.max_timestamp,
            index_entries=state.index_entries + len(builder.entries),
            index_position=builder.position,
            identified_position=identified,
        )

    def _rebuild_index(self, state: State, active: Segment, file: FrameFile) -> State:
        """Index the growing segment from its frames' headers."""
        if state.position > SEGMENT_HEADER_BYTES:
            self.report.rebuilt.append(active.index_path.name)
        builder = IndexBuilder(self._config.index_interval)
        bounded = FrameFile(file.fd, state.position, file.seed, file.path)
        identified = 0
        for position, header in bounded.walk_stamped(SEGMENT_HEADER_BYTES, active.base):
            builder.add(position, header.length, header.base_offset, header.max_timestamp)
            if header.producer_id != NO_PRODUCER:
                identified = position + header.length
        self._disk.replace(active.index_path, builder.pack(state.segment, 0), sync=False)
        return state._replace(
            layout=state.layout + 1,
            segment_max_timestamp=builder.max_timestamp,
            index_entries=len(builder.entries),
            index_position=builder.position,
            identified_position=identified,
        )


def _last_end(file: FrameFile) -> int:
    """Return the end of a segment's records, as far as its frames can be believed."""
    end = 0
    for position, header in file.walk_stamped(SEGMENT_HEADER_BYTES, 0):
        end = max(end, header.next_offset if file.is_whole(position) else header.base_offset + 1)
    return end


def index_sound(state: State, active: Segment) -> bool:
    """Return whether the index of the growing segment ends with the entry that the state speaks of."""
    try:
        with open_index(active.index_path, active.header.log, state.index_entries) as entries:
            if len(entries) == 0:
                return state.position == SEGMENT_HEADER_BYTES or state.index_position == 0
            return entries[len(entries) - 1].position == state.index_position
    except IndexDamaged:
        return False
