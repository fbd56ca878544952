"""A ZooKeeper for the benchmarks: kazoo's locks need one, and semlock has none on it."""

from __future__ import annotations

import contextlib
import os
import socket

import servers

# A request that each server answers by four letters, if it may.
_HELLO = b"ruok"


class ZooKeeper(servers.Server):
    """One server, which keeps its log without fsync as the others do."""

    program, package = "java", "zookeeper and default-jre-headless"
    JAR = "/usr/share/java/zookeeper.jar"

    def words(self) -> list[str]:
        """Give the words of its command."""
        config = f"{self.directory}/zoo.cfg"
        with open(config, "w") as file:
            file.write(
                f"dataDir={self.directory}/data\nclientPort={self.port}\n"
                f"clientPortAddress={self.host}\ntickTime=1000\nadmin.enableServer=false\n"
                "4lw.commands.whitelist=ruok\n"
            )
        return [
            self.path, "-Xmx256m", "-Dzookeeper.forceSync=no", "-cp", self.JAR,
            "org.apache.zookeeper.server.ZooKeeperServerMain", config,
        ]  # fmt: skip

    def is_ready(self) -> bool:
        """Tell whether it answers."""
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            place = self.host, self.port
            stream = stack.enter_context(socket.create_connection(place, 1.0))
            stream.sendall(_HELLO)
            return stream.recv(4) == b"imok"
        return False

    @classmethod
    def is_here(cls) -> bool:
        """Tell whether it is installed."""
        return os.path.exists(cls.JAR)
