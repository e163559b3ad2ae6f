"""Which ops stand in one box: those that ran under one switch without leaving it."""

from __future__ import annotations

import torch

import graphscope


def regions_of(graph: graphscope.Graph) -> list[str | None]:
    return [node.region for node in graph.nodes if node.op == "add"]


def test_ops_of_one_line_under_one_switch_share_a_region() -> None:
    x, y, z = torch.ones(3, requires_grad=True), torch.ones(3), torch.ones(3)
    with graphscope.recording() as rec, torch.no_grad():
        w = x + y + z
    graph = rec.graph(w).check()
    assert regions_of(graph) == ["r0", "r0"]
    (region,) = graph.data.regions
    assert region.mode == "no_grad"
    assert region.location is not None
    assert region.location.code.startswith("with graphscope.recording() as rec, torch.no_grad():")


def test_coming_back_to_a_block_makes_another_region() -> None:
    x = torch.ones(3, requires_grad=True)
    with graphscope.recording() as rec:
        total = x.detach()
        for _ in range(2):
            with torch.no_grad():
                total = total + 1
            total = total * x.sum().item()
    graph = rec.graph(total).check()
    assert regions_of(graph) == ["r0", "r1"]
    assert len({region.location for region in graph.data.regions}) == 1
