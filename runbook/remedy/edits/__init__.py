"""The edits that lever documents name: from a context to new values, or why not.

Each function takes the context, the parameter and the document's arguments. A function never returns the value that is
in force already. Functions on the allocator's variable are in `allocator_variable.py`, those on the batch in
`global_batch.py`, those on other values in `values.py`.
"""

from __future__ import annotations

from runbook.remedy.edits import values
from runbook.remedy.edits.allocator_variable import merge_allocator
from runbook.remedy.edits.global_batch import derives, double_to_keep_global_batch, halve, halve_dividing
from runbook.remedy.edits.parameter_edit import Edits, Function, edit_of

FUNCTIONS: dict[str, Function] = {
    "set": values.set_value,
    **{
        function.__name__: function
        for function in (
            double_to_keep_global_batch, halve, halve_dividing, merge_allocator, values.also_set,
            values.ask_for_its_name, values.double,
            values.drop_from_list, values.fewer_edge_layers, values.follow, values.halve_list, values.halve_number,
            values.keep_product,
            values.lower_budget, values.move_parallelism, values.multiply_as, values.next_below,
            values.next_divisor_of_world, values.next_in, values.raise_memory, values.remove, values.shift,
            values.switch_off, values.switch_on,
        )
    },
}

SIZED = frozenset({halve.__name__, halve_dividing.__name__})
"""Those that can take the micro-batch to another size than half."""
KEEPING = frozenset(
    function.__name__
    for function in (double_to_keep_global_batch, values.follow, values.keep_product, values.multiply_as)
)
"""Those that go with another edit, so that the global batch stays what it is."""

__all__ = ["FUNCTIONS", "KEEPING", "SIZED", "Edits", "derives", "edit_of"]
