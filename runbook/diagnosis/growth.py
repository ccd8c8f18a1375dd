"""What the memory figures along the steps mean: references kept alive, longer sequences, a cache that fragments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runbook.diagnosis.case import Case, Conclusion, Vote, rule, size
from runbook.diagnosis.series import (
    FEWEST,
    SURE_Z,
    Figure,
    Rise,
    Series,
    all_series,
    allocated,
    capacity_of,
    host_used,
    kendall,
    level,
    mann_kendall,
    max_allocated,
    max_reserved,
    seconds_a_step,
    slope,
    steady_rise,
    tokens_by_step,
    with_tokens,
)
from runbook.model.diagnosis import Detail, Died
from runbook.model.log import Phase
from runbook.model.sentences import NOTHING, Sentence
from runbook.model.sentences.of_diagnosis import Say
from runbook.model.units import median

_MATERIAL = 0.05
"""Growth below this part of the ordinary level explains no shortage."""
_FOLLOWS = 0.5
"""Kendall's tau from which memory is said to follow the tokens."""
_MANY = 12


@dataclass(frozen=True, slots=True)
class _Found:
    """A rise in one series. `kept` is of memory that live tensors hold between steps, else of a peak."""

    series: Series
    rise: Rise
    kept: bool
    reserved: bool
    tokens_known: bool
    same_work: bool = False
    """A step took the same time all along, so that its sequences cannot have grown with the memory."""

    @property
    def firm(self) -> bool:
        """Whether the rise can be nothing but something kept: between steps, or at equal work and evenly."""
        return self.kept or (self.same_work and self.rise.even and self.rise.samples >= _MANY)


@rule
def leak(case: Case) -> Vote | None:
    """Memory at the same place of the program, at equal tokens, that rises steadily beyond the first steps.

    Greatest values since the start never count: they rise without a leak. Peaks that begin again at each print count
    less than what is allocated between steps, and not at all where that is printed too and does not rise; nor do those
    of reserved memory where the failure's own message says that much of it was not allocated (R-11)."""
    if case.root is None or not case.meant.in_the_allocator:
        return None
    found = _strongest(case)
    if found is None or (found.reserved and _much_unallocated(case)):
        return None
    series, rise = found.series, found.rise
    what = Say.ALLOCATED_MEMORY() if found.kept else Say.PEAK_OF_RESERVED_MEMORY() if found.reserved else Say.THE_PEAK()
    reasons = [
        Say.ROSE_AT_SAMPLES(
            what=what, whose=series.whose, rising_share=rise.rising_share, samples=rise.samples,
            before=size(round(rise.last[1] - rise.growth)), first=rise.first[0], after=size(round(rise.last[1])),
            last=rise.last[0], slope=size(round(rise.slope)),
            tokens=Say.TOKENS_TAKEN_INTO_ACCOUNT() if found.tokens_known else NOTHING,
        )
    ]
    if found.same_work and not found.kept:
        reasons.append(Say.STEPS_TOOK_THE_SAME_TIME())
    against: list[Sentence] = []
    confidence = 0.65 if found.kept else 0.6 if found.firm else 0.4 if not found.reserved else 0.35
    if rise.samples >= _MANY:
        confidence += 0.1 if found.kept else 0.05
    if not found.tokens_known and not (found.firm and found.same_work):
        against.append(Say.CURRICULUM_LOOKS_THE_SAME())
        if found.kept:
            against[0] = Say.KEPT_BATCHES_LOOK_THE_SAME()
    if found.reserved and not _nearly_all_allocated(case):
        confidence -= 0.1
        against.append(Say.FRAGMENTS_RAISE_RESERVED_TOO())
    projected = _projection(case, found)
    fits = False
    if projected is not None:
        fits, sentence = projected
        confidence += 0.1 if fits else -0.1
        (reasons if fits else against).append(sentence)
    if rise.samples < _MANY and not fits:
        confidence -= 0.2
        against.append(Say.FEW_SAMPLES(samples=rise.samples))
    short = case.figures.short_bytes
    enough = short is None or rise.growth >= short
    if not enough:
        confidence -= 0.2
        against.append(Say.ROSE_LESS_THAN_WAS_MISSING(growth=size(round(rise.growth)), short=size(short)))
    return Vote(
        "growth over steps", Conclusion.MEMORY_LEAK, round(min(0.85, max(0.15, confidence)), 2), tuple(reasons),
        tuple(against), (Say.TWO_MEMORY_SNAPSHOTS(),),
        decisive=found.firm and enough and confidence >= 0.5,
    )


def _strongest(case: Case) -> _Found | None:
    """The rise that says most: of what is kept before peaks, of many samples before few."""
    found: list[_Found] = []
    for series in all_series(case):
        kept = series.values(allocated)
        if len(kept) >= FEWEST:
            one = _rise(series, allocated, kept=True, reserved=False)
            found += [one] if one is not None else []
            continue  # what is printed between steps decides; its peaks are the working set's
        if series.peaks_reset:
            figure, reserved = (max_allocated, False) if series.values(max_allocated) else (max_reserved, True)
            one = _rise(series, figure, kept=False, reserved=reserved)
            found += [one] if one is not None else []
    if any(len(series.values(allocated)) >= FEWEST for series in all_series(case)):
        found = [one for one in found if one.kept]
    return max(found, key=lambda one: (one.kept, one.firm, not one.reserved, one.rise.samples), default=None)


def _nearly_all_allocated(case: Case) -> bool:
    """Whether the failure's own message says that what is reserved is in use, so that nothing is fragmented."""
    unallocated, reserved = case.figures.unallocated_bytes, case.figures.reserved_bytes
    return unallocated is not None and reserved is not None and unallocated < _MATERIAL * reserved


def _much_unallocated(case: Case) -> bool:
    """Whether what is reserved and not allocated would have served the request, and is a material part: then it is the
    cache that grew, and nothing that is kept."""
    figures = case.figures
    unallocated, reserved, tried = figures.unallocated_bytes, figures.reserved_bytes, figures.tried
    return None not in (unallocated, reserved, tried) and (unallocated or 0) >= max(
        tried or 0, _MATERIAL * (reserved or 0)
    )


def _rise(series: Series, figure: Figure, *, kept: bool, reserved: bool) -> _Found | None:
    """A steady rise of what the tokens of the steps do not explain."""
    points = series.values(figure)
    tokens = {one.step: one.tokens for one in series.samples if one.tokens is not None}
    known = sum(step in tokens for step, _ in points) >= max(FEWEST, 0.8 * len(points))
    values = [(float(step), float(value)) for step, value in points]
    if known:
        both = [(float(step), float(tokens[step] or 0), float(value)) for step, value in points if step in tokens]
        values = _at_equal_tokens(both)
    rise = steady_rise(values, _MATERIAL * level(points))
    return _Found(series, rise, kept, reserved, known, _same_work(series)) if rise is not None else None


def _at_equal_tokens(both: Sequence[tuple[float, float, float]]) -> list[tuple[float, float]]:
    """(step, figure) with what the tokens explain taken away, from (step, tokens, figure).

    The price of a token and the rise over the steps are looked for in turns, the tokens first: where tokens and steps
    rise together nobody can tell them apart, and then it is the tokens' doing."""
    least = min(tokens for _, tokens, _ in both)
    a_token = a_step = 0.0
    for _ in range(4):
        without_steps = sorted((tokens, value - a_step * step) for step, tokens, value in both)
        tau, z = kendall(without_steps)
        a_token = slope(without_steps) if tau > 0 and z >= SURE_Z else 0.0
        a_step = slope([(step, value - a_token * tokens) for step, tokens, value in both])
    return [(step, value - a_token * (tokens - least)) for step, tokens, value in both]


def _same_work(series: Series) -> bool:
    """Whether the time of a step stayed within a twentieth over the whole span, by the lines' stamps."""
    seconds = seconds_a_step(series)
    if len(seconds) < _MANY:
        return False
    usual = median(value for _, value in seconds)
    return abs(slope(seconds)) * (seconds[-1][0] - seconds[0][0]) <= _MATERIAL * usual


def _projection(case: Case, found: _Found) -> tuple[bool, Sentence] | None:
    """When the rise alone would have filled the card, against when it was full."""
    capacity = capacity_of(case, found.series)
    failed = case.root.step if case.root is not None else None
    last = found.series.samples[-1]
    in_use = max(last.max_reserved_bytes or 0, last.reserved_bytes or 0, last.max_allocated_bytes or 0)
    free, reserved = case.figures.free, case.figures.reserved_bytes
    if free is not None and reserved is not None:
        capacity = min(capacity or free + reserved, free + reserved)  # the rest is not the allocator's
    if capacity is None or failed is None or not in_use or last.step is None or in_use > capacity * (1 + _MATERIAL):
        return None
    full = last.step + max(0, capacity - in_use) / found.rise.slope
    begun = found.rise.first[0]
    share = (failed - begun) / (full - begun) if full > begun else 0.0
    fits = 0.5 <= share <= 1.5
    said = Say.WOULD_BE_FULL_AT(capacity=size(capacity), full=full)
    return fits, Say.FAILED_IN_STEP(said=said, failed=failed) if fits else Say.BUT_FAILED_IN_STEP(
        said=said, failed=failed,
    )


def how_it_grew(case: Case) -> tuple[Detail, Sentence] | None:
    """What a failure after completed steps has to do with the lengths of sequences or with peaks that rose.

    For the rule that calls the working set grown: a detail and a sentence with figures, or None where the log's
    figures show nothing of the kind."""
    if case.root is None or not case.meant.in_the_allocator:
        return None
    longer = _follows_tokens(case) or _longer_sequences(case)
    if longer is not None:
        return Detail.SEQUENCE_LENGTH, longer
    for series in all_series(case):
        if not series.peaks_reset:
            continue
        figure = max_allocated if series.values(max_allocated) else max_reserved
        points = [(float(step), float(value)) for step, value in series.values(figure)]
        rise = steady_rise(points, _MATERIAL * level(series.values(figure)))
        if rise is not None:
            return Detail.GROWN, (
                Say.PEAK_ROSE(
                    whose=series.whose, growth=size(round(rise.growth)), first=rise.first[0], last=rise.last[0],
                )
            )
    return None


def _follows_tokens(case: Case) -> Sentence | None:
    """Memory that goes up and down with the tokens of the steps."""
    for series in all_series(case):
        figures = [allocated]
        if series.peaks_reset:
            figures = [max_allocated, max_reserved, allocated]
        for figure in figures:
            pairs = [(float(tokens), float(value)) for tokens, value in with_tokens(series, figure)]
            if len(pairs) < FEWEST:
                continue
            tau, z = kendall(pairs)
            each = slope(sorted(pairs))
            least, most = min(pairs)[0], max(pairs)[0]
            if tau < _FOLLOWS or z < SURE_Z or each * (most - least) < _MATERIAL * level(series.values(figure)):
                continue
            return Say.MEMORY_FOLLOWS_TOKENS(
                whose=series.whose, tau=tau, count=len(pairs), each=size(round(each * 1000)), least=least, most=most,
                failing=_failing_tokens(case),
            )
    return None


def _failing_tokens(case: Case) -> Sentence:
    """How long the failing step's sequences were, where the log says it."""
    tokens = tokens_by_step(case)
    failed = case.root.step if case.root is not None else None
    before = [count for step, count in tokens if failed is None or step < failed]
    own = next((count for step, count in tokens if step == failed), None)
    if own is None or not before:
        return Say.FAILING_STEPS_TOKENS_NOT_KNOWN()
    return Say.FAILING_STEP_HAD(
        own=own, compared=Say.MORE_THAN_BEFORE() if own > max(before) else Say.MOST_BEFORE(most=max(before)),
    )


def _longer_sequences(case: Case) -> Sentence | None:
    """Without memory figures: tokens that rise over the run, or a failing step longer than any before."""
    tokens = tokens_by_step(case)
    failed = case.root.step if case.root is not None else None
    before = [(step, count) for step, count in tokens if failed is None or step < failed]
    own = next((count for step, count in tokens if step == failed), None)
    if len(before) < FEWEST:
        return None
    most = max(count for _, count in before)
    if own is not None and own > most * (1 + _MATERIAL):
        return Say.FAILING_STEP_HAD_MOST_TOKENS(own=own, count=len(before), most=most)
    points = [(float(step), float(count)) for step, count in before]
    growth = slope(points) * (points[-1][0] - points[0][0])
    if mann_kendall([count for _, count in points]) >= SURE_Z and growth >= 0.2 * level(before):
        return Say.TOKENS_ROSE(level=level(before), points=points[-1][1], count=len(before))
    return None


def reserved_creeps(case: Case) -> Sentence:
    """R-11: reserved memory that rises away from the greatest allocation; nothing where the figures do not show it.

    What is allocated between steps is no measure for it: reserved memory follows the peaks."""
    for series in all_series(case):
        gaps: list[tuple[float, float]] = []
        peaks: list[tuple[int, int]] = []
        for one in series.samples:
            reserved = one.reserved_bytes or one.max_reserved_bytes
            if reserved is not None and one.max_allocated_bytes is not None and one.step is not None:
                gaps.append((float(one.step), float(reserved - one.max_allocated_bytes)))
                peaks.append((one.step, reserved))
        rise = steady_rise(gaps, _MATERIAL * level(peaks)) if len(gaps) >= FEWEST else None
        if rise is not None:
            return Say.RESERVED_CREPT_AWAY(
                whose=series.whose, growth=size(round(rise.growth)), first=rise.first[0], last=rise.last[0],
            )
    found = _strongest(case)
    if found is not None and found.reserved and _much_unallocated(case):
        return Say.RESERVED_PEAK_ROSE(
            whose=found.series.whose, growth=size(round(found.rise.growth)), first=found.rise.first[0],
            last=found.rise.last[0],
        )
    return NOTHING


_OF_THE_LIMIT = 0.25
"""Main memory that rose by less than this part of what the job may have is not what filled it."""


def host_growth(case: Case) -> tuple[Series, Rise] | None:
    """Main memory that rose from step to step."""
    for series in all_series(case):
        points = series.values(host_used)
        rise = steady_rise([(float(step), float(value)) for step, value in points], _MATERIAL * level(points)) \
            if len(points) >= FEWEST else None
        if rise is not None:
            return series, rise
    return None


def host_leaks(case: Case) -> bool:
    """Whether it rose by so much that it, and no size of the job, is what filled what the job may have."""
    grew, job = host_growth(case), case.job
    if grew is None:
        return False
    alike = (job.gpus_per_node or 1) if job is not None and grew[0].samples[0].host_is_process else 1
    limit = job.memory_limit_bytes_per_node if job is not None else None
    return limit is None or grew[1].growth * alike >= _OF_THE_LIMIT * limit


@rule
def host_leak(case: Case) -> Vote | None:
    """Host memory that rose from step to step before a host out of memory. Only supports what the log or Slurm says."""
    killed = case.meant.died is Died.MAIN_MEMORY or (case.root is None and case.killed_steps())
    grew = host_growth(case) if killed else None
    if grew is None:
        return None
    series, rise = grew
    own = series.samples[0].host_is_process
    return Vote(
        "host memory over steps", Conclusion.HOST_OOM, 0.6,
        (Say.HOST_MEMORY_ROSE_STEADILY(
            whose=series.whose if own else "the node", growth=size(round(rise.growth)), first=rise.first[0],
            last=rise.last[0], slope=size(round(rise.slope)),
        ),),
        () if own else (Say.FIGURE_IS_THE_NODES(),),
        (Say.WHICH_PROCESS_OF_THE_JOB(),), decisive=False,
    )


# When in the run the memory ran out: from the start, as a static size does, or after it had grown.

_STEPLESS_S = 3600.0


def static_or_grown(case: Case) -> tuple[Detail, Sentence]:
    """Whether a size is wrong from the start or the working set grew, and the sentence for it."""
    progress, root = case.story.progress, case.root
    done = case.steps_done()
    if progress.last_step is not None and done is not None and done > 1:
        grew = how_it_grew(case)
        if grew is not None:
            return grew[0], Say.AFTER_STEPS_AND_GREW(done=done, last_step=progress.last_step, grew=grew[1])
        return Detail.GROWN, (
            Say.AFTER_COMPLETED_STEPS(done=done, last_step=progress.last_step)
        )
    if progress.last_step is not None:
        return Detail.STATIC, (
            Say.WITHIN_THE_FIRST_STEPS(last_step=progress.last_step)
        )
    if root is not None and root.phase is Phase.RESUME:
        return Detail.STATIC, (
            Say.WHILE_A_CHECKPOINT_WAS_LOADED()
        )
    if root is not None and root.phase is Phase.INIT:
        return Detail.STATIC, Say.WHILE_STARTING()
    ran = _ran_for_s(case)
    if progress.saved_steps or (ran is not None and ran > _STEPLESS_S):
        how = Say.HAD_SAVED_CHECKPOINTS() if progress.saved_steps else Say.HAD_RUN_FOR_HOURS(ran=(ran or 0) / 3600)
        return Detail.NONE, Say.RAN_LONG_WITHOUT_STEPS(how=how)
    return Detail.STATIC, (
        Say.BEFORE_ANY_STEP()
    )


def _ran_for_s(case: Case) -> float | None:
    if case.job is None or case.job.start_time_s is None or case.root is None or case.root.time_s is None:
        return None
    return case.root.time_s - case.job.start_time_s
