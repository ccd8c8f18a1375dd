"""Why a node was not reached, in classes that tell whether trying again can help."""

from __future__ import annotations

import socket

from runbook.model.node import Reach


class SshFailure(Exception):
    """No connection. `reach` is the class of the failure; `may_pass` says that trying again can help."""

    def __init__(self, reach: Reach, detail: str, *, may_pass: bool = False) -> None:
        super().__init__(detail)
        self.reach = reach
        self.detail = detail
        self.may_pass = may_pass


def failure_of(error: Exception, elapsed_s: float, limit_s: float) -> SshFailure:
    """The class of a failure of paramiko, of a socket or of a key file."""
    from paramiko import ssh_exception as ssh

    if isinstance(error, SshFailure):
        return error
    words = " ".join(str(error).split())[:200] or type(error).__name__
    if isinstance(error, ssh.AuthenticationException | ssh.PasswordRequiredException) and "timeout" not in words:
        return SshFailure(Reach.AUTHENTICATION, f"the node did not accept our user or key: {words}")
    if isinstance(error, ssh.NoValidConnectionsError):
        refused = any(isinstance(each, ConnectionRefusedError) for each in error.errors.values())
        return SshFailure(Reach.REFUSED, "connection refused") if refused else SshFailure(Reach.ERROR, words)
    if isinstance(error, ConnectionRefusedError):
        return SshFailure(Reach.REFUSED, "connection refused")
    if isinstance(error, socket.gaierror):
        return SshFailure(Reach.ERROR, f"the name cannot be resolved: {error.strerror}")
    if isinstance(error, FileNotFoundError | PermissionError):
        return SshFailure(Reach.AUTHENTICATION, f"a key file cannot be read: {words}")
    if isinstance(error, TimeoutError | ssh.AuthenticationException) or elapsed_s >= limit_s * 0.9:
        return SshFailure(Reach.TIMEOUT, f"no answer within {limit_s:g} s", may_pass=True)
    if isinstance(error, ssh.ChannelException):
        return SshFailure(Reach.ERROR, f"the jump host could not reach the node: {words}")
    if isinstance(error, ssh.SSHException | EOFError | ConnectionError):
        return SshFailure(Reach.ERROR, f"the connection broke: {words}", may_pass=True)
    return SshFailure(Reach.ERROR, words)
