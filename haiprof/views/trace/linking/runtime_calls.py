"""The calls of a device's runtime that block the host or give the device work, by their names.

Of CUDA, HIP and CANN; and as PyTorch's Python names them, where a trace does not have the call.

Tests: tests/views/trace/critical_path/test_path.py.
Tests: tests/views/trace/idle_causes/test_host.py.
"""

from __future__ import annotations

from typing import Final

#: They wait until work that was launched has ended.
SYNCHRONISES: Final = (
    r"^(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize|^synchronize(Stream|Event)?$"
    r"|^AscendCL@aclrtSynchronize"
)
#: Of these, those that wait for one event, not for all that was launched.
ONE_EVENT: Final = r"EventSynchronize|synchronizeEvent|aclrtSynchronizeEvent"
#: Copies that return when the data has arrived.
BLOCKING_COPIES: Final = (
    r"^(cuda|hip)Memcpy(DtoH|ToSymbol)?$|^cuMemcpyDtoH(_v2)?$|^hipMemcpyWithStream$"
    r"|^AscendCL@aclrtMemcpy$"
)
#: All copies, of which some return earlier.
COPIES: Final = r"^(cuda|hip|cu)Memcpy|^AscendCL@aclrtMemcpy"
#: They make a stream wait for an event.
STREAM_WAITS: Final = r"^((cuda|hip|cu)|AscendCL@aclrt)StreamWaitEvent"
#: They give a device work. Without ``\w``, which stands for letters of all languages and takes
#: polars eight times as long to prepare.
LAUNCHES: Final = r"^(cuda|cu|hip)([A-Za-z0-9_]*Launch|(Memcpy|Memset)[A-Za-z0-9_]*Async)"
#: The caching allocator asks the driver for memory by them, or returns it.
ALLOCATES: Final = (
    r"^(cuda|hip)(Malloc|Free)(Async|Managed)?$"
    r"|^(cu|hip)Mem(Alloc|Free|Map|Unmap|Create|Release|SetAccess|AddressReserve)(Async)?(_v2)?$"
    r"|^AscendCL@aclrt(Malloc|Free|MapMem|UnmapMem|ReserveMemAddress)[A-Za-z0-9_]*$"
)
