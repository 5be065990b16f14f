"""Where sockets are: the run directory, and the rules for tcp.

Knows: paths and their limits, hosts that are refused, key files. Does not know: messages.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.auth import load_certificate

from draftline.graph.errors import TransportError

SUN_PATH = 107
"""Bytes that the path of a Unix socket may have (Linux: 108 with the final zero)."""

PREFIX = "draftline-"
_LOCK = "lock"
_YOUNG = 60.0


class RunDirectory:
    """A 0700 directory for sockets and logs, held by a lock for as long as its driver lives."""

    def __init__(self, base: Path | None = None) -> None:
        """Raises TransportError if socket paths in it would be too long."""
        base = Path(tempfile.gettempdir()) if base is None else base
        sweep(base)
        try:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        except OSError as error:
            raise TransportError(f"no run directory can be made in {base}: {error}; set TMPDIR") from None
        self._lock = -1
        try:
            self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            self.remove()
            raise TransportError(f"run directory {self.path} cannot be locked: {error}") from None
        longest = len(os.fsencode(self.path / "w000.000000.sock"))
        if longest > SUN_PATH:
            self.remove()
            raise TransportError(
                f"socket paths in {base} would have {longest} bytes, a Unix socket's path has at most {SUN_PATH};"
                " set TMPDIR to a shorter path"
            )

    def endpoint(self, name: str) -> str:
        """The ipc endpoint of a socket in the directory."""
        return f"ipc://{self.path / name}.sock"

    def forget(self, pattern: str) -> None:
        """Remove the sockets whose names match: their workers are dead."""
        for path in self.path.glob(pattern + ".sock"):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove it and all that is in it. May be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def sweep(base: Path) -> None:
    """Remove run directories of ours that no driver holds any more: every process of that run was killed at once."""
    for path in base.glob(PREFIX + "*"):
        try:
            info = path.lstat()
            ours = stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and stat.S_IMODE(info.st_mode) == 0o700
            if not ours or time.time() - info.st_mtime < _YOUNG:
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # not a run directory, or gone by now
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # its driver lives
        finally:
            os.close(lock)


@dataclass(frozen=True)
class Curve:
    """A CURVE key pair, Z85 as zmq takes it. Both ends of a run use the same pair: who has the file is in."""

    public: bytes
    secret: bytes


def load_keys(path: Path) -> Curve:
    """Read a certificate file with a secret key, as ``zmq.auth.create_certificates`` writes it (``name.key_secret``).

    Raises TransportError if it cannot be read, holds no secret key, or others may read it.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise TransportError(f"{path}: others may read this secret key (mode {mode:o}); chmod 600 it")
        public, secret = load_certificate(path)
    except (OSError, ValueError, UnicodeDecodeError) as error:
        raise TransportError(f"{path}: not a CURVE certificate: {error}") from None
    if not secret or len(secret) != 40 or len(public) != 40:
        raise TransportError(
            f"{path}: holds no secret key of 40 characters; make one with"
            " python -c \"import zmq.auth; zmq.auth.create_certificates('.', 'draftline')\""
        )
    if _public(secret) != public:
        raise TransportError(f"{path}: the public key is not that of the secret key; make a new pair")
    return Curve(public, secret)


def _public(secret: bytes) -> bytes:
    try:
        return zmq.curve_public(secret)
    except (zmq.ZMQError, ValueError):  # not Z85
        return b""


_TCP = re.compile(r"tcp://(\[[^\]]+\]|[^:/\s]+)(?::(\d+))?")


def check_tcp(endpoint: str, curve: Curve | None) -> tuple[str, int | None]:
    """Host and port (None: any free one) of ``tcp://host`` or ``tcp://host:port``; the port is for the driver's inbox.
    Raises TransportError for a host that means every interface,
    for anything that is no such endpoint, and where there are no keys."""
    match = _TCP.fullmatch(endpoint)
    if match is None:
        raise TransportError(f"transport {endpoint!r}: want ipc, or tcp://HOST with a host of this machine")
    host = match[1].strip("[]")
    if _NUMBERS.fullmatch(host) and not _is_address(host):
        raise TransportError(f"transport {endpoint!r}: {host} is not an address; write all four numbers, or a name")
    if host == "*" or _any_address(host):
        raise TransportError(f"transport {endpoint!r}: {host} would listen on every interface; name one host")
    if match[2] is not None and not 0 <= int(match[2]) <= 65535:
        raise TransportError(f"transport {endpoint!r}: port {match[2]} is not a port (0 to 65535)")
    if curve is None or not curve.public or not curve.secret:
        raise TransportError(f"transport {endpoint!r}: tcp needs CURVE keys; give --curve-keys FILE")
    return match[1], None if match[2] is None else int(match[2])


def check_bound(endpoint: str) -> str:
    """The host of ``endpoint``, where a socket listens by now. Raises TransportError if it is every interface."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    if _any_address(host.strip("[]")):
        raise TransportError(f"{endpoint}: that is every interface; name one host")
    return host


_NUMBERS = re.compile(r"[0-9][0-9a-fA-FxX.]*")
"""What the system's resolver reads as an address although it is none as people write them: 0, 0x0, 127.1."""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _any_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
