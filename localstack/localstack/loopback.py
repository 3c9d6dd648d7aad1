"""Starts LocalStack on the host so that it listens on 127.0.0.1 alone.

LocalStack 4.13 takes only the port from an IPv4 address in GATEWAY_LISTEN and then listens on every address of the
machine. In a container that is right, as the container decides what is published.
"""

import functools

from twisted.internet import endpoints

endpoints.TCP4ServerEndpoint = functools.partial(endpoints.TCP4ServerEndpoint, interface="127.0.0.1")

from localstack.runtime.main import main  # noqa: E402, because it imports what is replaced above

main()
