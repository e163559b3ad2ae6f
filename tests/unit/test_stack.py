"""Walking a deep graph must not kill the program: not the walk, and not the moment when the graph is freed.

torch frees a graph that Python has seen by recursion in C; each program here runs in a process of its own, which has to
come to its end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import torch

import graphscope
from graphscope.capture.walking import stack

PRELUDE = """
import os, resource, sys, threading
import torch
import graphscope

def chain(length, step=lambda z: z * 1.01 + 0.1, per_step=2):
    z = torch.rand(1, requires_grad=True)
    for _ in range(length // per_step):
        z = step(z)
    return z

def walk_and_free(z):
    data = graphscope.walk(z).data
    before = resource.getrlimit(resource.RLIMIT_STACK)
    print(len(data.nodes), "stopped" if data.notices else "complete")
    return data.check()

def in_thread(work, kilobytes):
    threading.stack_size(kilobytes * 1024)
    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
"""


def run(program: str) -> list[str]:
    """The lines that a program printed; it has to end well."""
    process = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(program) + "\nprint('end')\n"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.returncode == 0, process.stderr
    *lines, last = process.stdout.splitlines()
    assert last == "end"
    return lines


def test_a_long_chain_in_the_main_thread_is_walked_whole() -> None:
    lines = run(
        """
        limits = resource.getrlimit(resource.RLIMIT_STACK)
        z = chain(300_000)
        data = walk_and_free(z)
        del z
        print(resource.getrlimit(resource.RLIMIT_STACK) == limits)
        print(data.by_id["n0"].kind.value, len(data.edges))
        """
    )
    assert lines == ["300002 complete", "True", "leaf 300001"]


def test_a_chain_that_is_still_in_the_frame_at_the_end_is_freed() -> None:
    assert run("z = chain(50_000)\nwalk_and_free(z)") == ["50002 complete"]


def test_a_hard_limit_stops_the_walk() -> None:
    lines = run(
        """
        resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, 8 << 20))
        z = chain(60_000)
        data = walk_and_free(z)
        del z
        print(data.notices[0])
        print(resource.getrlimit(resource.RLIMIT_STACK) == (8 << 20, 8 << 20))
        """
    )
    assert lines[0].endswith("stopped")
    assert 10_000 < int(lines[0].split()[0]) < 20_000
    assert "what lies behind is not shown" in lines[1]
    assert lines[2] == "True"


def test_the_soft_limit_is_raised_up_to_a_hard_one() -> None:
    lines = run(
        """
        resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, 64 << 20))
        z = chain(100_000)
        walk_and_free(z)
        del z
        print(resource.getrlimit(resource.RLIMIT_STACK) == (8 << 20, 64 << 20))
        """
    )
    assert lines == ["100002 complete", "True"]


def test_deep_graphs_of_every_kind_of_node_in_a_small_thread_stop_the_walk() -> None:
    lines = run(
        """
        class Passing(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.clone()
            @staticmethod
            def backward(ctx, grad):
                return grad

        def hooked(z):
            z.register_hook(lambda grad: grad)
            return z

        steps = {
            "multiply": lambda z: z * 1.01,
            "sine": lambda z: z.sin(),
            "foreach": lambda z: torch._foreach_mul([z], 1.01)[0],
            "view": lambda z: z.view(1),
            "largest": lambda z: z.topk(1)[0],
            "custom": Passing.apply,
            "hooked": lambda z: hooked(z * 1.01),
        }

        def work():
            # of 3,000 hooks, and under Python 3.13 of 1,400 custom Functions, torch dies here though nobody looked
            z = chain(1_200 if name in {"custom", "hooked"} else 3_000, step, 1)
            walk_and_free(z)
            del z

        for name, step in steps.items():
            print(name, flush=True)
            in_thread(work, 512)
        """
    )
    assert lines[::2] == ["multiply", "sine", "foreach", "view", "largest", "custom", "hooked"]
    for line in lines[1::2]:
        count, state = line.split()
        assert state == "stopped"
        assert 500 < int(count) < 900


def test_lists_of_chained_states_in_a_small_thread_stop_the_walk() -> None:
    lines = run(
        """
        class Gather(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *xs):
                return xs[0] * len(xs)
            @staticmethod
            def backward(ctx, grad):
                return (grad,) * 4_001

        def work():
            states = [torch.rand(1, requires_grad=True)]
            for _ in range(4_000):
                states.append(states[-1] * 1.01)
            loss = gather(states).sum()
            walk_and_free(loss)
            del loss, states

        for gather in (torch.stack, torch.cat, lambda states: Gather.apply(*states)):
            in_thread(work, 512)
        """
    )
    assert lines == ["3 stopped"] * 3


def test_small_threads_in_which_all_goes_well() -> None:
    lines = run(
        """
        def small_graph():
            walk_and_free(chain(400))

        def names_of_many_states():
            states = [torch.rand(1, requires_grad=True)]
            for _ in range(20_000):
                states.append(states[-1] * 1.01)
            print(len(graphscope.walk(states[3]).nodes))
            states.reverse()
            last = states[0]
            states.clear()
            del last

        def growing_graph():
            z = torch.rand(1, requires_grad=True)
            for _ in range(60):
                for _ in range(100):
                    z = z * 1.01
                graphscope.walk(z).check()

        def fork():
            child = os.fork()
            if child == 0:
                z = chain(20_000)
                data = graphscope.walk(z).data
                del z
                os._exit(0 if data.notices else 3)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

        for work in (small_graph, names_of_many_states, growing_graph, fork):
            print(work.__name__, flush=True)
            in_thread(work, 512)
        """
    )
    assert lines == ["small_graph", "402 complete", "names_of_many_states", "5", "growing_graph", "fork", "0"]


def test_the_depth_is_that_of_the_running_thread() -> None:
    depths: list[int] = []
    before = threading.stack_size(1024 * 1024)
    try:
        worker = threading.Thread(target=lambda: depths.append(stack.safe_depth()))
        worker.start()
        worker.join()
    finally:
        threading.stack_size(before)
    assert 1_500 < depths[0] < 1024 * 1024 // 200
    assert depths[0] < stack.safe_depth()


def test_reserving_what_is_there_changes_nothing() -> None:
    lines = run(
        """
        from graphscope.capture.walking import stack
        print(stack.reserve_depth(10) == stack.safe_depth(), stack.reserve_depth(10) == stack.safe_depth())
        """
    )
    assert lines == ["True True"]


def test_a_thread_that_python_did_not_start_is_not_registered() -> None:
    """``threading.current_thread()`` would make up an entry for it; see ``_in_first_thread``."""
    import _thread

    done = threading.Event()
    known: list[int] = []

    def work() -> None:
        graphscope.walk(torch.ones(1, requires_grad=True) * 2)
        known.append(len(threading.enumerate()))
        done.set()

    before = len(threading.enumerate())
    _thread.start_new_thread(work, ())
    assert done.wait(10)
    assert known == [before]
