//! Keeps freed memory in this process.

/// Bytes of freed memory that the process keeps: the value that the C library itself chooses after a block of half that
/// size was freed. The Python processes do the same (`python/src/memory.rs`).
#[cfg(target_env = "gnu")]
const KEPT_BYTES: i32 = 64 << 20;

/// Makes the C library keep freed memory: a table is as large as the one before it, and getting its pages from the
/// kernel again takes longer than filling them. Limits the number of arenas to the number of cores instead of eight
/// times as many, because an arena cannot use the memory that another keeps. For `main`, before threads start.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        // SAFETY: plain settings of the allocator.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT_BYTES / 2);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
            // Threads allocate in pieces of 64 MiB; without this setting, an empty piece is freed immediately.
            libc::mallopt(libc::M_TOP_PAD, KEPT_BYTES);
            libc::mallopt(libc::M_ARENA_MAX, cores.try_into().unwrap_or(i32::MAX));
        }
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Pages that the kernel has given to this thread.
    fn pages_taken() -> i64 {
        // SAFETY: all-zero is a legal value of this plain structure, and the call only fills it.
        unsafe {
            let mut usage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
            usage.ru_minflt
        }
    }

    #[test]
    fn thread_reuses_freed_memory() {
        keep_freed_memory();
        let tables = || {
            let columns: Vec<Vec<u8>> = (1..61).map(|column| vec![column; 1_200_000]).collect();
            std::hint::black_box(columns);
        };
        let decoding = std::thread::spawn(move || {
            tables();
            let before = pages_taken();
            (0..5).for_each(|_| tables());
            pages_taken() - before
        });
        let pages = decoding.join().expect("no panic");
        assert!(pages < 20_000, "{pages} pages of 4 KiB were taken anew for five times 17,600");
    }
}
