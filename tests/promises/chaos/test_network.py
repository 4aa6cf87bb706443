"""The network whose connections the chaos cuts."""

import os
import socket
import threading
from pathlib import Path

import pytest
from network import CLIENTS, Network, why_not


def test_a_cut_loses_packets_in_one_direction_and_says_nothing():
    """Datagrams reach every other member; after a cut the others, and after mending all again."""
    if reason := why_not():
        pytest.skip(reason)
    network = Network(["n1", "n2"])
    with network.up():
        sockets = {name: bound(network, name) for name in network.addresses}

        def reached(source: str, target: str) -> bool:
            sockets[source].sendto(b"?", sockets[target].getsockname())
            try:
                return sockets[target].recv(1) == b"?"
            except TimeoutError:
                return False

        assert reached("n1", "n2")
        assert reached(CLIENTS, "n2")
        network.cut("n1", "n2")
        assert not reached("n1", "n2")
        assert reached("n2", "n1")
        network.isolate("n2")
        assert not reached("n2", CLIENTS)
        assert reached(CLIENTS, "n1")
        network.mend()
        assert reached("n1", "n2")
        assert reached("n2", CLIENTS)
        for one in sockets.values():
            one.close()


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
