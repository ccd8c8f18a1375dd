"""The commands on a job's own files, a log and a template, with their options and help (see `command_line.py`)."""

from __future__ import annotations

import click

from runbook.cli.options import PATH, Command, cli, command, inventory_option, playbook_option


@command("incident.oom", "Bring back a job that died of out-of-memory.")
@click.option("--job", "job", metavar="ID", help="The Slurm job that died or hangs.")
@click.option("--log", "logs", multiple=True, metavar="FILE", type=PATH, help="A launcher log; may repeat.")
@click.option("--template", metavar="FILE", type=PATH, help="The launch script, with --log.")
@click.option(
    "--output", metavar="DIR", type=PATH,
    help="With --log: where the patched template and the report go. Default: beside the template.",
)
@click.option("--set", "values", multiple=True, metavar="NAME=VALUE", help="Answer: a present value; ranks=N.")
@click.option("--version", "versions", multiple=True, metavar="PKG=V", help="Answer: what is installed.")
@click.option("--option", "options", multiple=True, metavar="NAME[=no]", help="Answer: what the program takes.")
@click.option("--agree", "agreed", multiple=True, metavar="LEVER:VALUES", help="Answer: yes to a change.")
@click.option("--why", is_flag=True, help="At the end, also what else was looked at.")
@click.option("--plan", is_flag=True, help="Decide and report; touch nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before each act.")
@click.option("--json", "as_json", is_flag=True, help="Print incident.json on standard output at the end.")
@inventory_option
def oom() -> None:
    """Bring back a job that died of out-of-memory.

    With --job: reads its logs, cancels it if it still hangs, checks the node, changes a copy of the launch script by
    the least invasive lever, relaunches from the last complete checkpoint as the job's owner, and stays until the job
    is past the step where it died. It asks before each act; without a terminal and without --yes it only plans.

    With --log and --template: the diagnosis and the patched template, with no cluster at all.
    """


@command("files.diagnose", "Read logs: which rank failed first, and why. Touches nothing.")
@click.argument("paths", nargs=-1, metavar="FILE|DIR|-...")
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis for machines (docs/diagnose.md).")
@click.option("--nodes", metavar="LIST", help="The job's nodes in Slurm's form, gpu-[21-24]: places ranks on nodes.")
@click.option("--tasks", type=click.IntRange(1, 1_000_000), metavar="N", help="The job's number of tasks (ranks).")
@click.option(
    "--template", metavar="FILE", type=PATH,
    help="The launch script: what it and the files that it names set is evidence.",
)
@click.option(
    "--prefix", "prefixes", multiple=True, metavar="REGEX",
    help="A site's own line prefix with named groups rank, local_rank, node or pid; may repeat.",
)
@click.option("--why", is_flag=True, help="Say of each line that counted, or was set aside, who says what, and why.")
@click.option("--full", is_flag=True, help="Read every byte, also of many per-rank files (else: from their ends).")
@click.option("--threads", type=click.IntRange(1, 64), default=2, show_default=True, metavar="N", help="For reading.")
@playbook_option
def diagnose() -> None:
    """Read launcher logs: which rank failed first, what it died of, and what is not known.

    Several files of one job are one story: stdout and stderr, one file a node or a rank, Ray's session folder, the
    log of a rollout server; .gz and .zst are read as they are. A folder is searched for logs; - is standard input.

    Exit codes: 0 a cause was found · 4 undetermined · 5 no memory failure · 2 bad input · 3 not found or not allowed.
    """


@command("files.snapshot", "Read PyTorch's memory snapshots: what held the memory, and why a request failed.")
@click.argument("files", nargs=-1, metavar="FILE.pickle|DIR...", type=PATH)
@click.option("--verbose", "-v", is_flag=True, help="Every device, and the calls that hold the most.")
@click.option("--replay", "always_replay", is_flag=True, help="Replay the trace also where no request failed.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found for machines (docs/snapshots.md).")
def snapshot() -> None:
    """Read PyTorch's memory snapshots: what was alive when a request failed, or at the highest use, by the calls that
    allocated it, by category and phase; what lay free in pieces; what each step leaves behind.

    Where a request failed, the trace is replayed through a model of the allocator: as it was recorded, to the byte, and
    then under expandable_segments, max_split_size_mb and garbage_collection_threshold.

    Several files are one job's ranks, side by side. A snapshot is a pickle, which could run code: here none of it is
    run, whatever the file holds. It is what torch.cuda.memory._dump_snapshot writes; `runbook observe` has ranks
    leave one when they run out.
    """


@command("files.observe", "Print what has a job's ranks leave a memory snapshot when they run out.")
@click.option("--into", metavar="DIR", help="Where ranks write. Default: snapshots in the folder of submission.")
@click.option(
    "--write", "folder", metavar="DIR", type=PATH,
    help="Put the hook there, where the nodes see it. Default: where this program is installed.",
)
@click.option(
    "--entries", type=click.IntRange(1, 1_000_000), default=100_000, show_default=True, metavar="N",
    help="The last so many allocations are kept.",
)
def observe() -> None:
    """Print what to put in front of a job's command so that a rank that runs out of GPU memory leaves a snapshot for
    `runbook snapshot`. A hook on PYTHONPATH waits until the job uses the GPU, has PyTorch record its last allocations,
    and writes them at the moment of failure. The job's code stays as it is, and never fails because of it.
    """


@command(
    "files.explain", "What a name means: a signature, kind, lever, Xid, exit code, Slurm state, error, alert.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("words", nargs=-1, required=True, metavar="NAME...")
@click.option("--json", "as_json", is_flag=True, help="Print the entry for machines.")
@playbook_option
def explain() -> None:
    """What a name means, with its reasons and sources.

    \b
    a signature             PT-CUDA-07: with lines that show it
    a kind of diagnosis     fragmentation
    a lever                 smaller_micro_batch: what it changes, needs and costs
    a parameter             --max-tokens-per-gpu, actor_rollout_ref.rollout.gpu_memory_utilization
    what no template has    grad_offload: why, and what to do instead
    an Xid                  79, xid 79, XID-79, or the driver's line
    GPU memory              ECC, row remapping, SXid
    a state or a reason     OUT_OF_MEMORY, DependencyNeverSatisfied
    an exit code, a signal  0:53, 137, exit code 125, SIGBUS
    an error's name         ncclSystemError, cudaErrorMemoryAllocation
    an alert                RunbookEscalated
    a box, an outcome       choose_lever, limit_reached

    A name that several things have is told for each; SYSTEM:NAME asks for one system's.
    """


@command("files.signatures", "The log lines that the tool knows, as a table.")
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--means", metavar="KIND", help="Only those of one meaning: host_oom, harmless, consequence, …")
@click.option("--json", "as_json", is_flag=True, help="Print the table for machines.")
@playbook_option
def signatures() -> None:
    """The log lines that the tool knows, as a table. WORDs narrow it: `runbook signatures nccl shm`."""


@command("files.levers", "What can be changed to free memory, by system and phase, as a table.")
@click.argument("systems", nargs=-1, metavar="[SYSTEM]...")
@click.option("--kind", "kind", metavar="KIND", help="Only ladders for one kind of failure: true_oom, shm, …")
@click.option("--phase", "phase", metavar="PHASE", help="Only ladders that a failure in this phase takes: rollout, …")
@click.option("--json", "as_json", is_flag=True, help="All fields of the documents, for machines.")
@playbook_option
def levers() -> None:
    """What can be changed to free memory: by system, kind of failure and phase, least to most invasive.

    Without SYSTEM and without a filter: each system's ladders, a line or two for each. With either: every rung with
    what it relieves, what it does to the experiment, and what it costs.
    """


@cli.group(short_help="template show FILE: what a launch script sets, and where.")
def template() -> None:
    """Look at a launch script."""


@template.command("show", cls=Command, place="files.template")
@click.argument("file", type=PATH)
@click.option("--all", "show_all", is_flag=True, help="Also everything else that the files set.")
@click.option("--system", metavar="NAME", help="The system, where the template does not show it.")
@click.option("--json", "as_json", is_flag=True, help="All of it for machines.")
@playbook_option
def template_show() -> None:
    """What a launch script and the files that it names set: the system, the version whose spelling it has, every memory
    parameter with the value in force and where it is written, and what stands in the way of going on from a checkpoint.

    FILE is a job script, or a configuration file (YAML, JSON, TOML, Python) by itself. Nothing is run or changed; what
    cannot be known says where the trail ended.
    """


@command("files.patch", "Write a lever into a copy of a launch script, or say why not.")
@click.option("--lever", "levers", multiple=True, metavar="NAME", help="A lever of the template's system; may repeat.")
@click.option(
    "--set", "assignments", multiple=True, metavar="PARAMETER=VALUE",
    help="A parameter of the system, by id or spelling, set to a value; may repeat.",
)
@click.option(
    "--template", metavar="FILE", type=PATH, required=True,
    help="The launch script. What it names is looked for from its folder.",
)
@click.option(
    "--log", "logs", multiple=True, metavar="FILE|DIR", help="Logs of the failure: kind, phase, ranks and figures."
)
@click.option("--kind", metavar="KIND", help="The kind of failure, where no log is given or you know better.")
@click.option("--nodes", type=click.IntRange(1, 100_000), metavar="N", help="The job's number of nodes.")
@click.option("--gpus", type=click.IntRange(1, 64), metavar="N", help="GPUs of each node.")
@click.option("--system", metavar="NAME", help="The system, where the template does not show it.")
@click.option("--yes", is_flag=True, help="Yes to the question that a lever asks before it is used.")
@click.option(
    "--may-change-training", is_flag=True,
    help="Also changes that make it another experiment (sequence length, samples).",
)
@click.option(
    "--write", "folder", metavar="DIR", type=PATH,
    help="Write the changed copies there, wired to each other, under new names.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the change for machines.")
@playbook_option
def patch() -> None:
    """Write a lever into a copy of a launch script, or say why not. Nothing is edited in place.

    The conditions are those of `runbook oom`: the global batch stays exactly the same, sizes divide, and what is not
    known is asked for. The diff goes to standard output, everything else to standard error.

    Exit codes: 0 printed or written · 2 bad input, or a template that cannot be changed for certain · 3 no such lever ·
    4 refused, with the reason and the question · 5 the template has it already.
    """


@command("files.predict", "Say before a launch whether it will fit, and what the largest batch is.")
@click.option("--template", metavar="FILE", type=PATH, required=True, help="The launch script.")
@click.option("--log", "logs", multiple=True, metavar="FILE|DIR", help="Logs of the job: its figures correct the sum.")
@click.option("--model", metavar="FILE", type=PATH, help="The model's config.json, where it is not found.")
@click.option(
    "--set", "assignments", multiple=True, metavar="NAME=VALUE",
    help="A change: micro_batch=2, sequence=4096, recompute=full, tensor=8, world=64; may repeat.",
)
@click.option("--search", metavar="NAME", help="The largest micro_batch or sequence that fits.")
@click.option("--gpus", "card", metavar="MODEL", help="The card: h100-80g, a100-40g, or its size, 80GiB.")
@click.option("--system", metavar="NAME", help="The system, where the template does not show it.")
@click.option("--json", "as_json", is_flag=True, help="The terms, bounds and verdict for machines.")
@playbook_option
def predict() -> None:
    """Say before a launch whether it will fit: the memory of the fullest rank by term, with bounds, against the card.

    Without a log, formulas alone are added up: they miss by an eighth to a fifth in the median. With the job's log, its
    memory lines and the failing message correct them. Nothing is run or changed.

    Exit codes: 0 fits · 4 cannot say · 5 does not fit · 2 bad input.
    """
