"""Who said a line under each launcher: rank, local rank, node and process of the one that failed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from runbook.report.vocabulary.sentences import in_words
from tests.logs.launcher_logs import FAILURE, OOM, STACK, chatter, job, prefixed, root, story

ESC = "\x1b"


def test_srun_labels_are_tasks_with_launcher_lines_in_between() -> None:
    text = chatter(" 0: ") + chatter(" 9: ") + chatter("11: ")
    text += "srun: Job 123 step creation still disabled, retrying\n"
    text += prefixed("11: ", STACK) + "slurmstepd: error: something\n" + chatter(" 9: ") + prefixed("11: ", [OOM])
    found = root(("train.out", text))
    assert (found.rank, found.phase) == (11, "backward")


def test_labels_are_learned_although_the_script_speaks_first() -> None:
    text = prefixed("", [f"+ module load part{index}" for index in range(200)]) + chatter("0: ", 9) + chatter("1: ", 9)
    assert root(("train.out", text + prefixed("1: ", FAILURE))).rank == 1


def test_a_counter_in_front_of_lines_is_no_label() -> None:
    text = prefixed("", [f"{index}: loss 3.{index}" for index in range(1, 60)]) + prefixed("60: ", [OOM])
    assert root(("train.out", text)).rank is None


def test_a_task_that_holds_several_ranks_is_not_the_rank() -> None:
    text = "".join(prefixed(f"1: [rank{rank}]: ", ["warming up"]) for rank in (8, 9, 10, 11)) + chatter("0: ")
    found = root(("train.out", text + prefixed("1: [rank11]: ", FAILURE)))
    assert found.rank == 11


@pytest.mark.parametrize("cuts", [(90,), (90, 180), (120, 200, 300)])
def test_a_message_that_srun_cut_in_chunks_is_read_whole(cuts: tuple[int, ...]) -> None:
    edges = [0, *cuts, len(OOM)]
    chunks = [OOM[start:stop] for start, stop in pairwise(edges)]
    lines = chatter("0: ") + chatter("3: ") + prefixed("3: ", STACK)
    for chunk in chunks:
        lines += f"3: {chunk}\n0: still fine\n"
    found = root(("train.out", lines))
    assert (found.signature, found.rank, found.fields.free_bytes) == ("PT-CUDA-07", 3, 512 << 20)


def test_a_message_cut_inside_its_first_words_is_read() -> None:
    cut = OOM.index("ut of memory")
    text = chatter("0: ") + chatter("3: ") + prefixed("3: [rank3]: ", [OOM[:cut]]) + "0: fine\n3: " + OOM[cut:] + "\n"
    found = root(("train.out", text))
    assert (found.signature, found.rank) == ("PT-CUDA-07", 3)


def test_components_of_a_heterogeneous_job_number_their_tasks_anew() -> None:
    text = chatter("P0 0: ") + chatter("P0 1: ") + chatter("P1 0: ") + chatter("P1 1: ")
    found = root(("train.out", text + prefixed("P1 1: ", FAILURE)))
    assert found.rank is None
    assert found.phase == "backward"


TORCHRUN = {
    "tee": ("[default3]:", 3, 3),
    "tee and PyTorch's hook": ("[default3]:[rank11]: ", 11, 3),
    "label, tee and hook": ("12: [default3]:[rank11]: ", 11, 3),
    "pdsh and tee": ("gpu-22: [default3]:", None, 3),
    "the role's name is rank": ("[rank3]:[rank11]: ", 11, 3),
    "hook alone": ("[rank11]: ", 11, None),
}


@pytest.mark.parametrize("name", TORCHRUN)
def test_torchrun_prefixes_stack(name: str) -> None:
    prefix, rank, local_rank = TORCHRUN[name]
    others = [prefix.replace("3", "1").replace("11", "9"), prefix.replace("3", "2").replace("11", "10")]
    text = "".join(chatter(other) for other in others) + chatter(prefix) + prefixed(prefix, FAILURE)
    found = root(("train.out", text), job=job(["gpu-21", "gpu-22"], 2, 8) if "gpu-22" in prefix else None)
    assert (found.rank, found.local_rank, found.phase) == (rank, local_rank, "backward")
    if "gpu-22" in prefix:
        assert found.node == "gpu-22"


def test_a_custom_role_is_learned() -> None:
    text = "".join(chatter(f"[trainer{local}]:", 3) for local in range(4)) + prefixed("[trainer2]:", FAILURE)
    found = root(("train.out", text), job=job(["gpu-22"], 1, 4))
    assert (found.local_rank, found.rank) == (2, 2)


def test_a_word_with_a_number_in_brackets_is_no_role() -> None:
    found = root(("train.out", chatter("") + prefixed("[epoch3]:", FAILURE)))
    assert (found.local_rank, found.rank) == (None, None)


def test_a_template_of_the_bare_rank_is_learned_from_most_lines() -> None:
    text = "".join(chatter(f"[{rank}]:", 3) for rank in range(16)) + prefixed("[13]:", FAILURE)
    assert root(("train.out", text)).rank == 13


def test_a_bare_number_that_contradicts_the_rank_is_the_local_rank() -> None:
    text = "".join(chatter(f"[{number}]:", 3) for number in range(8)) + "[3]:[rank11]: warming up\n" * 2
    found = root(("train.out", text + prefixed("[3]:", FAILURE)))
    assert (found.rank, found.local_rank) == (None, 3)


def test_a_bare_number_on_several_nodes_that_could_be_either_names_no_rank() -> None:
    text = "".join(chatter(f"[{number}]:", 3) for number in range(8)) + prefixed("[3]:", FAILURE)
    found = root(("train.out", text), job=job(["gpu-21", "gpu-22"], 2, 8))
    assert (found.rank, found.local_rank) == (None, 3)


MPI = {
    "Open MPI 4": ("[1,3]<stderr>:", 3, None),
    "Open MPI 4 with a stamp": ("Sun Mar  1 10:00:00 2026[1,3]<stderr>:", 3, None),
    "PRRTE": ("[1,3]<stderr>: ", 3, None),
    "PRRTE, whole name": ("[prterun-gpu-21-123@1,3]<stderr>: ", 3, None),
    "PRRTE, detailed": ("[prterun-gpu-21-123@1,3][gpu-22:4711]<stderr>: ", 3, "gpu-22"),
    "SageMaker": ("algo-2 | [1,3]<stderr>:", 3, "algo-2"),
    "SageMaker, named container": ("x1b2-algo-2-c9 | [1,3]<stderr>:", 3, "algo-2"),
}


@pytest.mark.parametrize("name", MPI)
def test_mpi_tags(name: str) -> None:
    prefix, rank, node = MPI[name]
    text = chatter(prefix.replace(",3]", ",0]")) + prefixed(prefix, FAILURE)
    found = root(("train.out", text))
    assert (found.rank, found.node, found.phase) == (rank, node, "backward")
    if "4711" in prefix:
        assert found.pid == 4711


def test_ray_actors_with_colours_without_and_with_the_escape_lost() -> None:
    for begin, end in ((f"{ESC}[36m", f"{ESC}[0m"), ("", ""), ("[36m", "[0m")):
        other = f"{begin}(WorkerDict pid=120){end} "
        own = f"{begin}(WorkerDict pid=123, ip=10.0.0.2){end} "
        text = chatter(other)
        for line in FAILURE:
            text += f"{own}{line}\n{other}still fine\n"
        found = root(("driver.log", text))
        assert (found.pid, found.phase, found.rank) == (123, "backward", None)


def test_an_actor_whose_other_lines_name_its_rank_has_that_rank() -> None:
    own, other = "(WorkerDict pid=123, ip=10.0.0.2) ", "(WorkerDict pid=123) "
    text = f"{other}rank 0 ready (pid 123)\n{own}[rank5]: warming up\n" + chatter(other) + prefixed(own, FAILURE)
    found = root(("driver.log", text))
    assert (found.rank, found.pid) == (5, 123)


def test_an_actor_that_carries_its_rank_in_its_name() -> None:
    text = chatter("(Trainer(rank=2) pid=120) ") + prefixed("(Trainer(rank=3) pid=123) ", FAILURE)
    found = root(("driver.log", text))
    assert (found.rank, found.pid) == (3, 123)


def test_lines_of_ray_itself_are_not_a_workers() -> None:
    text = "(raylet, ip=10.0.0.2) spilling objects\n(autoscaler +3s) resized to 4 CPUs\n"
    text += prefixed("(WorkerDict pid=123) ", FAILURE)
    assert root(("driver.log", text)).pid == 123


def test_lines_that_ray_folded_are_counted_and_said() -> None:
    first, last = "(WorkerDict pid=123) ", "(WorkerDict pid=130) "
    text = prefixed(first, FAILURE) + prefixed(last, [f"{OOM}{ESC}[32m [repeated 7x across cluster]{ESC}[0m"])
    told = story(("driver.log", text))
    assert told.root_cause is not None
    assert told.root_cause.pid == 123
    assert any("folded" in in_words(note) for note in told.notes)


HOSTS = {
    "short names": ("gpu-21: ", "gpu-22: "),
    "full names": ("gpu-21.cluster.example: ", "gpu-22.cluster.example: "),
}


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("known", [True, False])
def test_hosts_of_pdsh_with_the_jobs_nodes_known_and_learned(name: str, known: bool) -> None:
    first, second = HOSTS[name]
    text = chatter(first) + chatter(second) + prefixed(second, FAILURE) + chatter(first)
    text += "pdsh@login: gpu-22: ssh exited with exit code 1\n"
    found = root(("train.out", text), job=job(["gpu-21", "gpu-22"], 2, 8) if known else None)
    assert (found.node, found.phase) == ("gpu-22", "backward")


def test_a_word_before_a_colon_is_no_host() -> None:
    text = "".join(f"epoch{index % 4}: all is well\n" for index in range(40)) + prefixed("epoch3: ", [OOM])
    assert root(("train.out", text)).node is None


def test_deepspeed_under_pdsh_does_not_name_the_last_started_process() -> None:
    launch = "gpu-22: [2026-03-01 10:12:05,000] "
    text = chatter("gpu-21: ") + chatter("gpu-22: ") + prefixed("gpu-22: [rank5]: ", FAILURE)
    text += f"{launch}[INFO] [launch.py:319:sigkill_handler] Killing subprocess 4711\n"
    text += (
        f"{launch}[ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', '--local_rank=7'] "
        "exits with return code = -9\n"
    )
    found = root(("train.out", text), job=job(["gpu-21", "gpu-22"], 2, 4))
    assert (found.rank, found.node) == (5, "gpu-22")
    assert found.local_rank != 7


def test_a_sites_wrapper_names_node_and_local_rank() -> None:
    text = chatter("[lrdn0137:0]:") + prefixed("[lrdn0138:2]:[Rank 6] ", FAILURE)
    found = root(("train.out", text))
    assert (found.node, found.local_rank, found.rank) == ("lrdn0138", 2, 6)


def test_a_source_line_in_brackets_is_no_node() -> None:
    found = root(("train.out", chatter("[train.py:120] ") + prefixed("[train.py:121] ", [OOM])))
    assert (found.node, found.local_rank) == (None, None)


def test_pods_are_told_apart_by_kubectl_and_stern() -> None:
    for first, second in (
        ("[pod/train-worker-0/pytorch] ", "[pod/train-worker-1/pytorch] "),
        ("train-job-worker-0 pytorch ", "train-job-worker-1 pytorch "),
    ):
        text = chatter(first, 6)
        for line in FAILURE:
            text += f"{second}{line}\n{first}still fine\n"
        assert root(("train.out", text)).phase == "backward"


def test_stamps_of_a_log_collector_are_no_part_of_the_line() -> None:
    stamp = "2026-03-01T10:00:00.123456789Z "
    text = chatter(stamp + "0: ") + chatter(stamp + "3: ") + prefixed(stamp + "3: ", FAILURE)
    found = root(("train.out", text))
    assert (found.rank, found.phase) == (3, "backward")
    assert found.time_s == pytest.approx(1772359200.123456789)


def test_a_sites_own_prefix() -> None:
    text = chatter("<<gpu-21/0/7>> ") + prefixed("<<gpu-22/3/11>> ", FAILURE)
    found = root(
        ("train.out", text), prefixes=[r"<<(?P<node>[\w.-]+)/(?P<local_rank>\d+)/(?P<rank>\d+)>> "],
    )
    assert (found.node, found.local_rank, found.rank, found.phase) == ("gpu-22", 3, 11, "backward")


@pytest.mark.parametrize(("expression", "said"), [("(", "no regular expression"), (r"\d+: ", "no group named")])
def test_a_prefix_that_is_none_is_refused_in_words(expression: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        story(("train.out", OOM), prefixes=[expression])


def test_lightning_and_megatron_name_the_rank_in_brackets() -> None:
    for prefix in ("[rank: 3] ", "[Rank 3] ", "[RANK 3] ", "[rank=3] "):
        assert root(("train.out", chatter(prefix) + prefixed(prefix, FAILURE))).rank == 3


def test_the_inner_rank_of_a_process_group_is_not_the_rank() -> None:
    text = (
        "[rank11]:[E1121 10:00:00.123 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds "
        "before timing out.\n"
    )
    told = story(("train.out", text + prefixed("[rank2]: ", FAILURE)))
    assert told.root_cause is not None
    assert told.root_cause.rank == 2
    assert [one.rank for one in told.collateral] == [11]


def test_a_template_that_names_role_and_rank_is_learned() -> None:
    text = "".join(chatter(f"[default-{rank % 8}|rank {rank}] ", 3) for rank in range(16))
    found = root(("train.out", text + prefixed("[default-3|rank 11] ", FAILURE)))
    assert (found.rank, found.phase) == (11, "backward")


def test_ray_trains_list_of_workers_tells_equal_processes_of_two_nodes_apart() -> None:
    text = "".join(
        f"(TorchTrainer pid=9100) - (node_id=4f, ip=10.3.0.{4 + rank // 2}, pid={8110 + rank % 2}) world_rank={rank}, "
        f"local_rank={rank % 2}, node_rank={rank // 2}\n" for rank in range(4)
    )
    found = root(("train.out", text + prefixed("(RayTrainWorker pid=8111, ip=10.3.0.5) ", FAILURE)))
    assert (found.rank, found.pid) == (3, 8111)
