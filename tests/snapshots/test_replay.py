"""A trace replayed: as it was recorded, to the byte, and under other settings. The snapshots are simulated; what they
are held against is what the simulated job does when it really runs under those settings."""

from __future__ import annotations

import io
import json
import pickle
import random
from pathlib import Path

import pytest

from runbook.allocator import AllocationFailedError, AllocatorConfig, Block
from runbook.model.snapshots import NotReplayed, Replay
from runbook.snapshots import findings_of, read_snapshot
from tests.snapshots.simulated import FORWARD, SimulatedJob, training

GIB, MIB = 1 << 30, 1 << 20
SETTINGS = {
    "defaults": AllocatorConfig(),
    "expandable": AllocatorConfig(expandable_segments=True),
    "max-split": AllocatorConfig(max_split_size_bytes=64 * MIB),
}


def replayed(job: SimulatedJob) -> Replay:
    return findings_of(read_snapshot(job.stream()), "simulated", always_replay=True).devices[0].replay


def scramble(job: SimulatedJob, seed: int, entries: int) -> None:
    """Random sizes and lives on two streams, with a cache that the program empties now and then."""
    chance, live = random.Random(seed), list[Block]()
    for at in range(entries):
        if at % 97 == 96:
            job.empty_cache()
        if live and chance.random() < 0.48:
            job.free([live.pop(chance.randrange(len(live)))])
        else:
            size = chance.choice((700, 300_000, 3 * MIB, 11 * MIB, 70 * MIB))
            live.append(job.allocate(size + chance.randrange(100_000), FORWARD, stream=chance.choice((0, 0, 0, 7))))


@pytest.mark.parametrize("config", SETTINGS.values(), ids=list(SETTINGS))
@pytest.mark.parametrize("seed", range(6))
def test_random_jobs_are_reproduced_to_the_byte(config: AllocatorConfig, seed: int) -> None:
    job = SimulatedJob(40 * GIB, config)
    scramble(job, seed, 900)
    answer = replayed(job)
    assert (answer.exact, answer.off) == (True, 0)
    assert answer.recorded >= job.allocator.reserved_bytes


@pytest.mark.parametrize("seed", range(6))
def test_a_ring_that_lost_its_beginning_is_reproduced_too(seed: int) -> None:
    job = SimulatedJob(40 * GIB)
    scramble(job, seed, 900)
    job.trace = job.trace[len(job.trace) // 2 :]
    answer = replayed(job)
    assert (answer.exact, answer.off) == (True, 0)
    assert answer.laid_out_anew > 0


def in_pieces(job: SimulatedJob) -> None:
    """Segments that are taken again for smaller pieces, and then a request for more than any rest."""
    job.free([job.allocate(100 * MIB, FORWARD) for _ in range(8)])
    for _ in range(8):
        job.allocate(60 * MIB, FORWARD)
    job.allocate(300 * MIB, FORWARD)


def test_fragmentation_is_proven_where_the_same_job_runs_with_the_setting() -> None:
    job = SimulatedJob(GIB)
    with pytest.raises(AllocationFailedError):
        in_pieces(job)
    answer = replayed(job)
    assert answer.exact
    trial = next(one for one in answer.trials if one.settings == "expandable_segments:True")
    assert answer.proves(trial)
    other = SimulatedJob(GIB, AllocatorConfig(expandable_segments=True))
    in_pieces(other)
    assert trial.reserved == other.allocator.reserved_bytes


def test_a_trace_of_a_real_gpu_is_reproduced_to_the_byte() -> None:
    """Its numbers alone are kept here; the file says whose they are."""
    kept = json.loads((Path(__file__).parent / "published" / "one_forward_pass.json").read_text())
    trace = [
        {"action": action, "addr": address, "size": size, "stream": stream, "time_us": at, "frames": []}
        for at, (action, address, size, stream) in enumerate(kept["trace"])
    ]
    document = {key: kept[key] for key in ("segments", "allocator_settings")} | {"device_traces": [trace]}
    snapshot = read_snapshot(io.BytesIO(pickle.dumps(document)))
    [device] = findings_of(snapshot, "published", always_replay=True).devices
    assert device.replay.exact
    assert device.replay.laid_out_anew == 0
    assert device.replay.recorded == device.use.reserved == 3606 * MIB


def test_where_memory_is_full_no_setting_is_said_to_help() -> None:
    job = SimulatedJob(GIB)
    with pytest.raises(AllocationFailedError):
        training(job, 3, activation=128 * MIB)
    answer = replayed(job)
    assert answer.exact
    assert [one.served for one in answer.trials] == [False] * len(answer.trials)


def test_a_trace_of_another_allocator_proves_nothing() -> None:
    """What was recorded is not what the settings that it names would have led to."""
    job = SimulatedJob(40 * GIB, SETTINGS["max-split"])
    scramble(job, 1, 900)
    job.config = AllocatorConfig()
    answer = replayed(job)
    assert not answer.exact
    assert answer.off > 0
    assert not any(answer.proves(one) for one in answer.trials)


def test_what_is_only_served_because_it_was_laid_out_anew_is_not_proven() -> None:
    job = SimulatedJob(GIB)
    with pytest.raises(AllocationFailedError):
        in_pieces(job)
    job.trace = [dict(job.trace[-1], action="snapshot", addr=0), job.trace[-1]]  # the ring kept the failure alone
    answer = replayed(job)
    assert answer.laid_out_anew == 8 * 60 * MIB
    assert answer.control is not None and answer.control.served
    assert not any(answer.proves(one) for one in answer.trials)


def test_private_pools_and_contradictions_are_said() -> None:
    job = SimulatedJob(8 * GIB)
    training(job, 2)
    document = job.document()
    document["segments"][0]["segment_pool_id"] = (0, 1)
    job.document = lambda: document  # type: ignore[method-assign]
    assert replayed(job).why_not is NotReplayed.PRIVATE_POOLS
    document["segments"][0]["segment_pool_id"] = (0, 0)
    block = dict(document["segments"][0]["blocks"][0], state="active_allocated")
    document["segments"][0]["blocks"] += [dict(block, address=block["address"] + 512, size=block["size"])]
    assert not replayed(job).exact
