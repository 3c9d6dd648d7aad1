//! Crash points: the steps of a write path at which a test may kill a role.

/// Defines the crash points of a role as the enum `CrashPoint`, in the order of its write path.
#[macro_export]
macro_rules! crash_points {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Steps of the write path, in order. The next run completes a job that was killed at any of them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum CrashPoint {
            $($(#[$doc])* $name,)*
        }

        impl CrashPoint {
            /// Every step, for crash tests.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}
