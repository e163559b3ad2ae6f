"""What this torch tells of its graphs: some of it under private names that an older or newer one may lack."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.autograd.graph


class Fact(NamedTuple):
    """Something graphscope would like to read."""

    meaning: str
    private_name: str
    available: bool


def available_facts() -> list[Fact]:
    """Look for every private name at a node of a small graph; nothing is run backward."""
    with torch.enable_grad():
        node = (torch.ones(1, requires_grad=True) ** 2).grad_fn
    at_nodes = {
        "saved tensors, without unpacking them": "_raw_saved_self",
        "shapes and dtypes of results": "_input_metadata",
        "the order in which operations ran": "_sequence_nr",
    }
    facts = [Fact(meaning, name, hasattr(type(node), name)) for meaning, name in at_nodes.items()]
    entry = "_engine_run_backward"
    return [*facts, Fact("the moment before a backward", entry, hasattr(torch.autograd.graph, entry))]
