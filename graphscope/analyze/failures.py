"""The story of an error that autograd raised: what led to it, the line at fault, what to change.

torch's message says what was refused. Who is to blame has run before: the op that overwrote, the backward that freed,
the block that was in force. It stands in the graph, and a hazard of the graph usually tells it already.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from graphscope.analyze.causes import CAUSES, MARKED_ONCE, say
from graphscope.analyze.explain import explain_sight
from graphscope.analyze.flow import Flow
from graphscope.analyze.hazards.derivatives import reading_line
from graphscope.analyze.hazards.roots import main_cause
from graphscope.analyze.sight import Sight
from graphscope.findings import Cause, Explained, Failure, Hazard, Raised, to_place
from graphscope.model import Clue, GraphData, Kind, Location, Node, State


class _Scene(NamedTuple):
    """Everything that a story is made of."""

    raised: Raised
    sight: Sight
    explanation: Explained
    match: re.Match[str]

    def hazard(self, *kinds: str) -> Hazard | None:
        """The first hazard of these kinds."""
        return next((one for one in self.explanation.hazards if one.kind in kinds), None)


class _Story(NamedTuple):
    location: Location | None
    message: str
    remedy: str
    also: tuple[Location | None, ...] = ()


def explain_failure(data: GraphData, raised: Raised) -> Explained:
    """The explanation of a graph with the story of the error that ended the program."""
    sight = Sight(data=data, flow=Flow(data=data), starts_backward=raised.in_backward)
    explanation = explain_sight(sight)
    for pattern, tell in _STORIES:
        match = pattern.search(f"{raised.type}: {raised.text}")
        story = tell(_Scene(raised, sight, explanation, match)) if match is not None else None
        if story is not None:
            return _with_error(explanation, raised, story)
    return _with_error(explanation, raised, _Story(raised.location, "", ""))


def _with_error(explanation: Explained, raised: Raised, story: _Story) -> Explained:
    location = story.location or raised.location
    places = (*story.also, raised.location)
    further = dict.fromkeys(place for place in places if place is not None and place != location)
    failure = Failure(
        raised.type,
        raised.text,
        location,
        tuple(further),
        story.message,
        story.remedy,
    )
    return Explained(
        roots=explanation.roots,
        tensors=explanation.tensors,
        hazards=explanation.hazards,
        error=failure,
        recorded=explanation.recorded,
    )


# ------------------------------------------------------------------------------------- memory and graphs


def _of_hazard(hazard: Hazard, *also: Location | None) -> _Story:
    return _Story(hazard.location, hazard.message, hazard.remedy, (*hazard.also, *also))


def _overwritten(scene: _Scene) -> _Story:
    hazard = scene.hazard("saved_tensor_modified")
    if hazard is not None:
        return _of_hazard(hazard)
    return _Story(
        scene.raised.location,
        "A tensor that an operation had kept for backward was written in place before backward ran. "
        "Which line wrote it is not known: it ran outside the recording.",
        "Write to a copy: x = x + y instead of x += y.",
    )


def _freed(scene: _Scene) -> _Story | None:
    if not scene.raised.in_backward:
        return _Story(
            scene.raised.location,
            "This line reads saved tensors of a backward node, and a backward has freed them.",
            "Read them before backward, or call backward with retain_graph=True.",
        )
    hazard = scene.hazard("graph_freed")
    if hazard is not None:
        return _of_hazard(hazard)
    ran = [one for one in scene.sight.evidence[Clue.BACKWARD] if "retain_graph" not in one.words]
    first = next((one.location for one in ran), None)
    root = scene.sight.root_words
    return _Story(
        first,
        f"The backward at {to_place(first)} freed the graph of {root}, and {to_place(scene.raised.location)} runs "
        "backward through it again.",
        "Call the first one with retain_graph=True, add the losses and call backward once, "
        "or run the forward pass again.",
    )


def _no_history(scene: _Scene) -> _Story | None:
    hazard = scene.hazard("everything_frozen", "reentrant_checkpoint_cut", "loss_is_leaf", "loss_without_history")
    if hazard is not None:
        return _of_hazard(hazard)
    made = scene.sight.made
    marks = scene.sight.statements("once_differentiable")
    if len(marks) == 1 and any("create_graph" in one.words for one in scene.sight.evidence[Clue.BACKWARD]):
        return _Story(
            marks[0].location,
            say(MARKED_ONCE.message, root=scene.sight.root_words, name="its input"),
            MARKED_ONCE.remedy,
        )
    cause = main_cause(scene.sight, made[0], scene.explanation.tensors) if made else None
    if cause is not None:
        why = say(CAUSES[cause.cause].remedy)
        return _Story(cause.location, f"{scene.sight.root_words} lost its history at {to_place(cause.location)}.", why)
    leaves = [
        node
        for place, node in enumerate(scene.sight.data.nodes)
        if node.kind is Kind.LEAF and scene.sight.flow.cuts[place] is not None and node.location is not None
    ]
    return _Story(
        leaves[0].location if len(leaves) == 1 else made[0].location if made else None,
        f"Nothing that {scene.sight.root_words} is made of requires grad.",
        "Call requires_grad_() on what should be trained, before it is used.",
    )


def _non_leaf_optimized(scene: _Scene) -> _Story:
    hazard = next((one for one in scene.explanation.hazards if one.kind == "leaf_rebound"), None)
    return _Story(
        hazard.location if hazard is not None else scene.raised.location,
        hazard.message if hazard is not None else "An optimizer was given a tensor that was computed, not a leaf.",
        hazard.remedy if hazard is not None else "Give it the leaf, or call detach().requires_grad_() on the result.",
    )


def _not_used(scene: _Scene) -> _Story | None:
    rows = [row for row in scene.explanation.tensors if row.requires_grad and not row.receives_grad and row.is_leaf]
    row = next(iter(rows), None)
    if row is not None:
        return _Story(row.location or scene.raised.location, row.message, row.remedy)
    return _Story(
        scene.raised.location,
        f"A gradient is asked for a tensor that {scene.sight.root_words} does not depend on.",
        "Compute with it on the way, or pass allow_unused=True and take None for its gradient.",
    )


def _grad_is_none(scene: _Scene) -> _Story | None:
    """``None`` where the program expects a gradient; the failing line says whose."""
    place = scene.raised.location
    names = _GRAD_OF.findall(place.code) if place is not None else []
    if not names:
        return None
    rows = [row for row in scene.explanation.tensors if {row.name, *row.aliases} & set(names)]
    row = next((one for one in rows if not one.receives_grad), None)
    if row is None and not rows:  # as in a loop over parameters
        row = next(iter(scene.explanation.missing), None)
    name = row.name if row is not None else names[0]
    if row is not None and row.cause is Cause.NON_LEAF:
        return _Story(
            row.location,
            f"{name}.grad is None: {name} is no leaf, it was computed at {to_place(row.location)}, and backward fills "
            "only the .grad of leaves.",
            f"To update a leaf, change it in place under with torch.no_grad(): {name} -= …. To see the gradient of a "
            f"result, call {name}.retain_grad() before backward.",
            (place,),
        )
    if row is not None and row.cause is not None:
        return _Story(row.location or place, f"{name}.grad is None. {row.message}", row.remedy, (place,))
    return _Story(
        place,
        f"{names[0]}.grad is None here: no backward has filled it yet, or zero_grad() has emptied it since.",
        "Read it after backward() and before zero_grad().",
    )


# ------------------------------------------------------------------------------------- writes in place


def _leaf_written(scene: _Scene) -> _Story:
    view = "a view of " if "view" in scene.match[0] else ""
    return _Story(
        scene.raised.location,
        f"This line writes in place to {view}a leaf that requires grad while gradients are on: its old value would "
        "be lost to autograd.",
        "To set values by hand, write under with torch.no_grad():. To compute with it, make a new tensor: x = x + y.",
    )


def _view_written(scene: _Scene) -> _Story:
    name = scene.match["node"]
    if name.startswith("BackwardHookFunction"):
        hooks = scene.sight.statements("backward_hook")
        return _Story(
            hooks[0].location if len(hooks) == 1 else scene.raised.location,
            "A full backward hook wraps what the module returns in a view that must not be written in place"
            + (f", and {scene.raised.module} after it writes in place." if scene.raised.module else "."),
            "Use the layer that follows with inplace=False, or hook the tensor: output.register_hook(…).",
        )
    maker = _maker_of(scene, name)
    if "multiple views" in scene.match.string:
        return _Story(
            scene.raised.location,
            f"This line writes in place to one of several views that {maker.op if maker else name} made at once.",
            "Write to a copy of it: clone() first, or build the result with torch.stack or torch.cat.",
            (maker.location if maker is not None else None,),
        )
    return _Story(
        scene.raised.location,
        "This line writes in place to what a custom autograd.Function returned as a view of its input.",
        "Return a clone() from forward, or write to a copy.",
        (maker.location if maker is not None else None,),
    )


def _no_grad_view_written(scene: _Scene) -> _Story:
    regions = [one.location for one in scene.sight.data.regions if one.mode in {"no_grad", "inference_mode"}]
    return _Story(
        scene.raised.location,
        "This line writes in place, with gradients on, to a view that was made with gradients off.",
        "Make the view and write to it in the same mode.",
        (regions[-1] if regions else None,),
    )


def _maker_of(scene: _Scene, name: str) -> Node | None:
    return next((node for node in reversed(scene.sight.data.nodes) if node.backward == name), None)


# ------------------------------------------------------------------------------------- modes and kinds of tensors


def _inference(scene: _Scene) -> _Story:
    made = _inference_tensor(scene)
    return _Story(
        _inference_block(scene, made) or (made.location if made is not None else None),
        "A tensor made in inference mode is used where gradients are on, and autograd would have to keep it.",
        "Make it under torch.no_grad() instead, or clone() it outside the block before it is used.",
        (made.location if made is not None else None,),
    )


def _inference_block(scene: _Scene, made: Node | None) -> Location | None:
    """The block in which an inference tensor was made; of one that left no trace, the last block before the error."""
    for region in scene.sight.data.regions:
        if made is not None and region.id == made.region:
            return region.location
    place = made.location if made is not None else scene.raised.location
    blocks = [
        one.location
        for one in scene.sight.statements("inference_block")
        if one.location is not None and place is not None and one.location.file == place.file
    ]
    before = [block for block in blocks if place is not None and block.line <= place.line]
    return blocks[0] if len(blocks) == 1 else before[-1] if before else None


def _inference_tensor(scene: _Scene) -> Node | None:
    """The one that the failing line names, else the last one."""
    nodes = (node for node in scene.sight.data.nodes if node.kind is not Kind.OUTPUT)
    found = [node for node in nodes if any(info.is_inference for info in node.outputs)]
    words = set(re.findall(r"[^\W\d]\w*", scene.raised.location.code if scene.raised.location else ""))
    named = [node for node in found if words.intersection(node.names)]
    candidates = named or found
    return candidates[-1] if candidates else None


def _float_only(scene: _Scene) -> _Story:
    return _Story(
        scene.raised.location,
        "Integers and truth values carry no gradient: indices (argmax, topk, max) and comparisons cannot be asked for "
        "one.",
        "Ask the values for their gradient, not the indices; or convert to float where the numbers are a quantity.",
    )


def _non_leaf_flag(scene: _Scene) -> _Story:
    return _Story(
        scene.raised.location,
        "requires_grad can only be switched off on a leaf, and this tensor was computed.",
        "Use x = x.detach(), or compute it under with torch.no_grad():.",
    )


def _numpy(scene: _Scene) -> _Story:
    return _Story(
        scene.raised.location,
        "numpy cannot record operations, so a tensor with a history is not handed to it.",
        "To look at numbers, use x.detach().numpy(). To train through it, use torch operations instead.",
    )


def _not_scalar(scene: _Scene) -> _Story:
    made = scene.sight.made[0] if scene.sight.made else None
    info = made.outputs[0] if made is not None and made.outputs else None
    root = scene.sight.root_words
    if info is not None and str(info.dtype).startswith("complex"):
        message = f"{root} is complex ({info.dtype}); backward() without an explicit gradient takes only a real scalar."
        remedy = f"Make a real number of it: {root}.abs() or {root}.real."
    else:
        shape = "×".join(map(str, info.shape)) if info is not None and info.shape else "more than one"
        message = f"{root} is no scalar (shape {shape}): backward() does not know what to start from."
        remedy = f"Reduce it ({root}.mean() or .sum()), or give the gradient: {root}.backward(gradient)."
    return _Story(made.location if made is not None else None, message, remedy)


def _copied(scene: _Scene) -> _Story:
    hazards = [one for one in scene.explanation.hazards if one.kind == "graph_retained"]
    made = scene.sight.made[0] if scene.sight.made else None
    place = made.location if made is not None else None
    name = made.names[0] if made is not None and made.names else "A tensor"
    found = next((one for one in hazards if made is not None and set(one.tensors) & set(made.names)), None)
    return _Story(
        found.location if found is not None else place,
        f"{name} holds a result with its history, and only leaves can be copied or stored.",
        "Keep it detached (x.detach()), or set the attribute to None before copying.",
    )


def _fake(scene: _Scene) -> _Story:
    return _Story(
        scene.raised.location,
        "Fake tensors have shapes and no numbers, and this line needs a number.",
        "Take item(), comparisons, masks and branches on numbers out of the run on fake tensors.",
    )


# ------------------------------------------------------------------------------------- derivatives


def _no_derivative(scene: _Scene) -> _Story:
    hazard = scene.hazard("double_backward_unsupported", "derivative_not_implemented")
    if hazard is not None:
        return _of_hazard(hazard)
    wanted = (scene.match.groupdict().get("op") or "").lstrip("_").removesuffix("_backward")
    node = next((one for one in scene.sight.data.nodes if wanted and one.op == wanted), None)
    return _Story(
        node.location if node is not None else scene.raised.location,
        f"torch has no derivative of {wanted or 'an operation'} here.",
        "Use another operation, or another form of the call, there.",
    )


def _wrong_gradient(scene: _Scene) -> _Story:
    node = _maker_of(scene, scene.match["node"])
    nan = "nan" in scene.match[0]
    infinite = scene.hazard("infinite_derivative")
    if nan and infinite is not None:
        return _of_hazard(infinite)
    place = (node.location or reading_line(scene.sight, node)) if node is not None else None
    what = "gives NaN" if nan else "gives a gradient that does not fit"
    return _Story(
        place,
        f"The backward of {node.op or scene.match['node'] if node is not None else scene.match['node']} {what}. "
        f"Its forward ran at {to_place(place)}.",
        "Look at the values that go into it: 0 under a root or a logarithm, a division by 0, an overflow."
        if nan
        else "Let backward return one gradient for each input, of the input's shape and dtype.",
    )


def _unpacking(scene: _Scene) -> _Story | None:
    """An unpack hook raised: below a backward, or where a line reads saved tensors."""
    hooks = scene.sight.statements("saved_hooks")
    packed = any(saved.state is State.PACKED for node in scene.sight.data.nodes for saved in node.saved)
    code = scene.raised.location.code if scene.raised.location is not None else ""
    if not hooks or not ("_saved" in code or (packed and scene.raised.in_backward)):
        return None
    return _Story(
        hooks[0].location if len(hooks) == 1 else scene.raised.location,
        "Reading a saved tensor runs the unpack hook given here, and the hook raised.",
        "Let unpack return the tensor that pack was given.",
    )


def _wrapped_value(scene: _Scene) -> _Story | None:
    marks = scene.sight.statements("switch_on_value")
    hazard = scene.hazard("no_grad_without_effect")
    return _of_hazard(hazard) if marks and hazard is not None else None


def _no_parentheses(scene: _Scene) -> _Story | None:
    code = scene.raised.location.code if scene.raised.location is not None else ""
    word = re.search(r"\b(no_grad|enable_grad|inference_mode)\b", code)
    if word is None:
        return None
    return _Story(
        scene.raised.location,
        f"{word[1]} without parentheses is a class, and a with block needs an instance of it.",
        f"Write with torch.{word[1]}():",
    )


def _hook_without_gradient(scene: _Scene) -> _Story:
    return _Story(
        scene.raised.location,
        "A hook waits for a gradient, and this tensor will get none: it does not require grad.",
        "Hook a tensor that is recorded; look whether this one was made under no_grad() or detached.",
    )


def _no_parameters(scene: _Scene) -> _Story:
    return _Story(
        scene.raised.location,
        "The optimizer was given no parameter: the module has registered none, or model.parameters() had been gone "
        "through before.",
        "Call model.parameters() anew for each optimizer, and keep layers in nn.ModuleList, not in a plain list.",
    )


def _unused_in_reduction(scene: _Scene) -> _Story | None:
    missing = scene.explanation.missing
    if not missing:
        return None
    return _Story(missing[0].location, missing[0].message, missing[0].remedy)


_GRAD_OF = re.compile(r"([\w.\[\]]*\w\]?)\.grad\b")

_Teller = Callable[[_Scene], _Story | None]

_STORIES: tuple[tuple[re.Pattern[str], _Teller], ...] = tuple(
    (re.compile(pattern), tell)
    for pattern, tell in (
        (r"modified by an inplace operation", _overwritten),
        (r"backward through the graph a second time|saved (variables|tensors) after they have", _freed),
        (
            r"does not require grad and does not have a grad_fn|differentiated Tensors does not require grad",
            _no_history,
        ),
        (r"appears? to not have been used in the graph", _not_used),
        (r"(a view of )?a leaf Variable that requires grad is being used in an in-place", _leaf_written),
        (r"leaf variable has been moved into the graph interior", _leaf_written),
        (r"Output \d+ of (?P<node>\w+) is a view", _view_written),
        (r"view was created in (no_grad|inference) mode", _no_grad_view_written),
        (r"[Ii]nference tensor", _inference),
        (r"[Oo]nly Tensors of floating point.*can require grad", _float_only),
        (r"can't optimize a non-leaf", _non_leaf_optimized),
        (r"can only change requires_grad flags of leaf", _non_leaf_flag),
        (r"Can't call numpy\(\) on Tensor that requires grad", _numpy),
        (r"grad can be implicitly created only for", _not_scalar),
        (r"support the deepcopy protocol|serialize non-leaf tensor", _copied),
        (r"derivative for '?(aten::)?(?P<op>\w+)'? is not implemented", _no_derivative),
        (r"differentiate twice|double backward|higher order grad|twice differentiable", _no_derivative),
        (r"[Ff]unction '?(?P<node>\w+)'? returned (nan|an invalid gradient|an incorrect number)", _wrong_gradient),
        (
            r"DataDependentOutputException|DynamicOutputShapeException|GuardOnDataDependent|to FakeTensor\.__format__",
            _fake,
        ),
        (r"must be Tensor, not function", _wrapped_value),
        (r"does not support the (asynchronous )?context manager protocol|AttributeError: __enter__", _no_parentheses),
        (r"cannot register a hook on a tensor that doesn't require grad", _hook_without_gradient),
        (r"optimizer got an empty parameter list", _no_parameters),
        (r"NoneType", _grad_is_none),
        (r"finished reduction in the prior iteration", _unused_in_reduction),
        (r"", _unpacking),
    )
)
"""By what torch says, the first that has a story to tell. Texts are those of torch/csrc/autograd."""
