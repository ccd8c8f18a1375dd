"""A listener that accepts connections and never answers: an ssh server that hangs."""

import socket
import sys


def main() -> None:
    """Listen on ADDRESS PORT and keep every connection open without a word."""
    address, port = sys.argv[1], int(sys.argv[2])
    kept: list[socket.socket] = []
    with socket.create_server((address, port), backlog=128) as server:
        while True:
            kept.append(server.accept()[0])


if __name__ == "__main__":
    main()
