"""What people are told of an incident: each event once, as urgent as it is, short, harmless and with what is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runbook.model.incident import Act, BoxVisit, Incident, IncidentState, Message, Severity
from runbook.report.text.notifications import TITLE_LIMIT, messages, reminder
from tests.report.sample_incidents import SAMPLES

URL = "https://runbook.example.org/"
ID = "oom-alpha-884213"


def _told(before: Incident | None, after: Incident, url: str = URL) -> Message:
    (message,) = messages(before, after, url)
    return message


def _running(after: Incident, **changes: object) -> Incident:
    """The incident a moment before it came to this."""
    return replace(after, state=IncidentState.RUNNING, awaiting="", conclusion="", **changes)  # type: ignore[arg-type]


def test_a_question_pages_and_says_how_to_answer() -> None:
    asked = SAMPLES["awaiting"]()
    message = _told(_running(asked), asked)
    assert message.severity is Severity.PAGE and message.question
    assert message.title.startswith("job 884213 (llama-70b-sft): waits for your yes to submit train.sh")
    assert f"`runbook approve {ID}`, or no with `--no`: submit train.sh with --micro-batch-size 2" in message.body
    page = f"https://runbook.example.org/incidents/{ID}"
    assert (message.link, message.answer) == (page, f"{page}#first-title")


def test_without_a_report_s_address_the_command_stands_there() -> None:
    asked = SAMPLES["awaiting"]()
    message = _told(_running(asked), asked, "")
    assert message.link == ""
    assert message.body.endswith(f"Read on: `runbook show {ID}`")


def test_a_question_about_a_job_that_runs_again_can_wait() -> None:
    done = SAMPLES["recovered"]()
    asked = replace(done, state=IncidentState.AWAITING_APPROVAL, awaiting="write the proven change into train.sh")
    assert _told(done, asked).severity is Severity.WARNING


def test_the_whole_text_of_a_job_that_is_proven() -> None:
    done = SAMPLES["recovered"]()
    message = _told(_running(done), done)
    assert message.severity is Severity.INFO
    assert message.title == "job 884213 (llama-70b-sft): runs again — GPU out of memory on gpu-22 rank 19"
    assert message.body.split("\n") == [
        "Job 884213 ran out of GPU memory on rank 19 on gpu-22 (GPU 3) in the forward pass at step 1200: "
        "the working set does not fit on the GPU.",
        "Done: Cancelled job 884213; relaunched as job 884301 from step 1000 (micro batch size).",
        "Now: Job 884301 got past the failing step.",
        "Asked: nothing",
    ]
    assert (message.about.incident, message.about.owner, message.about.partition) == (ID, "ana", "gpu")


def test_an_escalation_pages_with_its_reason_and_what_is_asked() -> None:
    stopped = SAMPLES["escalated"]()
    message = _told(_running(stopped), stopped)
    assert message.severity is Severity.PAGE
    assert "a person is needed: The relaunch ran out of memory" in message.title
    assert f"Now: {stopped.conclusion}" in message.body
    assert "Asked: Ask ana: may sequences be cut to 4096 tokens?" in message.body


@pytest.mark.parametrize(
    ("summary", "severity"), [("declined: ana", Severity.WARNING), ("declined: nobody answered", Severity.PAGE)]
)
def test_whoever_said_no_is_not_woken_for_it(summary: str, severity: Severity) -> None:
    stopped = SAMPLES["escalated"]()
    visits = (BoxVisit("relaunch", 1, 1.0, 2.0, "declined", summary), BoxVisit("escalate", 1, 2.0, 3.0, "told", ""))
    assert _told(_running(stopped), replace(stopped, visits=visits)).severity is severity


def test_a_relaunch_is_told_when_it_is_submitted_and_when_it_fails() -> None:
    after = SAMPLES["two_attempts"]()
    first, second = after.attempts
    running = _running(after, attempts=())
    submitted = replace(running, attempts=(replace(first, verdict=None),))
    failed = replace(running, attempts=(first,))
    message = _told(running, submitted)
    assert message.severity is Severity.INFO and "relaunched as 884301" in message.title
    message = _told(submitted, failed)
    assert message.severity is Severity.WARNING and "relaunch 884301 failed again" in message.title
    assert "Now: Out of memory again at step 1204, in the backward pass. Its logs are read next." in message.body
    both = messages(failed, replace(after, attempts=(first, second)), URL)
    assert [one.event for one in both] == ["recovered:1:2", "relaunched:2"]


def test_drained_nodes_are_one_message_that_says_how_they_are_given_back() -> None:
    after = SAMPLES["hardware_fault"]()
    acts = tuple(
        Act("drain", node, 1.0, token=f"runbook:{ID}", result=f"runbook:{ID} Xid 63 pending") for node in ("a1", "a2")
    )
    before = _running(after, acts=())
    message = _told(before, replace(before, acts=(*acts, replace(acts[0], target="a3", planned_only=True))))
    assert message.severity is Severity.WARNING
    assert "drained a1, a2" in message.title
    assert "Now: a1: Xid 63 pending; a2: Xid 63 pending" in message.body
    assert f"`runbook rollback {ID} --undrain`" in message.body


def test_a_plan_and_a_stop_are_told() -> None:
    planned = SAMPLES["planned"]()
    message = _told(_running(planned), planned)
    assert message.severity is Severity.WARNING and "a plan, nothing was touched" in message.title
    assert f"`runbook resume {ID}`" in message.body
    stopped = replace(
        planned, state=IncidentState.INTERRUPTED, conclusion="Interrupted: Slurm does not answer.",
        to_do=(f"Mend that, then `runbook resume {ID}`.",),
    )
    message = _told(_running(planned), stopped)
    assert message.severity is Severity.PAGE
    assert "(llama-70b-sft): Interrupted: Slurm does not answer" in message.title
    assert f"Asked: Mend that, then `runbook resume {ID}`." in message.body


def test_nobody_is_told_of_what_is_no_news() -> None:
    for make in SAMPLES.values():
        incident = make()
        assert messages(incident, replace(incident, updated_s=incident.updated_s + 1), URL) == ()
        assert messages(None, replace(incident, trigger="files"), URL) == ()
    opened = SAMPLES["just_opened"]()
    assert messages(None, opened, URL) == ()
    assert messages(opened, replace(opened, state=IncidentState.CLOSED), URL) == ()


def test_the_same_step_gives_the_same_events_and_two_questions_two() -> None:
    asked = SAMPLES["awaiting"]()
    first = _told(_running(asked), asked)
    assert first == _told(_running(asked), asked)
    later = replace(asked, visits=(*asked.visits, BoxVisit("promote", 1, 3.0)), box="promote")
    again = replace(asked, run=2)
    assert len({first.event, _told(_running(later), later).event, _told(_running(again), again).event}) == 3


def test_a_question_is_repeated_before_it_lapses() -> None:
    asked = replace(SAMPLES["awaiting"](), updated_s=1000.0)
    day_s = 86_400.0
    assert reminder(asked, 1000.0 + day_s - 7201, day_s, URL) is None
    message = reminder(asked, 1000.0 + day_s - 3600, day_s, URL)
    assert message is not None and message.severity is Severity.PAGE
    assert "60 min left for your yes" in message.title
    assert "It counts as declined in 60 min." in message.body and f"`runbook approve {ID}`" in message.body
    assert reminder(asked, 1000.0 + day_s, day_s, URL) is None
    assert reminder(asked, 1000.0 + 700, 1000.0, URL) is None
    assert reminder(asked, 1000.0 + 800, 1000.0, URL) is not None
    assert reminder(_running(asked), 1000.0 + day_s - 3600, day_s, URL) is None


def test_every_message_is_short_and_what_others_wrote_in_it_is_harmless() -> None:
    for name, make in SAMPLES.items():
        for message in messages(None, make(), URL):
            assert len(message.title) <= TITLE_LIMIT, name
            assert "\n" not in message.title
            lines = message.body.split("\n")
            assert len(lines) <= 5 and all(0 < len(line) <= 320 for line in lines)
            assert "http" not in message.title + message.body
            assert not set("<>@\x1b\u202e") & set(message.title + message.body)


def test_a_job_s_name_calls_nobody_together_and_shows_no_secret() -> None:
    stopped = SAMPLES["escalated"]()
    assert stopped.failure is not None
    job = replace(stopped.failure.job, name="@channel \x1b[31mhttps://evil.example/x hf_abcdefghijklmnopqrstuvwxyz12")
    hostile = replace(
        stopped, failure=replace(stopped.failure, job=job), conclusion="password=hunter2 <!here|x> @everyone",
    )
    message = _told(_running(hostile), hostile)
    text = message.title + message.body
    assert "((at)channel hxxps://evi…)" in message.title
    assert "(at)everyone" in message.body and "‹!here" in message.body
    assert "hunter2" not in text and "abcdefghijklmn" not in text


@pytest.mark.parametrize(("name", "shown"), [
    ("**[ok](ftp://e)** _b_", "(okftp[:]//e b)"), ("@1all a＠here", "((at)1all a(at)here)"),
    ("www.e.x/a", "(www[.]e.x/a)"),
    ("`a`) waits for (b", "(a waits for b)"), ("train_7b.sh", "(train_7b.sh)"), ("~~x~~ ||y||", "(x y)"),
])
def test_a_job_s_name_is_no_markup_of_a_chat(name: str, shown: str) -> None:
    stopped = SAMPLES["escalated"]()
    assert stopped.failure is not None
    job = replace(stopped.failure.job, name=name)
    hostile = replace(stopped, failure=replace(stopped.failure, job=job), conclusion="[x](ftp://e) www.e.x ＠all")
    message = _told(_running(hostile), hostile)
    assert shown in message.title
    assert "[x] (ftp[:]//e) www[.]e.x (at)all" in message.body


def test_a_faulty_node_that_a_limit_keeps_in_service_pages_once() -> None:
    before = SAMPLES["running"]() if "running" in SAMPLES else _running(SAMPLES["awaiting"]())
    note = "gpu-21 is faulty and was left in service: 3 nodes were drained within an hour; the policy allows 3"
    visits = (BoxVisit("drain_node", 0, 1.0, 2.0, "held_back", note), BoxVisit("classify", 0, 2.0))
    after = replace(before, notes=(*before.notes, note), visits=(*before.visits, *visits))
    message = _told(before, after)
    assert message.severity is Severity.PAGE
    assert "left in service" in message.title and "3 nodes were drained within an hour" in message.body
    assert messages(after, after, URL) == ()
