//! Counts the bytes that are allocated, for programs that ask what roles need.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::fleet::Meter;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);
static MOST: AtomicU64 = AtomicU64::new(0);
static BEFORE: AtomicU64 = AtomicU64::new(0);

/// The allocator of the system, which counts. For `#[global_allocator]`.
#[derive(Clone, Copy, Debug)]
pub struct CountedMemory;

impl CountedMemory {
    /// Measures what this allocator counts.
    pub const METER: Meter = Meter {
        begin: || {
            BEFORE.store(ALLOCATED.load(Relaxed), Relaxed);
            MOST.store(ALLOCATED.load(Relaxed), Relaxed);
        },
        most: || MOST.load(Relaxed) - BEFORE.load(Relaxed),
    };
}

fn add(bytes: u64) {
    MOST.fetch_max(ALLOCATED.fetch_add(bytes, Relaxed).wrapping_add(bytes), Relaxed);
}

// SAFETY: every call is passed on to the allocator of the system.
unsafe impl GlobalAlloc for CountedMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as u64);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // It may have fewer bytes than before.
        add((size as u64).wrapping_sub(layout.size() as u64));
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
