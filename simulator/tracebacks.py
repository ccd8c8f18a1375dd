"""Pure: the frames below the training script in a PyTorch traceback, by phase of the step.

File names and functions are PyTorch's; line numbers are plausible, not exact. What a reader needs is kept: the
innermost frames tell forward, loss, backward, recomputation in backward, and the optimizer's step apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from .versions import TorchVersion
from .workload import Phase

_SITE = "/usr/local/lib/python3.11/dist-packages"
_MODEL = "/workspace/model/transformer.py"


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame: absolute file, line, function and the source line shown."""

    file: str
    line: int
    function: str
    code: str

    def text(self) -> list[str]:
        """The two lines that Python prints."""
        return [f'  File "{self.file}", line {self.line}, in {self.function}', f"    {self.code}"]


def _torch(file: str, line: int, function: str, code: str) -> Frame:
    return Frame(f"{_SITE}/torch/{file}", line, function, code)


_CALL = (
    _torch("nn/modules/module.py", 1739, "_wrapped_call_impl", "return self._call_impl(*args, **kwargs)"),
    _torch("nn/modules/module.py", 1750, "_call_impl", "return forward_call(*args, **kwargs)"),
)
_LINEAR = _torch("nn/modules/linear.py", 125, "forward", "return F.linear(input, self.weight, self.bias)")
_CHECKPOINT = _torch("utils/checkpoint.py", 496, "checkpoint", "ret = function(*args, **kwargs)")
_BACKWARD = (
    _torch("_tensor.py", 626, "backward", "torch.autograd.backward("),
    _torch("autograd/__init__.py", 347, "backward", "_engine_run_backward("),
    _torch(
        "autograd/graph.py",
        823,
        "_engine_run_backward",
        "return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass",
    ),
)
_BACKWARD_BEFORE_2_3 = (
    _torch("_tensor.py", 522, "backward", "torch.autograd.backward("),
    _torch(
        "autograd/__init__.py",
        266,
        "backward",
        "Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass",
    ),
)
_RECOMPUTE = (
    _torch("utils/checkpoint.py", 1129, "unpack_hook", "frame.recompute_fn(*args)"),
    _torch("utils/checkpoint.py", 1529, "recompute_fn", "fn(*args, **kwargs)"),
)
_GATHER = (
    _torch(
        "distributed/fsdp/_fully_shard/_fsdp_param_group.py",
        290,
        "unshard",
        "self._all_gather_result = foreach_all_gather(",
    ),
    _torch(
        "distributed/fsdp/_fully_shard/_fsdp_collectives.py",
        207,
        "foreach_all_gather",
        "all_gather_output = torch.empty(",
    ),
)
_STEP = (
    _torch("optim/optimizer.py", 493, "wrapper", "out = func(*args, **kwargs)"),
    _torch("optim/optimizer.py", 91, "_use_grad", "ret = func(self, *args, **kwargs)"),
    _torch("optim/adamw.py", 232, "step", "has_complex = self._init_group("),
)
_STEP_INIT = _torch("optim/adamw.py", 175, "_init_group", 'state["exp_avg_sq"] = torch.zeros_like(')
_STEP_UPDATE = (
    _torch("optim/adamw.py", 243, "step", "adamw("),
    _torch("optim/adamw.py", 875, "adamw", "func("),
    _torch("optim/adamw.py", 699, "_multi_tensor_adamw", "exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)"),
)


def _model(line: int, function: str, code: str) -> Frame:
    return Frame(_MODEL, line, function, code)


def torch_frames(
    phase: Phase, version: TorchVersion, checkpointed: bool, gathering: bool, creating_states: bool
) -> tuple[Frame, ...]:
    """Frames to print below the script's own, outermost first."""
    layer = (_model(212, "forward", "hidden_states = layer(hidden_states, attention_mask)"), *_CALL)
    block = (_model(147, "forward", "hidden_states = residual + self.mlp(self.norm_2(hidden_states))"), *_CALL)
    inside = (_model(98, "forward", "return self.dropout(self.down(F.gelu(self.up(x))))"), *_CALL, _LINEAR)
    backward = _BACKWARD if version >= (2, 3) else _BACKWARD_BEFORE_2_3
    if phase is Phase.FORWARD:
        start = (*_CALL, *layer, *((_CHECKPOINT,) if checkpointed else ()))
        return (*start, *_GATHER) if gathering else (*start, *block, *inside)
    if phase is Phase.LOSS:
        return (
            _model(241, "loss", "return F.cross_entropy(logits.float().view(-1, self.vocab_size), labels.view(-1))"),
            _torch("nn/functional.py", 3494, "cross_entropy", "return torch._C._nn.cross_entropy_loss("),
        )
    if phase is Phase.RECOMPUTE:
        return (*backward, *_RECOMPUTE, *block, *inside)
    if phase is Phase.BACKWARD:
        return (*backward, *_GATHER) if gathering else backward
    if phase is Phase.OPTIMIZER_STEP:
        return (*_STEP, _STEP_INIT) if creating_states else (*_STEP[:2], *_STEP_UPDATE)
    if phase is Phase.LOAD:
        return (
            _torch("distributed/checkpoint/state_dict_loader.py", 211, "load", "_load_state_dict("),
            _torch("optim/optimizer.py", 880, "_process_value_according_to_param_policy", "return value.to("),
        )
    return (
        _torch("nn/modules/module.py", 1343, "to", "return self._apply(convert)"),
        _torch("nn/modules/module.py", 903, "_apply", "module._apply(fn)"),
        _torch("nn/modules/module.py", 930, "_apply", "param_applied = fn(param)"),
        _torch("nn/modules/module.py", 1329, "convert", "return t.to("),
    )
