"""What a training run needs on a GPU: terms by published formulas, corrected by the job's own figures."""

from runbook.foresight.forecasts import forecast, largest_that_fits
from runbook.foresight.memory_document import MemoryDocument, System, compiled_memory, load_memory
from runbook.foresight.memory_terms import Part
from runbook.foresight.settings import (
    RunReading,
    field_named,
    parameters_of,
    published_model,
    run_of_settings,
    shape_of_config,
    shape_of_model,
    typed_value,
    with_changes,
)
from runbook.foresight.training_run import (
    Anchor,
    Forecast,
    Interval,
    Recompute,
    RefusedRequest,
    Sharding,
    TrainingRun,
)

__all__ = [
    "Anchor",
    "Forecast",
    "Interval",
    "MemoryDocument",
    "Part",
    "Recompute",
    "RefusedRequest",
    "RunReading",
    "Sharding",
    "System",
    "TrainingRun",
    "compiled_memory",
    "field_named",
    "forecast",
    "largest_that_fits",
    "load_memory",
    "parameters_of",
    "published_model",
    "run_of_settings",
    "shape_of_config",
    "shape_of_model",
    "typed_value",
    "with_changes",
]
