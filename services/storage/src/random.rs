//! Random bits for names that must differ between all processes.

/// Returns 64 random bits.
pub fn random_bits() -> u64 {
    getrandom::u64().expect("every supported system has a source of random bytes")
}

/// Returns 64 random bits as 16 hexadecimal digits.
pub fn random_name() -> String {
    format!("{:016x}", random_bits())
}
