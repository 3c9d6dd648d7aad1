//! Reads the fault of a GPU from the text of a failure. Nothing else in Gristmill parses the text of
//! an error.

/// A fault of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GpuFault {
    /// The memory of the GPU is full: because of the data, or of what the process has kept.
    Memory,
    /// The process can no longer use the GPU, mostly because of an error in the script.
    Context,
    /// The GPU or its driver is lost.
    Device,
}

/// Texts of CUDA, ROCm and libraries above them, in lower case. The first row that matches counts.
const TROUBLES: [(GpuFault, &[&str]); 3] = [
    (
        GpuFault::Memory,
        &[
            "cuda out of memory",
            "hip out of memory",
            "cuda error: out of memory",
            "cuda_error_out_of_memory",
            "cudaerrormemoryallocation",
            "cublas_status_alloc_failed",
            "cudnn_status_alloc_failed",
            "resource_exhausted: out of memory",
            "cupy.cuda.memory.outofmemoryerror",
            "outofmemoryerror: out of memory allocating",
            "by allocator gpu_",
            "failed to allocate memory for requested buffer",
        ],
    ),
    (
        GpuFault::Device,
        &[
            "no cuda-capable device",
            "no cuda gpus are available",
            "found no nvidia driver",
            "device(s) is/are busy or unavailable",
            "fallen off the bus",
            "gpu is lost",
            "nvrm: xid",
            "uncorrectable ecc",
            "driver/library version mismatch",
            "failed to initialize nvml",
            "cuda driver initialization failed",
            "cuda unknown error",
            "cuda_error_no_device",
            "cuda_error_device_unavailable",
            "cuda_error_system_not_ready",
            "cudaerrornodevice",
            "cudaerrordevicesunavailable",
            "no hip-capable device",
        ],
    ),
    (
        GpuFault::Context,
        &[
            "cuda error",
            "cuda_error_",
            "cudaerror",
            "cuda runtime error",
            "cublas_status_",
            "cudnn_status_",
            "device-side assert",
            "hip error",
        ],
    ),
];

impl GpuFault {
    /// Returns the fault that the text of a failure describes.
    pub(super) fn of(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        let is_named = |texts: &[&str]| texts.iter().any(|named| text.contains(named));
        TROUBLES.iter().find(|(_, texts)| is_named(texts)).map(|(trouble, _)| *trouble)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_libraries_are_distinguished() {
        let cases = [
            (
                "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
                Some(GpuFault::Memory),
            ),
            (
                "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be …",
                Some(GpuFault::Memory),
            ),
            (
                "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate",
                Some(GpuFault::Memory),
            ),
            (
                "OutOfMemoryError: Out of memory allocating 4,398,046,511,104 bytes (allocated so far: 0)",
                Some(GpuFault::Memory),
            ),
            (
                "ResourceExhaustedError: OOM when allocating tensor on … by allocator GPU_0_bfc",
                Some(GpuFault::Memory),
            ),
            (
                "RuntimeException: Failed to allocate memory for requested buffer of size 4096",
                Some(GpuFault::Memory),
            ),
            ("RuntimeError: CUDA error: device-side assert triggered", Some(GpuFault::Context)),
            (
                "RuntimeError: CUDA error: an illegal memory access was encountered",
                Some(GpuFault::Context),
            ),
            (
                "CUDARuntimeError: cudaErrorLaunchFailure: unspecified launch failure",
                Some(GpuFault::Context),
            ),
            ("RuntimeError: No CUDA GPUs are available", Some(GpuFault::Device)),
            (
                "RuntimeError: CUDA error: no CUDA-capable device is detected",
                Some(GpuFault::Device),
            ),
            (
                "RuntimeError: CUDA error: uncorrectable ECC error encountered",
                Some(GpuFault::Device),
            ),
            ("NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.", Some(GpuFault::Device)),
            ("ValueError: the oxide index maxid is not known", None),
            ("MemoryError: out of memory", None),
        ];
        for (text, expected) in cases {
            assert_eq!(GpuFault::of(text), expected, "{text}");
        }
    }
}
