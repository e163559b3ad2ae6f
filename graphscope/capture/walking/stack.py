"""How deep a graph may be walked before freeing it would overflow the C stack.

Once Python has touched every node of a chain, torch frees that chain by recursion in C, 200 to 390 bytes of
stack a node (measured on torch 2.13 and 2.14). The crash comes later, when the user's own tensor
goes. So a walk asks here first how many nodes the running thread can afford.

On Linux the main thread's stack grows on demand up to its soft limit. Raising the limit for the moment of
one read far below the stack pointer makes the kernel grow it there and then; the growth stays
when the limit is put back, costs address space but no memory, and no child process inherits it.

That a graph is freed in another thread, with a smaller stack than the one it was walked in, cannot be foreseen.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path

_BYTES_PER_NODE = 512
"""Stack that freeing one node may take, with a margin for other builds. Measured were 200 (addmm), 290 (_foreach_mul),
and under Python 3.13 390 (a custom Function)."""

_RESERVED = 160 * 1024
"""Stack left for whatever runs when the graph is freed."""

_SMALLEST_STACK = 256 * 1024
"""Assumed where the system does not tell: the safe side."""

_UNLIMITED_STACK = 8 * 1024 * 1024
"""Counted on at first where no limit is set; ``reserve_depth`` finds out how much there really is."""

_ROOM_BELOW = 64 * 1024 * 1024
"""Address space never taken between the stack and the mapping below it."""


def safe_depth() -> int:
    """How many nodes deep a chain can be so that the running thread can still free it."""
    return max((_stack_bytes() - _RESERVED) // _BYTES_PER_NODE, 0)


def has_fixed_limit() -> bool:
    """Whether ``reserve_depth`` comes to an end before the address space does."""
    if sys.platform != "linux" or not _in_first_thread():
        return True
    import resource

    return resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY


def reserve_depth(depth: int) -> int:
    """Make room for a chain ``depth`` nodes deep where the system allows, and return the safe depth then."""
    if sys.platform == "linux" and _in_first_thread():
        grown = _grow_main_stack(depth * _BYTES_PER_NODE + _RESERVED)
        return max(safe_depth(), (grown - _RESERVED) // _BYTES_PER_NODE)
    return safe_depth()


def _stack_bytes() -> int:
    if sys.platform == "win32":
        low, high = ctypes.c_size_t(), ctypes.c_size_t()
        ctypes.windll.kernel32.GetCurrentThreadStackLimits(ctypes.byref(low), ctypes.byref(high))
        return high.value - low.value
    if _in_first_thread():
        return _main_stack_bytes()
    try:
        return _thread_stack_bytes()
    except (OSError, AttributeError):
        return _SMALLEST_STACK


def _in_first_thread() -> bool:
    """On the stack that the process began with. After a fork in another thread, that one is called main, but is not."""
    main = threading.main_thread()
    return main.ident == threading.get_ident() and type(main).__name__ == "_MainThread"


def _main_stack_bytes() -> int:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return _UNLIMITED_STACK if soft == resource.RLIM_INFINITY else soft


def _thread_stack_bytes() -> int:
    """Stack of the running POSIX thread (``pthread_getattr_np`` on Linux, its namesake call on macOS)."""
    library = ctypes.CDLL(None)
    library.pthread_self.restype = ctypes.c_void_p
    thread = ctypes.c_void_p(library.pthread_self())
    if sys.platform == "darwin":
        library.pthread_get_stacksize_np.restype = ctypes.c_size_t
        return int(library.pthread_get_stacksize_np(thread))
    attributes = ctypes.create_string_buffer(256)  # larger than pthread_attr_t anywhere
    if library.pthread_getattr_np(thread, attributes) != 0:
        return _SMALLEST_STACK
    address, size = ctypes.c_void_p(), ctypes.c_size_t()
    library.pthread_attr_getstack(attributes, ctypes.byref(address), ctypes.byref(size))
    library.pthread_attr_destroy(attributes)
    return size.value


_GUARD = 1024 * 1024
"""Asked for beyond the byte that is read, so that the kernel's guard below the stack fits too."""


def _stack_mapping() -> tuple[int, int, int] | None:
    """Start and end of the main stack's mapping, and the end of the mapping below it; Linux only."""
    try:
        with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
            below = 0
            for line in maps:
                start, end = (int(edge, 16) for edge in line.split(" ", 1)[0].split("-"))
                if line.rstrip().endswith("[stack]"):
                    return start, end, below
                below = end
    except OSError:
        return None
    return None


def _grow_main_stack(wanted: int) -> int:
    """Grow the main thread's stack to ``wanted`` bytes if it can be, and return what it has now."""
    import resource

    mapping = _stack_mapping()
    if mapping is None:
        return 0
    start, end, below = mapping
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    size = min(wanted, end - below - _ROOM_BELOW)
    if hard != resource.RLIM_INFINITY:
        size = min(size, hard - _GUARD)
    if size <= end - start:
        return end - start
    if soft != resource.RLIM_INFINITY and soft < size + _GUARD:
        try:
            resource.setrlimit(resource.RLIMIT_STACK, (size + _GUARD, hard))
        except (ValueError, OSError):
            return end - start
    try:
        ctypes.c_char.from_address(end - size).value  # noqa: B018  the read makes the kernel grow the stack down to it
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
    return size
