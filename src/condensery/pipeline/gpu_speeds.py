"""Published throughput of GPUs in large matrix products, and the time that work takes at a given share of this throughput."""

from condensery.stages.workload import Work

TERA = 1e12
# Operations per second of dense products with bf16 inputs (V100, T4, RTX 2080 Ti: fp16) and fp32 sums (NVIDIA)
GPUS = {
    "b200": 2250 * TERA,
    "h200": 989 * TERA,
    "h100": 989 * TERA,  # SXM module
    "h100_pcie": 756 * TERA,
    "a100": 312 * TERA,
    "l40s": 362 * TERA,
    "l4": 121 * TERA,
    "a10": 125 * TERA,
    "rtx4090": 165 * TERA,
    "rtx3090": 71 * TERA,
    "v100": 125 * TERA,
    "t4": 65 * TERA,
    "rtx2080ti": 54 * TERA,
}
FP32 = 1 / 8  # share of the throughput in GPUS that exact search reaches, because its matrix products are in fp32


def seconds_on_gpu(work: Work, gpu: str, share: float) -> float | None:
    """Return the seconds of the work on a GPU, at the share ``share`` of its published throughput; None if unknown.

    The CPU seconds of the work besides matrix products are added unchanged.
    """
    if not work.known:
        return None
    return (work.seconds or 0.0) + (work.step_flops + (work.products or 0.0) / FP32) / (share * GPUS[gpu])
