#!/bin/sh
# Debian's postinst, and the rpm's posttrans: the user, its folders, and the compiled modules of this machine's Python.
set -e
case ${1-} in abort-*) exit 0 ;; esac

if [ "${1-}" != triggered ]; then
    systemd-sysusers runbook.conf
    if [ ! -d /var/spool/runbook ]; then
        install -d -o root -g runbook -m 2770 /var/spool/runbook
        install -d -o root -g runbook -m 2750 /var/spool/runbook/nodes
    fi
    systemd-tmpfiles --create runbook.conf
    # The epilog writes into the spool as Slurm's own user. Asked once: who changed it since has had a reason.
    if getent passwd slurm >/dev/null && [ "$(stat -c %U /var/spool/runbook)" = root ]; then
        chown slurm /var/spool/runbook
    fi
fi

# Kept by the package, not left to the first who runs it: the folder is root's.
find /opt/runbook/lib -name __pycache__ -type d -prune -exec rm -rf {} +
minor=$(/opt/runbook/bin/python3 -c 'import sys; print(sys.version_info[1])')
/opt/runbook/bin/python3 -m compileall -qq -j 0 /opt/runbook/lib/python3 "/opt/runbook/lib/python3.$minor" || :

if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl try-restart runbook.service || echo "runbook: did not start again: journalctl -u runbook" >&2
fi
