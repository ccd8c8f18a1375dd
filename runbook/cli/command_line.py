"""The commands with their options and help: what `--help`, completion and a mistyped option need, and no more.

What a command does is a function of the same name, imported when it is run.
"""

from __future__ import annotations

import click

from runbook.cli.file_commands import explain as explain
from runbook.cli.options import FILE_PATH, PATH, STATES, Command, Kind, command, inventory_option
from runbook.cli.options import cli as cli


@command(
    "node_check", "Check nodes: GPU faults, whose processes hold memory. Touches nothing.",
    epilog=(
    "Exit codes: 0 every node is clean · 4 a node is faulty or occupied · 6 none is, but one is unknown: not reached, "
    "not read, or not judged · 130 interrupted, with what was known until then"
),
)
@click.argument("nodes", metavar="[NODE]...", nargs=-1)
@click.option("--job", metavar="ID", help="Look with this job's eyes: its nodes, its time, its own processes.")
@click.option(
    "--since", metavar="TIME", help="Events of the kernel log count from here: 2h, 3d, 2026-11-21T02:00, epoch seconds."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output (docs/node-check.md).")
@inventory_option
def node() -> None:
    """Check nodes: GPU faults, whose processes hold memory, what the kernel log says. It touches nothing.

    NODE is a name or a Slurm host list: gpu-21, gpu-[21-24]. With --job and no NODE, all nodes of the job.

    Without --job no scheduler is needed. All GPU events are then shown and none is blamed on a job; processes of jobs
    that run are in order.
    """


@command("incident.stored", "List incidents, newest first; --watch: redrawn as they change.")
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@click.option(
    "--watch", "watching", is_flag=True, help="Stay, and redraw the list as it changes, open ones first; Ctrl-C ends."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON list; with --watch one JSON object a line and change.")
@inventory_option
def incidents() -> None:
    """List incidents, newest first.

    With --watch into a pipe or a file, on a terminal that cannot redraw, or with NO_COLOR: one plain line for each open
    incident, then one for each that changes.
    """


@command("incident.live", "Look on while an incident goes through the boxes; Ctrl-C leaves it alone.")
@click.argument("incident", required=False)
@click.option("--job", metavar="ID", help="The incident of this job, or of which it is a relaunch.")
@click.option("--json", "as_json", is_flag=True, help="incident.json on one line, each time that it changes.")
@inventory_option
def follow() -> None:
    """Look on while an incident is worked on: which boxes it left and what they said, where it is and since when, what
    it waits for. It ends when the incident does, or is interrupted, with the last lines and the exit code of `oom`.

    Without INCIDENT and --job: the only one that is at work. It reads what is stored, and changes and answers nothing.
    Into a pipe or a file, on a terminal that cannot redraw, or with NO_COLOR: one plain line for each change.
    """


@command("incident.stored", "Show one incident.")
@click.argument("incident")
@click.option("--json", "as_json", is_flag=True, help="Print incident.json.")
@inventory_option
def show() -> None:
    """Show one incident: what died, what was done, what is asked of a person."""


@command("incident.stored", "Where an incident's report is; --open shows it in a browser.")
@click.argument("incident")
@click.option("--open", "open_it", is_flag=True, help="Open it in the browser of this machine.")
@click.option("--draw", is_flag=True, help="Draw the page again from incident.json.")
@inventory_option
def report() -> None:
    """Where an incident's report is."""


@command("incident.past", "What died of what before, and what worked; --nodes: which nodes stand out.")
@click.option("--user", "-u", default="", metavar="USER", help="Only jobs of this user.")
@click.option("--node", default="", metavar="NODE", help="Only jobs that ran on this node.")
@click.option("--system", default="", metavar="NAME", help="Only this framework: megatron, verl, … (runbook levers).")
@click.option("--model", default="", metavar="TEXT", help="Only models with this in their name.")
@click.option(
    "--kind", type=Kind(), metavar="KIND",
    help="Only what died of this: true_oom, fragmentation, … (runbook explain KIND).",
)
@click.option("--since", default="", metavar="TIME", help="Only the last 30d, 12w, 6m, 1y.")
@click.option("--nodes", "by_node", is_flag=True, help="Nodes beside their peers, instead of groups of incidents.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list on standard output.")
@inventory_option
def history() -> None:
    """What died of what before, and which lever worked; with --nodes, which node sees more of it than its peers."""


@command("prune", "Remove what was kept of closed incidents for too long, or is too much.")
@click.option("--dry-run", is_flag=True, help="Show what would go; remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@inventory_option
def prune() -> None:
    """Remove what was kept of closed incidents for too long, or is too much, by `keep` of the inventory.

    Kept logs go first, long after them whole incidents; of an open incident nothing goes, nor of one whose relaunched
    job has not ended, or whose drained nodes were not given back, more than its logs. What goes is shown before it
    does. `runbook serve` does the same by itself (docs/keep.md).
    """


@command("backup", "Write all stored incidents, and what the engine recorded of them, into one file.")
@click.argument("file", type=PATH)
@inventory_option
def backup() -> None:
    """Write all stored incidents, with kept logs, and what the engine recorded of them into one file, mode 0600.

    A daemon that runs goes on. FILE is a tar archive, compressed by zstd; it must not be there yet (docs/keep.md).
    """


@command("backup", "Put back what `backup` wrote, where there is nothing yet.")
@click.argument("file", type=PATH)
@click.option("--into", metavar="DIR", type=PATH, help="Into another folder than the inventory's, with SQLite.")
@inventory_option
def restore() -> None:
    """Put back what `backup` wrote. Refused where incidents are stored already, and while a daemon runs there.

    Everything is unpacked and checked before any of it is in place. Open incidents are taken up again by the daemon;
    what was submitted since the backup is found with Slurm and not submitted again (docs/keep.md).
    """


@command("incident.act", "Say yes or no to what an incident waits for.")
@click.argument("incident")
@click.option("--no", "decline", is_flag=True, help="Say no: the incident is escalated with everything found.")
@inventory_option
def approve() -> None:
    """Say yes (or --no) to what an incident waits for, and go on with it if nobody else does."""


@command("incident.act", "Go on with an interrupted or escalated incident.")
@click.argument("incident")
@click.option("--plan", is_flag=True, help="Decide and report; touch nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before each act.")
@inventory_option
def resume() -> None:
    """Go on with an incident: where it was interrupted, or from the start when a person mended the cause.

    Levers that were tried stay tried: none is used twice with the same value.
    """


@command("incident.act", "Write a proven change into the owner's template, with a backup.")
@click.argument("incident")
@click.option("--yes", is_flag=True, help="Do not ask.")
@inventory_option
def promote() -> None:
    """Write a proven change into the owner's template. The old file stays beside it as a backup.

    Refused when the owner changed the template since the job was submitted.
    """


@command("incident.act", "Undo a promotion, and give drained nodes back on request.")
@click.argument("incident")
@click.option("--undrain", is_flag=True, help="Also give back the nodes that this incident drained.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@inventory_option
def rollback() -> None:
    """Undo a promotion; with --undrain also give drained nodes back, if the drain is still ours.

    The relaunched job is left alone: it runs. To go back to the old settings, cancel it and submit the old template.
    """


@command(
    "this_machine", "Submit a job script to the local scheduler.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("script", type=PATH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--wait", is_flag=True, help="Wait until the job has ended; exit with 0 only if it completed.")
@inventory_option
def submit() -> None:
    """Submit a job script to the local scheduler, as `sbatch` would to Slurm. Prints the job id."""


@command("this_machine", "List the local scheduler's jobs.")
@inventory_option
def jobs() -> None:
    """List the local scheduler's jobs, newest first."""


@command("this_machine", "Look at this machine as the node check does, or build the probe's one file.")
@click.option(
    "--build", "target", type=FILE_PATH, metavar="FILE",
    help="Write the probe as one file that runs under any Python from 3.6 on, and end.",
)
@click.option(
    "--deadline", type=click.FloatRange(1, 600), default=15.0, show_default=True, metavar="SECONDS",
    help="For everything; what is not read by then is unknown.",
)
@click.option("--since", type=float, metavar="EPOCH", help="A job's start: the journal is read from a day before it.")
def probe() -> None:
    """Look at this machine: GPUs, kernel log, processes, Slurm's cgroups. One JSON document; nothing is changed.

    Slurm's own epilog can run the file that --build writes (deploy/slurm/README.md).
    """


@command("serve", "The daemon: spool, reports, metrics, health.")
@click.option("--listen", metavar="ADDRESS", help="Default: the inventory's reports.listen, 127.0.0.1.")
@click.option("--port", type=int, help="Default: the inventory's reports.port, 8642. 0 takes any.")
@click.option("--verbose", is_flag=True, help="Log every look at a running job, too.")
@inventory_option
def serve() -> None:
    """Run the daemon until it is told to stop.

    It takes what Slurm's epilog left in the spool, works on several incidents at a time, goes on with those that an
    earlier daemon left, and serves reports, /metrics and /healthz.
    """


@cli.group(short_help="Make, list or take back the tokens that people and programs sign in with.")
def token() -> None:
    """Tokens for `runbook serve`: a name and a role each. Only their hashes are kept (sign_in.tokens_file)."""


@token.command("new", cls=Command, place="sign_in")
@click.argument("name")
@click.option(
    "--role", type=click.Choice(["read", "act", "alert"]), required=True,
    help="read: look · act: also say yes and no, and roll back · alert: Alertmanager's, tells of alerts only.",
)
@click.option("--days", type=click.IntRange(1, 3650), help="Void after so many days. Default: until it is removed.")
@inventory_option
def token_new() -> None:
    """Make a token and print it, once: it cannot be shown again."""


@token.command("list", cls=Command, place="sign_in")
@inventory_option
def token_list() -> None:
    """Names, roles and ends of the tokens that there are."""


@token.command("remove", cls=Command, place="sign_in")
@click.argument("name")
@inventory_option
def token_remove() -> None:
    """Take a token back; every session that was begun with it ends at once."""


@command("mcp", "Answer an assistant's questions over the Model Context Protocol; nothing acts.")
@inventory_option
def mcp() -> None:
    """Answer an assistant's questions over the Model Context Protocol, on standard input and output.

    It lists and shows incidents, diagnoses logs, explains words, lists levers, predicts memory, tells what happened
    before and what nodes said. Each answer names its evidence by file and line, and what was not looked at. Nothing
    acts: what should be done is told as a command for a person. Root is not offered what reads files by their path.

    An assistant's program starts it. It needs the extra `mcp` of runbook (docs/mcp.md).
    """


@command("monitoring", "Print the Prometheus metrics, or write them for node exporter.")
@click.option(
    "--textfile", metavar="FILE", type=PATH,
    help="Write FILE.prom, whole or not at all, readable for everybody; for node exporter's textfile collector.",
)
@inventory_option
def metrics() -> None:
    """Print the Prometheus metrics of the stored incidents and of the spool.

    For sites that want no new scrape target: run it every minute (deploy/systemd/runbook-metrics.timer).
    """


@cli.group(short_help="deploy prometheus: scrape job, alert rules and routes for an inventory.")
def deploy() -> None:
    """Print configuration for other programs, filled in from an inventory."""


@deploy.command("prometheus", cls=Command, place="monitoring")
@click.option("--output", "-o", metavar="DIR", type=PATH, help="Write the files there instead.")
@click.option("--force", is_flag=True, help="Replace files that are there already.")
@inventory_option
def deploy_prometheus() -> None:
    """Print the scrape job, alert rules and an Alertmanager configuration for an inventory.

    With --output they are written as files; none that is there is replaced unless --force says so.
    """


@cli.group(short_help="notify test: does a message reach the people whom the inventory names?")
def notify() -> None:
    """Notifications: who is told of what (docs/notifications.md)."""


@notify.command("test", cls=Command, place="monitoring")
@click.option(
    "--severity", type=click.Choice(["info", "warning", "page"]), default="info", show_default=True,
    help="How urgent the message says it is.",
)
@click.option("--target", metavar="NAME", help="Only to this target. Default: to each.")
@click.option("--owner", metavar="USER", default="", help="Whose name stands for {owner} in an address.")
@inventory_option
def notify_test() -> None:
    """Send a message that says that it is a test, and say for each address whether it was taken.

    Filters, quiet hours and limits do not count here, but targets that do not want that severity are named. No address
    is shown. Exit code 6 where one did not take it.
    """


@command("first_hour.setup", "Look at this cluster, write its inventory, print what Slurm and sudo need.")
@click.option("--conf", metavar="FILE", help="Slurm's configuration. Default: $SLURM_CONF, or Slurm's own.")
@click.option("--user", metavar="USER", help="The user that the service runs as. Default: runbook; not as root: you.")
@click.option("--group", metavar="GROUP", help="Whose jobs it may bring back, by sudo. Default: users.")
@click.option("--spool", metavar="DIR", help="Where Slurm's epilog writes. Default: /var/spool/runbook.")
@click.option("--ssh-user", metavar="USER", help="Who reaches the nodes by SSH; `none`: nobody. Default: root.")
@click.option(
    "--notify", metavar="ADDRESS",
    help="Where people are told, as apprise knows it; `-`: its first line of standard input. Default: nobody.",
)
@click.option("--ssh-key", metavar="FILE", help="Default: /etc/runbook/id_ed25519 where it is, else ssh's own.")
@click.option("--state", metavar="DIR", help="Where incidents are kept. Default: /var/lib/runbook, or your own.")
@click.option(
    "--output", "-o", metavar="FILE", type=PATH,
    help="The inventory. Default: /etc/runbook/inventory.yaml; not as root: runbook-inventory.yaml here.",
)
@click.option("--yes", is_flag=True, help="Ask nothing: what no option says is taken as found.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output; asks nothing.")
def setup() -> None:
    """Look at this cluster, ask at most six questions, and write an inventory that only plans.

    Run it on the controller or a login node. It says which rights are there (asked, not tried), and prints the lines
    for slurm.conf, sudoers and Prometheus, and what is not possible yet. It changes nothing of Slurm's, and never an
    inventory that is there: of that it says what it would have written (docs/first-hour.md).
    """


@command("first_hour.canary", "Submit tiny jobs that fail, and show which part of the chain works here.")
@click.option("--as", "as_user", default="", metavar="USER", help="Whose jobs they are; needed as root. Default: you.")
@click.option("--folder", default="", metavar="DIR", help="Where the nodes see files of that user. Default: the home.")
@click.option(
    "--only", multiple=True, type=click.Choice(["gpu-oom", "hang", "host-oom", "healthy"]), help="Only these jobs."
)
@click.option("--plan", is_flag=True, help="Decide and show; relaunch nothing, whatever the inventory allows.")
@click.option(
    "--limit", type=click.FloatRange(10, 3600), default=120.0, show_default=True, metavar="SECONDS",
    help="For all of it; what is not seen by then is told as such.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@inventory_option
def canary() -> None:
    """Submit tiny CPU jobs that fail, as an ordinary user, and show which part of the chain works on this site.

    One runs out of GPU memory that is simulated, and a smaller batch cures it; in one a rank dies and the other hangs;
    one is ended by the kernel over its --mem, where the site holds jobs to it; one is healthy. Where the inventory
    only plans, it shows what would have been done. Jobs, folder and events go again (docs/first-hour.md).
    """


@command("doctor", "Check the inventory, Slurm rights, SSH and playbooks, and say what to do.")
@click.option("--node", help="Check SSH to this node. Default: the first that the scheduler names.")
@click.option("--mend", "mending", is_flag=True, help="Take others' rights to what is kept; a terminal is asked.")
@click.option("--send", "sending", is_flag=True, help="Send each notification target a message that says it is a test.")
@inventory_option
def doctor() -> None:
    """Check the inventory, the state folder, Slurm and its rights to cancel and drain, sudo, SSH to a node, the spool,
    the notification targets and the playbooks. Nothing is cancelled, drained or, without --send, sent.

    What others have to answer is asked side by side, and not waited for longer than 10 seconds in all.
    """


@cli.group(short_help="Check the documents: flow, signatures, levers, XIDs.")
def playbooks() -> None:
    """Check the documents that the tool decides by."""


@playbooks.command("check", cls=Command, place="files.playbooks")
@click.option("--folder", type=PATH, help="A playbook folder. Default: the one that is installed.")
def playbooks_check() -> None:
    """Read flow, signatures, levers, XIDs and inventories; show every problem with file and line."""


@command("main", "Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion() -> None:
    """Print the completion script of a shell.

    bash:  runbook completion bash > ~/.local/share/bash-completion/completions/runbook
    """
