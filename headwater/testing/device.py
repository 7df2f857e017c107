"""A device under a kernel's cache: what a power loss may leave of the files.

The model is meaner than any one file system and no meaner than what POSIX allows:

- What was synced is there. A file's sync covers its bytes and its length; only its directory's sync covers its name.
- Of what was not, each page of 4 KB is, for itself, as it was at the last sync or after any write since then. With
  `torn` that holds for each sector of 512 bytes.
- An unsynced length is any between the least and the greatest since the last sync. Pages never written are zeros.
- Changes of names that were not synced happened up to some point, in their order, for each directory by itself. With
  `reordered` each name is, for itself, as it was or as it became.
- After a failed sync the pages it was about stay in doubt until they are written, and synced, again; and the length
  until that is done up to the file's end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from random import Random
from typing import Final, Literal, TypeVar

from headwater.testing.trace import (
    Created,
    DirectoryCreated,
    DirectorySynced,
    Renamed,
    Step,
    Synced,
    SyncFailed,
    Truncated,
    Unlinked,
    Written,
)

PAGE: Final = 4096
SECTOR: Final = 512
_ZEROS: Final = bytes(PAGE)
_Item = TypeVar("_Item")


Mood = Literal["any", "first or last", "oldest", "newest"]
"""The choices of an image: each page by itself, by itself between the extremes, or all as old or new as may be."""

_MOODS: Final[tuple[Mood, ...]] = ("any", "any", "first or last", "oldest", "newest")


class _Chance:
    """Chooses for one image, in one mood.

    With many pages chance alone would next to never leave all or none of them, which in life is the likeliest.
    """

    def __init__(self, random: Random, mood: Mood | None) -> None:
        self._random = random
        self._mood = mood or random.choice(_MOODS)

    def pick(self, versions: Sequence[_Item]) -> _Item:
        """One of the versions, which are in the order of their age."""
        match self._mood:
            case "oldest":
                return versions[0]
            case "newest":
                return versions[-1]
            case "first or last":
                return self._random.choice((versions[0], versions[-1]))
            case _:
                return self._random.choice(versions)

    def size(self, sizes: Sequence[int]) -> int:
        """A length that the file had, or one in between, where the kernel may have stopped."""
        least, greatest = min(sizes), max(sizes)
        if self._mood != "any" or least == greatest or self._random.random() < 0.5:
            return self.pick(sizes)
        return self._random.choice((self._random.randint(least, greatest), min(greatest, (least // PAGE + 1) * PAGE)))


class _File:
    """The possible contents of a file on the device: for each page and for the length, all values, oldest first.

    The last one is what the kernel shows. A page that is not listed is zeros and nothing else.
    """

    def __init__(self, content: bytes = b"") -> None:
        self.sizes = [len(content)]
        self.pages = {
            start // PAGE: [content[start : start + PAGE].ljust(PAGE, b"\0")] for start in range(0, len(content), PAGE)
        }
        self._changed: set[int] = set()
        self._resized = False

    def write(self, position: int, data: bytes) -> None:
        while data:
            number, start = divmod(position, PAGE)
            part = data[: PAGE - start]
            self._change(number, start, part)
            position, data = position + len(part), data[len(part) :]
        if position > self.sizes[-1]:
            self._resize(position)
        elif position == self.sizes[-1] and len(self.sizes) > 1:
            self._resized = True

    def truncate(self, size: int) -> None:
        number, start = divmod(size, PAGE)
        if start and number in self.pages:
            self._change(number, start, bytes(PAGE - start))
        for beyond in [other for other in self.pages if other * PAGE >= size]:
            self._change(beyond, 0, _ZEROS)
        if size != self.sizes[-1]:
            self._resize(size)

    def _change(self, number: int, start: int, part: bytes) -> None:
        versions = self.pages.setdefault(number, [_ZEROS])
        newest = versions[-1]
        versions.append(newest[:start] + part + newest[start + len(part) :])
        self._changed.add(number)

    def _resize(self, size: int) -> None:
        self.sizes.append(size)
        self._resized = True

    def sync(self) -> None:
        for number in self._changed:
            self.pages[number] = self.pages[number][-1:]
        if self._resized:
            self.sizes = self.sizes[-1:]
        self.fail_sync()

    def fail_sync(self) -> None:
        """Nothing is marked as changed any more, whatever has become of it."""
        self._changed.clear()
        self._resized = False

    def content(self, chance: _Chance, torn: bool) -> bytes:
        """One of the contents that the device may have."""
        size = chance.size(self.sizes)
        content = bytearray(size)
        for number, versions in self.pages.items():
            start = number * PAGE
            if start < size:
                page = _torn(versions, chance) if torn else chance.pick(versions)
                content[start : start + PAGE] = page[: size - start]
        return bytes(content)


def _torn(versions: Sequence[bytes], chance: _Chance) -> bytes:
    return b"".join(chance.pick(versions)[start : start + SECTOR] for start in range(0, PAGE, SECTOR))


class _Directory:
    """The names that are durable, and the changes since then. A change may concern two names: a rename does."""

    def __init__(self) -> None:
        self.names: dict[str, _Node] = {}
        self._durable: dict[str, _Node] = {}
        self._changes: list[dict[str, _Node | None]] = []

    def change(self, change: dict[str, _Node | None]) -> None:
        _update(self.names, change)
        self._changes.append(change)

    def sync(self) -> None:
        self._durable = dict(self.names)
        self._changes = []

    def image(self, chance: _Chance, reordered: bool) -> dict[str, _Node]:
        """One of the sets of names that the device may have."""
        names = dict(self._durable)
        if not reordered:
            for change in self._changes[: chance.pick(range(len(self._changes) + 1))]:
                _update(names, change)
            return names
        for name in sorted({name for change in self._changes for name in change}):
            history = [self._durable.get(name), *(change[name] for change in self._changes if name in change)]
            _update(names, {name: chance.pick(history)})
        return names


_Node = _File | _Directory


def _update(names: dict[str, _Node], change: dict[str, _Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Device:
    """Empty at first; follows a trace, and says at any point of it what a power loss might leave."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._root = _Directory()

    def _directory(self, path: PurePath) -> _Directory:
        directory = self._root
        for part in path.parts:
            node = directory.names[part]
            assert isinstance(node, _Directory), f"{path} is not a directory"
            directory = node
        return directory

    def follow(self, steps: Iterable[Step]) -> Device:
        """Let the steps happen; returns the device itself."""
        for step in steps:
            self.apply(step)
        return self

    def apply(self, step: Step) -> None:
        """Let one step happen."""
        match step:
            case Written():
                self._files[step.file].write(step.position, step.data)
            case Truncated():
                self._files[step.file].truncate(step.size)
            case Synced():
                self._files[step.file].sync()
            case SyncFailed():
                self._files[step.file].fail_sync()
            case Created():
                file = self._files[step.file] = _File()
                self._directory(step.path.parent).change({step.path.name: file})
            case DirectoryCreated():
                self._directory(step.path.parent).change({step.path.name: _Directory()})
            case Renamed():
                self._rename(step)
            case Unlinked():
                self._directory(step.path.parent).change({step.path.name: None})
            case DirectorySynced():
                self._directory(step.path).sync()

    def _rename(self, step: Renamed) -> None:
        source, target = self._directory(step.source.parent), self._directory(step.target.parent)
        node = source.names[step.source.name]
        if source is target:
            source.change({step.source.name: None, step.target.name: node})
            return
        # No file system promises more than the sync of each directory does: until then it may have both names, or none.
        target.change({step.target.name: node})
        source.change({step.source.name: None})

    def image(
        self,
        random: Random,
        *,
        torn: bool = False,
        reordered: bool = False,
        names: Mood | None = None,
        data: Mood | None = None,
    ) -> dict[PurePath, bytes | None]:
        """One of the images that a power loss at this point may leave: the content of each path, None for directories.

        The moods, for names and for data, are left to chance unless they are given. The device goes on as if there had
        been no power loss, so that many images can be made at many points.
        """
        return dict(_image(self._root, PurePath(), _Chance(random, names), _Chance(random, data), torn, reordered))


def write_image(image: Mapping[PurePath, bytes | None], target: Path) -> None:
    """Write an image into `target`, a new directory."""
    for path, content in image.items():
        if content is None:
            (target / path).mkdir(parents=True)
        else:
            (target / path).write_bytes(content)


def _image(
    directory: _Directory, path: PurePath, names: _Chance, data: _Chance, torn: bool, reordered: bool
) -> Iterator[tuple[PurePath, bytes | None]]:
    """Every path with its content, directories first and without one."""
    yield path, None
    for name, node in sorted(directory.image(names, reordered).items()):
        if isinstance(node, _File):
            yield path / name, node.content(data, torn)
        else:
            yield from _image(node, path / name, names, data, torn, reordered)
