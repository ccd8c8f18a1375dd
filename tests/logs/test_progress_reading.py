"""How far a run came, read from whole logs: the right counter, each rank's last step, what a step costs."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from runbook.diagnosis.case import build_case
from runbook.locations import data_folder
from runbook.logs.progress.memory_series import POINTS_A_SERIES, SAMPLES_TOLD, MemorySeries, Place, nearest_step
from runbook.logs.reader import LogReader
from runbook.logs.signatures import load_signatures
from runbook.model.log import LogStory, Progress
from runbook.model.units import GIB, MIB
from tests.kinds import MEANINGS

SIGNATURES = load_signatures(data_folder("playbooks") / "oom" / "signatures")
READER = LogReader(SIGNATURES)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.00 GiB memory in use. Of the "
    "allocated memory 76.00 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
)


def story(*files: str) -> LogStory:
    packed = [(f"part{number}.log", text.encode()) for number, text in enumerate(files)]
    return READER.read([(path, io.BytesIO(content), len(content)) for path, content in packed])


def read(*files: str) -> Progress:
    return story(*files).progress


def bar(done: int, total: int, name: str = "", pace: str = "1.01s/it") -> str:
    return f"{name}{done * 100 // total:3d}%|##        | {done}/{total} [02:01<14:50,  {pace}]"


def stamp(second: float) -> str:
    return datetime.fromtimestamp(1_772_000_000 + second, UTC).strftime("%Y-%m-%d %H:%M:%S")


def megatron(step: int, second: float, more: str = "") -> str:
    return (
        f" [{stamp(second)}] iteration {step:8d}/    5000 | consumed samples: {step * 8:12d} |{more} elapsed time per "
        "iteration (ms): 1210.0 | global batch size:     8 | lm loss: 2.1E+00 |"
    )


def test_an_evaluation_in_between_is_no_training() -> None:
    """Both bars of Hugging Face's trainer have no name."""
    turns = []
    for begun in (0, 100, 200):
        turns += [bar(step, 1000) for step in range(begun, begun + 101, 10)]
        turns += [bar(batch, 4000) for batch in range(0, 4001, 400)]
    turns += [bar(step, 1000) for step in range(301, 313)]
    progress = read("\r".join(turns) + "\n" + OOM + "\n")
    assert (progress.last_step, progress.total_steps) == (312, 1000)
    assert progress.step_duration_s == pytest.approx(1.01)


def test_a_death_in_the_first_evaluation_leaves_the_training_step() -> None:
    turns = [bar(step, 1000) for step in range(0, 51, 10)] + [bar(batch, 4000) for batch in range(0, 900, 10)]
    assert read("\r".join(turns) + "\n" + OOM + "\n").last_step == 50


def test_other_bars_are_no_steps() -> None:
    text = "\r".join([
        *(bar(number, 30, "Loading checkpoint shards: ") for number in range(31)),
        *(bar(number, 900, "Map (num_proc=8): ") for number in range(0, 901, 50)),
        *(bar(number, 67, "Capturing CUDA graph shapes: ") for number in range(68)),
        *(bar(number, 12, "Validation DataLoader 0: ") for number in range(13)),
    ])
    assert read(text + "\n" + OOM + "\n").last_step is None


def test_nothing_is_done_at_a_bars_zero() -> None:
    found = story(bar(0, 1000, pace="?it/s") + "\n" + OOM + "\n")
    assert found.progress.last_step == 0
    assert found.root_cause is not None
    assert found.root_cause.step == 1
    assert build_case(found, None, (), (), {}, MEANINGS).steps_done() == 0


def test_epochs_add_up_and_never_go_back() -> None:
    turns = [bar(batch, 500, f"Epoch {epoch}: ", "2.00it/s") for epoch in range(3) for batch in range(0, 501, 50)]
    progress = read("\r".join([*turns, bar(20, 500, "Epoch 3: ", "2.00it/s")]) + "\n")
    assert progress.last_step == 3 * 500 + 20
    assert progress.step_duration_s == pytest.approx(0.5)
    lines = [f"Epoch [{epoch}/9], Step [{step}/100], Loss: 1.0" for epoch in (1, 2) for step in range(10, 101, 10)]
    assert read("\n".join([*lines, "Epoch [3/9], Step [10/100], Loss: 1.0"]) + "\n").last_step == 210


def test_a_bar_that_agrees_with_the_step_lines_tells_more() -> None:
    """DeepSpeed prints every tenth step, the trainer's bar each."""
    def log(shown: int) -> str:
        lines = []
        for step in range(1, 48):
            lines.append(bar(step * shown, 1000))
            if step % 10 == 0:
                lines.append(f"[INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0, lr=[1e-4]")
        return "\n".join(lines) + "\n" + OOM + "\n"

    found = story(log(1))
    assert found.progress.last_step == 47
    assert found.framework == "deepspeed"
    assert read(log(3)).last_step == 40, "a bar of something else"


def test_a_program_that_counts_from_0_has_done_one_more() -> None:
    lines = [
        f"Training epoch 0, iteration {step}/249 | lr: 1e-06 | global_step: {step} | max_memory_reserved: 127785762816 "
        "| reduced_train_loss: 1.3 | train_step_timing in s: 2.5" for step in range(5)
    ]
    found = story("\n".join(lines) + "\n" + OOM + "\n")
    progress = found.progress
    assert (progress.last_step, progress.total_steps, progress.numbered_from) == (4, 250, 0)
    assert progress.step_duration_s == 2.5
    assert build_case(found, None, (), (), {}, MEANINGS).steps_done() == 5
    assert progress.memory[0].max_reserved_bytes == 127785762816
    assert progress.memory[0].peaks == "running"


def test_each_ranks_last_step_tells_who_stopped_first() -> None:
    lines = [f"[rank{rank}]: step {step} loss 2.0" for step in range(1, 30) for rank in range(4)
             if rank != 2 or step < 21]
    progress = read("\n".join(lines) + "\n" + "[rank2]: " + OOM + "\n")
    assert progress.last_step_by_rank == {0: 29, 1: 29, 2: 20, 3: 29}


def test_errors_that_name_a_step_are_no_progress() -> None:
    text = "step 12 loss 2.0\nERROR step 13 failed\nAssertionError: loss is nan at step 13\nresuming from step 900\n"
    assert read(text).last_step == 12


def test_a_later_run_in_the_same_log_counts_and_buffered_output_does_not_make_one() -> None:
    """A counter that goes back is a later run where its stamp is later; without that it is another rank's buffer."""
    first = [megatron(step, step) for step in range(1, 51)]
    later = [megatron(step, 400 + step) for step in range(21, 31)]
    assert read("\n".join([*first, *later]) + "\n").last_step == 30
    buffered = [megatron(step, step) for step in range(21, 31)]
    assert read("\n".join([*first, *buffered]) + "\n").last_step == 50


@pytest.mark.parametrize(("each", "pause"), [(0.4, 0), (2.5, 0), (2.5, 600), (40.0, 1800)])
def test_a_step_is_timed_by_whole_seconds_and_past_pauses(each: float, pause: int) -> None:
    lines, second = [], 0.0
    for step in range(1, 301):
        second += each + (pause if step % 60 == 0 else 0)
        lines.append(f"{stamp(second)} INFO step {step} loss 2.0")
    assert read("\n".join(lines) + "\n").step_duration_s == pytest.approx(each, rel=0.08)


def test_memory_between_two_steps_belongs_to_the_running_one() -> None:
    lines = []
    for step in range(6):
        lines += [
            f"[Rank {rank}] Memory-Usage after train: {{'gpu': '{rank}', 'total_GB': 79.25, 'free_GB': 20.0, "
            f"'used_GB': 59.25, 'allocated_GB': {30 + step}.0, 'reserved_GB': 45.0, 'host_used_GB': 500.0}}"
            for rank in range(2)
        ]
        lines.append(f"step {step}: {{'train/loss': 0.1}}")
    found = story("\n".join(lines) + "\n")
    of_rank = [one for one in found.progress.memory if one.rank == 1]
    assert [one.step for one in of_rank] == list(range(6))
    assert [one.allocated_bytes for one in of_rank] == [(30 + step) * GIB for step in range(6)]
    assert {(one.where, one.device_total_bytes, one.host_is_process) for one in of_rank} == {
        ("after train", round(79.25 * GIB), False)
    }
    assert (found.framework, found.progress.numbered_from, found.progress.last_step) == ("slime", 0, 5)


def test_tokens_so_far_become_tokens_of_a_step() -> None:
    lines = [megatron(step, step, f" consumed tokens: {step * step * 1000:12d} |") for step in range(1, 8)]
    tokens = {one.step: one.tokens for one in read("\n".join(lines) + "\n").memory}
    assert {step: tokens[step] for step in (2, 5, 7)} == {2: 3000, 5: 9000, 7: 13000}


def test_lengths_are_attached_to_the_memory_of_their_step() -> None:
    line = (
        "step:{0} - global_seqlen/max:90000 - perf/max_memory_allocated_gb:np.float64(40.0) - "
        "perf/cpu_memory_used_gb:100.0 - response_length/max:{1}.0 - prompt_length/max:256.0"
    )
    memory = read("\n".join(line.format(step, 1000 + step) for step in range(1, 5)) + "\n").memory
    assert [(one.step, one.tokens) for one in memory] == [(step, 1256 + step) for step in range(1, 5)]


def test_of_a_long_log_the_memory_is_sampled_all_along() -> None:
    """20 MB: not only the ends of the parts that are read at once."""
    filler = "nothing of note\n" * 40
    text = "".join(
        f"[titan] {stamp(step)},123 - root - INFO - step: {step}  loss:  7.1  memory: {40 + step / 1000:.2f}GiB(50.0%)"
        f"  tps: 5,123  mfu: 30.2%\n{filler}" for step in range(1, 25_001)
    )
    progress = read(text + OOM + "\n")
    steps = [one.step or 0 for one in progress.memory]
    assert progress.last_step == 25_000
    assert len(steps) <= SAMPLES_TOLD
    assert min(steps) == 1
    assert max(steps) == 25_000
    assert all(any(low < step <= low + 2_500 for step in steps) for low in range(0, 25_000, 2_500))


def test_a_series_stays_small_and_keeps_its_ends_and_extremes() -> None:
    signature = SIGNATURES.by_id["PR-TT"]
    series = MemorySeries()
    for step in range(1, 20_001):
        height = 90.0 if step == 777 else 10.0 if step == 1_234 else 50.0
        match = signature.match(f"step: {step}  loss: 1.0  memory: {height:.2f}GiB(50.0%)")
        assert match is not None
        series.add(match, 0, step, Place(0, step * 100, 0))
    told = series.told(lambda place: None, lambda place: True, 0)
    assert len(told) <= POINTS_A_SERIES
    steps = [one.step or 0 for one in told]
    assert (steps[0], steps[-1]) == (1, 20_000)
    assert {777, 1_234} <= set(steps)
    gaps = [later - earlier for earlier, later in pairwise(steps)]
    assert max(gaps) <= 20_000 / 16


def test_figures_that_no_machine_has_are_no_figures() -> None:
    """Hostile numbers neither stop the reading nor count."""
    line = "[titan] - root - INFO - step: {0}  loss:  7.1  memory: {1}GiB(77.4%)  tps: 5,123"
    progress = read("\n".join([
        line.format(1, "1e999"), line.format(2, "-5.0"), line.format(3, "99999999999999999"), line.format(4, "60.00"),
        bar(999_999_999_999, 1), "step:7 - perf/time_per_step:1e999 - response_length/max:1e999",
    ]) + "\n")
    assert [one.max_reserved_bytes for one in progress.memory if one.max_reserved_bytes] == [60 * GIB]


@pytest.mark.parametrize(
    ("offset", "step"), [(50, 1), (100, 1), (120, 2), (190, 2), (210, 3), (2_900, 4), (350, 4), (9_000, 5)]
)
def test_the_running_step_of_a_place(offset: int, step: int) -> None:
    """Marks are printed when a step is done; across a gap in the sampling the nearer one counts."""
    assert nearest_step([100, 200, 300, 3_000], [1, 2, 3, 4], offset) == step


def test_host_memory_of_a_process_is_told_from_the_nodes() -> None:
    areal = (
        "20260301-10:00:00.123 engine INFO: Memory-Usage after update: memory allocated (GB): 2.50, memory reserved "
        "(GB): 3.00, device memory used/total (GB): 58.00/80.00 | host RssAnon: 1024MB, RssShmem: 1MB\n"
        "20260301-10:00:01.123 StatsLogger INFO: Epoch 1/10 Step 3/50 Train step 3/500 done.\n"
    )
    found = story(areal)
    assert found.framework == "areal"
    assert found.progress.memory[0].host_is_process
    assert found.progress.memory[0].host_used_bytes == 1024 * MIB
    assert (found.progress.memory[0].step, found.progress.total_steps) == (3, 500)


def test_a_log_that_begins_in_a_later_epoch_counts_what_it_shows() -> None:
    """How many steps the epochs before had, and whether the first was 0 or 1, the log does not say."""
    assert read(f"Epoch 4:{bar(310, 900)}\n{OOM}\n").last_step == 310
    later = "".join(f"Epoch: [{epoch}]  [{step:5d}/900]  loss: 2.1\n"
                    for epoch, steps in ((7, 600), (8, 400)) for step in (0, 200, steps))
    assert read(later + OOM + "\n").last_step == 400


def test_epochs_are_added_up_where_the_first_is_seen() -> None:
    shown = "".join(f"Epoch: [{epoch}][{step}/900]\tLoss 2.1\n" for epoch in (0, 1) for step in (0, 300, 600))
    assert read(shown + OOM + "\n").last_step == 1_500


def test_of_bars_that_a_page_put_on_one_line_the_newest_counts() -> None:
    assert read("".join(bar(step, 900, "steps: ") for step in (0, 100, 200)) + "\n" + OOM + "\n").last_step == 200
