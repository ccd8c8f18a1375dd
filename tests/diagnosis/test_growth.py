"""What series of memory figures mean: a leak is found, and nothing else that rises and falls is called one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from runbook.diagnosis import diagnose
from runbook.diagnosis.case import Case, build_case
from runbook.diagnosis.growth import host_leak, how_it_grew, leak, reserved_creeps
from runbook.diagnosis.series import kendall, mann_kendall, slope, steady_rise
from runbook.model.diagnosis import Detail
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import Finding, LogStory, MemoryFields, MemorySample, Progress
from runbook.model.units import GIB, MIB, Bytes, JobId, UserName
from runbook.report.vocabulary.sentences import in_words
from tests.kinds import KINDS, MEANINGS, Kind

RANK = 3
SEEDS = range(12)


def case(samples: Sequence[MemorySample], means: str = "true_oom", failed: int | None = None) -> Case:
    """A failure on an 80 GiB card after the steps of these samples; 1 GiB was missing."""
    last = max(one.step or 0 for one in samples)
    fields = MemoryFields(
        tried_bytes=Bytes(2 * GIB), capacity_bytes=Bytes(80 * GIB), free_bytes=Bytes(GIB),
        allocated_bytes=Bytes(76 * GIB), reserved_unallocated_bytes=Bytes(GIB // 2), process_bytes=Bytes(79 * GIB),
    )
    root = Finding("PT-CUDA-07", KINDS[means], "train.out", 0, 1, "", rank=RANK, step=failed or last + 1, fields=fields)
    story = LogStory(root, progress=Progress(last, first_step=1, memory=tuple(samples)), world_size=8)
    return build_case(story, None, (), (), {}, MEANINGS)


def sample(step: int, **figures: float | str) -> MemorySample:
    """Figures in GiB."""
    sizes = {name: Bytes(round(value * GIB)) for name, value in figures.items() if name.endswith("_bytes")
             and not isinstance(value, str)}
    words = {name: value for name, value in figures.items() if isinstance(value, str)}
    tokens = figures.get("tokens")
    return MemorySample(
        RANK, step, sizes.get("allocated_bytes"), sizes.get("reserved_bytes"), sizes.get("max_allocated_bytes"),
        sizes.get("max_reserved_bytes"), host_used_bytes=sizes.get("host_used_bytes"),
        tokens=round(tokens) if isinstance(tokens, float | int) else None, peaks=words.get("peaks", ""), source="T",
    )


Shape = Callable[[Random, int], list[MemorySample]]


def leaking(random: Random, count: int) -> list[MemorySample]:
    """Something is kept at every step, under noise."""
    return [
        sample(step, allocated_bytes=(20 if step == 1 else 40) + 20 * step / count + random.gauss(0, 0.3),
               max_allocated_bytes=60 + 20 * step / count, peaks="running")
        for step in range(1, count + 1)
    ]


def leaking_with_sawtooth(random: Random, count: int) -> list[MemorySample]:
    """Something is kept, and every tenth step an evaluation takes more."""
    return [
        sample(step, allocated_bytes=40 + 20 * step / count + (8 if step % 10 == 0 else random.uniform(0, 0.5)))
        for step in range(1, count + 1)
    ]


def leaking_at_random_lengths(random: Random, count: int) -> list[MemorySample]:
    """What is kept shows at equal tokens only: the batches differ by more."""
    lengths = [random.randrange(2_000, 8_000) for _ in range(count)]
    return [
        sample(step, allocated_bytes=30 + lengths[step - 1] / 400 + 25 * step / count, tokens=lengths[step - 1])
        for step in range(1, count + 1)
    ]


LEAKS: tuple[Shape, ...] = (leaking, leaking_with_sawtooth, leaking_at_random_lengths)


def noise(random: Random, count: int) -> list[MemorySample]:
    return [sample(step, allocated_bytes=50 + random.gauss(0, 3), max_allocated_bytes=70 + random.gauss(0, 4),
                   peaks="reset") for step in range(1, count + 1)]


def running_maximum(random: Random, count: int) -> list[MemorySample]:
    """Greatest values since the start of steps of random length: they only rise."""
    top, samples = 0.0, []
    for step in range(1, count + 1):
        top = max(top, 40 + random.expovariate(0.15))
        samples.append(sample(step, allocated_bytes=30, max_allocated_bytes=top, max_reserved_bytes=top + 2,
                              peaks=random.choice(["running", ""])))
    return samples


def unlabelled_running_maximum(random: Random, count: int) -> list[MemorySample]:
    """A peak of which nobody says whether it is reset, and which rises at every print."""
    return [sample(step, max_reserved_bytes=40 + 30 * step / count) for step in range(1, count + 1)]


def curriculum(random: Random, count: int) -> list[MemorySample]:
    """Longer sequences every step, and peaks that follow them."""
    lengths = [1_000 + 7_000 * step // count for step in range(1, count + 1)]
    return [
        sample(step, allocated_bytes=30 + lengths[step - 1] / 2_000 + random.gauss(0, 0.1),
               max_allocated_bytes=30 + lengths[step - 1] / 200 + random.gauss(0, 0.3), tokens=lengths[step - 1],
               peaks="reset")
        for step in range(1, count + 1)
    ]


def curriculum_in_stages(random: Random, count: int) -> list[MemorySample]:
    return [
        sample(step, allocated_bytes=30 + random.gauss(0, 0.1), tokens=2_048 << (4 * step // (count + 1)),
               max_allocated_bytes=35 + (2_048 << (4 * step // (count + 1))) / 500 + random.gauss(0, 0.3),
               peaks="reset")
        for step in range(1, count + 1)
    ]


def random_lengths(random: Random, count: int) -> list[MemorySample]:
    samples = []
    for step in range(1, count + 1):
        length = random.randrange(1_000, 8_000)
        samples.append(sample(step, allocated_bytes=30, max_allocated_bytes=35 + length / 250, tokens=length,
                              peaks="reset"))
    return samples


def sawtooth(random: Random, count: int) -> list[MemorySample]:
    """Evaluation or a checkpoint every so often, back to the same floor each time."""
    period = random.randrange(5, 15)
    return [sample(step, allocated_bytes=40 + 2 * (step % period) + random.uniform(0, 0.2))
            for step in range(1, count + 1)]


def late_optimizer(random: Random, count: int) -> list[MemorySample]:
    """The optimizer's state appears late (a scaler that skipped steps), and then nothing rises any more."""
    begin = random.randrange(2, count // 2)
    return [sample(step, allocated_bytes=(20 if step < begin else 60) + random.gauss(0, 0.1))
            for step in range(1, count + 1)]


def levelling_off(random: Random, count: int) -> list[MemorySample]:
    """Buffers that grow to their size."""
    return [sample(step, allocated_bytes=60 - 30 / step + random.gauss(0, 0.02)) for step in range(1, count + 1)]


def fragmenting(random: Random, count: int) -> list[MemorySample]:
    """Reserved memory creeps up, what is allocated does not."""
    return [
        sample(step, allocated_bytes=40 + random.gauss(0, 0.2), max_allocated_bytes=55 + random.gauss(0, 0.2),
               reserved_bytes=57 + 20 * step / count + random.gauss(0, 0.2), peaks="reset")
        for step in range(1, count + 1)
    ]


NO_LEAKS: tuple[Shape, ...] = (
    noise, running_maximum, unlabelled_running_maximum, curriculum, curriculum_in_stages, random_lengths, sawtooth,
    late_optimizer, levelling_off, fragmenting,
)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", LEAKS, ids=lambda shape: shape.__name__)
def test_a_leak_is_found_with_its_rate(shape: Shape, seed: int) -> None:
    random = Random(seed)
    count = random.choice([40, 80, 120])
    vote = leak(case(shape(random, count)))
    assert vote is not None
    assert vote.kind == Kind.MEMORY_LEAK
    assert vote.decisive
    assert vote.confidence >= 0.65
    rate = float(in_words(vote.reasons[0]).rpartition(": ")[2].split()[0])
    grown = 25 if shape is leaking_at_random_lengths else 20
    assert rate == pytest.approx(grown * 1024 / count, rel=0.25)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [7, 20, 100, 400])
@pytest.mark.parametrize("shape", NO_LEAKS, ids=lambda shape: shape.__name__)
def test_nothing_else_is_called_a_leak(shape: Shape, count: int, seed: int) -> None:
    vote = leak(case(shape(Random(seed), count)))
    if shape is sawtooth and count == 7:
        # Seven steps may all lie on one tooth, which looks like a leak and must not decide.
        assert vote is None or not vote.decisive
    else:
        assert vote is None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [12, 100])
def test_a_leak_leads_the_diagnosis_and_a_curriculum_does_not(count: int, seed: int) -> None:
    found = diagnose(case(leaking(Random(seed), 80)).story, meanings=MEANINGS, job=None)
    assert found.best.kind == Kind.MEMORY_LEAK
    other = diagnose(case(curriculum(Random(seed), count)).story, meanings=MEANINGS, job=None)
    assert (other.best.kind, other.best.detail) == (Kind.TRUE_OOM, Detail.SEQUENCE_LENGTH)
    assert all(one.kind != Kind.MEMORY_LEAK for one in other.runners_up)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", [random_lengths, curriculum, curriculum_in_stages], ids=lambda one: one.__name__)
def test_memory_that_follows_the_tokens_is_told_with_its_price(shape: Shape, seed: int) -> None:
    grew = how_it_grew(case(shape(Random(seed), 60)))
    assert grew is not None
    assert grew[0] is Detail.SEQUENCE_LENGTH
    assert "for 1,000 tokens" in in_words(grew[1])


def test_a_failing_step_longer_than_any_before_is_named() -> None:
    samples = [*random_lengths(Random(1), 30), sample(31, tokens=12_000)]
    grew = how_it_grew(case(samples, failed=31))
    assert grew is not None
    assert "The failing step had 12,000, more than any before." in in_words(grew[1])
    without_memory = [sample(one.step or 0, tokens=one.tokens or 0) for one in samples]
    grew = how_it_grew(case(without_memory, failed=31))
    assert grew is not None
    assert grew[0] is Detail.SEQUENCE_LENGTH


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_says_nothing_of_how_it_grew(seed: int) -> None:
    assert how_it_grew(case(noise(Random(seed), 80))) is None
    assert how_it_grew(case(sawtooth(Random(seed), 80))) is None


@pytest.mark.parametrize("seed", SEEDS)
def test_reserved_memory_that_creeps_supports_fragmentation_and_nothing_else_does(seed: int) -> None:
    assert "crept" in in_words(reserved_creeps(case(fragmenting(Random(seed), 60))))
    for shape in (noise, running_maximum, curriculum, random_lengths, leaking, sawtooth, late_optimizer):
        assert not reserved_creeps(case(shape(Random(seed), 60)))


def test_a_running_maximum_is_no_leak_even_where_it_rises_evenly() -> None:
    """The very shape of a leak, but of a peak that is never reset: nothing follows from it."""
    samples = [sample(step, max_allocated_bytes=40 + step / 4, peaks="running") for step in range(1, 120)]
    assert leak(case(samples)) is None
    reset = [sample(step, max_allocated_bytes=40 + step / 4, peaks="reset") for step in range(1, 120)]
    vote = leak(case(reset))
    assert vote is not None
    assert not vote.decisive
    assert any("curriculum" in in_words(one) for one in vote.against)


def test_peaks_at_equal_time_a_step_are_a_leak() -> None:
    """Where every step takes the same time, longer sequences are ruled out."""
    def stamped(growing: bool) -> list[MemorySample]:
        samples, time_s = [], 0.0
        for step in range(1, 100):
            time_s += 1.0 + (step / 50 if growing else 0.0)
            one = sample(step, max_reserved_bytes=50 + step / 4, peaks="reset")
            samples.append(MemorySample(
                one.rank, one.step, None, None, max_reserved_bytes=one.max_reserved_bytes, peaks="reset", source="T",
                time_s=time_s,
            ))
        return samples

    same, longer = leak(case(stamped(growing=False))), leak(case(stamped(growing=True)))
    assert same is not None
    assert same.decisive
    assert longer is not None
    assert not longer.decisive
    assert longer.confidence <= 0.5 < same.confidence


def test_a_rise_too_small_for_the_shortage_does_not_decide() -> None:
    samples = [sample(step, allocated_bytes=8 + step / 200) for step in range(1, 101)]
    vote = leak(case(samples))
    assert vote is not None
    assert not vote.decisive
    assert any("less than the 1.00 GiB that were missing" in in_words(one) for one in vote.against)


def test_what_no_device_message_says_is_no_device_leak() -> None:
    samples = leaking(Random(1), 60)
    assert leak(case(samples, means="not_oom")) is None
    assert leak(case(samples, means="host_oom")) is None


def test_another_rank_stands_in_and_is_named() -> None:
    samples = [MemorySample(0, one.step, one.allocated_bytes, None, source="T") for one in leaking(Random(1), 60)]
    vote = leak(case(samples))
    assert vote is not None
    assert "rank 0 (the rank that failed prints none)" in in_words(vote.reasons[0])
    assert leak(case([*samples, *noise(Random(1), 60)])) is None, "the failing rank's own figures count"


def test_host_memory_that_rises_supports_a_host_failure_only() -> None:
    rising = [sample(step, host_used_bytes=100 + step) for step in range(1, 60)]
    vote = host_leak(case(rising, means="host_oom"))
    assert vote is not None
    assert not vote.decisive
    assert any(rate in in_words(vote.reasons[0]) for rate in ("1024 MiB a step", "1.00 GiB a step"))
    assert any("other jobs" in in_words(one) for one in vote.against)
    assert host_leak(case(rising)) is None
    level = [sample(step, host_used_bytes=100 + step % 3) for step in range(1, 60)]
    assert host_leak(case(level, means="host_oom")) is None


@pytest.mark.parametrize(
    ("a_step", "limit", "detail"),
    [(1.0, 200, Detail.LEAK), (1.0, None, Detail.LEAK), (0.1, 200, Detail.CGROUP), (0.0, 200, Detail.CGROUP)],
    ids=["up to its limit", "whose limit is not known", "by little of its limit", "not at all"],
)
@pytest.mark.parametrize("said", [True, False], ids=["a line says it", "Slurm alone says it"])
def test_a_leak_on_the_host_is_told_from_a_size(a_step: float, limit: int | None, detail: Detail, said: bool) -> None:
    samples = [sample(step, host_used_bytes=100 + a_step * step) for step in range(1, 60)]
    root = Finding("HOST-03", KINDS["host_oom"], "train.out", 0, 1, "", rank=RANK) if said else None
    story = LogStory(root, progress=Progress(59, first_step=1, memory=tuple(samples)))
    job = JobRecord(
        JobId("7"), "c", "train", UserName("ada"), JobState("OUT_OF_MEMORY", JobClass.FAILED),
        memory_limit_bytes_per_node=Bytes(limit * GIB) if limit else None,
    )
    best = diagnose(story, job=job, meanings=MEANINGS).best
    assert (best.kind, best.detail) == (Kind.HOST_OOM, detail)
    assert any("rose steadily" in in_words(reason) for reason in best.reasons) is bool(a_step)


def test_places_of_the_program_are_not_mixed() -> None:
    """Two places with different heights, printed by turns, more and more often the higher one."""
    samples = [
        MemorySample(RANK, step, Bytes((60 if high else 20) * GIB), None, where="after" if high else "before",
                     source="T")
        for step in range(1, 60) for high in (False, True) if not high or step > 30
    ]
    assert leak(case(samples)) is None


def test_the_statistics_on_known_figures() -> None:
    line = [(float(x), 2.0 * x + 1) for x in range(10)]
    assert slope(line) == pytest.approx(2.0)
    wild = [*line[:7], (7.0, 500.0), (8.0, -500.0), (9.0, 19.0)]
    assert slope(wild) == pytest.approx(2.0, abs=0.1)
    # Ten values in order: S = 45, variance 125, so (45 - 1) / sqrt(125).
    assert mann_kendall([y for _, y in line]) == pytest.approx(3.9355, abs=1e-3)
    assert mann_kendall([1.0] * 10) == 0.0
    assert kendall(line)[0] == pytest.approx(1.0)
    assert kendall([(x, -y) for x, y in line])[0] == pytest.approx(-1.0)
    assert kendall([(1.0, y) for _, y in line]) == (0.0, 0.0)
    assert steady_rise(line, 0.0) is not None
    assert steady_rise(line[:5], 0.0) is None
    assert steady_rise(line, 100.0) is None


def test_a_long_series_costs_little() -> None:
    """A hundred thousand samples are thinned first: their pairs would be five thousand million."""
    points = [(float(step), float(step * MIB)) for step in range(100_000)]
    rise = steady_rise(points, 0.0)
    assert rise is not None
    assert rise.slope == pytest.approx(MIB)
