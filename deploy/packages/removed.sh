#!/bin/sh
# Debian's postrm and the rpm's postun. A purge takes the configuration and the spool along. Incidents are the site's
# record of what was done to its jobs: they stay. So does the user: with its number free, another would own its files.
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload || :
[ "${1-}" = purge ] || exit 0
rm -rf /var/spool/runbook
# What `runbook setup` writes. Keys and addresses beside it are a person's.
rm -f /etc/runbook/inventory.yaml
for folder in /etc/runbook /var/lib/runbook /opt/runbook; do
    rmdir "$folder" 2>/dev/null || [ ! -d "$folder" ] || echo "runbook: $folder stays; it holds what the package did not bring"
done
getent passwd runbook >/dev/null && echo "runbook: the user runbook stays" || :
