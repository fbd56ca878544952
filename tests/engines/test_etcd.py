"""etcd as an engine: lines, news, the lease; members that go away, and answers that get lost."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
import threading
import time
from urllib.parse import quote

import pytest

import semlock
import servers
from faultproxy import FaultProxy
from semlock._engines import etcd, etcd_session
from semlock._engines.address import Address
from semlock._engines.engine import GONE, HOLDS, READERS, WAITS, Away, Refused
from semlock._engines.etcd_http import Gateway
from servers import Etcd, running
from support import wait_until

WITHIN = 20.0
TTL = 5.0


class Client:
    """A space's engine, with calls that are short to write."""

    def __init__(
        self, hosts: str, prefix: str, ttl: float = TTL, scheme="etcd", **options
    ) -> None:
        address = Address(f"{scheme}://{hosts}", prefix=prefix, **options)
        self.engine = etcd.connect(address, ttl=ttl, client="a test")

    def enter(self, token, name="lock", room=1, *, waits=True, within=WITHIN):
        return self.engine.enter(name, token, b"pid=1\n", room, waits=waits, within=within)

    def leave(self, token, name="lock", within=WITHIN):
        return self.engine.leave(name, token, within=within)

    def renew(self, *tokens, name="lock", within=WITHIN):
        return self.engine.renew([(name, token) for token in tokens], within=within)

    def line(self, name="lock"):
        return [entry.token for entry in self.engine.line(name, within=WITHIN)]

    def hear(self, seconds=WITHIN):
        """Hear until there are news."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if (news := self.engine.hear(left)) != []:
                return news
        return []

    def wait(self, token, seconds=WITHIN):
        """Wait until an entry holds, as the common part of all engines does."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            news = self.hear(seconds)
            if news is None or (token, 0) in news:
                place = self.enter(token)
                if place.state == HOLDS:
                    return place.fence
            for heard, fence in news or ():
                if heard == token and fence:
                    return fence
        raise TimeoutError

    @property
    def requests(self):
        return self.engine.gateway.requests


@pytest.fixture
def prefix():
    return secrets.token_hex(8)


@pytest.fixture
def clients(etcd_server, prefix):
    """Make spaces in one part of the server."""
    with contextlib.ExitStack() as stack:

        def make(hosts=None, **options):
            made = Client(
                hosts or etcd_server.address, options.pop("prefix", prefix), **options
            )
            stack.callback(made.engine.close)
            return made

        yield make


@pytest.fixture
def proxy(etcd_server):
    with FaultProxy(etcd_server.port) as proxy:
        yield proxy


def stored(server, prefix):
    return [key for key in server.keys() if key.startswith(prefix.encode())]


def test_an_acquire_and_a_release_take_two_requests_and_a_wait_two_more(clients):
    one, two = clients(), clients()
    one.enter("warm up")
    one.leave("warm up")
    before = one.requests
    assert one.enter("a").state == HOLDS
    one.leave("a")
    assert one.requests - before == 2
    one.enter("b")
    two.enter("elsewhere", name="other")
    before = two.requests
    assert two.enter("c").state == WAITS
    assert two.requests - before == 2  # the entry, and the watch
    fence = two.renew("c")[0].fence
    before = two.requests
    one.leave("b")
    assert two.hear() == [("c", fence)]
    assert two.requests == before


def test_one_renewal_keeps_all_entries_of_a_space(clients):
    one = clients()
    tokens = [f"t{number}" for number in range(20)]
    for token in tokens:
        one.enter(token, name=token)
    one.engine.hear(0.0)  # as the thread of a space, which hears of removals
    before = one.requests
    places = one.engine.renew([(token, token) for token in tokens], within=WITHIN)
    assert [place.state for place in places] == [HOLDS] * 20
    assert one.requests - before == 1


def test_of_many_waiters_one_hears_of_a_release(clients):
    one = clients()
    one.enter("first")
    waiters = [clients() for _ in range(5)]
    for number, waiter in enumerate(waiters):
        assert waiter.enter(f"w{number}").state == WAITS
    before = [waiter.requests for waiter in waiters]
    one.leave("first")
    assert [token for token, _ in waiters[0].hear()] == ["w0"]
    assert [waiter.hear(0.05) for waiter in waiters[1:]] == [[]] * 4
    assert [waiter.requests for waiter in waiters] == before


def test_many_waiters_of_one_space_need_one_watch(clients, etcd_server):
    one, two = clients(), clients()
    one.enter("first")
    tokens = [f"w{number}" for number in range(50)]
    for token in tokens:
        assert two.enter(token).state == WAITS
    assert sum(mine.stream is not None for mine in two.engine.mine.values()) == 1
    one.leave("first")
    for token in list(tokens):
        two.wait(token)
        assert [place.state for place in two.renew(*tokens)].count(HOLDS) == 1
        two.leave(token)
        tokens = tokens[1:]
    assert one.line() == []


def test_a_waiter_in_the_middle_that_leaves_wakes_no_other_wrongly(clients):
    one, two, three = clients(), clients(), clients()
    one.enter("a")
    two.enter("b")
    three.enter("c")
    two.leave("b")
    assert three.hear() == [("c", 0)]
    assert three.enter("c").state == WAITS
    one.leave("a")
    assert three.wait("c") == three.enter("c").fence


def test_readers_share_and_the_writer_between_them_comes_in_order(clients):
    one, two = clients(), clients()
    assert one.enter("r1", room=READERS).state == HOLDS
    assert two.enter("r2", room=READERS).state == HOLDS
    assert one.enter("w").state == WAITS
    assert two.enter("r3", room=READERS).state == WAITS
    one.leave("r1")
    assert two.hear(0.05) == []
    two.leave("r2")
    one.wait("w")
    assert two.hear(0.05) == []
    one.leave("w")
    assert [token for token, fence in two.hear() if fence] == ["r3"]


@pytest.mark.parametrize("leaving", [0, 1, 2])
def test_whichever_slot_is_released_the_next_waiter_has_it(clients, leaving):
    one, two = clients(), clients()
    for number in range(3):
        assert one.enter(f"s{number}", room=3).state == HOLDS
    assert two.enter("next", room=3).state == WAITS
    assert two.enter("last", room=3).state == WAITS
    one.leave(f"s{leaving}")
    assert [token for token, fence in two.hear() if fence] == ["next"]
    assert two.hear(0.05) == []


def test_a_try_that_fails_leaves_nothing(clients):
    one, two = clients(), clients()
    one.enter("held")
    assert two.enter("try", waits=False).state == GONE
    assert two.enter("try", room=3, waits=False).state == GONE
    assert one.line() == ["held"]


def test_fences_grow_over_all_releases(clients):
    one, two = clients(), clients()
    fences = []
    for number in range(6):
        client = (one, two)[number % 2]
        fences.append(client.enter(f"t{number}").fence)
        client.leave(f"t{number}")
    assert fences == sorted(set(fences))


def test_names_are_opaque(clients):
    one = clients()
    names = ["a", "a/b", "a/b/c", "/", "%2F", " ", "ü", "a" * 1000, "..", "//x"]
    for number, name in enumerate(names):
        assert one.enter(f"t{number}", name=name).state == HOLDS
    assert sorted(one.engine.names(within=WITHIN)) == sorted(names)
    assert one.line("a") == ["t0"]


def test_prefixes_keep_spaces_apart(clients, prefix):
    one, two = clients(), clients(prefix=f"{prefix}x")
    assert one.enter("a").state == HOLDS
    assert two.enter("a").state == HOLDS
    assert one.engine.names(within=WITHIN) == ["lock"]


def test_the_line_says_what_the_holders_are(clients):
    one = clients()
    one.enter("a")
    one.enter("b")
    first, second = one.engine.line("lock", within=WITHIN)
    assert (first.holds, second.holds) == (True, False)
    assert first.record == b"pid=1\n"
    assert 0 < first.left <= TTL + 1
    assert first.fence < second.fence


def test_an_entry_that_is_removed_by_force_is_told_to_its_space(clients):
    one, two = clients(), clients()
    one.enter("a")
    two.enter("b")
    assert two.engine.remove("lock", "a", within=WITHIN)
    assert one.hear() == [("a", 0)]
    assert one.renew("a")[0].state == GONE
    assert [token for token, fence in two.hear() if fence] == ["b"]
    assert not two.engine.remove("lock", "a", within=WITHIN)


def test_a_check_asks_and_a_renewal_need_not(clients):
    one, two = clients(), clients()
    one.enter("a")
    assert two.engine.remove("lock", "a", within=WITHIN)
    places = []
    thread = threading.Thread(target=lambda: places.extend(one.renew("a")))
    one.engine.hear(0.0)
    thread.start()
    thread.join()
    assert [place.state for place in places] == [GONE]


def test_an_entry_that_was_deleted_by_other_means_frees_its_waiter_of_the_same_space(clients):
    one = clients()
    one.enter("a")
    one.enter("b")
    fields = {"key": etcd.encoded(one.engine.key("lock", "a"))}
    one.engine.gateway.call("kv/deleterange", fields, WITHIN)
    one.renew("b")
    assert one.hear() == [("b", 0)]
    assert one.enter("b").state == HOLDS


def test_what_a_space_leaves_behind_ends_with_its_lease(clients, etcd_server, prefix):
    one, two = clients(ttl=1.0), clients()
    one.enter("a")
    two.enter("b")
    began = time.monotonic()
    assert [token for token, fence in two.hear() if fence] == ["b"]
    assert 0.9 < time.monotonic() - began < 8  # etcd has whole seconds, and takes its time
    assert one.renew("a")[0].state == GONE
    assert one.enter("again").state == WAITS  # with a new lease


def test_a_lease_lasts_for_the_whole_time_after_each_acquire(clients, monkeypatch):
    """To put a key renews no lease, so one that is partly over is renewed first."""
    one = clients(ttl=3.0)
    one.enter("a")
    lease = one.engine.session._lease.number

    def left():
        return one.engine._left(lease, time.monotonic() + WITHIN)

    one.engine.session._renewed -= 10  # as if it were old
    before = one.requests
    one.enter("b", name="b")
    assert one.requests - before == 2
    assert left() >= 2


def test_what_had_another_lease_is_lost_when_a_new_one_is_made_for_another_lock(clients):
    one = clients()
    one.enter("a")
    lease = one.engine.session._lease.number
    one.engine.gateway.call("lease/revoke", {"ID": lease}, WITHIN)
    one.engine.session._renewed -= 10  # it is renewed by the next acquire
    one.engine.hearer = threading.get_ident()  # as the thread of a space
    one.engine.watch_session = lambda: None  # its new watch is not yet heard
    assert one.enter("b", name="b").state == HOLDS
    assert [place.state for place in one.renew("a")] == [GONE]


def test_a_closed_space_leaves_nothing_in_etcd(clients, etcd_server, prefix):
    one = clients()
    one.enter("a")
    one.leave("a")
    one.engine.close()
    assert stored(etcd_server, prefix) == []


# ---------------------------------------------------------------------- lost requests and answers


@pytest.mark.parametrize("pattern", [b"request_put", b"deleterange", b"keepalive"])
@pytest.mark.parametrize("kind", ["requests", "answers"])
def test_what_gets_lost_is_repeated_and_done_once(clients, proxy, pattern, kind):
    one, two = clients(proxy.address), clients()
    one.enter("warm up")
    one.leave("warm up")
    fault = getattr(proxy, f"lose_{kind}")(pattern)

    def insist(call, *arguments):
        for _ in range(3):
            with contextlib.suppress(Away):
                return call(*arguments)
        raise AssertionError

    place = insist(one.enter, "a")
    assert place.state == HOLDS
    assert insist(one.renew, "a") == [place]
    assert two.line() == ["a"]
    insist(one.leave, "a")
    assert fault.happened.is_set()
    assert two.line() == []
    assert two.enter("b").state == HOLDS


def late_request(one, two, proxy):
    """Take in an entry by a request that is carried out only after the entry was taken out."""
    one.enter("warm up")
    one.leave("warm up")
    proxy.partition()
    with pytest.raises(Away):
        one.enter("a", within=0.2)
    one.leave("a")  # by the other member
    assert two.line() == []
    proxy.heal()
    wait_until(lambda: any(b"request_put" in data for data in proxy.passed[1:]), "it arrives")
    time.sleep(0.2)  # it was refused, or is carried out
    return two.line()


def test_a_request_that_arrives_after_its_entry_was_taken_out_does_nothing(
    clients, proxy, etcd_server
):
    one, two = clients(f"{proxy.address},{etcd_server.address}"), clients()
    assert late_request(one, two, proxy) == []
    assert two.enter("b").state == HOLDS


def test_without_the_epoch_a_late_request_would_leave_an_entry_behind(
    clients, proxy, etcd_server, monkeypatch
):
    monkeypatch.setattr(etcd_session.Session, "settle", lambda self, until: None)
    one, two = clients(f"{proxy.address},{etcd_server.address}"), clients()
    assert late_request(one, two, proxy) == ["a"]


def test_a_watch_that_is_cut_tells_to_ask(clients, proxy):
    one, two = clients(), clients(proxy.address)
    one.enter("a")
    two.enter("b")
    proxy.cut()
    news = two.hear()
    assert news is None or ("b", 0) in news
    assert two.enter("b").state == WAITS
    one.leave("a")
    two.wait("b")


def test_a_space_that_is_cut_off_for_its_lease_has_lost_all(clients, proxy):
    one, two = clients(proxy.address, ttl=1.0), clients()
    one.enter("a")
    two.enter("b")
    proxy.partition()
    with pytest.raises(Away):
        one.renew("a", within=0.2)
    assert [token for token, fence in two.hear() if fence] == ["b"]
    proxy.heal()
    wait_until(lambda: answers(one), "it is heard again")
    assert one.renew("a")[0].state == GONE


def answers(client) -> bool:
    with contextlib.suppress(Away):
        client.renew(within=1.0)
        return True
    return False


def test_no_answer_in_time_is_told_in_time(clients, proxy):
    one = clients(proxy.address)
    one.enter("a")
    proxy.partition()
    began = time.monotonic()
    with pytest.raises(Away, match="no answer in time"):
        one.renew("a", within=0.2)
    assert time.monotonic() - began < 1


def test_close_ends_the_sleep_of_the_thread_that_hears(clients):
    one = clients()
    one.enter("a")
    one.engine.hear(0.0)
    ended = []

    def work():
        with contextlib.suppress(Away):
            one.engine.hear(60)
        ended.append(time.monotonic())

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.05)
    began = time.monotonic()
    one.engine.close()
    thread.join(10)
    assert ended
    assert ended[0] - began < 5


# ---------------------------------------------------------------------- members


def test_a_cluster_goes_on_when_its_leader_is_killed(etcd_cluster, prefix, clients):
    one = clients(etcd_cluster.address, ttl=10.0)
    two = clients(etcd_cluster.address, ttl=10.0)
    fence = one.enter("a").fence
    two.enter("b")
    leader = etcd_cluster.leader()
    leader.kill()
    try:
        wait_until(lambda: answers(one) and answers(two), "the others answer")
        assert one.renew("a")[0][:2] == (HOLDS, fence)
        two.hear(0.05)
        assert two.enter("b").state == WAITS
        one.leave("a")
        assert two.wait("b") > fence
    finally:
        etcd_cluster.mend()


def test_a_member_that_is_paused_is_passed_over(etcd_cluster, clients):
    member = etcd_cluster.members[0]
    if member is etcd_cluster.leader():
        member = etcd_cluster.members[1]
    others = [one for one in etcd_cluster.members if one is not member]
    one = clients(",".join([member.address, *(other.address for other in others)]), ttl=10.0)
    one.enter("a")
    member.pause()
    try:
        place = None
        for _ in range(3):
            with contextlib.suppress(Away):
                place = one.enter("b", name="b", within=1.5)
                break
        assert place is not None
        assert place.state == HOLDS
        assert one.renew("a")[0].state == HOLDS
    finally:
        member.resume()


def test_the_lease_survives_a_restart_of_the_server(prefix):
    with running(Etcd) as server:
        one = Client(server.address, prefix, ttl=10.0)
        fence = one.enter("a").fence
        server.kill()
        with pytest.raises(Away):
            one.renew("a", within=0.2)
        server.restart()
        assert one.renew("a")[0][:2] == (HOLDS, fence)
        assert one.enter("b").fence > fence
        one.engine.close()


# ---------------------------------------------------------------------- bad addresses, logins, TLS


def refusal(*arguments, **options) -> str:
    with pytest.raises((Away, Refused)) as caught:
        Client(*arguments, **options).engine.close()
    return f"{type(caught.value).__name__}: {caught.value}"


def test_nothing_listens_there(prefix):
    port = servers.free_port()
    assert refusal(f"127.0.0.1:{port}", prefix) == f"Away: 127.0.0.1:{port}: Connection refused"


def test_a_server_of_another_kind(redis_server, postgresql_server, prefix):
    for server in (redis_server, postgresql_server):
        words = refusal(server.address, prefix, ttl=2.0)
        assert server.address in words


def test_tls_is_checked_and_used(certificates, prefix):
    with running(Etcd, certificates, client_certificates=True) as server:
        tls = {
            "ca": certificates.ca,
            "cert": certificates.client,
            "key": certificates.client_key,
        }
        one = Client(server.address, prefix, scheme="etcds", **tls)
        two = Client(server.address, prefix, scheme="etcds", **tls)
        one.enter("a")
        assert two.enter("b").state == WAITS
        one.leave("a")
        assert [token for token, fence in two.hear() if fence] == ["b"]
        two.leave("b")
        one.engine.close()
        two.engine.close()
        words = refusal(server.address, prefix, scheme="etcds")
        assert "its certificate is not accepted" in words
        assert words.startswith("Refused")
        refusal(server.address, prefix, scheme="etcds", ca=certificates.ca)
        words = refusal(server.address, prefix)
        assert "etcds://" in words
        words = refusal(
            server.address, prefix, scheme="etcds", ca=certificates.ca, cert="/missing"
        )
        assert "can't be read" in words


def test_passwords_are_used_renewed_and_never_shown(prefix):
    with running(Etcd) as server:
        server.want_password()
        login = f"root:{quote(servers.PASSWORD, safe='')}@"
        one = Client(login + server.address, prefix)
        one.enter("a")
        one.engine.gateway._login = "expired"
        assert one.renew("a")[0].state == HOLDS
        two = Client(login + server.address, prefix)
        two.enter("b")
        one.leave("a")
        assert [token for token, fence in two.hear() if fence] == ["b"]
        two.leave("b")
        for engine in (one.engine, two.engine):
            engine.close()
        words = refusal(
            f"root:wrong{quote(servers.PASSWORD, safe='')}@" + server.address, prefix
        )
        assert words.startswith("Refused")
        assert servers.PASSWORD not in words
        assert "wants a user and a password" in refusal(server.address, prefix)


def test_calls_of_many_threads(clients):
    one = clients()
    done = []

    def work(number):
        for turn in range(5):
            token = f"{number}-{turn}"
            assert one.enter(token, name=f"n{number}").state == HOLDS
            assert one.leave(token, name=f"n{number}")
        done.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(8))
    assert one.engine.names(within=WITHIN) == []


def test_importing_it_needs_nothing_but_the_standard_library():
    code = (
        "import sys, semlock._engines.etcd\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('requests', 'grpc', 'etcd3gw')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
    assert Gateway.__module__ == "semlock._engines.etcd_http"


@pytest.mark.parametrize("option", ["ca", "cert", "key"])
def test_a_certificate_without_tls_is_refused(option):
    """Before anything is sent, also the password."""
    with pytest.raises(semlock.LockEngineError, match="etcds://"):
        semlock.connect("etcd://u:secret@127.0.0.1:1", **{option: "/no/such"})


def test_an_option_that_etcd_has_not_is_refused():
    with pytest.raises(semlock.LockEngineError, match="patience"):
        semlock.connect("etcd://127.0.0.1:1?patience=1")
