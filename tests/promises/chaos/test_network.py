"""The network whose connections the chaos cuts."""

import itertools
import os
import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from network import CLIENTS, Network, why_not


def test_a_cut_loses_packets_in_one_direction_and_says_nothing():
    """Datagrams reach every other member; after a cut the others, and after mending all again."""
    if reason := why_not():
        pytest.skip(reason)
    network, numbers = Network(["n1", "n2"]), itertools.count()
    with network.up(), ExitStack() as stack:
        sockets = {name: stack.enter_context(bound(network, name)) for name in network.addresses}

        def reached(source: str, target: str) -> bool:
            """Whether a datagram arrives before long. A busy machine may take longer."""
            sent = str(next(numbers)).encode()
            sockets[source].sendto(sent, sockets[target].getsockname())
            with suppress(TimeoutError):
                while sockets[target].recv(20) != sent:
                    pass
                return True
            return False

        def reaches(source: str, target: str) -> bool:
            return any(reached(source, target) for _ in range(200))

        assert reaches("n1", "n2")
        assert reaches(CLIENTS, "n2")
        network.cut("n1", "n2")
        assert not reached("n1", "n2")
        assert reaches("n2", "n1")
        network.isolate("n2")
        assert not reached("n2", CLIENTS)
        assert reaches(CLIENTS, "n1")
        network.mend()
        assert reaches("n1", "n2")
        assert reaches("n2", CLIENTS)


def test_a_network_that_ended_can_be_made_again_at_once():
    """The kernel takes its parts away before it says so."""
    if reason := why_not():
        pytest.skip(reason)
    for _ in range(20):
        with Network(["n1", "n2"]).up():
            pass


def bound(network: Network, name: str) -> socket.socket:
    """A socket of this member. Only a thread can enter a namespace."""
    made: list[socket.socket] = []

    def make() -> None:
        if name != CLIENTS:
            with Path("/run/netns", network.space(name)).open() as space:
                os.setns(space.fileno(), os.CLONE_NEWNET)
        made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    made[0].bind((network.addresses[name], 0))
    made[0].settimeout(0.3)
    return made[0]
