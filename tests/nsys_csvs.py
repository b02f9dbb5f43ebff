"""What ``nsys stats --format csv`` prints of a small report, in the columns of nsys 2024."""

from __future__ import annotations

from pathlib import Path

GPU = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),"
    "DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name"
)
API = "Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name"
NVTX = (
    "Start (ns),End (ns),Duration (ns),DurChild (ns),DurNonChild (ns),Name,PID,TID,Lvl,NumChild,"
    "RangeId,ParentId,RangeStack,NameTree"
)
SUM = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"
TABLES = {
    "cuda_gpu_trace": [
        GPU,
        '500,200,11,8,2,1,256,1,1,40,0.004,0.016,,,,,NVIDIA H100 (0),1,,7,"void k<int, 2>(int*)"',
        "900,50,12,,,,,,,,,,2.000,40000.000,Pinned,Device,NVIDIA H100 (0),1,,8,"
        "[CUDA memcpy Host-to-Device]",
        "990,5,13,,,,,,,,,,0.001,1.000,,Device,NVIDIA H100 (0),1,,7,[CUDA memset]",
        "2600,100,14,1,1,1,32,1,1,16,0.000,0.000,,,,,NVIDIA H100 (0),1,,7,ncclDevKernel_AllReduce",
    ],
    "cuda_api_trace": [
        API,
        "400,20,cudaLaunchKernel_v7000,0,11,41,42,20,python3",
        "800,20,cudaMemcpyAsync_v3020,0,12,41,42,20,python3",
        "980,5,cudaMemsetAsync_v3020,0,13,41,42,20,python3",
        "2500,20,cudaLaunchKernel_v7000,0,14,41,42,20,python3",
    ],
    "nvtx_pushpop_trace": [
        NVTX,
        "100,2000,1900,0,1900,:step 7,41,42,0,1,1,,:1,:step 7",
        "350,450,100,0,100,:aten::mm,41,42,1,0,2,1,:1:2,:step 7:aten::mm",
        "2100,3000,900,0,900,:step 8,41,42,0,1,3,,:3,:step 8",
        "2400,2550,150,0,150,NCCL:ncclAllReduce,41,42,1,0,4,3,:3:4,x",
    ],
    "cuda_gpu_kern_sum": [
        SUM,
        '66.7,200,1,200.0,200.0,200,200,0.0,"void k<int, 2>(int*)"',
        "33.3,100,1,100.0,100.0,100,100,0.0,ncclDevKernel_AllReduce",
    ],
}  # fmt: skip

#: The same ranges as ``nvtx_gpu_proj_trace`` prints them, of the default domain.
PROJECTED = (
    "Name,Projected Start (ns),Projected Duration (ns),Orig Start (ns),Orig Duration (ns),Style,"
    "PID,TID,NumGPUOps,Lvl,NumChild,RangeId,ParentId,RangeStack\n"
    ":step 7,500,495,100,1900,PushPop,41,42,3,0,1,1,,:1\n"
    ":aten::mm,500,200,350,100,PushPop,41,42,1,1,0,2,1,:1:2\n"
    ":step 8,2600,100,2100,900,PushPop,41,42,1,0,1,3,,:3\n"
)


def write(folder: Path, *tables: str, report: str = "report1") -> Path:
    """Write tables, by default all, as ``--output`` does."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in tables or TABLES:
        (folder / f"{report}_{name}.csv").write_text("\n".join(TABLES[name]) + "\n")
    return folder


def printed(*tables: str) -> str:
    """Return what is printed without ``--output``, nsys' own lines included."""
    return "\n".join(
        f"Processing [report1.sqlite] with [/opt/nvidia/{name}.py]... \n"
        + "\n".join(TABLES[name])
        + "\n"
        for name in tables or TABLES
    )
