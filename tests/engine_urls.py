"""The addresses of the servers of ``servers.py``, as users write them."""

from __future__ import annotations

from urllib.parse import quote

import servers


def url_of(server, *, password: str = servers.PASSWORD) -> str:
    """Give the address by which a space connects to a server."""
    if isinstance(server, (servers.PostgreSQL, servers.PgBouncer)):
        return (
            f"postgresql://{server.NAME}:{quote(password, safe='')}@{server.address}/postgres"
        )
    if isinstance(server, (servers.Etcd, servers.EtcdCluster)):
        return f"etcd://{server.address}"
    scheme = "rediss" if server.certificates else "redis"
    login = f":{quote(password, safe='')}@" if "requirepass" in server.settings else ""
    return f"{scheme}://{login}{server.address}"
