"""Frames to and from the agent, over one inherited Unix socket.

A frame is ``u32 header length · u32 payload length · header (JSON) · payload``, lengths little-endian. Memory files
with tables come with the frame, in the order of the mini-batches that use them.
"""

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
"""Up to this size a payload is joined to its header rather than sent on its own."""


class AgentGone(Exception):
    """The agent closed its end."""


class Channel:
    """The process's end of the socket. Not for more than one thread."""

    def __init__(self, fd):
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)
        self._received = b""
        self._position = 0
        self._descriptors = deque()
        self.abandoned = False

    def receive(self):
        """The header of the next frame; waits for it."""
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
        """Appends at least so many bytes, and takes the descriptors that come with them."""
        pieces = [self._received[self._position :]]
        while at_least > 0:
            piece, ancillary, flags, _ = self._socket.recvmsg(
                max(READ_BYTES, min(at_least, 1 << 24)), ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
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
        """The memory file of the next table; the caller closes it."""
        if not self._descriptors:
            raise ValueError("a table came without its memory file")
        return self._descriptors.popleft()

    def send(self, header, payload=b""):
        """Hands one event to the kernel. ``header`` is JSON, encoded."""
        if self.abandoned:
            # A forked child of user code has fallen out of `run()`: it is not the one to answer.
            os._exit(0)
        try:
            prefix = PREFIX.pack(len(header), len(payload))
            if len(payload) <= ONE_PIECE_BYTES_MAX:
                self._socket.sendall(b"".join((prefix, header, payload)))
            else:
                self._socket.sendall(prefix + header)
                self._socket.sendall(payload)
        except (BrokenPipeError, ConnectionResetError):
            raise AgentGone from None

    def send_event(self, event):
        """Sends an event without payload."""
        self.send(json.dumps(event).encode())

    def abandon(self):
        """Called in a forked child: the socket is its parent's."""
        self.abandoned = True
        self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())


def payload_fits(length):
    """Whether so many bytes can be sent in one frame."""
    return length <= FRAME_LENGTH_MAX
