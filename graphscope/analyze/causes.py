"""Every cause and every hazard that graphscope knows: how bad it is, what it says, what to do.

One table, so that no detector invents words of its own. Braces are filled in by ``say``; a sentence whose braces
cannot be filled is left out, so that nothing is stated that is not known.
"""

from __future__ import annotations

import string
from typing import NamedTuple

from graphscope.findings import Cause, Hazard, Severity
from graphscope.model import Location


class Words(NamedTuple):
    """What is said of a cause: sentences with `` | `` between them; see ``say``."""

    message: str
    remedy: str = ""


CAUSES: dict[Cause, Words] = {
    Cause.FROZEN: Words(
        "requires_grad=False, so autograd leaves {name} alone. | {where} may have set it.",
        "If it should train, call requires_grad_() on it before the forward pass.",
    ),
    Cause.CONSTANT: Words(
        "Nothing asked for a gradient: requires_grad=False, as inputs, buffers and labels have.",
        "If its gradient is wanted, call requires_grad_() on it before it is used.",
    ),
    Cause.UNUSED: Words(
        "Nothing that {root} depends on read {name}.",
        "Use it on the way to {root}. If it is not meant to train, freeze or remove it.",
    ),
    Cause.NO_GRAD: Words(
        "On the way from {name} to {root}, values were computed with gradients off: {switch}.",
        "Move what should train out of there, or take the switch away.",
    ),
    Cause.INFERENCE_MODE: Words(
        "On the way from {name} to {root}, values were computed in inference mode, which records nothing: {switch}.",
        "Take inference_mode away where something should train. Inside it enable_grad() does not help, "
        "inference_mode(False) does.",
    ),
    Cause.DETACH: Words(
        "detach() cuts the way from {root} back to {name}.",
        "Remove the detach(). If the cut is wanted, freeze what lies before it.",
    ),
    Cause.DATA: Words(
        "Here only numbers are handed on, past autograd, as .data does: no gradient comes from {root} to {name}.",
        "Compute with the tensors themselves. To use other weights in a module, call torch.func.functional_call.",
    ),
    Cause.INTEGER_DTYPE: Words(
        "{op} gives integers or truth values. They carry no gradient, so none comes from {root} to {name}.",
        "Use something soft in its place (softmax, sigmoid, a weighted sum), or a straight-through estimator.",
    ),
    Cause.NON_DIFFERENTIABLE: Words(
        "{op} has no derivative, so no gradient comes through it from {root} to {name}.",
        "Use a differentiable operation in its place.",
    ),
    Cause.LEFT_PYTORCH: Words(
        "What was computed from {name} left PyTorch (numpy, item, tolist, float, torch.tensor). The numbers that came "
        "back know nothing of it.",
        "Stay with tensors: torch.stack instead of torch.tensor([…]), torch operations instead of numpy's.",
    ),
    Cause.CUSTOM_FUNCTION: Words(
        "The forward of a custom autograd.Function reads {name} by itself, and autograd records nothing in there.",
        "Pass it to apply() as an argument, and return its gradient from backward.",
    ),
    Cause.NON_LEAF: Words(
        "No leaf: backward passes through it and fills .grad of {leaf}.",
        "Read .grad of the leaf, or call {name}.retain_grad() before backward.",
    ),
    Cause.NOT_IN_GRAPH: Words(
        "{other} was read in the place of {name}.",
        "Let forward use {name} itself, or train the tensor that is really used.",
    ),
    Cause.UNKNOWN: Words(
        "No gradient comes from {root} to {name}. Why is not known.",
        "{advice}",
    ),
}

CHECKPOINTED = Words(
    "{name} is used in a block of a reentrant checkpoint that got no tensor that requires grad: {where}.",
    "Use checkpoint(…, use_reentrant=False), or call requires_grad_() on the input of the block.",
)
NEW_LEAF = Words(
    "nn.Parameter(…) makes a new leaf that takes only the numbers, so no gradient comes from {root} through it to "
    "{name}.",
    "Give the module the tensor itself: torch.func.functional_call computes with weights that are results.",
)
DETACHED_INSIDE = Words(
    "The values are taken without their history here, as detach() does: no gradient comes from {root} to {name}.",
    "Use the tensor itself there. If the cut is wanted, freeze what lies before it.",
)
NAME_GIVEN_AWAY = Words(
    "{where} computes a new tensor with gradients off and calls it {name}: it has no history, and the leaf that "
    "was called {name} is out of reach.",
    "Change the leaf in place there, under torch.no_grad(): {name} -= …, or {name}.copy_(…).",
)
NONE_RETURNED = Words(
    "The backward of {op} returns None where {name} waits for its gradient ({where}).",
    "Return its gradient from backward, in the order of forward's arguments.",
)
ELSEWHERE = " | The backward at {elsewhere} does reach it."
"""Added to whatever is said of a tensor that another loss trains."""

NEVER_CALLED = Words(
    "{owner} was not called while the program ran, so nothing read {name}.",
    "Call it in forward. If it is not meant to train, freeze or remove it.",
)
DROPPED = Words(
    "What was computed from {name} ended in {end} at {where} and never came into {root}.",
    "Use that result on the way to {root}. If it is only to be looked at, compute it under torch.no_grad().",
)
WITHOUT_HISTORY = Words("Nothing that it was computed from requires grad.")
MARKED_ONCE = Words(
    "{root} is made of a gradient whose Function is marked @once_differentiable: it has no way back to {name}.",
    "Remove @once_differentiable and write backward with differentiable operations.",
)


class Kind(NamedTuple):
    """A kind of hazard."""

    severity: Severity
    message: str
    remedy: str


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

HAZARDS: dict[str, Kind] = {
    "saved_tensor_modified": Kind(
        _E,
        "{writer} at {where} overwrites what {saver} at {saved_where} keeps for backward ({slot}). | It was at "
        "version {before} when it was kept and is at version {after} now, so backward will raise.",
        "Write to a copy (x = x + y instead of x += y, or clone() before), or call backward before the write.",
    ),
    "saved_tensor_modified_by_optimizer": Kind(
        _E,
        "{where} changes parameters that {saver} at {saved_where} keeps for a backward that has not run yet. | They "
        "were at version {before} then and are at version {after} now, so that backward will raise.",
        "Call every backward() that needs the old weights before step(), or run the forward pass again after it.",
    ),
    "silent_overwrite": Kind(
        _E,
        "{where} overwrites, through .data, what {saver} at {saved_where} keeps for backward ({slot}). | torch does "
        "not notice: backward will run and give wrong gradients.",
        "Write under torch.no_grad() to the tensor itself, so that torch can notice, and after backward.",
    ),
    "graph_freed": Kind(
        _E,
        "{root} is built on a graph that {freed_where} has run backward and freed: backward will raise. | {where} "
        "uses that graph again.",
        "{advice} | retain_graph=True at {freed_where} keeps the graph, and its memory.",
    ),
    "graph_already_run": Kind(
        _N,
        "A backward has already run through the graph of {root}: its saved tensors are freed.",
        "To run backward again, call the first one with retain_graph=True, or run the forward pass again.",
    ),
    "graph_retained": Kind(
        _W,
        "{name} keeps {operations} and {bytes} alive that {root} does not need. | {how}",
        "{advice}",
    ),
    "running_total": Kind(
        _N,
        "{name} adds up {rounds} results with their graphs: {operations} and {bytes} stay alive until it goes.",
        "If it is only to be shown, add loss.detach() or loss.item(). To train on the sum it is right as it is.",
    ),
    "attribute_keeps_graph": Kind(
        _N,
        "{name} holds a result with its graph ({operations}, {bytes}) until the next forward. | Until then the "
        "module cannot be deep-copied or pickled.",
        "Store {name}.detach() if it is only to be looked at.",
    ),
    "graph_grows": Kind(
        _W,
        "Every backward at {where} runs through the graphs of all rounds before it: a state made at {state_where} is "
        "carried on with its history. | The graph has {operations} now and grows with every round.",
        "Detach the state between rounds (state = state.detach()); then retain_graph=True is not needed.",
    ),
    "zero_derivative": Kind(
        _W,
        "The derivative of {op} is zero everywhere, so backward will fill {names} with zeros.",
        "Leave the rounding out in training, or pass the gradient straight through: x + (x.round() - x).detach().",
    ),
    "gradient_without_graph": Kind(
        _N,
        "{name} is a gradient computed at {where} without create_graph=True. For {root} it is a constant: nothing "
        "trains through it.",
        "Pass create_graph=True to torch.autograd.grad (or backward) there, if {root} is to train through it.",
    ),
    "gradient_is_none": Kind(
        _W,
        "The backward of {op} returns None for {name}: the graph leads there, but no gradient will arrive.",
        "Return its gradient from backward, in the order of forward's arguments.",
    ),
    "infinite_derivative": Kind(
        _W,
        "{op} is taken of {count} where its derivative is infinite: backward will bring inf or NaN. | A mask "
        "after it (where, multiplication by 0) does not help, since 0 times inf is NaN.",
        "Keep the values away from that point before {op}: add a small eps, or use clamp or where on its input.",
    ),
    "inference_tensor_in_grad": Kind(
        _N,
        "A tensor made in inference mode at {made_where} is read at {where}, where gradients are on. | That works as "
        "long as backward does not need it: a product or a matmul with it will raise.",
        "Make it under torch.no_grad() instead, or clone() it outside the inference_mode block.",
    ),
    "loss_without_history": Kind(
        _E,
        "{root} has no history: backward() will raise. | {why}",
        "{advice}",
    ),
    "loss_is_leaf": Kind(
        _E,
        "{root} was made a leaf by requires_grad=True. backward() runs, fills only {root}.grad, and trains nothing. "
        "| {why}",
        "Do not set requires_grad on a loss. {advice}",
    ),
    "everything_frozen": Kind(
        _E,
        "None of the {count} parameters requires grad, so nothing is recorded. | {where} sets it.",
        "Look at what chooses the parameters to train: it chose none.",
    ),
    "reentrant_checkpoint_cut": Kind(
        _E,
        "The reentrant checkpoint at {where} got no tensor that requires grad, so what it returns has no history, "
        "and {names} inside get no gradient.",
        "Use checkpoint(…, use_reentrant=False), or call requires_grad_() on the input of the block.",
    ),
    "grad_mode_left_off": Kind(
        _W,
        "Gradients are still off at the end: {switch} was never undone.",
        "Use it as a block: with torch.no_grad(): …, or with torch.set_grad_enabled(flag): …",
    ),
    "no_grad_without_effect": Kind(
        _W,
        "{code} as a statement does nothing: it makes a context manager and drops it.",
        "Write with torch.no_grad(): and put what it is meant for into the block.",
    ),
    "no_grad_on_value": Kind(
        _W,
        "{code} does not switch gradients off for {word}: it wraps it as if it were a function.",
        "Write with torch.no_grad(): around the computation, or {word}.detach().",
    ),
    "volatile_without_effect": Kind(
        _W,
        "volatile=True has had no effect since PyTorch 0.4: what is computed is recorded as ever.",
        "Compute under with torch.no_grad():",
    ),
    "call_missing": Kind(
        _W,
        "{code} without parentheses names the method and does not call it.",
        "Write {code}().",
    ),
    "suspicious_attribute": Kind(
        _W,
        "{attribute} = {value} sets an attribute that torch does not know; {names} did not change.",
        "Write {meant}.",
    ),
    "not_in_optimizer": Kind(
        _W,
        "{names} will get a gradient, but no optimizer in sight holds {it}: {it_short} will not change.",
        "Make the optimizer after the model is complete, or add_param_group({names}).",
    ),
    "optimizer_holds_strangers": Kind(
        _W,
        "{optimizer} holds {count} ({shapes}) that no module in sight has, while {names} {are} in no optimizer: "
        "{they} replaced or added after {optimizer} was made, and will not change.",
        "Make the optimizer after moving, converting, wrapping or replacing layers.",
    ),
    "unregistered_module": Kind(
        _W,
        "{name} {are} kept in a plain attribute of {owner}, so parameters() does not find {it}: the gradient is "
        "filled, but no optimizer made of parameters(), no to(device) and no state_dict() reaches {it}.",
        "Keep layers in nn.ModuleList or nn.ModuleDict, parameters in nn.ParameterList, a tensor in nn.Parameter.",
    ),
    "leaf_rebound": Kind(
        _W,
        "{name} is no leaf: it is the result of {op} on the tensor that requires grad, and that tensor has no name "
        "any more. {name}.grad stays None.",
        "{first} first, then ask for the gradient: {name} = {how}.",
    ),
    "train_layer_in_no_grad": Kind(
        _W,
        "{layers} in training mode under {mode}: no_grad does not switch {what} to evaluation.",
        "Call model.eval() before, and model.train() after.",
    ),
    "dropout_in_eval": Kind(
        _W,
        "Dropout is active although {module} is in eval mode: the functional form does not look at the module.",
        "Pass training=self.training, or use nn.Dropout.",
    ),
    "eval_still_records": Kind(
        _N,
        "The model is in eval mode, but gradients are on: the graph is recorded and {bytes} are kept for backward.",
        "For inference, compute under with torch.no_grad(): or torch.inference_mode().",
    ),
    "double_backward_unsupported": Kind(
        _E,
        "{root} depends on a gradient that cannot be differentiated: {why}",
        "{advice}",
    ),
    "derivative_not_implemented": Kind(
        _E,
        "torch has no derivative of {op} at {where}: the graph looks connected, and backward will raise.",
        "Use another operation or another form of the call there.",
    ),
    "complex_loss": Kind(
        _W,
        "{root} is complex. backward() without an explicit gradient takes only a real scalar.",
        "Use a real number made of it: {root}.abs() or {root}.real.",
    ),
    "hook_on_accumulator": Kind(
        _N,
        "{code} takes the AccumulateGrad node of a parameter. It lives only as long as a graph or a variable holds "
        "it; a hook on a dropped one never runs.",
        "Keep the node in a list, or use parameter.register_post_accumulate_grad_hook.",
    ),
}
"""By kind; ``hazards`` makes them, and names of kinds stand nowhere else."""

_TOLD_AS = {
    "saved_tensor_modified_by_optimizer": "saved_tensor_modified",
    "running_total": "graph_retained",
    "attribute_keeps_graph": "graph_retained",
    "graph_grows": "graph_retained",
    "no_grad_on_value": "no_grad_without_effect",
}
"""Kinds with words of their own that belong to a kind of the contract."""


def say(sentences: str, **words: object) -> str:
    """Sentences with their braces filled; one that needs a word that is missing or empty is left out.

    >>> say("{name} is frozen. | {where} did it.", name="w", where=None)
    'w is frozen.'
    """
    known = {key: str(value) for key, value in words.items() if value is not None and value != ""}
    said = []
    for sentence in sentences.split(" | "):
        needed = {field for _, field, _, _ in string.Formatter().parse(sentence) if field}
        if needed <= known.keys():
            said.append(sentence.format_map(known))
    return " ".join(said)


def make_hazard(
    kind: str,
    location: Location | None,
    also: tuple[Location | None, ...] = (),
    *,
    severity: Severity | None = None,
    tensors: tuple[str, ...] = (),
    nodes: tuple[str, ...] = (),
    **words: object,
) -> Hazard:
    """A hazard in the words of the table; ``severity`` where this one is milder than its kind."""
    entry = HAZARDS[kind]
    places = {(place.file, place.line): place for place in reversed(also) if place is not None}
    if location is not None:
        places.pop((location.file, location.line), None)
    further = tuple(reversed(places.values()))
    return Hazard(
        _TOLD_AS.get(kind, kind),
        severity or entry.severity,
        location,
        further,
        say(entry.message, **words),
        say(entry.remedy, **words),
        tensors,
        nodes,
    )
