"""Edits of the pipeline's layout: fewer layers on a stage at its edge."""

from __future__ import annotations

from runbook.remedy.arguments import Arguments
from runbook.remedy.document import Parameter
from runbook.remedy.edits import Made, edit_of
from runbook.remedy.situation import Refusal, Situation


def fewer_edge_layers(situation: Situation, parameter: Parameter, arguments: Arguments) -> Made | Refusal:
    """Fewer layers for the stage of `parameter` (the first or the last), as many as the stages in between can share
    evenly.

    `layers` and `stages` name the parameters with the number of layers and of pipeline stages, `other` the one with
    the layers of the other edge. Without either edge's number the layers are divided evenly (Megatron-LM,
    get_num_layers_to_build: what the edges leave must divide by the stages that are left).

    `edge` is `first` or `last`: where the failed rank is known, it has to be there. By default stages are the outermost
    order of Megatron's ranks; with the parameter `unless` they are not, and nothing is concluded."""
    layers, stages = situation.number(str(arguments["layers"])), situation.number(str(arguments["stages"]))
    other, present = situation.number(str(arguments["other"])), situation.number(parameter.id)
    for value in (layers, stages, other, present):
        if isinstance(value, Refusal):
            return value
    assert not isinstance(layers, Refusal) and not isinstance(stages, Refusal)
    assert not isinstance(other, Refusal) and not isinstance(present, Refusal)
    if layers is None or stages is None:
        spelling = situation.spelling(str(arguments["layers" if layers is None else "stages"]))
        return Refusal(f"{spelling} is not in the template", f"What is {spelling}? Write it into the template.")
    if stages == 1:
        return Refusal("there is one pipeline stage, so no layers can move to another")
    elsewhere = _elsewhere(situation, stages, arguments)
    if elsewhere is not None:
        return elsewhere
    inner = stages - 1 - (other is not None)
    if not inner:
        return Refusal(f"both edges of {stages} pipeline stages have their number of layers already")
    if present is None:
        if other is not None:
            present = (layers - other) // (inner + 1)
        elif layers % stages:
            return Refusal(f"{layers} layers do not divide among {stages} pipeline stages: how they lie is not known")
        else:
            present = layers // stages
    rest = layers - (other or 0)
    new = next((count for count in range(present - 1, 0, -1) if (rest - count) % inner == 0), None)
    if new is None:
        return Refusal(f"no number of layers below {present} leaves the same for each of the other {inner} stages")
    made = edit_of(situation, parameter, str(new))
    if isinstance(made, Refusal):
        return made
    return Made(made.edits, (f"{(rest - new) // inner} layers on each of the other {inner} stages",))


def _elsewhere(situation: Situation, stages: int, arguments: Arguments) -> Refusal | None:
    """That the failed rank is known to be on another stage than the edge."""
    cause, world = situation.story.root_cause, situation.world_size
    if situation.is_set(str(arguments["unless"])) or cause is None or cause.rank is None or not world or world % stages:
        return None
    stage = cause.rank // (world // stages)
    if stage == (0 if arguments["edge"] == "first" else stages - 1):
        return None
    return Refusal(
        f"rank {cause.rank} failed, which is on pipeline stage {stage + 1} of {stages}, not on the {arguments['edge']}"
    )
