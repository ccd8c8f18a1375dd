"""SSH against Debian's real sshd on a loopback port, and against listeners that misbehave."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from runbook.adapters.node_access import SshNodes
from runbook.adapters.ssh import SshFailure, SshSettings
from runbook.adapters.ssh.connect import connected
from runbook.fan_out import check_many
from runbook.model.node import NodeFacts, Reach
from runbook.model.units import NodeName, Unknown
from tests.adapters.jobs import running
from tests.adapters.sshd import Server, running_sshd
from tests.loopback import free_port, make_key
from tests.nvml.standin import SCENARIOS, library_folder

HOST = NodeName("127.0.0.1")

pytestmark = pytest.mark.needs("sshd")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_sshd(tmp_path_factory.mktemp("sshd")) as started:
        yield started


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def ssh_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "paramiko" in type(thread).__module__]


def reach(settings: SshSettings, node: NodeName = HOST) -> tuple[Reach, str, float]:
    started = time.monotonic()
    facts = SshNodes(settings).check(node, since_s=None, until_s=None)
    assert isinstance(facts.gpus, Unknown) or facts.reach is Reach.OK
    return facts.reach, facts.reach_detail, time.monotonic() - started


def test_commands_of_one_session_share_a_connection_and_answer_with_their_status(server: Server) -> None:
    with connected(HOST, server.settings) as session:
        first = session.run("sh -s", "echo $SSH_CONNECTION; echo problem >&2; exit 3\n")
        second = session.run("sh -s", "echo $SSH_CONNECTION\n")
    assert first.exit_code == 3
    assert first.text.split("\n")[1] == "problem"
    assert first.text.split("\n")[0] == second.text.strip() != ""
    assert first.cut_why == ""


def test_a_check_answers_with_facts_and_leaves_no_connection_open(server: Server) -> None:
    before = len(ssh_threads())
    facts = SshNodes(server.settings).check(HOST, since_s=None, until_s=None)
    assert facts.reach is Reach.OK
    assert facts.gpus == Unknown("no nvidia-smi on this machine")
    assert facts.reach_detail.startswith(f"answered as {getpass.getuser()}")
    for _ in range(40):
        if len(ssh_threads()) <= before:
            break
        time.sleep(0.05)
    assert len(ssh_threads()) <= before


def test_refused_at_once_and_not_tried_again(server: Server) -> None:
    found, detail, took_s = reach(replace(server.settings, port=free_port()))
    assert (found, detail) == (Reach.REFUSED, "connection refused")
    assert took_s < 1


def test_a_listener_that_never_answers_is_a_timeout_within_two_connect_timeouts(
    server: Server, silent_port: int
) -> None:
    found, detail, took_s = reach(replace(server.settings, port=silent_port, connect_timeout_s=1))
    assert (found, detail) == (Reach.TIMEOUT, "no answer within 1 s")
    assert took_s < 3.5


def test_a_connection_that_is_reset_once_is_tried_again(server: Server) -> None:
    """The first connection is dropped without a greeting; the second one goes through to sshd."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
        accepted: list[int] = []

        def relay() -> None:
            first, _ = listener.accept()
            accepted.append(1)
            first.close()
            second, _ = listener.accept()
            accepted.append(2)
            with second, socket.create_connection(("127.0.0.1", server.port)) as target:
                back = threading.Thread(target=pump, args=(target, second), daemon=True)
                back.start()
                pump(second, target)
                back.join(5)

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        known = server.folder / "known_hosts_relay"
        known.write_text((server.folder / "known_hosts").read_text().replace(str(server.port), str(port)))
        found, _, _ = reach(replace(server.settings, port=port, known_hosts_file=str(known)))
        thread.join(5)
    assert accepted == [1, 2]
    assert found is Reach.OK


def pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while block := source.recv(1 << 16):
            sink.sendall(block)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.mark.parametrize("case", ["changed", "unknown", "empty file", "missing file"])
def test_a_host_key_that_known_hosts_does_not_have_is_never_accepted(
    server: Server, tmp_path: Path, case: str
) -> None:
    known = tmp_path / "known_hosts"
    other = make_key(tmp_path / "other")
    if case == "changed":
        known.write_text(f"[127.0.0.1]:{server.port} {other}\n")
    elif case == "unknown":
        known.write_text(f"gpu-99 {other}\n")
    elif case == "empty file":
        known.write_text("")
    written = known.read_text() if known.exists() else None
    found, detail, took_s = reach(replace(server.settings, known_hosts_file=str(known)))
    assert found is Reach.HOST_KEY, detail
    assert took_s < 2
    assert (known.read_text() if known.exists() else None) == written


def test_a_wrong_key_is_an_authentication_failure(server: Server, tmp_path: Path) -> None:
    make_key(tmp_path / "stranger")
    found, detail, took_s = reach(replace(server.settings, key_file=str(tmp_path / "stranger")))
    assert found is Reach.AUTHENTICATION
    assert "did not accept" in detail
    assert took_s < 5


def test_a_key_file_that_is_not_there_is_an_authentication_failure(server: Server, tmp_path: Path) -> None:
    found, _, _ = reach(replace(server.settings, key_file=str(tmp_path / "nothing")))
    assert found is Reach.AUTHENTICATION


@pytest.mark.parametrize(
    "name", ["-oProxyCommand=touch /tmp/x", "root@127.0.0.1", "127.0.0.1:22", "a b", "", "gpu\n21", "a/../b"]
)
def test_a_node_name_that_is_no_host_name_is_not_contacted(server: Server, name: str) -> None:
    found, detail, _ = reach(server.settings, NodeName(name))
    assert (found, detail) == (Reach.ERROR, "not a host name; it was not contacted")


def test_a_command_that_hangs_is_cut_at_the_deadline_with_what_it_wrote(server: Server) -> None:
    started = time.monotonic()
    with connected(HOST, server.settings) as session:
        answer = session.run("sh -s", "echo first; sleep 30; echo last\n", timeout_s=1)
    assert answer.text == "first\n"
    assert answer.cut_why == "no end of the answer within 1 s"
    assert time.monotonic() - started < 3


def test_a_server_that_never_says_whether_it_runs_the_command_is_a_timeout(tmp_path: Path) -> None:
    """sshd whose session set-up hangs (a home on a dead file server): logged in, and then no word."""
    make_key(tmp_path / "host")
    make_key(tmp_path / "client")
    key = paramiko.Ed25519Key.from_private_key_file(str(tmp_path / "host"))
    release = threading.Event()

    class Silent(paramiko.ServerInterface):
        def check_auth_publickey(self, username: str, key: object) -> int:
            return 0

        def get_allowed_auths(self, username: str) -> str:
            return "publickey"

        def check_channel_request(self, kind: str, chanid: int) -> int:
            return 0

        def check_channel_exec_request(self, channel: object, command: bytes) -> bool:
            release.wait(30)
            return False

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
        (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {(tmp_path / 'host.pub').read_text()}")

        def serve() -> None:
            connection, _ = listener.accept()
            transport = paramiko.Transport(connection)
            transport.add_server_key(key)
            transport.start_server(server=Silent())
            release.wait(30)
            transport.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        settings = SshSettings(
            user="alice", port=port, key_file=str(tmp_path / "client"), config_file=os.devnull, use_agent=False,
            known_hosts_file=str(tmp_path / "known_hosts"), command_timeout_s=1, connect_timeout_s=2,
        )
        found, detail, took_s = reach(settings)
        release.set()
        thread.join(5)
    assert (found, detail) == (Reach.TIMEOUT, "no answer within 1 s")
    assert took_s < 4


def test_output_beyond_the_limit_is_not_read(server: Server) -> None:
    started = time.monotonic()
    with connected(HOST, replace(server.settings, output_limit_bytes=200_000)) as session:
        answer = session.run("sh -s", "yes 0123456789\n")
    assert len(answer.text) == 200_000
    assert "more than 195 KiB" in answer.cut_why
    assert time.monotonic() - started < 4


def test_a_script_larger_than_the_window_is_sent_whole(server: Server) -> None:
    lines = 60_000
    with connected(HOST, server.settings) as session:
        answer = session.run("wc -l", "a line of a script that is long\n" * lines)
    assert answer.text.strip() == str(lines)


def test_the_way_through_a_jump_host_is_checked_at_each_hop(server: Server, tmp_path: Path) -> None:
    jump = f"{getpass.getuser()}@127.0.0.1:{server.port}"
    through = replace(server.settings, jump_host=jump)
    with connected(HOST, through) as session:
        assert session.run("echo there").text == "there\n"
    empty = tmp_path / "empty"
    empty.write_text("")
    with pytest.raises(SshFailure) as failure, connected(HOST, replace(through, known_hosts_file=str(empty))):
        pass
    assert failure.value.reach is Reach.HOST_KEY


def test_the_key_of_the_jump_host_itself_must_be_known(server: Server) -> None:
    """known_hosts has the node, by its address, but not the jump host, by its name."""
    through = replace(server.settings, jump_host=f"{getpass.getuser()}@localhost:{server.port}")
    with pytest.raises(SshFailure) as failure, connected(HOST, through):
        pass
    assert failure.value.reach is Reach.HOST_KEY
    assert "localhost" in failure.value.detail


def test_a_node_that_the_jump_host_cannot_reach_is_an_error_not_a_hang(server: Server) -> None:
    jump = f"{getpass.getuser()}@127.0.0.1:{server.port}"
    started = time.monotonic()
    with pytest.raises(SshFailure) as failure, connected(
        HOST, replace(server.settings, jump_host=jump, port=free_port())
    ):
        pass
    assert failure.value.reach is Reach.ERROR
    assert "jump host" in failure.value.detail
    assert time.monotonic() - started < 3


def test_names_users_and_files_come_from_the_ssh_configuration(server: Server, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        f"Host gpu-77\n  HostName 127.0.0.1\n  Port {server.port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {server.folder}/client_key\n  UserKnownHostsFile {server.folder}/known_hosts\n"
        "  ConnectTimeout 30\n"
    )
    settings = SshSettings(config_file=str(config), use_agent=False, connect_timeout_s=2)
    found, detail, _ = reach(settings, NodeName("gpu-77"))
    assert found is Reach.OK, detail


def test_a_configuration_that_cannot_be_read_is_said(server: Server, tmp_path: Path) -> None:
    found, detail, _ = reach(replace(server.settings, config_file=str(tmp_path / "none")))
    assert found is Reach.ERROR
    assert "ssh configuration" in detail


def test_an_nvidia_smi_that_hangs_costs_its_own_figures_only(server: Server) -> None:
    tool = server.folder / "bin" / "nvidia-smi"
    tool.write_text("#!/bin/sh\nsleep 60\n")
    tool.chmod(0o755)
    try:
        started = time.monotonic()
        facts = SshNodes(replace(server.settings, command_timeout_s=4)).check(HOST, since_s=None, until_s=None)
        took_s = time.monotonic() - started
    finally:
        tool.unlink()
    assert facts.reach is Reach.OK
    assert facts.gpus == Unknown("nvidia-smi did not answer within the time that was given")
    assert took_s < 5


@pytest.mark.needs("gcc")
def test_the_probe_goes_along_and_answers_in_the_one_round_trip(server: Server) -> None:
    """The node's Python loads a stand-in for NVML; nvidia-smi is there and is not asked."""
    tool, library = server.folder / "bin" / "nvidia-smi", server.folder / "lib"
    tool.write_text(f"#!/bin/sh\ntouch {server.folder}/asked; exit 9\n")
    tool.chmod(0o755)
    (server.folder / "scenario.txt").write_text((SCENARIOS / "h100_550_failed_remap.txt").read_text())
    library.symlink_to(library_folder())
    try:
        facts = SshNodes(replace(server.settings, command_timeout_s=20)).check(HOST, since_s=None, until_s=None)
    finally:
        tool.unlink()
        library.unlink()
    assert facts.reach is Reach.OK
    assert "by the probe under Python 3." in facts.reach_detail
    assert facts.driver == "550.90.07 (stand-in)"
    assert facts.simulated
    assert not isinstance(facts.gpus, Unknown)
    assert [gpu.row_remap_failed for gpu in facts.gpus] == [False, True]
    assert not (server.folder / "asked").exists()


def test_many_nodes_are_asked_at_once_and_a_hanging_one_holds_nobody_up(server: Server, silent_port: int) -> None:
    """`HOST` answers; the others are names for the silent port, told apart by the ssh configuration."""
    config = server.folder / "many_config"
    good = [NodeName(f"gpu-{number}") for number in range(6)]
    hanging = NodeName("gpu-hangs")
    blocks = [
        f"Host {name}\n  HostName 127.0.0.1\n  Port {silent_port if name == hanging else server.port}\n"
        for name in [*good, hanging]
    ]
    config.write_text("".join(blocks))
    settings = replace(server.settings, port=None, config_file=str(config), connect_timeout_s=4)
    done: list[NodeFacts] = []
    names = [hanging, *good, good[0]]
    facts = check_many(SshNodes(settings), names, since_s=None, until_s=None, limit=4, on_done=done.append)
    assert [fact.node for fact in facts] == [hanging, *good]
    assert facts[0].reach is Reach.TIMEOUT
    assert {fact.reach for fact in facts[1:]} == {Reach.OK}
    assert len(done) == 7
    assert done[-1].node == hanging


def test_processes_of_a_job_are_seen_with_argv_rank_and_only_the_variables_asked_for(server: Server) -> None:
    environment = {
        "PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "987654321", "SLURM_PROCID": "3",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "API_TOKEN": "secret", "NOTE": "two\nlines",
    }
    process = subprocess.Popen(("sleep", "60", ), env=environment)
    try:
        views = SshNodes(server.settings).processes(
            HOST, running("987654321", getpass.getuser()), ("PYTORCH_CUDA_ALLOC_CONF", "NOTE", "ABSENT")
        )
    finally:
        process.kill()
        process.wait()
    assert not isinstance(views, Unknown)
    (view,) = views
    assert (view.pid, view.argv, view.rank) == (process.pid, ("sleep", "60"), 3)
    assert view.environment == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "NOTE": "two\nlines"}


def test_processes_of_a_node_that_is_not_reached_are_unknown(server: Server) -> None:
    views = SshNodes(replace(server.settings, port=free_port())).processes(
        HOST, running("1", "nobody"), ("PATH",)
    )
    assert views == Unknown("127.0.0.1 was not reached: connection refused")
