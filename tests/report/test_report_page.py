"""The page as text: small, self-contained, in the order of need, and nothing of the logs is markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from runbook.model.incident import BoxVisit, Incident, IncidentState
from runbook.report.charts.flow_chart import FlowArrow, FlowBox, FlowPicture
from runbook.report.html import Site, live_script_address, render_html
from tests.report.sample_incidents import (
    FLOW,
    HOSTILE,
    OPENED_S,
    SAMPLES,
    awaiting,
    co_tenant,
    escalated,
    hardware_fault,
    hostile,
    just_opened,
    planned,
    recovered,
    two_attempts,
    unreachable_node,
)


class _Page(HTMLParser):
    """Every start tag with its attributes, the text, and whether tags are balanced."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data + " "


def page_of(incident: Incident) -> _Page:
    return _Page(render_html(incident, FLOW))


def words(page: _Page) -> str:
    return " ".join(page.text.split())


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_page_is_small_well_formed_and_asks_for_nothing(name: str) -> None:
    source = render_html(SAMPLES[name](), FLOW, {"version": 1, "text": HOSTILE})
    assert len(source.encode()) < 300_000
    page = _Page(source)
    assert page.open == []
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "iframe", "object", "embed", "form", "base", "audio", "video"}
    for tag, attributes in page.tags:
        assert not [key for key in attributes if key.startswith("on") or key in ("src", "srcset", "action", "style")]
        target = attributes.get("href")
        assert target is None or target == "data:," or target.startswith(("#", "./evidence/")), (tag, target)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_links_inside_the_page_lead_somewhere(name: str) -> None:
    page = page_of(SAMPLES[name]())
    ids = {attributes["id"] for _, attributes in page.tags if attributes.get("id")}
    for _, attributes in page.tags:
        target = attributes.get("href") or ""
        assert not target.startswith("#") or target[1:] in ids


def test_the_page_answers_in_the_order_of_somebody_just_woken() -> None:
    text = words(page_of(recovered()))
    order = [
        "Recovered",
        "Job 884213 ran out of GPU memory on rank 19 on gpu-22 (GPU 3) in the forward pass at step 1200",
        "Relaunched as job 884301",
        "What to do first",
        "runbook promote oom-alpha-884213",
        "Allocated by PyTorch 73.61 GiB",
        "1.37 GiB short",
        "57.80 GiB",
        "93 %",
        "Mathematics unchanged",
        "- --micro-batch-size 4",
        "+ --micro-batch-size 2",
        "process arguments",
        "Verify passed 3 h 14 min",
        "no fault found",
        "runbook:oom-alpha-884213:1",
        "llama-70b-sft-884213.out:8123",
        "evidence/llama-70b-sft-884213.out",
        "To drop it, do nothing",
    ]
    place = 0
    for piece in order:
        found = text.find(piece, place)
        assert found >= 0, f"{piece!r} does not come after what precedes it"
        place = found


@pytest.mark.parametrize(
    ("incident", "pieces"),
    [
        (
            two_attempts(),
            ("Attempt 1: job 884301 failed", "Attempt 2: job 884377 passed", "Same samples, other rounding"),
        ),
        (escalated(), ("Needs a person", "Ask ana: may sequences be cut to 4096 tokens?")),
        (replace(recovered(), promoted="train.sh.bak"), ("kept as train.sh.bak", "runbook rollback oom-alpha-884213")),
        (awaiting(), ("runbook approve oom-alpha-884213", "submit train.sh with --micro-batch-size 2")),
        (planned(), ("Planned", "What is planned", "planned, not done", "There is nothing to undo")),
        (hardware_fault(), ("GPU hardware fault", "Kept off gpu-22", "runs on 3 nodes", "Double Bit ECC", "--undrain")),
        (co_tenant(), ("Simulation:", "bo", "31.20 GiB", "unknown: the process is gone from /proc", "timed out")),
        (unreachable_node(), ("did not answer (timeout)", "does not give the GPU's memory", "not seen", "now")),
        (just_opened(), ("has not been read yet", "There is no diagnosis yet.")),
    ],
    ids=lambda value: value.id if isinstance(value, Incident) else "",
)
def test_what_the_page_says(incident: Incident, pieces: tuple[str, ...]) -> None:
    text = words(page_of(incident))
    for piece in pieces:
        assert piece in text


@pytest.mark.parametrize(
    ("incident", "done", "again"),
    [
        (recovered(), "Cancelled job 884213; relaunched as job 884301 from step 1000 (micro batch size).",
         "Yes. Job 884301 got past the failing step."),
        (two_attempts(), "relaunched as job 884377", "Yes. Job 884377 got past the failing step."),
        (escalated(), "relaunched as job 884301", "No. Job 884301 failed again."),
        (co_tenant(), "Cancelled job 884213.", "No. It was not relaunched."),
        (planned(), "Nothing on the cluster.", "No, only planned. Nothing was submitted."),
        (awaiting(), "Cancelled job 884213.", "Not yet."),
        (hardware_fault(), "drained gpu-22; relaunched as job 884301 from step 1000.", "Yes."),
        (unreachable_node(), "relaunched as job 884301", "Not proven yet. Job 884301 was submitted and has not passed"),
        (just_opened(), "Nothing on the cluster.", "Not yet."),
        (replace(just_opened(), state=IncidentState.CLOSED), "Nothing on the cluster.", "Left as it was."),
        (replace(unreachable_node(), state=IncidentState.ESCALATED), "relaunched", "Not proven yet. Job 884301 was"),
    ],
    ids=lambda value: value.id + value.state if isinstance(value, Incident) else "",
)
def test_what_was_done_and_whether_the_job_runs_again(incident: Incident, done: str, again: str) -> None:
    text = words(page_of(incident))
    top = text[: text.index("On this page")] if "On this page" in text else text[: text.index("What died Diagnosis")]
    assert done in top
    assert incident.failure is None or "Job llama-70b-sft of ana , 4 nodes" in top
    assert f"Runs again {again}" in top


def test_the_timeline_runs_across_all_attempts_in_order() -> None:
    text = words(page_of(two_attempts()))
    line = text[text.index("Time (UTC) From opening") : text.index("The path through the runbook")]
    place = 0
    for piece in (
        "Job 884213 started", "Job 884213 failed", "Incident opened", "Cancelled job 884213", "attempt 1",
        "Submitted job 884301", "Job 884301 failed again", "attempt 2", "Submitted job 884377",
        "Job 884377 got past the failing step", "Incident over",
    ):
        place = line.index(piece, place)


@pytest.mark.parametrize(
    ("incident", "title"),
    [
        (recovered(), "Recovered: job 884213 llama-70b-sft, true out of memory"),
        (awaiting(), "Waits for approval: job 884213 llama-70b-sft, true out of memory"),
        (just_opened(), "Running: job 884999_4"),
    ],
)
def test_the_title_says_in_a_tab_or_a_chat_which_job_and_how_it_stands(incident: Incident, title: str) -> None:
    source = render_html(incident, FLOW)
    assert f"<title>{title}</title>" in source
    assert f'<meta property="og:title" content="{title}">' in source


def test_each_lever_says_whether_it_changes_the_mathematics() -> None:
    text = words(page_of(two_attempts()))
    assert "The mathematics of training stays the same: the same samples, the same global batch." in text
    assert "sums are rounded in another order" in text
    assert "Fragmented allocator. Against it: expandable_segments:True was already set." in text


def test_only_a_simulation_is_called_one() -> None:
    assert "Simulation:" not in words(page_of(recovered()))


def test_hostile_text_is_shown_as_text_without_what_is_invisible() -> None:
    source = render_html(hostile(), FLOW)
    assert "<script>document" in words(_Page(source))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", source)
    assert "{{ 7*7 }}" in words(_Page(source))


@pytest.mark.parametrize("name", ["javascript:alert(1)", "//evil.example/x", "../../etc/passwd", "http://evil.example"])
def test_a_kept_copy_links_only_below_the_page(name: str) -> None:
    page = page_of(replace(recovered(), evidence_files=(name,)))
    targets = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    kept = [target for target in targets if target and not target.startswith("#")]
    assert len(kept) == 1
    assert re.fullmatch(r"\./[^:]*", kept[0] or "")
    assert ".." not in (kept[0] or "")


def test_the_served_page_names_kept_copies_without_a_link() -> None:
    source = render_html(recovered(), FLOW, site=Site())
    assert "./evidence/" not in source
    assert "evidence/llama-70b-sft-884213.out" in source


def test_a_served_page_at_work_has_one_script_and_is_loaded_again_where_none_runs() -> None:
    source = render_html(unreachable_node(), FLOW, site=Site(live_s=5))
    page = _Page(source)
    assert [attributes.get("src") for tag, attributes in page.tags if tag == "script"] == [live_script_address()]
    assert '<noscript><meta http-equiv="refresh" content="10"></noscript>' in source
    assert "<script" not in render_html(recovered(), FLOW, site=Site()).split("<body>")[0]


def test_a_box_that_looked_many_times_is_one_number_of_the_path() -> None:
    visits = recovered().visits
    polls = tuple(BoxVisit("verify", 1, OPENED_S + n, OPENED_S + n + 1, "waiting") for n in range(300))
    text = words(page_of(replace(recovered(), visits=(*visits[:9], *polls, *visits[9:]))))
    assert "10 Verify passed (301 looks)" in text
    assert "12 Report written" in text


def test_a_flow_of_another_shape_is_drawn_too() -> None:
    boxes = tuple(FlowBox(f"b{n}", f"Box {n}") for n in range(30))
    arrows = tuple(
        FlowArrow(f"b{n}", f"b{m}", f"o{m}") for n in range(30) for m in (n + 1, n + 2, n - 5, n, 29) if m >= 0
    )
    source = render_html(recovered(), FlowPicture("Other", boxes, arrows))
    assert source.count('class="box ') == 30
    assert "NaN" not in source
    assert render_html(recovered(), FlowPicture("Empty", (), ()))
