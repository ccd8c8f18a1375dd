"""A lever is chosen by what the job is foreseen to need with it: in one relaunch what took several, and nothing else
where nobody can say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runbook.adapters.metrics import incident_families
from runbook.adapters.store import IncidentStore
from runbook.adapters.store.read_model import ReadModel
from runbook.adapters.store.totals import figures_of
from runbook.config import Foresight
from runbook.locations import data_folder
from runbook.model.diagnosis import Diagnosis, Hypothesis
from runbook.model.incident import Attempt, Incident, IncidentState, Verdict
from runbook.model.log import LogStory, MemoryFields, Phase, Progress
from runbook.model.remedy import Basis, Fit, Foreseen, LeverUse, MemoryFigure, Plan
from runbook.model.units import GIB, Bytes, IncidentId, JobId, UserName
from runbook.remedy import LeverContext, propose
from runbook.report.narrative import newest_forecast
from runbook.report.summary import summarize
from runbook.report.text.incident_text import render_text
from runbook.report.vocabulary.sentences import in_words
from runbook.steps import choose_lever
from runbook.steps.shared.base import load_playbook
from tests.flow.test_resuming import Scene
from tests.kinds import Kind

PLAYBOOK = load_playbook(data_folder("playbooks") / "oom")
CARD = 79.1


def job(
    micro: int, *, sequence: int = 8192, batch: int = 1024, more: str = "--recompute-granularity selective",
) -> str:
    """Llama 3 8B in Megatron-LM on two nodes."""
    return (
        f"srun torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu "
        "--untie-embeddings-and-output-weights --vocab-size 128256 --disable-bias-linear --bf16 "
        f"--micro-batch-size {micro} --global-batch-size {batch} --seq-length {sequence} --use-distributed-optimizer "
        f"--tensor-model-parallel-size 2 --sequence-parallel {more} --save /ckpt --load /ckpt --save-interval 20"
    )


def planned(
    template: str, *, foresight: Foresight = Foresight.CHOOSE, allocated: float = 75.1, tried: float = 1.8,
    phase: Phase = Phase.FORWARD, store: IncidentStore | None = None, number: int = 1, owner: str = "alice",
    after: Incident | None = None, **fields: Any,
) -> Incident:
    """What is planned for a job that ran out on a card of 79.1 GiB; `after`: of which the plan's relaunch this is."""
    scene = Scene(template)
    failure = scene.incident.failure
    assert failure is not None and failure.story is not None and failure.story.root_cause is not None
    figures = MemoryFields(
        capacity_bytes=Bytes(int(CARD * GIB)), allocated_bytes=Bytes(int(allocated * GIB)),
        tried_bytes=Bytes(int(tried * GIB)), free_bytes=Bytes(GIB), reserved_unallocated_bytes=Bytes(GIB // 2),
    )
    cause = replace(failure.story.root_cause, fields=replace(figures, **fields), phase=phase)
    failure = replace(
        failure, job=replace(failure.job, gpus_per_node=8, num_nodes=2, command=f"/home/{owner}/train.sh",
                                   owner=UserName(owner)),
        story=LogStory(cause, framework_version="2.6.0", progress=Progress(last_step=60)),
        diagnosis=Diagnosis(Hypothesis(Kind.TRUE_OOM, 0.95)),
    )
    incident = replace(
        scene.incident, id=IncidentId(f"oom-fake-{number}"), opened_s=float(number), failure=failure, original=failure,
        plan=None,
    )
    if after is not None:
        attempt = Attempt(1, after.plan, job=JobId("99"), story=failure.story)
        incident = replace(incident, original=after.original, attempts=(attempt,))
    scene.incident = incident
    context = scene.context()
    policy = context.settings.policy.model_copy(update={"foresight": foresight})
    settings = context.settings.model_copy(update={"policy": policy})
    ports = replace(context.ports, history=ReadModel(store) if store is not None else None)
    return choose_lever.run(replace(context, playbook=PLAYBOOK, settings=settings, ports=ports)).incident


def plan(incident: Incident) -> Plan:
    assert incident.plan is not None, incident.no_plan
    return incident.plan


def told(incident: Incident) -> str:
    return " ".join(render_text(incident).split())


def levers(incident: Incident) -> list[str]:
    return [use.lever for use in plan(incident).uses]


def values(incident: Incident) -> dict[str, str | None]:
    return {edit.parameter: edit.new for edit in plan(incident).edits}


def test_a_batch_that_would_run_out_again_at_half_is_made_as_small_as_it_has_to_be() -> None:
    assert values(planned(job(32), foresight=Foresight.OFF)) == {"micro_batch_size": "16"}
    incident = planned(job(32))
    assert values(incident) == {"micro_batch_size": "1"}
    foreseen = plan(incident).foreseen
    assert foreseen is not None and foreseen.fit is Fit.FITS and foreseen.anchors[0].at_least
    assert "it should fit" in told(incident)


def test_the_global_batch_is_kept_at_every_size() -> None:
    (use,) = plan(planned(job(48, batch=768))).uses
    assert "accumulation steps of the global batch of 768" in in_words(use.expectation)
    micro = int(values(planned(job(48, batch=768)))["micro_batch_size"] or 0)
    assert micro < 48 and 768 % (micro * 8) == 0


def test_a_lever_that_cannot_suffice_is_passed_over_with_the_sum() -> None:
    incident = planned(job(2, sequence=131072, more=""))
    assert levers(incident) == ["full_recompute"]
    assert levers(planned(job(2, sequence=131072, more=""), foresight=Foresight.OFF)) == ["smaller_micro_batch"]
    text = told(incident)
    assert "Passed over: smaller micro batch: at the least 112." in text and "the card has 79.1 GiB" in text
    assert "optimizer states" in text or "activations" in text


def of_eight() -> LeverContext:
    """A job with a micro-batch of 8 that ran out of memory, as the ladder sees it."""
    context = Scene(job(8, more="")).context()
    failure, template = context.failure, context.template.told
    assert template is not None and failure.story is not None
    return LeverContext(
        template, failure.story, replace(failure.job, gpus_per_node=8, num_nodes=2),
        Diagnosis(Hypothesis(Kind.TRUE_OOM, 0.95)),
    )


def test_two_levers_go_together_where_none_suffices_alone() -> None:
    """Whatever is foreseen: here, that only a micro-batch of 2 or less with recomputation fits."""
    def foresee(uses: Sequence[LeverUse]) -> Foreseen:
        new = {edit.parameter: edit.new for use in uses for edit in use.edits}
        small = int(new.get("micro_batch_size") or 8) <= 2
        return Foreseen(Fit.FITS if small and "recompute_granularity" in new else Fit.DOES_NOT_FIT, 80, 90)

    told = propose(of_eight(), foresee=foresee)
    assert isinstance(told, Plan)
    assert [use.lever for use in told.uses] == ["smaller_micro_batch", "selective_recompute"]
    assert {edit.parameter: edit.new for edit in told.edits} == {
        "micro_batch_size": "2", "recompute_granularity": "selective"
    }
    assert told.ladder == propose_as_ever(of_eight()).ladder


def test_of_several_changes_the_one_is_made_that_costs_least() -> None:
    """Half of the batch would fit one time of three, a quarter nine of ten, recomputation always but slowly."""
    def foresee(uses: Sequence[LeverUse]) -> Foreseen:
        new = {edit.parameter: edit.new for use in uses for edit in use.edits}
        micro = int(new.get("micro_batch_size") or 8)
        cost = 0.3 if "recompute_granularity" in new else {4: 0.1 + 0.66 * 0.4, 2: 0.2 + 0.1 * 0.4}.get(micro, 0.4)
        return Foreseen(Fit.CANNOT_SAY, 80, 70, chance=0.5, expected_cost=cost)

    told = propose(of_eight(), foresee=foresee)
    assert isinstance(told, Plan)
    assert {edit.parameter: edit.new for edit in told.edits} == {"micro_batch_size": "2"}


def test_a_request_of_the_logits_size_tells_how_far_the_pass_had_come() -> None:
    """The same figures, but for what was asked for: all layers' activations were there, so little is open."""
    elements = 4 * 8192 * 128256 / 2
    asked = elements * 4 / GIB
    at_logits = plan(planned(job(4), allocated=75.1 - asked, tried=asked)).foreseen
    somewhere = plan(planned(job(4), allocated=75.1 - asked, tried=asked * 0.9)).foreseen
    assert at_logits is not None and somewhere is not None
    width = [one.peaks[Basis.DEVICE].high_bytes - one.peaks[Basis.DEVICE].low_bytes for one in (at_logits, somewhere)]
    assert width[0] < 0.8 * width[1]


def test_a_second_attempt_knows_what_the_first_failure_told() -> None:
    first = planned(job(32), foresight=Foresight.OFF)
    alone, after = plan(planned(job(16))).foreseen, plan(planned(job(16), after=first)).foreseen
    assert alone is not None and after is not None
    assert (len(alone.anchors), len(after.anchors)) == (1, 2)


def propose_as_ever(levers: LeverContext) -> Plan:
    found = propose(levers)
    assert isinstance(found, Plan)
    return found


@pytest.mark.parametrize("template", [
    job(32).replace("--hidden-size 4096 ", ""), job(32).replace("--num-layers 32", '--num-layers "$LAYERS"'),
])
def test_what_nobody_can_say_changes_nothing(template: str) -> None:
    assert plan(planned(template)).uses == plan(planned(template, foresight=Foresight.OFF)).uses


@pytest.mark.parametrize(("why", "more"), [
    ("a validation loop is no step of training", {"phase": Phase.VALIDATION}),
    ("a limit of the process is not the card", {"limit_bytes": Bytes(40 * GIB)}),
    ("somebody else holds memory of the card", {"process_bytes": Bytes(70 * GIB)}),
    ("what the formulas cannot explain", {"allocated": 30000.0}),
])
def test_nothing_is_foreseen_of_another_failure(why: str, more: dict[str, Any]) -> None:
    incident = planned(job(32), **more)
    outcome = incident.plan or incident.no_plan
    assert outcome is not None and getattr(outcome, "foreseen", None) is None, why


def test_where_nothing_suffices_the_ladder_is_gone_down_as_ever() -> None:
    hopeless = job(4, sequence=1048576, more="")
    assert plan(planned(hopeless)).uses == plan(planned(hopeless, foresight=Foresight.OFF)).uses
    assert "it will hardly fit" in told(planned(hopeless))


def test_advice_changes_nothing_and_is_told() -> None:
    incident = planned(job(32), foresight=Foresight.ADVISE)
    assert values(incident) == {"micro_batch_size": "16"}
    assert "it will hardly fit" in told(incident)
    assert "Foreseen" not in told(planned(job(32), foresight=Foresight.OFF))


def test_a_layout_over_cards_is_not_judged_by_a_figure_of_another() -> None:
    """Sequence parallelism comes after recomputation, and frees what no pair of published runs carries over to."""
    template = job(1, more="--recompute-granularity full --recompute-method uniform --recompute-num-layers 1").replace(
        "--sequence-parallel ", "")
    incident = planned(template)
    assert levers(incident) == ["sequence_parallel"] and plan(incident).foreseen is None


def ended(incident: Incident, verdict: Verdict) -> Incident:
    """The relaunch with what was planned ran past the step where it died, or ran out again."""
    again = Diagnosis(Hypothesis(Kind.TRUE_OOM, 0.9)) if not verdict.passed else None
    attempt = Attempt(1, incident.plan, job=JobId("99"), submitted_s=2.0, verdict=verdict, diagnosis=again)
    state = IncidentState.RECOVERED if verdict.passed else IncidentState.ESCALATED
    return replace(incident, attempts=(attempt,), state=state)


def past(gib: float) -> Verdict:
    return Verdict(True, "step 63 is past step 61", measured=(MemoryFigure(int(gib * GIB), Basis.RESERVED),))


def test_the_report_has_what_was_measured_beside_what_was_foreseen() -> None:
    text = told(ended(planned(job(32)), past(50.3)))
    assert "50.3 GiB reserved measured, 28.9 GiB to 74.9 GiB foreseen" in text
    assert "not measured" in told(ended(planned(job(32)), Verdict(True, "step 63 is past step 61")))


def test_a_wrong_word_is_told_and_counted() -> None:
    wrong = ended(planned(job(32)), Verdict(False, "job 99 failed again"))
    assert "the forecast was wrong" in told(wrong)
    counted = {
        sample.name: sample.value for family in incident_families(figures_of(summarize(wrong)))
        for sample in family.samples
    }
    assert counted["runbook_fits_foreseen_total"] == counted["runbook_fits_wrong_total"] == 1


def test_a_wrong_word_costs_trust_until_a_measured_peak_agrees(tmp_path: Path) -> None:
    store = IncidentStore(tmp_path)
    store.save(ended(planned(job(32), store=store, number=1), Verdict(False, "job 99 failed again")))
    second = planned(job(32), store=store, number=2)
    assert values(second) == {"micro_batch_size": "8"}, "half cannot fit, and the largest that may fit is taken"
    third = planned(job(48, batch=768), store=store, number=3)
    foreseen = plan(third).foreseen
    assert foreseen is not None and foreseen.fit is Fit.CANNOT_SAY
    store.save(ended(second, past(70.0)))
    assert values(planned(job(32), store=store, number=4)) == {"micro_batch_size": "8"}, "70 GiB lie below the bounds"
    store.save(ended(replace(second, id=IncidentId("oom-fake-5"), opened_s=5.0), past(77.0)))
    assert values(planned(job(32), store=store, number=6)) == {"micro_batch_size": "1"}


@pytest.mark.parametrize(("wrong", "right", "trusted"), [
    (("mallory",), (), True),
    (("mallory", "mallory", "mallory"), (), True),
    (("mallory", "bob"), (), False),
    (("alice",), ("mallory", "mallory"), False),
    (("alice",), ("mallory", "bob"), True),
    (("alice",), ("alice",), True),
])
def test_what_another_owners_relaunches_became_counts_as_two_owners_say_it(
    tmp_path: Path, wrong: tuple[str, ...], right: tuple[str, ...], trusted: bool
) -> None:
    """Case: one user's relaunch, whose own program printed the failure again, changed what other users' jobs got; and
    one that held would have undone what their own had shown. A user's program prints what he likes."""
    store, number = IncidentStore(tmp_path), 0
    template = job(32, more="--recompute-granularity selective --pretrained-checkpoint /models/Meta-Llama-3-8B")
    for owner, verdict in (
        *((owner, Verdict(False, "job 99 failed again")) for owner in wrong), *((owner, past(50.3)) for owner in right),
    ):
        number += 1
        one = planned(template, number=number, owner=owner)
        store.save(ended(one, verdict))
    found = planned(template, store=store, number=number + 1)
    assert values(found) == {"micro_batch_size": "1" if trusted else "8"}


def test_within_an_incident_a_wrong_word_counts_at_once() -> None:
    scene_of_second = ended(planned(job(32)), Verdict(False, "job 99 failed again"))
    assert newest_forecast(scene_of_second) is False
