"""A network: hosts in network namespaces of their own, of which one may reach another and not be reached by it.

Cuts are silent, as those of a network are: nothing is refused or reset, packets are just lost, on one way or on both.
They need nothing of the kernel's filters: whoever is cut off is sent to an address of the wire that nobody has.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

CLIENTS: Final = "clients"
"""The host of whoever uses the network without a namespace: this process."""
_NOBODY: Final = "02:00:00:00:00:01"
_PREFIX: Final = "headwater"
_NAMESPACES: Final = Path("/run/netns")
_SERIALS: Final = itertools.count()


class NoNetwork(Exception):
    """Networks cannot be made here; the message says why."""


class Network:
    """Some hosts on one wire. It is taken down in the end, and what killed processes have left is, too."""

    def __init__(self, hosts: Sequence[str]) -> None:
        """Raises NoNetwork."""
        if os.geteuid() != 0:
            raise NoNetwork("only root can make network namespaces")
        if shutil.which("ip") is None:
            raise NoNetwork("there is no ip command: install iproute2")
        _remove(_forsaken())
        self._tag = f"{_PREFIX}-{os.getpid()}-{next(_SERIALS)}"
        self._subnet = _free_subnet()
        self._device = f"hw{self._tag.removeprefix(_PREFIX)}"
        self._hosts = {host: number for number, host in enumerate((*hosts, CLIENTS), start=1)}
        self._cut: set[tuple[str, str]] = set()
        try:
            self._build()
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
            raise NoNetwork(f"network namespaces cannot be made: {said}") from error

    def _build(self) -> None:
        wire = self._namespace("wire")
        _ip("netns", "add", wire)
        _ip("-n", wire, "link", "add", "wire", "type", "bridge")
        _ip("-n", wire, "link", "set", "wire", "up")
        for host, number in self._hosts.items():
            plug = ["netns", wire, "name", f"plug{number}"]
            if host == CLIENTS:
                _ip("link", "add", self._device, "type", "veth", "peer", *plug)
            else:
                _ip("netns", "add", self._namespace(host))
                _ip("link", "add", "eth0", "netns", self._namespace(host), "type", "veth", "peer", *plug)
                self._ip_at(host, "link", "set", "lo", "up")
            _ip("-n", wire, "link", "set", f"plug{number}", "master", "wire", "up")
            self._ip_at(host, "addr", "add", f"{self.address(host)}/24", "dev", self._device_of(host))
            self._ip_at(host, "link", "set", self._device_of(host), "up")

    def _namespace(self, host: str) -> str:
        return f"{self._tag}-{host}"

    def _device_of(self, host: str) -> str:
        return self._device if host == CLIENTS else "eth0"

    def _ip_at(self, host: str, *arguments: str) -> None:
        _ip(*(() if host == CLIENTS else ("-n", self._namespace(host))), *arguments)

    def address(self, host: str) -> str:
        """Return the address of a host."""
        return f"{self._subnet}.{self._hosts[host]}"

    def within(self, host: str) -> list[str]:
        """Return the prefix of a command that runs at a host. The prefix becomes that command, in the same process."""
        return ["ip", "netns", "exec", self._namespace(host)]

    def cut(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Lose everything that some send to others; what comes the other way arrives."""
        for sender, receiver in itertools.product(senders, receivers):
            if sender != receiver:
                self._neighbour("replace", sender, receiver, "lladdr", _NOBODY, "nud", "permanent")
                self._cut.add((sender, receiver))

    def heal(self) -> None:
        """Nothing is lost any more."""
        for sender, receiver in self._cut:
            self._neighbour("del", sender, receiver)
        self._cut.clear()

    def _neighbour(self, verb: str, sender: str, receiver: str, *facts: str) -> None:
        self._ip_at(sender, "neigh", verb, self.address(receiver), "dev", self._device_of(sender), *facts)

    def close(self) -> None:
        """Take it down. Doing it twice does no harm."""
        _remove([self._namespace(host) for host in ("wire", *self._hosts)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout


def _remove(namespaces: Iterable[str]) -> None:
    """Remove namespaces; with that of a wire go its ends, also those in other namespaces."""
    for name in namespaces:
        with suppress(subprocess.CalledProcessError):
            _ip("netns", "del", name)


def _forsaken() -> list[str]:
    """The namespaces of processes that have ended without taking them down."""
    if not _NAMESPACES.is_dir():
        return []
    ours = [path.name.split("-") for path in _NAMESPACES.iterdir() if path.name.startswith(f"{_PREFIX}-")]
    return ["-".join(parts) for parts in ours if len(parts) > 1 and not Path(f"/proc/{parts[1]}").exists()]


def _free_subnet() -> str:
    """The beginning of addresses that nobody here uses, of those that are set aside for tests of networks."""
    used = _ip("-4", "addr", "show")
    while True:
        subnet = f"198.{random.choice((18, 19))}.{random.randrange(256)}"
        if f" {subnet}." not in used:
            return subnet
