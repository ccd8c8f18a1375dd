"""ssh's own configuration, host keys and keys to log in with: real sshd, and beside it what `ssh` itself decides."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runbook.adapters.node_access import SshNodes
from runbook.adapters.ssh import SshFailure, SshSettings
from runbook.adapters.ssh.connect import connected
from runbook.model.node import Reach
from runbook.model.units import NodeName
from tests.adapters.sshd import Server, running_sshd
from tests.loopback import make_key

pytestmark = pytest.mark.needs("sshd")
USER = getpass.getuser()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a second host key of another kind, and a certificate authority for users."""
    folder = tmp_path_factory.mktemp("sshd")
    subprocess.run(
        ("ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", str(folder / "host_rsa")), check=True
    )
    make_key(folder / "user_ca")
    with running_sshd(folder, f"HostKey {folder}/host_rsa", f"TrustedUserCAKeys {folder}/user_ca.pub") as started:
        yield started


@pytest.fixture
def config(server: Server, tmp_path: Path) -> Callable[[str], SshSettings]:
    """Settings that know nothing but a configuration file: the text given, and behind it what reaches the server."""
    known = tmp_path / "known"
    key = (server.folder / "host_key.pub").read_text().strip()
    known.write_text("".join(f"[127.0.0.{last}]:{server.port} {key}\n" for last in (1, 2, 3)))

    def written(text: str) -> SshSettings:
        path = tmp_path / "config"
        path.write_text(
            f"{text}\nHost *\n  Port {server.port}\n  User {USER}\n  UserKnownHostsFile {known}\n"
            f"  GlobalKnownHostsFile /dev/null\n  IdentityFile {server.folder}/client_key\n"
        )
        return SshSettings(config_file=str(path), use_agent=False, connect_timeout_s=2, command_timeout_s=5)

    return written


def says(settings: SshSettings, node: str, command: str = "echo there") -> str:
    with connected(NodeName(node), settings) as session:
        return session.run(command).text.strip()


def failure(settings: SshSettings, node: str = "127.0.0.1") -> SshFailure:
    with pytest.raises(SshFailure) as caught, connected(NodeName(node), settings):
        pass
    return caught.value


def judged_as_by_ssh(server: Server, settings: SshSettings, accepted: bool, *options: str) -> None:
    """Whether a host key is accepted: by ssh itself with these options, and just so by us."""
    itself = subprocess.run(
        ("ssh", *options, "-p", str(server.port), "-i", str(server.folder / "client_key"), "-o",
         "GlobalKnownHostsFile=/dev/null", "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes", "127.0.0.1",
         "true"), capture_output=True, text=True, check=False,
    )
    assert (itself.returncode == 0) is accepted, itself.stderr
    if accepted:
        assert says(settings, "127.0.0.1") == "there"
    else:
        assert failure(settings).reach is Reach.HOST_KEY


HOST_KEYS = {
    "pattern": "[127.0.0.*]:PORT ED",
    "pattern and another name": "gpu-1,[127.0.0.?]:PORT ED",
    "hashed": "HASHED",
    "second of two of a kind": "[127.0.0.1]:PORT OTHER\n[127.0.0.1]:PORT ED",
    "no port": "127.0.0.1 ED",
    "only the RSA key": "[127.0.0.1]:PORT RSA",
    "RSA on a line before": "[127.0.0.1]:PORT RSA\n[127.0.0.1]:PORT ED",
    "behind lines that are none": "nonsense\n@unknown * ED\n1024 35 123\n\n# note\n[127.0.0.1]:PORT ED",
    "revoked another": "@revoked * OTHER\n[127.0.0.1]:PORT ED",
    "not: revoked": "@revoked * ED\n[127.0.0.1]:PORT ED",
    "not: left out": "[127.0.0.*]:PORT,![127.0.0.1]:PORT ED",
    "not: brackets are no class": "[127.0.0.1] ED",
    "not: another's": "[127.0.0.1]:PORT OTHER",
    "not: authority only": "@cert-authority [127.0.0.1]:PORT ED",
    "not: another port": "[127.0.0.1]:1 ED",
}


@pytest.mark.parametrize("case", HOST_KEYS)
def test_host_keys_are_judged_as_ssh_judges_them(server: Server, tmp_path: Path, case: str) -> None:
    known = tmp_path / "known_hosts"
    keys = {"ED": server.folder / "host_key.pub", "RSA": server.folder / "host_rsa.pub"}
    make_key(tmp_path / "other")
    keys["OTHER"] = tmp_path / "other.pub"
    text = HOST_KEYS[case].replace("HASHED", "[127.0.0.1]:PORT ED").replace("PORT", str(server.port))
    for word, path in keys.items():
        text = text.replace(f" {word}", " " + " ".join(path.read_text().split()[:2]))
    known.write_text(text + "\n")
    if case == "hashed":
        subprocess.run(("ssh-keygen", "-q", "-H", "-f", str(known)), check=True, capture_output=True)
        assert "127.0.0.1" not in known.read_text()
    judged_as_by_ssh(
        server, replace(server.settings, known_hosts_file=str(known)), not case.startswith("not:"),
        "-F", "/dev/null", "-o", f"UserKnownHostsFile={known}",
    )


def test_why_a_host_key_was_not_accepted_is_told(server: Server, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    key = (server.folder / "host_key.pub").read_text().strip()
    settings = replace(server.settings, known_hosts_file=str(known))
    known.write_text(f"@revoked * {key}\n")
    assert "marked @revoked" in failure(settings).detail
    known.write_text(f"@cert-authority * {key}\n")
    assert "host certificates are not supported" in failure(settings).detail


@pytest.mark.parametrize(
    "content", ["OTHER\n", "# none\n\n", "not: ED\n", "not: OTHER\nED\n", "not: KRL", "not: missing"]
)
def test_revoked_host_keys_are_refused_as_ssh_refuses_them(server: Server, tmp_path: Path, content: str) -> None:
    make_key(tmp_path / "other")
    own, other = server.folder / "host_key.pub", tmp_path / "other.pub"
    revoked = tmp_path / "revoked"
    if content.endswith("KRL"):
        subprocess.run(("ssh-keygen", "-q", "-k", "-f", str(revoked), str(own)), check=True)
    elif not content.endswith("missing"):
        text = content.removeprefix("not: ").replace("ED", own.read_text().strip())
        revoked.write_text(text.replace("OTHER", other.read_text().strip()))
    config = tmp_path / "config"
    config.write_text(f"RevokedHostKeys {revoked}\nUserKnownHostsFile {server.settings.known_hosts_file}\n")
    judged_as_by_ssh(
        server, replace(server.settings, config_file=str(config)), not content.startswith("not:"), "-F", str(config),
    )


def test_a_known_hosts_file_that_changes_is_read_again(server: Server, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text("# nobody\n")
    settings = replace(server.settings, known_hosts_file=str(known))
    assert failure(settings).reach is Reach.HOST_KEY
    known.write_text((server.folder / "known_hosts").read_text())
    assert says(settings, "127.0.0.1") == "there"


def test_a_host_key_alias_is_the_name_that_is_looked_up(
    server: Server, tmp_path: Path, config: Callable[[str], SshSettings]
) -> None:
    known = tmp_path / "alias_known"
    known.write_text("rack-7 " + (server.folder / "host_key.pub").read_text())
    settings = config(f"Host gpu-1\n HostName 127.0.0.1\n HostKeyAlias rack-7\n UserKnownHostsFile {known}")
    assert says(settings, "gpu-1") == "there"


def test_include_match_quotes_and_tokens_mean_what_they_mean_to_ssh(
    server: Server, tmp_path: Path, config: Callable[[str], SshSettings]
) -> None:
    (tmp_path / "two words").mkdir()
    key = tmp_path / "two words" / "127.0.0.2-key"
    key.write_bytes((server.folder / "client_key").read_bytes())
    key.chmod(0o600)
    (tmp_path / "part.conf").write_text("Host gpu-*\n  HostName 127.0.0.2\n")
    settings = config(
        f'Include {tmp_path}/*.conf\nMatch originalhost gpu-2 user {USER}\n  IdentityFile "{tmp_path}/two words/%h-key"'
        "\n  IdentitiesOnly yes"
    )
    assert says(settings, "gpu-2", "echo $SSH_CONNECTION").split()[2] == "127.0.0.2"


def test_what_only_openssh_can_read_is_refused_without_it(
    config: Callable[[str], SshSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config("Match host gpu-*\n  HostName 127.0.0.1")
    monkeypatch.setenv("PATH", "/nowhere")
    told = failure(settings, "gpu-1")
    assert told.reach is Reach.ERROR
    assert "the `ssh` command is needed" in told.detail


def test_a_token_that_is_not_known_here_is_refused(config: Callable[[str], SshSettings]) -> None:
    told = failure(config("Host gpu-1\n  HostName 127.0.0.1\n  ProxyCommand nc %h %C"), "gpu-1")
    assert "%C" in told.detail
    assert "not supported" in told.detail


def test_a_chain_of_jump_hosts_is_gone_through_in_order(config: Callable[[str], SshSettings]) -> None:
    settings = config(
        "Host gpu-1\n HostName 127.0.0.1\n ProxyJump first,second\nHost first\n HostName 127.0.0.2\n"
        "Host second\n HostName 127.0.0.3"
    )
    client, _, node, _ = says(settings, "gpu-1", "echo $SSH_CONNECTION").split()
    assert node == "127.0.0.1"
    with connected(NodeName("gpu-1"), settings) as session:
        second = session._connection.gateway
        assert [second.host, second.gateway.host, second.gateway.gateway] == ["127.0.0.3", "127.0.0.2", False]
    assert client


def test_a_failure_says_at_which_jump_host_it_was(config: Callable[[str], SshSettings]) -> None:
    told = failure(config("Host gpu-1\n HostName 127.0.0.1\n ProxyJump 127.0.0.9"), "gpu-1")
    assert (told.reach, told.detail) == (Reach.REFUSED, "at the jump host 127.0.0.9: connection refused")


def test_a_jump_rule_for_all_hosts_does_not_send_the_jump_host_to_itself(
    config: Callable[[str], SshSettings]
) -> None:
    settings = config("Host gpu-1\n HostName 127.0.0.1\nHost *\n ProxyJump 127.0.0.2")
    assert says(settings, "gpu-1") == "there"


def test_none_ends_a_rule_for_all_hosts(config: Callable[[str], SshSettings]) -> None:
    settings = config("Host gpu-1\n HostName 127.0.0.1\n ProxyJump none\nHost *\n ProxyJump 127.0.0.9")
    assert says(settings, "gpu-1") == "there"


def test_a_proxy_command_runs_in_a_shell_with_the_port_that_is_meant(
    tmp_path: Path, config: Callable[[str], SshSettings]
) -> None:
    settings = config(
        f"Host gpu-1\n HostName 127.0.0.1\n ProxyCommand ssh -F {tmp_path}/config -W %h:%p 127.0.0.2 2>/dev/null"
    )
    assert says(settings, "gpu-1") == "there"


def test_a_proxy_command_that_never_answers_is_ended(config: Callable[[str], SshSettings]) -> None:
    settings = replace(config("Host gpu-1\n HostName 127.0.0.1\n ProxyCommand sleep 61.25"), connect_timeout_s=1)
    started = time.monotonic()
    told = failure(settings, "gpu-1")
    assert told.reach is Reach.TIMEOUT, told.detail
    assert time.monotonic() - started < 5
    assert "sleep\x0061.25" not in "".join(
        path.read_text(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)
    )


def test_the_second_of_two_keys_is_offered_too(tmp_path: Path, config: Callable[[str], SshSettings]) -> None:
    make_key(tmp_path / "stranger")
    assert says(config(f"Host gpu-1\n HostName 127.0.0.1\n IdentityFile {tmp_path}/stranger"), "gpu-1") == "there"


def test_a_key_with_a_passphrase_is_named_when_nobody_logs_in(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "locked"
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(path)), check=True)
    told = failure(replace(server.settings, key_file=str(path), config_file="/dev/null"))
    assert told.reach is Reach.AUTHENTICATION
    assert str(path) in told.detail


def test_ways_to_log_in_that_are_not_done_are_named(tmp_path: Path, config: Callable[[str], SshSettings]) -> None:
    make_key(tmp_path / "stranger")
    settings = config(
        f"Host gpu-1\n HostName 127.0.0.1\n GSSAPIAuthentication yes\n IdentityFile {tmp_path}/stranger\n"
        "Host nobody"
    )
    path = Path(settings.config_file)
    path.write_text("\n".join(line for line in path.read_text().splitlines() if "client_key" not in line))
    told = failure(settings, "gpu-1")
    assert told.reach is Reach.AUTHENTICATION
    assert "GSSAPI (Kerberos), which this tool does not do" in told.detail


@pytest.mark.parametrize("place", ["beside the key", "CertificateFile"])
def test_a_user_certificate_is_shown(
    server: Server, tmp_path: Path, config: Callable[[str], SshSettings], place: str
) -> None:
    key, moved = tmp_path / "signed", tmp_path / "elsewhere.pub"
    make_key(key)
    subprocess.run(
        ("ssh-keygen", "-q", "-s", str(server.folder / "user_ca"), "-I", "us", "-n", USER, str(key) + ".pub"),
        check=True,
    )
    line = f"IdentityFile {key}\n IdentitiesOnly yes"
    if place == "CertificateFile":
        (tmp_path / "signed-cert.pub").rename(moved)
        line += f"\n CertificateFile {moved}"
    settings = config(f"Host gpu-1\n HostName 127.0.0.1\n {line}")
    path = Path(settings.config_file)
    path.write_text("\n".join(text for text in path.read_text().splitlines() if "client_key" not in text))
    assert says(settings, "gpu-1") == "there"


def test_of_the_agents_keys_only_the_named_one_is_offered(
    server: Server, tmp_path: Path, config: Callable[[str], SshSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """IdentitiesOnly with a public half on disk: its private half is in the agent only."""
    socket_path = tmp_path / "agent"
    agent = subprocess.Popen(("ssh-agent", "-D", "-a", str(socket_path)), stdout=subprocess.DEVNULL)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket_path))
    try:
        while not socket_path.exists():
            time.sleep(0.02)
        key = tmp_path / "mine"
        key.write_bytes((server.folder / "client_key").read_bytes())
        key.chmod(0o600)
        subprocess.run(("ssh-add", "-q", str(key)), check=True, capture_output=True)
        key.write_text((server.folder / "client_key.pub").read_text())
        make_key(tmp_path / "stranger")
        for named, expected in ((key, "there"), (tmp_path / "stranger", "")):
            settings = config(f"Host gpu-1\n HostName 127.0.0.1\n IdentityFile {named}\n IdentitiesOnly yes")
            path = Path(settings.config_file)
            path.write_text("\n".join(line for line in path.read_text().splitlines() if "client_key" not in line))
            settings = replace(settings, use_agent=True)
            if expected:
                assert says(settings, "gpu-1") == expected
            else:
                assert failure(settings, "gpu-1").reach is Reach.AUTHENTICATION
    finally:
        agent.terminate()
        agent.wait(5)


def test_the_systems_own_configuration_is_not_read_beside_a_named_one(config: Callable[[str], SshSettings]) -> None:
    """As `ssh -F`: a file that is named stands alone, so that an inventory reaches the same nodes for everybody."""
    facts = SshNodes(config("Host gpu-1\n HostName 127.0.0.1")).check(NodeName("gpu-1"), since_s=None, until_s=None)
    assert facts.reach is Reach.OK


def test_a_configuration_that_others_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ProxyCommand in it would run with our rights."""
    (tmp_path / ".ssh").mkdir()
    path = tmp_path / ".ssh" / "config"
    path.write_text(f"Host gpu-1\n ProxyCommand touch {tmp_path}/ran\n")
    path.chmod(0o666)
    monkeypatch.setenv("HOME", str(tmp_path))
    told = failure(SshSettings(connect_timeout_s=1), "gpu-1")
    assert "may be written by others" in told.detail
    assert not (tmp_path / "ran").exists()


def test_a_server_that_always_hangs_up_is_tried_four_times_and_no_more(server: Server) -> None:
    """Before its greeting, as an sshd at its MaxStartups does."""
    accepted: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])

        def hang_up() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                accepted.append(1)
                connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        started = time.monotonic()
        told = failure(replace(server.settings, port=port, connect_timeout_s=10))
        took_s = time.monotonic() - started
        listener.shutdown(socket.SHUT_RDWR)
    assert told.reach is Reach.ERROR
    assert told.detail.startswith("the connection broke: ")
    assert len(accepted) == 4
    assert took_s < 15
