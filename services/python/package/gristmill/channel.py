"""Frames to and from the agent, over one inherited Unix socket.

A frame is ``u32 header length · u32 payload length · header (JSON) · payload``, lengths little-endian. Memory files
with tables arrive with the frame, in the order of the mini-batches that use them.
"""

import errno
import json
import os
import socket
import struct
from array import array
from collections import deque

from gristmill._native import FRAME_LENGTH_MAX

PREFIX = struct.Struct("<II")
READ_BYTES = 256 * 1024
DESCRIPTORS_PER_MESSAGE_MAX = 253
"""The kernel's own limit, ``SCM_MAX_FD``."""
ANCILLARY_BYTES = socket.CMSG_SPACE(DESCRIPTORS_PER_MESSAGE_MAX * 4)
ONE_PIECE_BYTES_MAX = 64 * 1024
"""Maximum size of a payload that is joined to its header rather than sent separately."""


class AgentGone(Exception):
    """The agent closed its end."""


class SocketClosed(Exception):
    """User code closed or replaced the socket."""


class Channel:
    """The process's end of the socket, for a single thread."""

    def __init__(self, fd):
        self.fd = fd
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)
        self._received = b""
        self._position = 0
        self._descriptors = deque()
        self.abandoned = False

    def receive(self):
        """Waits for the next frame and returns its header."""
        while True:
            end = self._position + PREFIX.size
            if len(self._received) >= end:
                header_length, payload_length = PREFIX.unpack_from(self._received, self._position)
                if max(header_length, payload_length) > FRAME_LENGTH_MAX:
                    raise ValueError(f"a frame of {max(header_length, payload_length)} bytes is beyond the limit")
                start, end = end, end + header_length
                missing = end + payload_length - len(self._received)
                if missing <= 0:
                    header = self._received[start:end]
                    self._position = end + payload_length
                    return json.loads(header)
                self._read(missing)
            else:
                self._read(1)

    def _read(self, at_least):
        """Appends at least this many bytes, and stores the descriptors received with them."""
        pieces = [self._received[self._position :]]
        while at_least > 0:
            try:
                piece, ancillary, flags, _ = self._socket.recvmsg(
                    max(READ_BYTES, min(at_least, 1 << 24)), ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
                )
            except OSError as error:
                raise self._reason(error) from None
            if not piece:
                raise AgentGone
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    descriptors = array("i")
                    descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
                    self._descriptors.extend(descriptors)
            if flags & socket.MSG_CTRUNC:
                raise ValueError("descriptors passed by the agent were lost: too many open files?")
            pieces.append(piece)
            at_least -= len(piece)
        self._received = b"".join(pieces)
        self._position = 0

    def next_descriptor(self):
        """Returns the memory file of the next table; the caller closes it."""
        if not self._descriptors:
            raise ValueError("a table came without its memory file")
        return self._descriptors.popleft()

    def send(self, header, payload=b""):
        """Writes one event to the socket. ``header`` is encoded JSON."""
        if self.abandoned:
            # A forked child of user code has returned from `run()`; only its parent answers.
            os._exit(0)
        try:
            prefix = PREFIX.pack(len(header), len(payload))
            if len(payload) <= ONE_PIECE_BYTES_MAX:
                self._socket.sendall(b"".join((prefix, header, payload)))
            else:
                self._socket.sendall(prefix + header)
                self._socket.sendall(payload)
        except OSError as error:
            raise self._reason(error) from None

    def _reason(self, error):
        """Returns the exception for a failed system call on the socket."""
        if isinstance(error, (BrokenPipeError, ConnectionResetError)):
            return AgentGone()
        if error.errno in (errno.EBADF, errno.ENOTSOCK):
            return SocketClosed(f"descriptor {self.fd}: {error.strerror}")
        return error

    def send_event(self, event):
        """Sends an event without payload."""
        self.send(json.dumps(event).encode())

    def abandon(self):
        """Disables the channel in a forked child: the socket belongs to its parent."""
        self.abandoned = True
        self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())


def payload_fits(length):
    """Returns whether this many bytes fit into one frame."""
    return length <= FRAME_LENGTH_MAX
