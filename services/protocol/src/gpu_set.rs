//! The GPUs of one process.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The GPUs that a process has, by their numbers on its node; mostly one. Its text is `GPU 0` or `GPUs 0, 1 and 2`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "Json", into = "Json")]
pub struct GpuSet(Vec<u32>);

/// Builds that know only one GPU for each process read and write its number.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Json {
    One(u32),
    Several(Vec<u32>),
}

impl GpuSet {
    /// Creates the set of these GPUs, or returns `None` if the list is empty.
    pub fn new(mut numbers: Vec<u32>) -> Option<Self> {
        numbers.sort_unstable();
        (!numbers.is_empty()).then_some(Self(numbers))
    }

    /// Returns the numbers, smallest first.
    pub fn numbers(&self) -> &[u32] {
        &self.0
    }
}

impl From<Json> for GpuSet {
    fn from(json: Json) -> Self {
        match json {
            Json::One(number) => Self(vec![number]),
            Json::Several(numbers) => Self(numbers),
        }
    }
}

impl From<GpuSet> for Json {
    fn from(GpuSet(numbers): GpuSet) -> Self {
        match numbers[..] {
            [number] => Self::One(number),
            _ => Self::Several(numbers),
        }
    }
}

impl fmt::Display for GpuSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(u32::to_string).collect();
        match texts.split_last() {
            Some((last, [])) => write!(formatter, "GPU {last}"),
            Some((last, others)) => write!(formatter, "GPUs {} and {last}", others.join(", ")),
            None => formatter.write_str("no GPU"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_gpu_is_a_number_in_json() {
        for (numbers, json, text) in [
            (vec![3], "3", "GPU 3"),
            (vec![1, 0], "[0,1]", "GPUs 0 and 1"),
            (vec![2, 4, 3], "[2,3,4]", "GPUs 2, 3 and 4"),
        ] {
            let gpus = GpuSet::new(numbers).expect("not empty");
            assert_eq!(serde_json::to_string(&gpus).expect("plain data"), json);
            assert_eq!(serde_json::from_str::<GpuSet>(json).expect("readable"), gpus);
            assert_eq!(gpus.to_string(), text);
        }
        assert_eq!(GpuSet::new(vec![]), None);
    }
}
